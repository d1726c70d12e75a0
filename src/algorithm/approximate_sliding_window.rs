//! A sliding window that is estimated from two counters: the permits used in the current window, and a fraction of
//! those used in the one before. It is the fraction of the window before that is still in the span of a window that
//! ends now, as if its permits had been used evenly.
//!
//! The fraction is counted in units of about 1/2^20 of a window and rounded up to a unit, so that all numbers are
//! exact. The permits are rounded down to whole ones.

use super::Algorithm;
use super::rate::{MAX_TICKS, ROOM};
use super::window::window;
use crate::Quota;
use crate::charge::Left;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ApproximateSlidingWindow {
    limit: u64,
    span: Span,
}

/// The length of a window in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountersLevel {
    state: CountersState,
    now: u64,
}

/// The state of the counters that a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountersState {
    pub(crate) current: u64,
    pub(crate) previous: u64,
    /// The start of the current window.
    pub(crate) starts_at: u64,
    pub(crate) span: Span,
}

impl Span {
    const UNITS: u64 = 1 << 20;
    const MAX: u64 = MAX_TICKS / 2;

    /// `None` for a length that no quota has.
    #[cfg(feature = "redis")]
    pub(crate) fn new(micros: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&micros).then_some(Self(micros))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn micros(self) -> u64 {
        self.0
    }

    pub(crate) fn unit(self) -> u64 {
        self.0.div_ceil(Self::UNITS)
    }

    pub(crate) fn units(self) -> u64 {
        self.0.div_ceil(self.unit())
    }

    /// The permits of a previous window that count when so much of the current one has elapsed.
    fn share(self, previous: u64, elapsed: u64) -> u64 {
        let units = (self.0 - elapsed).div_ceil(self.unit());
        (u128::from(previous) * u128::from(units) / u128::from(self.units())) as u64
    }

    /// The first time since the start of a window at which at most `most` of the previous window
    /// counts. The length of the window if there is none.
    fn share_falls_to(self, previous: u64, most: u64) -> u64 {
        if previous <= most {
            return 0;
        }
        let product = (u128::from(most) + 1) * u128::from(self.units());
        let units = product.div_ceil(previous.into()) as u64 - 1;
        self.0.saturating_sub(units * self.unit())
    }
}

impl ApproximateSlidingWindow {
    /// A counter times the units of a window is exact.
    const MAX: u64 = 1 << 33;

    pub(crate) fn new(quota: &Quota) -> Result<Self, String> {
        let (limit, micros) = window(quota, Self::MAX / ROOM, Span::MAX)?;
        Ok(Self { limit, span: Span(micros) })
    }

    #[cfg(feature = "redis")]
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    fn of(&self, current: u64, now: u64) -> CountersLevel {
        let starts_at = now - now % self.span.0;
        CountersLevel {
            state: CountersState { current, previous: 0, starts_at, span: self.span },
            now,
        }
    }
}

impl Algorithm for ApproximateSlidingWindow {
    type Level = CountersLevel;
    type State = CountersState;

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> u64 {
        self.span.0
    }

    fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
        let limit = share(self.limit);
        (limit > 0).then_some(Self { limit, ..*self })
    }

    fn level(&self, state: Option<CountersState>, now: u64) -> CountersLevel {
        let Some(mut state) = state else { return self.of(0, now) };
        let CountersState { current, starts_at, span, .. } = state;
        match now.saturating_sub(starts_at) / span.0 {
            0 => {}
            1 => {
                let starts_at = starts_at + span.0;
                state = CountersState { current: 0, previous: current, starts_at, span };
            }
            _ => return self.of(0, now),
        }
        if (state.current, state.previous) == (0, 0) {
            self.of(0, now)
        } else {
            CountersLevel { state, now }
        }
    }

    fn empty(&self, now: u64) -> CountersLevel {
        self.of(self.limit, now)
    }

    fn used(level: &CountersLevel) -> u64 {
        let CountersState { current, previous, starts_at, span } = level.state;
        current + span.share(previous, level.now.saturating_sub(starts_at))
    }

    fn time_to(level: &CountersLevel, used: u64) -> u64 {
        if Self::used(level) <= used {
            return 0;
        }
        let CountersState { current, previous, starts_at, span } = level.state;
        let in_this_window =
            used.checked_sub(current).map(|used| span.share_falls_to(previous, used));
        let at = match in_this_window {
            Some(at) if at < span.0 || current == 0 => at,
            // In the next window the current one is the previous.
            _ => span.0 + span.share_falls_to(current, used),
        };
        starts_at.saturating_add(at).saturating_sub(level.now)
    }

    /// Permits that were used in windows of another length count as used in the current window.
    fn charge(&self, level: &mut CountersLevel, cost: u64) {
        if !self.is_own(level) {
            *level = self.of(Self::used(level), level.now);
        }
        level.state.current += cost;
    }

    /// The time until the end of the current window.
    fn counts_for(level: &CountersLevel) -> u64 {
        let CountersState { current, starts_at, span, .. } = level.state;
        if current == 0 { 0 } else { starts_at.saturating_add(span.0).saturating_sub(level.now) }
    }

    fn most_stored(&self) -> u64 {
        Self::MAX
    }

    fn returnable(&self, permits: u64, left: Left, delay: u64) -> u64 {
        if left.counts_for > delay { permits } else { 0 }
    }

    /// Permits of the current window come back first.
    fn credit(&self, level: &mut CountersLevel, permits: u64) {
        self.charge(level, 0);
        let state = &mut level.state;
        let of_current = permits.min(state.current);
        state.current -= of_current;
        state.previous = state.previous.saturating_sub(permits - of_current);
        if (state.current, state.previous) == (0, 0) {
            *level = self.of(0, level.now);
        }
    }

    fn is_own(&self, level: &CountersLevel) -> bool {
        level.state.span == self.span
    }

    #[cfg(feature = "redis")]
    fn longest(&self) -> u64 {
        2 * self.span.0
    }

    fn state(level: &CountersLevel, _: u64) -> CountersState {
        level.state
    }

    fn until(state: &CountersState) -> u64 {
        let CountersState { current, previous, starts_at, span } = *state;
        match (current, previous) {
            (0, 0) => 0,
            (0, _) => starts_at.saturating_add(span.0),
            _ => starts_at.saturating_add(2 * span.0),
        }
    }

    #[cfg(feature = "redis")]
    fn earlier(state: CountersState, by: u64, _: u64) -> CountersState {
        CountersState { starts_at: state.starts_at.saturating_sub(by), ..state }
    }

    #[cfg(feature = "redis")]
    fn is_too_far(state: &CountersState, now: u64) -> bool {
        state.current > Self::MAX
            || state.previous > Self::MAX
            || state.starts_at > now.saturating_add(MAX_TICKS)
    }
}

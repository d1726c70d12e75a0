//! A sliding window whose permits are counted in segments. What was used in a segment counts until the
//! whole segment is older than the window, so no span of a window admits more than the limit, and a
//! permit comes back at most one segment late. A log of all permits would be exact to the microsecond,
//! but takes memory in proportion to the limit.

use super::Algorithm;
use super::rate::{MAX_TICKS, ROOM};
use super::window::window;
use crate::Quota;
use crate::charge::Left;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindow {
    limit: u64,
    /// The length of a segment in microseconds.
    width: u64,
    /// The number of segments in a window.
    segments: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentsLevel {
    state: SegmentsState,
    now: u64,
}

/// The state of a window that a store keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentsState {
    pub(crate) width: u64,
    /// The number of the newest segment, counted from 1970.
    pub(crate) newest: u64,
    /// The permits used in each segment of a window and in the one before, the newest first.
    pub(crate) used: Box<[u32]>,
}

impl SlidingWindow {
    pub(crate) const MAX_SEGMENTS: u32 = 60;

    pub(crate) fn new(quota: &Quota, segments: u32) -> Result<Self, String> {
        let (limit, micros) = window(quota, u64::from(u32::MAX) / ROOM, MAX_TICKS / 2)?;
        if !(1..=Self::MAX_SEGMENTS).contains(&segments) {
            return Err(format!("a window has 1 to {} segments", Self::MAX_SEGMENTS));
        }
        let width = micros / u64::from(segments);
        if !micros.is_multiple_of(segments.into()) || width < 1_000 {
            return Err(
                "a segment is a whole number of microseconds, and at least 1 ms long: use a \
                        number of segments that divides the window"
                    .into(),
            );
        }
        Ok(Self { limit, width, segments: segments as usize })
    }

    #[cfg(feature = "redis")]
    pub(crate) fn width(&self) -> u64 {
        self.width
    }

    #[cfg(feature = "redis")]
    pub(crate) fn segments(&self) -> usize {
        self.segments
    }

    /// The level if all permits were used in the segment of `now`.
    fn of(&self, used: u64, now: u64) -> SegmentsLevel {
        let mut segments = vec![0; self.segments + 1];
        segments[0] = used.try_into().unwrap_or(u32::MAX);
        let (width, newest, used) = (self.width, now / self.width, segments.into());
        SegmentsLevel { state: SegmentsState { width, newest, used }, now }
    }
}

impl SegmentsState {
    /// The time at which the segment of this index counts no more.
    fn ends_at(&self, index: usize) -> u64 {
        let end = self.newest.saturating_add(self.used.len() as u64).saturating_sub(index as u64);
        end.saturating_mul(self.width)
    }

    /// The state at a later time.
    fn at(mut self, now: u64) -> Self {
        let newest = (now / self.width).max(self.newest);
        let turns = usize::try_from(newest - self.newest).unwrap_or(usize::MAX);
        let turns = turns.min(self.used.len());
        self.used.rotate_right(turns);
        self.used[..turns].fill(0);
        Self { newest, ..self }
    }
}

impl Algorithm for SlidingWindow {
    type Level = SegmentsLevel;
    type State = SegmentsState;

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> u64 {
        self.width * self.segments as u64
    }

    fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
        let limit = share(self.limit);
        (limit > 0).then_some(Self { limit, ..*self })
    }

    fn level(&self, state: Option<SegmentsState>, now: u64) -> SegmentsLevel {
        let level = state.map(|state| SegmentsLevel { state: state.at(now), now });
        level.filter(|level| Self::used(level) > 0).unwrap_or_else(|| self.of(0, now))
    }

    fn empty(&self, now: u64) -> SegmentsLevel {
        self.of(self.limit, now)
    }

    fn used(level: &SegmentsLevel) -> u64 {
        level.state.used.iter().copied().map(u64::from).sum()
    }

    fn time_to(level: &SegmentsLevel, used: u64) -> u64 {
        let (mut left, mut wait) = (Self::used(level), 0);
        for (index, in_segment) in level.state.used.iter().enumerate().rev() {
            if left <= used {
                break;
            }
            left -= u64::from(*in_segment);
            wait = level.state.ends_at(index).saturating_sub(level.now);
        }
        wait
    }

    /// Permits that were used in segments of another length count as used in the current segment.
    fn charge(&self, level: &mut SegmentsLevel, cost: u64) {
        if !self.is_own(level) {
            *level = self.of(Self::used(level), level.now);
        }
        // At most `most_stored`.
        level.state.used[0] += cost as u32;
    }

    fn most_stored(&self) -> u64 {
        u32::MAX.into()
    }

    /// Only in the segment in which they were taken.
    fn returnable(&self, permits: u64, left: Left, delay: u64) -> u64 {
        if left.reset_after > self.window().saturating_add(delay) { permits } else { 0 }
    }

    /// Permits of the newest segments come back first.
    fn credit(&self, level: &mut SegmentsLevel, permits: u64) {
        self.charge(level, 0);
        let mut left = u32::try_from(permits).unwrap_or(u32::MAX);
        for used in &mut level.state.used {
            let of_segment = left.min(*used);
            *used -= of_segment;
            left -= of_segment;
        }
        if Self::used(level) == 0 {
            *level = self.of(0, level.now);
        }
    }

    fn is_own(&self, level: &SegmentsLevel) -> bool {
        level.state.width == self.width && level.state.used.len() == self.segments + 1
    }

    #[cfg(feature = "redis")]
    fn longest(&self) -> u64 {
        self.window() + self.width
    }

    fn state(level: &SegmentsLevel, _: u64) -> SegmentsState {
        level.state.clone()
    }

    fn until(state: &SegmentsState) -> u64 {
        let newest = state.used.iter().position(|used| *used > 0);
        newest.map_or(0, |index| state.ends_at(index))
    }

    #[cfg(feature = "redis")]
    fn earlier(state: SegmentsState, by: u64, now: u64) -> SegmentsState {
        let segments = now.saturating_add(by) / state.width - now / state.width;
        SegmentsState { newest: state.newest.saturating_sub(segments), ..state }
    }

    #[cfg(feature = "redis")]
    fn is_too_far(state: &SegmentsState, now: u64) -> bool {
        state.newest.saturating_mul(state.width) > now.saturating_add(MAX_TICKS)
    }
}

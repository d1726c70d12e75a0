//! A fixed window: at most so many permits in each window of time. What is stored is the window and the
//! permits used in it, so revisions with windows of other lengths read it too. One that charges a window
//! makes it at least as long as its own.
//!
//! The windows of a calendar are numbers that change, because a script cannot know time zones. The process
//! computes the starts of four windows around its own time, and the clock of the server decides which window
//! it is. When the current window has ended, the next check starts a new revision with new starts
//! (`Revision::renewed`). The clock of a process may be wrong by more than a window: then the windows have
//! the length of the nearest known one. → `tests/it/calendars.rs`

use std::ops::Range;

use super::rate::{MAX_TICKS, ROOM};
use super::window::window;
use super::{Algorithm, LeaseFault};
use crate::Quota;
use crate::calendar::{CalendarUnit, boundaries};
use crate::quota::WindowStart;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedWindow {
    limit: u64,
    windows: Windows,
}

/// The times at which windows start and end, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Windows {
    /// A window starts with the first check, and has this length.
    FirstCheck(u64),
    /// A window follows another, and one of them starts at `start`.
    Every { span: u64, start: u64 },
    /// Windows start at these times, and later: a calendar knows further ones.
    Calendar([u64; 4]),
}

/// The permits used in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowLevel {
    window: WindowState,
    now: u64,
}

/// The state of a window that a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowState {
    pub(crate) used: u64,
    /// The start of the window, in microseconds like its end.
    pub(crate) starts_at: u64,
    pub(crate) ends_at: u64,
}

impl FixedWindow {
    /// Windows of whole weeks start on Mondays. 1970 began on a Thursday.
    const MONDAY: u64 = 4 * 86_400_000_000;
    const WEEK: u64 = 7 * Self::DAY;
    const DAY: u64 = 24 * Self::HOUR;
    const HOUR: u64 = 60 * Self::MINUTE;
    const MINUTE: u64 = 60 * Self::SECOND;
    const SECOND: u64 = 1_000_000;

    pub(crate) fn new(quota: &Quota, start: WindowStart, now: u64) -> Result<Self, String> {
        let (limit, span) = window(quota, MAX_TICKS / ROOM, MAX_TICKS)?;
        let windows = match start {
            WindowStart::FirstCheck => Windows::FirstCheck(span),
            WindowStart::Clock if span.is_multiple_of(Self::WEEK) => {
                Windows::Every { span, start: Self::MONDAY }
            }
            WindowStart::Clock => Windows::Every { span, start: 0 },
            WindowStart::Month(zone) => {
                Windows::Calendar(boundaries(CalendarUnit::Month, zone, now)?)
            }
            WindowStart::Zone(zone) => {
                let unit = match span {
                    // Seconds and minutes start at the same times everywhere. For them this only checks
                    // the name of the zone.
                    Self::SECOND | Self::MINUTE | Self::HOUR => CalendarUnit::Hour,
                    Self::DAY => CalendarUnit::Day,
                    Self::WEEK => CalendarUnit::Week,
                    _ => {
                        return Err("a window in a time zone is a second, a minute, an hour, a day, \
                                    a week or a month: use `s`, `min`, `h`, `day`, `week` or `month`"
                            .into());
                    }
                };
                let starts = boundaries(unit, zone, now)?;
                match span {
                    Self::SECOND | Self::MINUTE => Windows::Every { span, start: 0 },
                    _ => Windows::Calendar(starts),
                }
            }
        };
        Ok(Self { limit, windows })
    }

    #[cfg(feature = "redis")]
    pub(crate) fn windows(&self) -> Windows {
        self.windows
    }

    /// The current window of a calendar. `None` if all windows are known.
    pub(crate) fn valid_during(&self) -> Option<Range<u64>> {
        match self.windows {
            Windows::Calendar([_, this, next, _]) => Some(this..next),
            Windows::FirstCheck(_) | Windows::Every { .. } => None,
        }
    }

    /// The level of a window that has `now` in it or starts then.
    fn used_at(&self, used: u64, now: u64) -> WindowLevel {
        let (starts_at, ends_at) = self.windows.at(now);
        WindowLevel { window: WindowState { used, starts_at, ends_at }, now }
    }
}

impl Windows {
    /// The start and the end of the window that has this time in it.
    fn at(self, now: u64) -> (u64, u64) {
        let every = |span: u64, start: u64| {
            let since_start = now.saturating_add(span - start % span) % span;
            (now.saturating_sub(since_start), now.saturating_add(span - since_start))
        };
        match self {
            Self::FirstCheck(span) => (now, now.saturating_add(span)),
            Self::Every { span, start } => every(span, start),
            Self::Calendar([first, second, third, fourth]) => match now {
                _ if now >= fourth => every(fourth - third, fourth),
                _ if now >= third => (third, fourth),
                _ if now >= second => (second, third),
                // Also before the first.
                _ => every(second - first, first),
            },
        }
    }

    /// The length of the current window.
    fn span(self) -> u64 {
        match self {
            Self::FirstCheck(span) | Self::Every { span, .. } => span,
            Self::Calendar([_, this, next, _]) => next - this,
        }
    }
}

impl Algorithm for FixedWindow {
    type Level = WindowLevel;
    type State = WindowState;

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> u64 {
        self.windows.span()
    }

    fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
        let limit = share(self.limit);
        (limit > 0).then_some(Self { limit, ..*self })
    }

    /// Permits are used in the window in which they were charged.
    fn leased(&self, lease: u64) -> Result<Self, LeaseFault> {
        LeaseFault::check(lease, self.limit, self.windows.span(), self.limit).map(|()| *self)
    }

    #[cfg(feature = "redis")]
    fn keeps(level: &WindowLevel) -> u64 {
        level.window.ends_at.saturating_sub(level.now)
    }

    /// A window without permits used does not start before the next check.
    fn level(&self, state: Option<WindowState>, now: u64) -> WindowLevel {
        match state {
            Some(window) if window.used > 0 && window.ends_at > now => WindowLevel { window, now },
            _ => self.used_at(0, now),
        }
    }

    fn empty(&self, now: u64) -> WindowLevel {
        self.used_at(self.limit, now)
    }

    fn used(level: &WindowLevel) -> u64 {
        level.window.used
    }

    fn time_to(level: &WindowLevel, used: u64) -> u64 {
        let WindowLevel { window, now } = level;
        if window.used <= used { 0 } else { window.ends_at.saturating_sub(*now) }
    }

    fn charge(&self, level: &mut WindowLevel, cost: u64) {
        let window = &mut level.window;
        let own_end = match self.windows {
            Windows::FirstCheck(span) => window.starts_at.saturating_add(span),
            Windows::Every { .. } | Windows::Calendar(_) => self.windows.at(level.now).1,
        };
        window.used += cost;
        window.ends_at = window.ends_at.max(own_end);
    }

    fn credit(&self, level: &mut WindowLevel, permits: u64) {
        self.charge(level, 0);
        level.window.used = level.window.used.saturating_sub(permits);
        if level.window.used == 0 {
            *level = self.used_at(0, level.now);
        }
    }

    /// A window ends when it ends, whatever the length of the next.
    fn is_own(&self, _: &WindowLevel) -> bool {
        true
    }

    #[cfg(feature = "redis")]
    fn longest(&self) -> u64 {
        self.windows.span()
    }

    fn state(level: &WindowLevel, _: u64) -> WindowState {
        let used = level.window.used;
        WindowState { ends_at: if used > 0 { level.window.ends_at } else { 0 }, ..level.window }
    }

    fn until(state: &WindowState) -> u64 {
        state.ends_at
    }

    #[cfg(feature = "redis")]
    fn earlier(state: WindowState, by: u64, _: u64) -> WindowState {
        let WindowState { used, starts_at, ends_at } = state;
        let (starts_at, ends_at) = (starts_at.saturating_sub(by), ends_at.saturating_sub(by));
        WindowState { used, starts_at, ends_at }
    }

    #[cfg(feature = "redis")]
    fn is_too_far(state: &WindowState, now: u64) -> bool {
        state.used > MAX_TICKS || state.ends_at.saturating_sub(now) > MAX_TICKS
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::Limit;
    use super::*;

    const NOW: u64 = 1_795_000_000_000_000;

    fn any_window() -> impl Strategy<Value = FixedWindow> {
        let start = prop_oneof![Just(WindowStart::FirstCheck), Just(WindowStart::Clock)];
        (1..=20u64, 1_000..=1_000_000u64, start).prop_map(|(limit, micros, start)| {
            let quota = Quota::new(limit, Duration::from_micros(micros));
            FixedWindow::new(&quota, start, NOW).unwrap()
        })
    }

    fn wait(window: &FixedWindow, level: &WindowLevel, cost: u64) -> u64 {
        FixedWindow::time_to(level, window.most_used(cost))
    }

    /// Takes a cost if it fits.
    fn check(window: &FixedWindow, state: &mut Option<WindowState>, now: u64, cost: u64) -> bool {
        let mut level = window.level(*state, now);
        let fits = window.fits(&level, cost, None);
        if fits {
            window.charge(&mut level, cost);
            *state = Some(FixedWindow::state(&level, now));
        }
        fits
    }

    proptest! {
        /// A span that is shorter than a window touches at most two of them.
        #[test]
        fn no_span_up_to_a_window_admits_more_than_twice_the_limit(
            window in any_window(), pauses in prop::collection::vec((0..=100_000u64, 1..=5u64), 1..200),
        ) {
            let (mut state, mut now, mut admitted) = (None, NOW, Vec::new());
            for (pause, cost) in pauses {
                now += pause;
                if check(&window, &mut state, now, cost) {
                    admitted.push((now, cost));
                }
            }
            for (index, (first, _)) in admitted.iter().enumerate() {
                let span = admitted[index..].iter().take_while(|(at, _)| at - first < window.window());
                prop_assert!(span.map(|(_, cost)| cost).sum::<u64>() <= 2 * window.limit);
            }
        }

        /// Between the start of a window and its end.
        #[test]
        fn no_window_on_the_clock_admits_more_than_the_limit(
            limit in 1..=9u64, micros in 1_000..=100_000u64,
            pauses in prop::collection::vec((0..=50_000u64, 1..=5u64), 1..200),
        ) {
            let quota = Quota::new(limit, Duration::from_micros(micros));
            let window = FixedWindow::new(&quota, WindowStart::Clock, NOW).unwrap();
            let (mut state, mut now) = (None, NOW);
            let mut admitted = std::collections::HashMap::<u64, u64>::new();
            for (pause, cost) in pauses {
                now += pause;
                let used = admitted.entry(now / micros).or_default();
                let is_allowed = check(&window, &mut state, now, cost);
                prop_assert_eq!(is_allowed, *used + cost <= limit);
                *used += if is_allowed { cost } else { 0 };
            }
        }

        #[test]
        fn a_denied_check_is_allowed_after_exactly_the_reported_wait(
            window in any_window(), pauses in prop::collection::vec((0..=100_000u64, 1..=5u64), 1..50),
        ) {
            let (mut state, mut now) = (None, NOW);
            for (pause, cost) in pauses {
                now += pause;
                let cost = cost.min(window.limit);
                let wait = wait(&window, &window.level(state, now), cost);
                if wait == 0 {
                    prop_assert!(check(&window, &mut state, now, cost));
                } else {
                    prop_assert!(!check(&window, &mut state.clone(), now + wait - 1, cost));
                    prop_assert!(check(&window, &mut state.clone(), now + wait, cost));
                }
            }
        }
    }

    #[test]
    fn a_week_starts_on_monday_and_a_day_at_midnight() {
        // 2026-11-22 is a Sunday.
        let sunday = 1_795_305_600_000_000;
        let left = |quota: Quota, now| {
            FixedWindow::new(&quota, WindowStart::Clock, NOW)
                .unwrap()
                .level(None, now)
                .window
                .ends_at
                - now
        };
        let days = |days: u64| Duration::from_secs(days * 86_400);
        assert_eq!(left(Quota::new(1, days(1)), sunday), 86_400_000_000);
        assert_eq!(left(Quota::new(1, days(1)), sunday - 1), 1);
        assert_eq!(left(Quota::new(1, days(7)), sunday), 86_400_000_000);
        assert_eq!(left(Quota::new(1, days(7)), sunday + 86_400_000_000), 7 * 86_400_000_000);
        assert_eq!(left(Quota::per_hour(1), sunday + 1), 3_599_999_999);
    }

    #[test]
    fn used_permits_stay_used_until_the_window_ends_in_which_they_were() {
        let window = |limit, seconds| {
            let quota = Quota::new(limit, Duration::from_secs(seconds));
            FixedWindow::new(&quota, WindowStart::FirstCheck, NOW).unwrap()
        };
        let mut state = None;
        assert!(check(&window(5, 100), &mut state, NOW, 5));
        let level = window(8, 10).level(state, NOW + 1_000_000);
        assert_eq!((level.window.used, FixedWindow::time_to(&level, 0)), (5, 99_000_000));
        assert_eq!(window(8, 10).numbers(&level).remaining, 3);
        assert_eq!(window(3, 10).numbers(&level).remaining, 0);
        assert_eq!(wait(&window(3, 10), &level, 1), 99_000_000);
        // A longer window that takes permits too lasts as long as its own.
        assert!(check(&window(6, 300), &mut state, NOW + 1_000_000, 1));
        assert_eq!(wait(&window(5, 100), &window(5, 100).level(state, NOW), 1), 300_000_000);
    }

    /// A clock of the server that differs from the process's, also by more than a window.
    #[test]
    fn windows_of_a_calendar_follow_each_other_at_any_time() {
        const HOUR: u64 = 3_600_000_000;
        let starts = [0, 24, 47, 72].map(|hours| NOW + hours * HOUR);
        let windows = Windows::Calendar(starts);
        for (hours, from, to) in [
            (0, 0, 24),
            (23, 0, 24),
            (24, 24, 47),
            (46, 24, 47),
            (47, 47, 72),
            (71, 47, 72),
            (72, 72, 97),
            (97, 97, 122),
            (1_000, 997, 1_022),
        ] {
            let at = |hours| NOW + hours * HOUR;
            assert_eq!(windows.at(at(hours)), (at(from), at(to)), "{hours}");
        }
        assert_eq!(windows.at(NOW - 1), (NOW - 24 * HOUR, NOW));
        assert_eq!(windows.at(NOW - 30 * HOUR), (NOW - 48 * HOUR, NOW - 24 * HOUR));
        assert_eq!(windows.span(), 23 * HOUR);
    }

    #[test]
    fn a_window_that_cannot_work_is_an_error_that_says_what_to_change() {
        for (quota, says) in [
            (Quota::per_second(0), "1 or more"),
            (Quota::per_second(1 << 53), "at most 409418147942772"),
            (Quota::per_second(10).burst(20), "remove `burst`"),
            (Quota::new(1, Duration::from_micros(999)), "at least 1 ms"),
            (Quota::new(1, Duration::from_nanos(1_000_001)), "whole number of microseconds"),
            (Quota::new(1, Duration::from_secs(1 << 40)), "142 years"),
        ] {
            let error = Limit::new("q", &quota.calendar(), 0).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("`q`"), "{quota:?}: {error}");
        }
    }
}

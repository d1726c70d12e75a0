//! The time for which the store has not decided all checks, as a person on call needs to know it. It follows from what
//! was decided, not from the state of connections: a server whose checks are all late has open connections, too.
//!
//! It has begun with a check that the failure mode decided. It has ended when there was none for [`RECENT`] while the
//! store decided others, or for [`IDLE`] in any case: the checks of an instance with little traffic may be far apart.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use crate::counts::Counted;

/// The seconds whose checks are reported, and after which the store works again if it decides checks.
const RECENT: usize = 10;
/// The seconds without a check by the failure mode after which nothing is known.
const IDLE: usize = 60;

/// The checks of the last seconds, and those by the failure mode since they began.
#[derive(Debug, Default)]
pub(crate) struct Degradation {
    recent: VecDeque<Counted>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    since: Duration,
    last: Duration,
    /// The seconds after the last check by the failure mode.
    seconds: usize,
    /// True if the store has decided a check in these seconds.
    is_store_back: bool,
}

/// The checks of the last seconds, by what decided them. Times are in seconds since 1970.
#[derive(Debug, Serialize, PartialEq)]
pub(crate) struct Degraded {
    since: f64,
    last: f64,
    seconds: usize,
    store: u64,
    local: u64,
    unchecked: u64,
    failed: u64,
}

impl Degradation {
    /// Adds the checks of a second, with the times of its start and its end.
    pub(crate) fn add(&mut self, start: Duration, end: Duration, counted: Counted) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(counted);
        if counted.local + counted.unchecked + counted.failed > 0 {
            let since = self.current.as_ref().map_or(start, |current| current.since);
            self.current = Some(Current { since, last: end, seconds: 0, is_store_back: false });
        } else if let Some(current) = &mut self.current {
            current.seconds += 1;
            current.is_store_back |= counted.store > 0;
            let limit = if current.is_store_back { RECENT } else { IDLE };
            if current.seconds >= limit {
                self.current = None;
            }
        }
    }

    /// Returns `None` if the store decides all checks.
    pub(crate) fn get(&self) -> Option<Degraded> {
        let current = self.current.as_ref()?;
        let recent = self.recent.iter().copied().fold(Counted::default(), Counted::plus);
        Some(Degraded {
            since: current.since.as_secs_f64(),
            last: current.last.as_secs_f64(),
            seconds: RECENT,
            store: recent.store,
            local: recent.local,
            unchecked: recent.unchecked,
            failed: recent.failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Counted = counted(5, 0);
    const LOCAL: Counted = counted(0, 3);
    const NONE: Counted = counted(0, 0);

    const fn counted(store: u64, local: u64) -> Counted {
        let (allowed, denied) = (store + local, 0);
        Counted { allowed, denied, would_be_denied: 0, store, local, unchecked: 0, failed: 0 }
    }

    /// Adds these seconds after the others.
    fn add(degradation: &mut Degradation, time: &mut u64, counted: Counted, seconds: usize) {
        for _ in 0..seconds {
            let [start, end] = [*time, *time + 1].map(Duration::from_secs);
            degradation.add(start, end, counted);
            *time += 1;
        }
    }

    /// Returns the time since which the failure mode decides, and its last check.
    fn times(degradation: &Degradation) -> Option<(f64, f64)> {
        degradation.get().map(|degraded| (degraded.since, degraded.last))
    }

    #[test]
    fn an_outage_is_as_long_as_the_failure_mode_decides() {
        let (mut it, mut time) = (Degradation::default(), 0);
        add(&mut it, &mut time, STORE, 100);
        assert_eq!(it.get(), None);
        add(&mut it, &mut time, LOCAL, 1_000);
        let expected = Degraded {
            since: 100.0,
            last: 1_100.0,
            seconds: RECENT,
            store: 0,
            local: 30,
            unchecked: 0,
            failed: 0,
        };
        assert_eq!(it.get(), Some(expected));
        // A second in which the store answers is not the end.
        add(&mut it, &mut time, STORE, RECENT - 1);
        add(&mut it, &mut time, LOCAL, 1);
        assert_eq!(times(&it), Some((100.0, 1_110.0)));
        add(&mut it, &mut time, STORE, RECENT - 1);
        assert!(it.get().is_some());
        add(&mut it, &mut time, STORE, 1);
        assert_eq!(it.get(), None);
        add(&mut it, &mut time, LOCAL, 1);
        assert_eq!(times(&it), Some((1_120.0, 1_121.0)), "another one");
    }

    #[test]
    fn seconds_without_checks_do_not_prove_that_the_store_works() {
        let (mut it, mut time) = (Degradation::default(), 0);
        for _ in 0..10 {
            add(&mut it, &mut time, LOCAL, 1);
            add(&mut it, &mut time, NONE, IDLE - 1);
        }
        assert_eq!(times(&it), Some((0.0, 541.0)));
        assert_eq!(it.get().unwrap().local, 0, "not in the last seconds");
        add(&mut it, &mut time, NONE, 1);
        assert_eq!(it.get(), None);
    }

    #[test]
    fn each_failure_mode_counts() {
        for counted in [Counted { unchecked: 1, ..NONE }, Counted { failed: 1, ..NONE }] {
            let (mut it, mut time) = (Degradation::default(), 0);
            add(&mut it, &mut time, counted, 1);
            let found = it.get().unwrap();
            assert_eq!((found.unchecked, found.failed), (counted.unchecked, counted.failed));
        }
    }
}

//! Notices that this process was suspended, so that the other instances may have divided its share.
//!
//! The others forget an instance that has not registered for a while. One whose attempts failed assumes that
//! the others could not register either. (It cannot know if only its own connection failed.) One that was
//! suspended made no attempt, so it knows nothing. So the time between its attempts decides, on two clocks,
//! because a suspended machine stops the monotonic one.
//!
//! Its share is gone only when an attempt after that fails: a connection that broke meanwhile is no outage,
//! and denying everything until there is a new one would be worse. → `tests/it/local.rs`

use std::time::{Duration, Instant, SystemTime};

/// A point in time on two clocks. The first one stops while the machine is suspended, and the other one can be set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    instant: Instant,
    wall: SystemTime,
}

/// The time at which this instance registered last, and that since which it has been running.
#[derive(Debug)]
pub(super) struct Presence {
    registered: Option<Moment>,
    /// The latest time at which it was running.
    latest: Moment,
    running_since: Moment,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { instant: Instant::now(), wall: SystemTime::now() }
    }

    /// The time that may have passed: the longer one of what the two clocks say.
    fn since(self, earlier: Self) -> Duration {
        let wall = self.wall.duration_since(earlier.wall).unwrap_or_default();
        self.instant.saturating_duration_since(earlier.instant).max(wall)
    }
}

impl Presence {
    pub(super) fn new(now: Moment) -> Self {
        Self { registered: None, latest: now, running_since: now }
    }

    /// The process is running, and registers more often than every half of `gone_after`, the time after which
    /// the others forget an instance. Returns true if it has been running since the last call.
    pub(super) fn is_running(&mut self, now: Moment, gone_after: Duration) -> bool {
        // After an outage, the others use another plan once they have registered for this time.
        let is_uninterrupted = now.since(self.latest) <= gone_after / 2;
        if !is_uninterrupted {
            self.running_since = now;
        }
        self.latest = now;
        is_uninterrupted
    }

    /// A registration that was sent at this time has succeeded.
    pub(super) fn registered(&mut self, sent: Moment) {
        self.registered = Some(sent);
    }

    /// True if the others may have forgotten this instance while it was suspended. If it was running and could
    /// not register, Redis has failed, for the others as well.
    pub(super) fn may_be_forgotten(&self, gone_after: Duration) -> bool {
        self.registered.is_some_and(|sent| self.running_since.since(sent) > gone_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE_AFTER: Duration = Duration::from_secs(10);

    /// The process, with the times of its two clocks in seconds.
    struct Process {
        presence: Presence,
        now: Moment,
    }

    impl Process {
        fn registered() -> Self {
            let now = Moment::now();
            let mut presence = Presence::new(now);
            presence.registered(now);
            Self { presence, now }
        }

        fn pass(&mut self, seconds: u64, wall: i64) {
            let step = Duration::from_secs(wall.unsigned_abs());
            self.now.instant += Duration::from_secs(seconds);
            self.now.wall = if wall < 0 { self.now.wall - step } else { self.now.wall + step };
        }

        /// Tries to register in vain, which takes a second. Returns true if it may have been forgotten.
        fn fails_to_register(&mut self) -> bool {
            self.presence.is_running(self.now, GONE_AFTER);
            self.pass(1, 1);
            self.presence.is_running(self.now, GONE_AFTER)
                && self.presence.may_be_forgotten(GONE_AFTER)
        }

        fn is_forgotten_after(&mut self, seconds: u64, wall: i64) -> bool {
            self.pass(seconds, wall);
            self.fails_to_register()
        }
    }

    #[test]
    fn a_process_that_was_suspended_for_longer_than_the_others_wait_may_be_forgotten() {
        assert!(!Process::registered().is_forgotten_after(10, 10));
        assert!(Process::registered().is_forgotten_after(11, 11));
    }

    #[test]
    fn a_machine_whose_monotonic_clock_stops_while_it_is_suspended_may_be_forgotten() {
        assert!(Process::registered().is_forgotten_after(0, 11));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_hide_a_suspension() {
        assert!(Process::registered().is_forgotten_after(11, -3_600));
    }

    /// Otherwise every outage that lasts for longer would take all shares away.
    #[test]
    fn a_process_that_runs_in_a_long_outage_is_not_forgotten() {
        let mut process = Process::registered();
        for _ in 0..1_000 {
            assert!(!process.is_forgotten_after(2, 2));
        }
    }

    /// Meanwhile Redis may have worked for long enough that the others agree on a plan.
    #[test]
    fn a_process_that_is_suspended_in_a_long_outage_may_be_forgotten() {
        let mut process = Process::registered();
        for _ in 0..10 {
            assert!(!process.is_forgotten_after(2, 2));
        }
        assert!(process.is_forgotten_after(6, 6));
        assert!(process.is_forgotten_after(2, 2), "until it has registered");
        process.presence.registered(process.now);
        assert!(!process.is_forgotten_after(2, 2));
    }

    /// A function that runs only during requests is suspended in the middle of a call, whose reply may have
    /// arrived.
    #[test]
    fn a_registration_that_is_suspended_proves_nothing() {
        let Process { mut presence, mut now } = Process::registered();
        for _ in 0..3 {
            assert!(presence.is_running(now, GONE_AFTER) || presence.may_be_forgotten(GONE_AFTER));
            now.instant += Duration::from_secs(60);
            assert!(!presence.is_running(now, GONE_AFTER));
        }
    }

    #[test]
    fn an_instance_that_never_registered_has_nothing_to_lose() {
        let now = Moment::now();
        let mut process = Process { presence: Presence::new(now), now };
        assert!(!process.is_forgotten_after(60, 60));
    }
}

//! The round trips of a queue: how long batches take, and how long they should take at most.
//!
//! A shorter round trip counts at once as the shortest. A longer one has two possible causes: a longer distance, or a
//! wait at the server. So if none was about as short for half a second, the queue drains, as in BBR: its in-flight
//! window (`in_flight_window`) shrinks to `n × shortest / t`. Where calls had to wait for each other, this ends the wait while
//! the server stays busy, and that confirms the shortest round trip. If the distance has changed, the window shrinks
//! to the smallest within a few round trips, and then the calls show the new distance. A round trip confirms the
//! shortest if it leaves half of the allowed wait, or is hardly longer: a busy server is idle often enough for that,
//! and an overloaded one is not.
//!
//! Queues that share a server must drain together. Alone, each would take the wait behind the others for
//! distance, and all windows would grow until replies are late. They do so without knowing of each other:
//! what confirms the shortest round trip, a server where hardly anything waits, happens to all of them at the
//! same time, so all begin to doubt it at about the same time, and their measurements overlap. Queues that
//! share an overloaded server from their start can still take a part of the wait for distance, and then get
//! unequal shares. → `queue/sim`, and `a_round_trip_that_changes_under_load_is_learned_within_two_seconds` in
//! `tests/it/timing/transport.rs`

use std::time::{Duration, Instant};

/// The time for which a batch may wait at the server, in addition to twice the round trip, if the timeout
/// allows.
const QUEUEING: Duration = Duration::from_millis(5);

/// The time without a round trip that confirms the shortest, after which that may be outdated.
const LONGEST_UNCONFIRMED: Duration = Duration::from_millis(500);

/// The time for which the shortest round trip is then measured. Queues that share a server do not begin at exactly
/// the same time.
const MEASUREMENT: Duration = Duration::from_millis(100);

/// The divisor of the shortest round trip by which round trips vary, even if nothing waits.
const VARIATION_DIVISOR: u32 = 8;

/// The round trips of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    latest: [Duration; 2],
    smoothed: Duration,
    shortest: Duration,
    /// The time at which the first round trip ended since the last one that confirmed the shortest.
    unconfirmed_since: Option<Instant>,
    /// The shortest since the other one may be outdated.
    measured: Option<Duration>,
}

impl RoundTrip {
    /// Creates the round trips of a queue whose first batch took this time.
    pub(super) fn new(taken: Duration) -> Self {
        let (unconfirmed_since, measured) = (None, None);
        Self { latest: [taken; 2], smoothed: taken, shortest: taken, unconfirmed_since, measured }
    }

    /// Adds the round trip of a batch. `is_drained` is true if hardly anything else was in flight when
    /// it was sent, so that it did not wait for other batches of the queue.
    pub(super) fn add(
        &mut self,
        is_drained: bool,
        taken: Duration,
        timeout: Duration,
        now: Instant,
    ) {
        self.latest = [taken, self.latest[0]];
        self.smoothed = (self.smoothed * 7 + taken) / 8;
        if taken <= self.longest_that_confirms(timeout) {
            return self.confirm(taken.min(self.shortest));
        }
        let since = *self.unconfirmed_since.get_or_insert(now);
        let unconfirmed = now.saturating_duration_since(since);
        if unconfirmed < LONGEST_UNCONFIRMED {
            return;
        }
        let shortest = self.measured.map_or(taken, |measured| measured.min(taken));
        self.measured = Some(shortest);
        if is_drained && unconfirmed >= LONGEST_UNCONFIRMED + MEASUREMENT {
            self.confirm(shortest);
        }
    }

    fn confirm(&mut self, shortest: Duration) {
        self.shortest = shortest;
        (self.unconfirmed_since, self.measured) = (None, None);
    }

    /// Returns true if the queue has to drain, so that a batch measures the shortest round trip anew.
    pub(super) fn is_outdated(&self) -> bool {
        self.measured.is_some()
    }

    /// Returns the longest round trip that is about the shortest: half of the allowed wait is left, or it is hardly
    /// longer. Little waits at a busy server now and then, but not at an overloaded one.
    fn longest_that_confirms(&self, timeout: Duration) -> Duration {
        let half = (self.shortest + self.longest_useful(timeout)) / 2;
        half.max(self.shortest + self.shortest / VARIATION_DIVISOR)
    }

    /// Returns the times that the latest two batches took, the last one first. A single one may have been read late by
    /// a worker that was blocked.
    pub(super) fn latest(&self) -> [Duration; 2] {
        self.latest
    }

    /// Returns the shortest round trip, as far as it is known: it follows a change within a second or so.
    pub(super) fn shortest(&self) -> Duration {
        self.shortest
    }

    /// Returns the time that batches wait at the server, on average.
    pub(super) fn queueing(&self) -> Duration {
        self.smoothed.saturating_sub(self.shortest())
    }

    /// Returns a third of the timeout that remains after one round trip.
    pub(super) fn spare(&self, timeout: Duration) -> Duration {
        timeout.saturating_sub(self.shortest()) / 3
    }

    /// A batch that takes longer has mostly waited for others at the server. With fewer in flight
    /// the server would answer as many, and each sooner. At most a third of the timeout that
    /// remains after one round trip is spent waiting, because other processes add to the wait.
    pub(super) fn longest_useful(&self, timeout: Duration) -> Duration {
        let shortest = self.shortest();
        (shortest * 2 + QUEUEING).min(shortest + self.spare(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    const ROUND_TRIP: Duration = Duration::from_millis(10);

    const TIMEOUT: Duration = Duration::from_millis(50);

    /// A server that moved away would seem to be overloaded forever.
    #[test]
    fn a_longer_round_trip_is_learned_from_a_drained_queue_and_a_shorter_one_at_once() {
        let start = Instant::now();
        let mut round_trip = RoundTrip::new(ROUND_TRIP);
        // The first was on its way when the network changed.
        for (ms, round_trips) in [(0, 2), (200, 3), (499, 3)] {
            round_trip.add(true, round_trips * ROUND_TRIP, TIMEOUT, start + ms * MS);
            assert_eq!(round_trip.shortest(), ROUND_TRIP);
        }
        round_trip.add(true, 4 * ROUND_TRIP, TIMEOUT, start + 500 * MS);
        assert!(round_trip.is_outdated(), "other queues may not be drained yet");
        round_trip.add(false, 4 * ROUND_TRIP, TIMEOUT, start + 600 * MS);
        assert!(round_trip.is_outdated(), "it may have waited for others");
        round_trip.add(true, 3 * ROUND_TRIP, TIMEOUT, start + 630 * MS);
        assert_eq!(round_trip.shortest(), 3 * ROUND_TRIP);
        assert!(!round_trip.is_outdated());
        round_trip.add(false, ROUND_TRIP, TIMEOUT, start + 640 * MS);
        assert_eq!(round_trip.shortest(), ROUND_TRIP);
    }

    /// A queue that drains below the capacity answers less than it could.
    #[test]
    fn a_server_that_is_busy_but_not_overloaded_does_not_make_a_queue_drain() {
        let start = Instant::now();
        let mut round_trip = RoundTrip::new(ROUND_TRIP);
        for ms in (0..5_000).step_by(10) {
            let waits = u32::from(ms % 490 != 0);
            round_trip.add(false, ROUND_TRIP + 10 * MS * waits, TIMEOUT, start + ms * MS);
            assert!(!round_trip.is_outdated());
        }
    }

    /// There is little time for a wait if the server is nearly as far away as the timeout allows.
    #[test]
    fn round_trips_that_vary_do_not_make_a_queue_drain() {
        let start = Instant::now();
        let mut round_trip = RoundTrip::new(45 * MS);
        for ms in (0..5_000).step_by(10) {
            round_trip.add(false, 50 * MS, TIMEOUT, start + ms * MS);
            assert!(!round_trip.is_outdated());
        }
    }

    #[test]
    fn at_most_a_third_of_what_a_round_trip_leaves_of_the_timeout_is_spent_waiting() {
        let longest = |ms, timeout| RoundTrip::new(ms * MS).longest_useful(timeout);
        assert_eq!(longest(1, 55 * MS), 7 * MS);
        assert_eq!(longest(28, 55 * MS), 37 * MS);
        assert_eq!(longest(60, 55 * MS), 60 * MS);
    }
}

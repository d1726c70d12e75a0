//! How long batches take, and how long they should take at most.

use std::time::{Duration, Instant};

/// How long a batch may wait at the server, in addition to twice the round trip, if the timeout
/// allows.
const QUEUEING: Duration = Duration::from_millis(5);

/// How long the shortest round trip is remembered, at least.
const EPOCH: Duration = Duration::from_secs(1);

/// The round trips of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    latest: [Duration; 2],
    smoothed: Duration,
    /// The shortest of the current epoch and of the one before.
    shortest: [Duration; 2],
    epoch: Instant,
}

impl RoundTrip {
    /// After the first batch.
    pub(super) fn new(taken: Duration, now: Instant) -> Self {
        Self { latest: [taken; 2], smoothed: taken, shortest: [taken; 2], epoch: now }
    }

    /// `is_alone` tells whether no other batch was in flight when this one was sent.
    pub(super) fn add(&mut self, is_alone: bool, taken: Duration, now: Instant) {
        self.latest = [taken, self.latest[0]];
        self.smoothed = (self.smoothed * 7 + taken) / 8;
        // With more batches in flight, a round trip may include a wait for them.
        if now.saturating_duration_since(self.epoch) >= EPOCH && is_alone {
            self.epoch = now;
            self.shortest = [taken, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(taken);
    }

    /// How long the latest two batches took, the last one first. A single one may have been read late by
    /// a worker that was blocked.
    pub(super) fn latest(&self) -> [Duration; 2] {
        self.latest
    }

    pub(super) fn shortest(&self) -> Duration {
        self.shortest[0].min(self.shortest[1])
    }

    /// How long batches wait at the server, on average.
    pub(super) fn queueing(&self) -> Duration {
        self.smoothed.saturating_sub(self.shortest())
    }

    /// A third of the timeout that remains after one round trip.
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

    /// A server that moved away would seem to be overloaded for ever.
    #[test]
    fn the_shortest_round_trip_is_forgotten_once_lone_batches_take_longer() {
        let start = Instant::now();
        let mut round_trip = RoundTrip::new(MS, start);
        for seconds in 1..=2 {
            assert_eq!(round_trip.shortest(), MS);
            round_trip.add(true, 30 * MS, start + Duration::from_secs(seconds));
        }
        assert_eq!(round_trip.shortest(), 30 * MS);
    }

    #[test]
    fn batches_that_share_the_server_do_not_lengthen_the_shortest_round_trip() {
        let start = Instant::now();
        let mut round_trip = RoundTrip::new(MS, start);
        for seconds in 1..=10 {
            round_trip.add(false, 30 * MS, start + Duration::from_secs(seconds));
        }
        assert_eq!(round_trip.shortest(), MS);
    }

    #[test]
    fn at_most_a_third_of_what_a_round_trip_leaves_of_the_timeout_is_spent_waiting() {
        let longest = |ms, timeout| RoundTrip::new(ms * MS, Instant::now()).longest_useful(timeout);
        assert_eq!(longest(1, 55 * MS), 7 * MS);
        assert_eq!(longest(28, 55 * MS), 37 * MS);
        assert_eq!(longest(60, 55 * MS), 60 * MS);
    }
}

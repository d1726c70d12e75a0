//! How many batches of a queue may be in flight, and which checks would be answered too late.

use std::time::{Duration, Instant};

use super::silence::Silence;

/// These may be in flight whatever they carry: one is on the network while the server works on the
/// other. More would only make batches smaller.
const ALWAYS: usize = 2;

const LEAST: usize = 4;
const INITIAL: usize = 16;
const MOST: usize = 64;

/// A batch may join more than [`ALWAYS`] others this long after the last one started, even if it is
/// not full and none of them returns.
const SPACING: Duration = Duration::from_millis(5);

/// From this round trip on, waiting for another batch to return would take noticeably long.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(4);

/// How many batches that are not full start per round trip, if it is long.
const STARTS_PER_ROUND_TRIP: u32 = 16;

/// What the server's queue may add to twice the round trip before the window shrinks.
const QUEUEING: Duration = Duration::from_millis(5);

/// How long the shortest round trip is remembered, at least.
const EPOCH: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Window {
    timeout: Duration,
    in_flight: usize,
    limit: usize,
    silence: Silence,
    last_start: Option<Instant>,
    round_trip: Option<RoundTrip>,
    shrunk: Option<Instant>,
    /// When the latest batch was sent whose reply has been read.
    latest_replied: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    last: Duration,
    smoothed: Duration,
    /// The shortest of the current epoch and of the one before.
    shortest: [Duration; 2],
    epoch: Instant,
}

impl Window {
    /// The window of a queue whose checks have this timeout.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            in_flight: 0,
            limit: INITIAL,
            silence: Silence::default(),
            last_start: None,
            round_trip: None,
            shrunk: None,
            latest_replied: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether another batch may start. `is_full` tells whether a full one waits.
    pub(super) fn may_start(&self, now: Instant, is_full: bool) -> bool {
        let has_come = self.next_start(now).is_none_or(|next| next <= now);
        if self.is_silent(now) {
            return has_come && self.in_flight < MOST;
        }
        let limit = if is_full {
            self.limit
        } else if has_come {
            MOST
        } else {
            ALWAYS
        };
        self.in_flight < limit
    }

    /// When a batch may start, even if it is not full and none returns.
    pub(super) fn next_start(&self, now: Instant) -> Option<Instant> {
        let spacing = match self.round_trip {
            _ if self.is_silent(now) => self.timeout,
            Some(round_trip) if round_trip.smoothed >= LONG_ROUND_TRIP => {
                round_trip.smoothed / STARTS_PER_ROUND_TRIP
            }
            _ => SPACING,
        };
        self.last_start.map(|start| start + spacing)
    }

    /// Reserves a place in the window for a batch that is about to be sent.
    pub(super) fn reserve(&mut self, now: Instant) {
        self.in_flight += 1;
        self.last_start = Some(now);
    }

    /// Returns a place.
    pub(super) fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.last_start = Some(now);
        self.silence.sent(now);
    }

    /// A reply arrived for a batch that was sent at this time. `is_waiting` tells whether a full
    /// batch waits.
    pub(super) fn replied(&mut self, sent: Instant, now: Instant, is_waiting: bool) {
        self.silence.received(now);
        if self.latest_replied.is_some_and(|latest| sent < latest) {
            // Replies arrive in order, so this one was only read late, by a worker that was blocked.
            return;
        }
        self.latest_replied = Some(sent);
        let taken = now.saturating_duration_since(sent);
        let round_trip = self.round_trip.get_or_insert(RoundTrip {
            last: taken,
            smoothed: taken,
            shortest: [taken; 2],
            epoch: now,
        });
        round_trip.add(taken, now);
        if taken > round_trip.longest_useful(self.timeout) {
            if self.shrunk.is_none_or(|shrunk| shrunk <= sent) {
                self.limit = (self.limit * 3 / 4).max(LEAST);
                self.shrunk = Some(now);
            }
        } else if is_waiting {
            self.limit = (self.limit + 1).min(MOST);
        }
    }

    /// A batch was sent, and its reply will not be noticed.
    pub(super) fn abandoned(&mut self) {
        self.silence.abandoned();
    }

    /// How long a batch that is sent now is expected to take.
    fn expected(&self) -> Duration {
        self.round_trip
            .map_or(Duration::ZERO, |round_trip| round_trip.last.min(round_trip.smoothed))
    }

    /// A check with an earlier deadline would be answered too late if it were sent now. Without
    /// other batches in flight the estimate may be outdated, so then it is not believed.
    pub(super) fn earliest_deadline(&self, now: Instant) -> Instant {
        if self.in_flight > 1 { now + self.expected() } else { now }
    }

    /// Whether a check that joins behind this many full batches would wait for too long. Half of
    /// what the round trip leaves of the timeout is kept in reserve.
    pub(super) fn is_overloaded(&self, full_batches: usize) -> bool {
        if full_batches == 0 || self.in_flight < ALWAYS {
            return false;
        }
        let expected = self.expected();
        let wait = expected.as_nanos() * full_batches as u128 / self.limit as u128;
        wait > self.timeout.saturating_sub(expected).as_nanos() / 2
    }

    /// Whether no reply has been read for so long that more calls would probably run too late. But the
    /// reason may be a blocked worker that does not read it, so one batch per timeout still starts.
    fn is_silent(&self, now: Instant) -> bool {
        self.silence.duration(now).is_some_and(|silence| silence > self.timeout)
    }
}

impl RoundTrip {
    fn add(&mut self, taken: Duration, now: Instant) {
        self.last = taken;
        self.smoothed = (self.smoothed * 7 + taken) / 8;
        if now.saturating_duration_since(self.epoch) >= EPOCH {
            self.epoch = now;
            self.shortest = [taken, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(taken);
    }

    /// A batch that takes longer has mostly waited for others at the server. Fewer in flight would
    /// be answered as many, and sooner.
    fn longest_useful(&self, timeout: Duration) -> Duration {
        let shortest = self.shortest[0].min(self.shortest[1]);
        (shortest * 2 + QUEUEING).min((timeout + shortest) / 2)
    }
}

//! Whether an established connection works. It does no I/O and reads no clock.

use std::time::{Duration, Instant};

use super::backoff;
use super::silence::Silence;

/// How long a connection may be silent. Together with the time to connect it bounds the recovery to
/// about a second.
const LONGEST_SILENCE: Duration = Duration::from_millis(500);

/// A runtime with no ready task may not poll its sockets while a worker is blocked. When a reply
/// has been outstanding for this long, a task is woken in that runtime, so that a free worker polls
/// them.
pub(super) const WAKE_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(super) struct Health {
    silence: Silence,
    /// When the silence was first found to be too long.
    suspected: Option<Instant>,
    /// When the first good reply arrived.
    proven: Option<Instant>,
}

impl Health {
    pub(super) fn sent(&mut self, now: Instant) {
        self.silence.sent(now);
    }

    /// A reply arrived. A good one proves the connection.
    pub(super) fn received(&mut self, now: Instant, is_good: bool) {
        self.silence.received(now);
        self.suspected = None;
        if is_good {
            self.proven.get_or_insert(now);
        }
    }

    pub(super) fn abandoned(&mut self) {
        self.silence.abandoned();
    }

    /// Whether a good reply has arrived, ever.
    pub(super) fn is_proven(&self) -> bool {
        self.proven.is_some()
    }

    /// Whether it worked for so long that its end is no sign of a lasting fault.
    pub(super) fn was_stable(&self, now: Instant) -> bool {
        self.proven.is_some_and(|proven| now.saturating_duration_since(proven) >= backoff::LONGEST)
    }

    /// For how long a reply has been outstanding without any other, if one is.
    pub(super) fn silence(&self, now: Instant) -> Option<Duration> {
        self.silence.duration(now)
    }

    /// Whether it has been silent for too long twice, with time in between to read what has
    /// arrived.
    pub(super) fn is_silent(&mut self, now: Instant) -> bool {
        if self.silence.duration(now).is_none_or(|silence| silence < LONGEST_SILENCE) {
            self.suspected = None;
            return false;
        }
        let suspected = *self.suspected.get_or_insert(now);
        now.saturating_duration_since(suspected) >= WAKE_INTERVAL / 2
    }
}

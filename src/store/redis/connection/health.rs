//! The health of an established connection. It does no I/O and reads no clock.
//!
//! A connection is judged by its own replies. It is of no use when it breaks, when a reply shows that the
//! server is not a primary, and when nothing has arrived for `LONGEST_SILENCE` while a reply was outstanding,
//! counted from the write (the docs of `RedisStore` and the log line in `established` name that time). A check
//! that times out proves nothing: its call may have been sent a millisecond before the deadline.
//!
//! A task on the runtime that polls the connection measures the silence. A measurement adds at most
//! `LONGEST_GAP`, even if the task runs late: then the runtime has stalled, not the server, and the calls may
//! not even have been written. The same task wakes the runtime, because one whose worker blocks may poll no
//! socket until another worker is woken.
//!
//! The reply to a check that was sent alone is read by its own future, which may be kept without being polled. So
//! after a shorter silence (`DOUBT`), the task sends a `PING`, and reads the reply itself.

use std::time::{Duration, Instant};

use super::backoff;
use super::silence::Silence;

/// The longest silence of a connection that is kept. Together with the time to connect it bounds the recovery
/// to about a second.
const LONGEST_SILENCE: Duration = Duration::from_millis(500);

/// The silence after which the server is asked for a sign of life: a reply may have arrived that nobody
/// reads.
const DOUBT: Duration = Duration::from_millis(200);

/// The most time between two measurements that counts as silence. If more has passed, the runtime was
/// stalled: it neither wrote calls nor read replies.
const LONGEST_GAP: Duration = Duration::from_millis(50);

/// The pause after which a task is woken in the runtime of a connection while a reply is outstanding. A
/// runtime with no ready task may not poll its sockets while a worker is blocked. So a free worker polls
/// them.
pub(crate) const WAKE_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(crate) struct Health {
    silence: Silence,
    /// The time at which this silence was last measured.
    measured: Option<Instant>,
    /// The part of this silence that counts.
    counted: Duration,
    /// The time at which the first good reply arrived.
    proven: Option<Instant>,
    /// The time at which the last reply arrived.
    heard: Option<Instant>,
}

impl Health {
    pub(crate) fn sent(&mut self, now: Instant) {
        self.silence.sent(now);
    }

    /// A reply arrived. A good one proves the connection.
    pub(crate) fn received(&mut self, now: Instant, is_good: bool) {
        self.silence.received(now);
        self.heard = Some(now);
        self.restart();
        if is_good {
            self.proven.get_or_insert(now);
        }
    }

    pub(crate) fn abandoned(&mut self) {
        self.silence.abandoned();
        if self.silence.outstanding() == 0 {
            self.restart();
        }
    }

    /// Returns true if a good reply has ever arrived.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven.is_some()
    }

    /// Returns true if it worked for so long that its end is no sign of a lasting fault.
    pub(crate) fn was_stable(&self, now: Instant) -> bool {
        self.proven.is_some_and(|proven| now.saturating_duration_since(proven) >= backoff::LONGEST)
    }

    /// Returns the time at which the last reply arrived, if any has.
    pub(super) fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// Returns true if it has been silent for so long that it should be asked, as of the last measurement.
    pub(super) fn is_doubtful(&self) -> bool {
        self.counted >= DOUBT
    }

    /// Returns the time for which a reply has been outstanding without any other, if one is.
    pub(crate) fn silence(&self, now: Instant) -> Option<Duration> {
        self.silence.duration(now)
    }

    /// Returns true if it has been silent for too long. Its runtime calls this once per [`WAKE_INTERVAL`]
    /// while a reply is outstanding.
    pub(crate) fn is_silent(&mut self, now: Instant) -> bool {
        let Some(silence) = self.silence.duration(now) else { return false };
        let since_last = self.measured.replace(now).map(|at| now.saturating_duration_since(at));
        self.counted += since_last.unwrap_or(silence).min(LONGEST_GAP);
        self.counted >= LONGEST_SILENCE
    }

    fn restart(&mut self) {
        self.measured = None;
        self.counted = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at the connection until it is silent, or for a second.
    fn is_silent_after(health: &mut Health, start: Instant) -> Option<Duration> {
        (1..=200).map(|look| look * WAKE_INTERVAL).find(|at| health.is_silent(start + *at))
    }

    #[test]
    fn a_silent_connection_is_noticed_after_half_a_second() {
        let (mut health, start) = (Health::default(), Instant::now());
        assert_eq!(is_silent_after(&mut health, start), None, "nothing was sent");
        health.sent(start);
        let noticed = is_silent_after(&mut health, start);
        assert_eq!(noticed, Some(LONGEST_SILENCE));
    }

    #[test]
    fn a_stall_of_the_runtime_is_not_taken_for_silence() {
        let (mut health, start) = (Health::default(), Instant::now());
        health.sent(start);
        let resumed = start + Duration::from_secs(60);
        assert!(!health.is_silent(resumed));
        let noticed = is_silent_after(&mut health, resumed);
        assert_eq!(noticed, Some(LONGEST_SILENCE - LONGEST_GAP));
    }

    #[test]
    fn the_silence_begins_again_after_a_reply_or_when_nobody_waits() {
        let ends: [fn(&mut Health, Instant); 2] =
            [|health, at| health.received(at, true), |health, _| health.abandoned()];
        for end in ends {
            let (mut health, start) = (Health::default(), Instant::now());
            health.sent(start);
            for look in 1..100 {
                assert!(!health.is_silent(start + look * WAKE_INTERVAL));
            }
            let again = start + 100 * WAKE_INTERVAL;
            end(&mut health, again);
            health.sent(again);
            let noticed = is_silent_after(&mut health, again);
            assert_eq!(noticed, Some(LONGEST_SILENCE));
        }
    }
}

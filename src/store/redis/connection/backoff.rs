//! The pauses between attempts to connect: at most one attempt per period, which grows with each one, with
//! jitter.
//!
//! The first period starts again, with one attempt that may be repeated at once, when a connection has worked
//! for a while, or nobody has needed one for as long. So a server that accepts connections and fails every
//! call costs two to four connections per second.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(50);

/// The longest period, short enough that checks are decided again within a second after an outage.
pub(super) const LONGEST: Duration = Duration::from_millis(500);

/// The times of attempts to connect, one per period. The period grows until a connection proves stable, or
/// nobody has needed one for a while.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The period after the next attempt. It is 0 for the first one, which may be repeated at once: a task that
    /// has failed to connect while the process was idle delays no check.
    period: Duration,
    next: Option<Instant>,
}

impl Backoff {
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// An attempt begins. `jitter` is a random number from 0 to 1, so that the processes of a fleet
    /// do not all try at the same times.
    pub(super) fn tried(&mut self, now: Instant, jitter: f64) {
        if self.next.is_some_and(|next| next + LONGEST <= now) {
            self.reset();
        }
        self.next = Some(now + self.period.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0)));
        self.period = (self.period * 2).clamp(FIRST, LONGEST);
    }

    /// The last connection worked for a while, so the next attempt need not wait.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_are_spread_out_up_to_half_a_second() {
        for jitter in [0.0, 0.5, 1.0] {
            let (mut backoff, start) = (Backoff::default(), Instant::now());
            assert!(backoff.may_try(start));
            let (mut now, mut attempts, mut gap) = (start, 0, Duration::ZERO);
            let mut last = start;
            while now < start + Duration::from_secs(60) {
                if backoff.may_try(now) {
                    backoff.tried(now, jitter);
                    attempts += 1;
                    gap = now - last;
                    last = now;
                }
                now += Duration::from_millis(1);
            }
            assert!((118..=260).contains(&attempts), "{attempts} attempts in a minute");
            assert!(gap >= LONGEST / 2 && gap <= LONGEST, "{gap:?}");
        }
    }

    #[test]
    fn an_attempt_long_after_the_others_may_be_repeated_at_once() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        for _ in 0..10 {
            backoff.tried(now, 1.0);
            assert!(backoff.may_try(now));
            backoff.tried(now, 1.0);
            assert!(!backoff.may_try(now + FIRST - Duration::from_millis(1)));
            assert!(backoff.may_try(now + FIRST));
            now += FIRST + LONGEST;
        }
    }

    #[test]
    fn a_stable_connection_is_replaced_at_once() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        (0..2).for_each(|_| backoff.tried(now, 1.0));
        assert!(!backoff.may_try(now));
        backoff.reset();
        assert!(backoff.may_try(now));
    }
}

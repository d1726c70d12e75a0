//! Clients that are denied at once should not all return at once.

use std::time::Duration;

use crate::{Decision, random};

/// The longest time by which `Retry-After` is later than a permit is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryJitter {
    longest: Duration,
}

impl Default for RetryJitter {
    fn default() -> Self {
        Self { longest: Duration::from_secs(30) }
    }
}

impl RetryJitter {
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest }
    }

    /// Makes the wait longer, if the decision is a denial that a wait resolves.
    #[inline]
    pub(super) fn apply(self, decision: &mut Decision) {
        if let Some(wait) = decision.retry_after() {
            let micros = self.seconds(wait.as_secs() / 4).saturating_mul(1_000_000);
            decision.numbers.retry_after = decision.numbers.retry_after.saturating_add(micros);
        }
    }

    /// `Retry-After` if the store has failed, in seconds. Nobody knows when it works again.
    pub(super) fn unavailable(self) -> u64 {
        1 + self.seconds(4)
    }

    /// Whole seconds, because `Retry-After` has no others.
    fn seconds(self, most: u64) -> u64 {
        let longest = self.longest.as_secs().min(most);
        let seconds = ((longest + 1) as f64 * random::unit()) as u64;
        seconds.min(longest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn applied(jitter: RetryJitter, mut decision: Decision) -> Decision {
        jitter.apply(&mut decision);
        decision
    }

    fn waits(jitter: RetryJitter, wait: u64) -> HashMap<u64, u32> {
        let mut waits = HashMap::new();
        for _ in 0..1_000 {
            let decision = applied(jitter, Decision::denied(10, Duration::from_secs(wait)));
            *waits.entry(decision.retry_after().unwrap().as_secs()).or_default() += 1;
        }
        waits
    }

    #[test]
    fn a_thousand_clients_return_at_no_more_than_twice_the_mean() {
        for (wait, longest, spread) in [(60, 30, 15), (3_600, 30, 30), (3_600, 10, 10)] {
            let waits = waits(RetryJitter::new(Duration::from_secs(longest)), wait);
            let mean = 1_000 / (spread + 1);
            let busiest = *waits.values().max().unwrap();
            assert!(busiest <= 2 * mean, "{busiest} of a mean of {mean}");
            assert_eq!(waits.keys().min(), Some(&wait), "never earlier");
            assert_eq!(waits.keys().max(), Some(&(wait + u64::from(spread))));
        }
    }

    #[test]
    fn a_short_wait_stays_short() {
        assert_eq!(waits(RetryJitter::default(), 3), HashMap::from([(3, 1_000)]));
        assert_eq!(waits(RetryJitter::new(Duration::ZERO), 60), HashMap::from([(60, 1_000)]));
        let forever = applied(RetryJitter::new(Duration::MAX), Decision::denied(1, Duration::MAX));
        assert_eq!(forever.numbers.retry_after, u64::MAX);
    }

    #[test]
    fn clients_of_a_failed_store_do_not_all_return_at_once() {
        let mut waits = [0; 6];
        for _ in 0..1_000 {
            waits[RetryJitter::default().unavailable() as usize] += 1;
        }
        assert!(waits[0] == 0 && waits[1..].iter().all(|count| *count <= 2 * 200), "{waits:?}");
        assert_eq!(RetryJitter::new(Duration::ZERO).unavailable(), 1);
    }

    #[test]
    fn what_no_wait_resolves_has_none() {
        let never = applied(RetryJitter::default(), Decision::exceeding_capacity(10));
        assert_eq!(never.retry_after(), None);
        let allowed = applied(RetryJitter::default(), Decision::allowed(10, 3));
        assert_eq!(allowed, Decision::allowed(10, 3));
    }
}

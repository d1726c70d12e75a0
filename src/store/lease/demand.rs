//! The demand that a process expects for a key. It is that of the last period, which is about as long as a lease.

use smallvec::smallvec;

use crate::algorithm::Permits;
use crate::charge::Cost;

/// The checks of a key, and the permits that they cost, since the beginning of a period.
#[derive(Clone, Debug)]
pub(super) struct KeyDemand {
    since: u64,
    checks: u64,
    permits: Permits,
    /// The rates of the previous period.
    before: Rates,
}

/// The checks, and the permits of each quota, in a time as long as a lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    pub(super) checks: f64,
    pub(super) permits: smallvec::SmallVec<[f64; 1]>,
}

impl Rates {
    /// Returns the rates, multiplied by a factor.
    pub(super) fn scaled(mut self, factor: f64) -> Self {
        self.checks *= factor;
        self.permits.iter_mut().for_each(|permits| *permits *= factor);
        self
    }
}

impl KeyDemand {
    /// Creates the demand of a key with this number of quotas. Times are in nanoseconds.
    pub(super) fn new(quotas: usize, now: u64) -> Self {
        let before = Rates { checks: 0.0, permits: smallvec![0.0; quotas] };
        Self { since: now, checks: 0, permits: smallvec![0; quotas], before }
    }

    /// Counts a check.
    #[inline]
    pub(super) fn add(&mut self, cost: &impl Cost, longest: u64, now: u64) {
        if now.saturating_sub(self.since) > longest {
            self.start_period(longest, now);
        }
        self.checks += 1;
        for (quota, permits) in self.permits.iter_mut().enumerate() {
            *permits = permits.saturating_add(cost.of(quota));
        }
    }

    fn start_period(&mut self, longest: u64, now: u64) {
        let factor = longest as f64 / now.saturating_sub(self.since).max(1) as f64;
        self.before.checks = self.checks as f64 * factor;
        for (before, permits) in self.before.permits.iter_mut().zip(&mut self.permits) {
            *before = std::mem::take(permits) as f64 * factor;
        }
        (self.since, self.checks) = (now, 0);
    }

    /// Returns the rates to expect: those of the previous period, or what was counted since if there are more checks.
    pub(super) fn expected(&self) -> Rates {
        // A few checks may have arrived together by chance.
        if self.checks < 4 || self.checks as f64 <= self.before.checks {
            return self.before.clone();
        }
        let permits = self.permits.iter().map(|permits| *permits as f64).collect();
        Rates { checks: self.checks as f64, permits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 100;

    fn demand(checks: &[(u64, u64)]) -> KeyDemand {
        let mut demand = KeyDemand::new(1, 0);
        checks.iter().for_each(|(now, cost)| demand.add(cost, LEASE, *now));
        demand
    }

    #[test]
    fn a_rate_is_that_of_the_last_period_unless_it_grows() {
        let even: Vec<_> = (0..25).map(|n| (n * 10, 2)).collect();
        let expected = demand(&even).expected();
        // From 0 to 100 ns there are 11.
        assert!((9.0..=11.0).contains(&expected.checks), "{expected:?}");
        assert_eq!(expected.permits[0], 2.0 * expected.checks);
        let growing: Vec<_> =
            (0..10).map(|n| (n * 10, 1)).chain((0..50).map(|n| (110 + n, 1))).collect();
        assert!(demand(&growing).expected().checks >= 49.0);
    }

    #[test]
    fn a_key_that_is_used_rarely_has_a_low_rate() {
        let rare: Vec<_> = (0..10).map(|n| (n * 70, 1)).collect();
        assert!(demand(&rare).expected().checks < 2.0);
    }
}

//! The operation that asks for a lease, and the size of the lease.

#[cfg(feature = "redis")]
use super::Leased;
use super::RequestGuard;
use super::demand::Rates;
use crate::algorithm::{Limits, Permits, Standing};
#[cfg(feature = "redis")]
use crate::charge::Cost;
use crate::charge::{Charge, TimedCredit};
use crate::verdict::Verdict;

/// A lease has a quarter more than is expected to be used.
pub(super) const MARGIN: f64 = 1.25;

/// The most checks of a request, because the process replays them one by one. For a larger lease, each check costs a
/// multiple.
const MAX_CHECKS: u64 = 1_024;

/// A check with a request for a lease, or the request alone. The lease is a number of checks of equal costs. The store
/// grants as many of them as it has permits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOp {
    /// The permits of older leases that are given back first.
    pub(crate) credit: Option<TimedCredit>,
    /// The cost of the check, which is decided next.
    pub(crate) charge: Option<Charge>,
    /// The number of checks in advance, and the costs of one of them.
    pub(crate) checks: u64,
    pub(crate) costs: Charge,
    pub(crate) guard: RequestGuard,
}

/// Returns the number of checks to ask for and the costs of each. `None` if the key is used too rarely, or too few
/// permits are free.
///
/// `kept` has the permits that stay in older leases, `free` those that were free at the last reply. `instances` is
/// the number of processes that may have leases of the key. Together they get at most half of the free permits.
pub(super) fn size(
    expected: &Rates,
    kept: &Permits,
    free: &Permits,
    limits: &Limits,
    instances: u64,
) -> Option<(u64, Charge)> {
    // A lease of a single check saves no call.
    if expected.checks < 2.0 {
        return None;
    }
    let parts = instances.max(1).saturating_mul(2);
    let cost = |permits: &f64| (permits / expected.checks).ceil() as u64;
    let mut costs: Permits = expected.permits.iter().map(cost).collect();
    let most = |(quota, cost): (usize, &u64)| {
        let kept = kept.get(quota).copied().unwrap_or(0);
        let wanted = expected.permits.get(quota).copied().unwrap_or(0.0) * MARGIN;
        // The permits that are kept may have refilled since.
        let free = (free.get(quota).copied().unwrap_or(0) + kept).min(limits.limit(quota)) / parts;
        (*cost > 0).then(|| (wanted as u64).min(free).saturating_sub(kept) / cost)
    };
    let mut checks = costs.iter().enumerate().filter_map(most).min()?;
    if checks > MAX_CHECKS {
        let multiple = checks.div_ceil(MAX_CHECKS);
        checks /= multiple;
        costs.iter_mut().for_each(|cost| *cost = cost.saturating_mul(multiple));
    }
    let costs = match *costs {
        [cost] => Charge::Same(cost),
        _ => Charge::Each(costs.iter().copied().collect()),
    };
    (checks > 0).then_some((checks, costs))
}

impl LeaseOp {
    /// Gives back the credit, and decides the check. Without a check, the verdict is that of a peek. The
    /// permits of the lease are taken afterwards, by [`lease`](Self::lease).
    pub(crate) fn decide(&self, limits: &Limits, standing: &mut Standing, now: u64) -> Verdict {
        if let Some(credit) = &self.credit {
            let _ = limits.give_back_until(standing, credit, now);
        }
        match &self.charge {
            Some(Charge::Same(cost)) => limits.check(standing, cost),
            Some(charge) => limits.check(standing, charge),
            None => limits.peek(standing),
        }
    }

    /// Takes the permits of the lease, as the store does after the check.
    #[cfg(feature = "redis")]
    pub(crate) fn lease(&self, limits: &Limits, standing: &mut Standing, now: u64) -> Leased {
        let Self { checks, costs, credit, .. } = self;
        let checks = limits.check_run(standing, *checks, costs);
        let permits = (0..limits.len()).map(|quota| checks.saturating_mul(costs.of(quota)));
        Leased {
            permits: permits.collect(),
            after: limits.left(standing),
            keeps: limits.keeps(standing),
            is_late: credit.as_ref().is_some_and(|credit| now > credit.until),
        }
    }
}

//! A check that has taken permits, for as long as they may be given back.
//!
//! A credit must not come late: a permit of a window that has ended, or of a bucket that has been full since,
//! is there again already, and giving it back would admit one more. A client could collect permits with
//! requests that it keeps open. So what a check took is remembered with the time at which its quota would
//! have reset and the permits that were in use, and each algorithm says what may still be given back
//! (`Algorithm::returnable`): of a bucket what has not refilled, to the tick, or to the permit if it refills
//! by intervals; of windows all, while the window, or for an exact sliding window the segment, is the one in
//! which it was taken. → `tests/it/settlement.rs`, and the property tests of `algorithm/limits`

use std::borrow::Cow;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::holder::Holder;
use super::{HeldRevision, Limiter};
use crate::algorithm::{Limits, Permits};
use crate::charge::{Adjustment, Charge, Cost, Left};
use crate::metrics::PolicyMetrics;
use crate::{Costs, Decision, Key, Source};

/// A check that has taken permits.
pub(crate) struct Taken {
    pub(super) limiter: Limiter,
    pub(super) revision: HeldRevision,
    pub(super) key: Key,
    pub(super) permits: TakenPermits,
}

/// The permits that a check has taken.
pub(crate) struct TakenPermits {
    /// A time that is not later than the store's decision.
    since: Instant,
    /// The remains of each quota, at the time of the decision.
    left: SmallVec<[Left; 1]>,
    /// The share of the limits that the check was decided by, if it was not the whole limits.
    share: Option<Box<Limits>>,
}

impl Taken {
    /// A check that starts at this time, and has taken nothing yet.
    pub(crate) fn new(limiter: &Limiter, revision: HeldRevision, key: Key, since: Instant) -> Self {
        Self { limiter: limiter.clone(), revision, key, permits: TakenPermits::new(since) }
    }

    /// Returns the same check, with nothing taken yet.
    pub(crate) fn again(&self) -> Self {
        let (limiter, revision, key) =
            (self.limiter.clone(), self.revision.clone(), self.key.clone());
        Self { limiter, revision, key, permits: TakenPermits::new(self.permits.since) }
    }

    /// Records that the check is allowed.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        let backend = &self.limiter.held(&self.revision).backend;
        let is_by_share = decision.source() == Source::Local || !backend.is_remote();
        self.permits.share = is_by_share.then(|| backend.share(&self.key)).flatten().map(Box::new);
        let limits = self.permits.limits(self.whole());
        let left = limits.iter().zip(decision.quotas());
        self.permits.left = left.map(|((_, limit), quota)| quota.left(limit.limit())).collect();
    }

    /// Returns what a hold takes, or a name that no quota has.
    pub(crate) fn hold_charge(&self, costs: &Costs) -> Result<Charge, Cow<'static, str>> {
        self.whole().hold_charge(costs)
    }

    /// Records what the check has left of each quota, as another process has recorded it.
    pub(super) fn attach(&mut self, left: SmallVec<[Left; 1]>) {
        self.permits.left = left;
    }

    /// Gives the check the permits that another one took.
    pub(crate) fn hold(&mut self, permits: TakenPermits) {
        self.permits = permits;
    }

    pub(crate) fn policy_name(&self) -> &str {
        self.limiter.held(&self.revision).policy().name()
    }

    /// The holder of what is held, if this is not the process.
    pub(super) fn holder(&self) -> Option<&Holder> {
        self.limiter.held(&self.revision).holder.as_ref()
    }

    pub(super) fn metrics(&self) -> &PolicyMetrics {
        &self.limiter.inner.settings.metrics
    }

    pub(super) fn whole(&self) -> &Limits {
        &self.limiter.held(&self.revision).limits
    }

    /// Replaces the charge by the actual cost, without waiting for the store.
    pub(crate) fn settle(&self, charged: &Costs, actual: &Costs) {
        self.limiter.settle(self, charged, actual);
    }

    /// Returns true if what both have taken is in the same units, of the same quotas.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        self.revision.is_same(&other.revision)
    }

    /// Returns what replaces a charge by the actual cost, in units as stores take it.
    pub(super) fn adjustment(&self, charged: &impl Cost, actual: &impl Cost) -> Adjustment {
        let (permits, whole) = (&self.permits, self.whole());
        let left = |quota| permits.left(quota);
        let adjustment = permits.limits(whole).settle(actual, charged, left, self.delay());
        permits.in_units_of_whole(whole, adjustment)
    }

    /// Returns the whole permits of a charge that can be given back now.
    pub(super) fn returnable(&self, charged: &impl Cost) -> Permits {
        self.whole().returned(&self.adjustment(charged, &0))
    }

    /// Changes what was taken, without waiting for the store.
    pub(super) fn adjust(&self, adjustment: Adjustment) {
        self.limiter.adjust_taken(self, adjustment);
    }

    /// The longest time until the store knows what is given back, in microseconds.
    pub(super) fn delay(&self) -> u64 {
        micros(self.limiter.timeout())
    }
}

impl TakenPermits {
    /// The permits of a check that starts at this time: none yet.
    pub(super) fn new(since: Instant) -> Self {
        Self { since, left: SmallVec::new(), share: None }
    }

    /// Returns true if the check was not decided by the whole limits.
    pub(super) fn is_by_share(&self) -> bool {
        self.share.is_some()
    }

    /// The limits that decided the check. `whole` are those of the policy.
    pub(super) fn limits<'a>(&'a self, whole: &'a Limits) -> &'a Limits {
        self.share.as_deref().unwrap_or(whole)
    }

    /// An adjustment in units of these, as stores take it.
    pub(super) fn in_units_of_whole(&self, whole: &Limits, adjustment: Adjustment) -> Adjustment {
        match &self.share {
            None => adjustment,
            Some(share) => share.in_units_of(whole, &adjustment),
        }
    }

    /// Returns the remains of a quota by now.
    pub(super) fn left(&self, quota: usize) -> Left {
        let left = self.left.get(quota).copied().unwrap_or_default();
        left.after(micros(self.since.elapsed()))
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

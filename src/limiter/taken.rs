//! What a check has taken, for as long as it may be given back.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{HeldRevision, Limiter};
use crate::algorithm::{Adjustment, Charge};
use crate::{Costs, Decision, Key};

/// The permits that a check has taken.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(super) limiter: Limiter,
    pub(super) revision: HeldRevision,
    pub(super) key: Key,
    pub(super) costs: Costs,
    /// Not later than the store's decision.
    since: Instant,
    /// When each quota will be as if the check had not been, in microseconds after the decision.
    resets: SmallVec<[u64; 1]>,
}

impl Taken {
    /// By a check that starts now.
    pub(crate) fn new(limiter: &Limiter, revision: HeldRevision, key: &Key, costs: Costs) -> Self {
        let (limiter, key, resets) = (limiter.clone(), key.clone(), SmallVec::new());
        Self { limiter, revision, key, costs, since: Instant::now(), resets }
    }

    /// The check is allowed.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        self.resets = resets(decision);
    }

    /// Nothing was charged, because the store failed.
    pub(crate) fn nothing(&mut self) {
        self.costs = Costs::new(0);
    }

    /// The actual cost replaces what was taken, without waiting for the store.
    pub(crate) fn settle(&self, actual: &Costs) {
        self.limiter.settle(self, actual);
    }

    /// What replaces the charge by the actual cost.
    pub(super) fn adjustment(&self, charged: &Charge, actual: &Charge) -> Adjustment {
        let limits = &self.limiter.held(&self.revision).limits;
        let left = |quota| left(quota, self.since, &self.resets);
        limits.settle(actual, charged, left, micros(self.limiter.timeout()))
    }
}

pub(super) fn resets(decision: &Decision) -> SmallVec<[u64; 1]> {
    decision.quotas().map(|quota| quota.reset_after().as_micros() as u64).collect()
}

/// The time until a quota resets, unless others charge it.
pub(super) fn left(quota: usize, since: Instant, resets: &[u64]) -> u64 {
    resets.get(quota).map_or(0, |reset| reset.saturating_sub(micros(since.elapsed())))
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

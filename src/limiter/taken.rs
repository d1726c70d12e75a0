//! A check that has taken permits, for as long as they may be given back.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{HeldRevision, Limiter};
use crate::algorithm::Left;
use crate::{Costs, Decision, Key};

/// A check that has taken permits.
pub(crate) struct Taken {
    pub(super) limiter: Limiter,
    pub(super) revision: HeldRevision,
    pub(super) key: Key,
    /// Not later than the store's decision.
    since: Instant,
    /// Of each quota, at the time of the decision.
    left: SmallVec<[Left; 1]>,
}

impl Taken {
    /// By a check that starts at this time.
    pub(crate) fn new(limiter: &Limiter, revision: HeldRevision, key: Key, since: Instant) -> Self {
        Self { limiter: limiter.clone(), revision, key, since, left: SmallVec::new() }
    }

    /// The check is allowed.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        self.left = decision.quotas().map(|quota| quota.left()).collect();
    }

    /// The actual cost replaces the charge, without waiting for the store.
    pub(crate) fn settle(&self, charged: &Costs, actual: &Costs) {
        self.limiter.settle(self, charged, actual);
    }

    /// The longest time until the store knows what is given back, in microseconds.
    pub(super) fn delay(&self) -> u64 {
        micros(self.limiter.timeout())
    }

    /// Of a quota, by now.
    pub(super) fn left(&self, quota: usize) -> Left {
        let Left { used, reset_after, counts_for } =
            self.left.get(quota).copied().unwrap_or_default();
        let elapsed = micros(self.since.elapsed());
        let (reset_after, counts_for) =
            (reset_after.saturating_sub(elapsed), counts_for.saturating_sub(elapsed));
        Left { used, reset_after, counts_for }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

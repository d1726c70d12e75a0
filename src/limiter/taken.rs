//! A check that has taken permits, for as long as they may be given back.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{HeldRevision, Limiter};
use crate::algorithm::Left;
use crate::{Costs, Decision, Key};

/// A check that has taken permits.
#[derive(Clone)]
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
        let left = decision.quotas().map(|quota| Left {
            used: quota.limit().saturating_sub(quota.remaining()),
            reset_after: micros(quota.reset_after()),
        });
        self.left = left.collect();
    }

    /// The actual cost replaces the charge, without waiting for the store.
    pub(crate) fn settle(&self, charged: &Costs, actual: &Costs) {
        self.limiter.settle(self, charged, actual);
    }

    /// Of a quota, by now.
    pub(super) fn left(&self, quota: usize) -> Left {
        let Left { used, reset_after } = self.left.get(quota).copied().unwrap_or_default();
        Left { used, reset_after: reset_after.saturating_sub(micros(self.since.elapsed())) }
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

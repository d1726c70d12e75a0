//! A check that has taken permits, for as long as they may be given back.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{HeldRevision, Limiter};
use crate::{Costs, Decision, Key};

/// A check that has taken permits.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(super) limiter: Limiter,
    pub(super) revision: HeldRevision,
    pub(super) key: Key,
    /// Not later than the store's decision.
    since: Instant,
    /// When each quota will be as if the check had not been, in microseconds after the decision.
    resets: SmallVec<[u64; 1]>,
}

impl Taken {
    /// By a check that starts at this time.
    pub(crate) fn new(limiter: &Limiter, revision: HeldRevision, key: Key, since: Instant) -> Self {
        Self { limiter: limiter.clone(), revision, key, since, resets: SmallVec::new() }
    }

    /// The check is allowed.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        let resets = decision.quotas().map(|quota| micros(quota.reset_after()));
        self.resets = resets.collect();
    }

    /// The actual cost replaces the charge, without waiting for the store.
    pub(crate) fn settle(&self, charged: &Costs, actual: &Costs) {
        self.limiter.settle(self, charged, actual);
    }

    /// The time until a quota resets, unless others charge it, in microseconds.
    pub(super) fn left(&self, quota: usize) -> u64 {
        let reset = self.resets.get(quota);
        reset.map_or(0, |reset| reset.saturating_sub(micros(self.since.elapsed())))
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

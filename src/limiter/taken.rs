//! What a check has taken, for as long as it may be given back.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{HeldRevision, Limiter};
use crate::algorithm::{Charge, Cost};
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

    /// What can still be given back of each quota.
    pub(super) fn still_taken(&self, charge: &Charge, quotas: usize) -> Charge {
        still_taken(charge, quotas, self.since, &self.resets)
    }
}

pub(super) fn resets(decision: &Decision) -> SmallVec<[u64; 1]> {
    decision.quotas().map(|quota| quota.reset_after().as_micros() as u64).collect()
}

/// A permit that has been there again since, because its window has ended or its bucket was full, must not be
/// given back: it would be one that somebody else has taken.
pub(super) fn still_taken(
    charge: &Charge,
    quotas: usize,
    since: Instant,
    resets: &[u64],
) -> Charge {
    let elapsed = since.elapsed().as_micros();
    let of = |quota| {
        let is_taken = resets.get(quota).is_some_and(|reset| elapsed < u128::from(*reset));
        if is_taken { charge.of(quota) } else { 0 }
    };
    Charge::Each((0..quotas).map(of).collect())
}

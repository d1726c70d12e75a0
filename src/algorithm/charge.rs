//! What a check takes from each quota.

use std::sync::Arc;

/// The number of permits for the quota of an index.
pub(crate) trait Cost {
    fn of(&self, quota: usize) -> u64;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The same for all quotas.
    Same(u64),
    /// In the order of the policy.
    Each(Arc<[u64]>),
}

impl Charge {
    pub(crate) fn is_nothing(&self) -> bool {
        match self {
            Self::Same(cost) => *cost == 0,
            Self::Each(costs) => costs.iter().all(|cost| *cost == 0),
        }
    }
}

impl Cost for u64 {
    fn of(&self, _: usize) -> u64 {
        *self
    }
}

impl Cost for Charge {
    fn of(&self, quota: usize) -> u64 {
        match self {
            Self::Same(cost) => *cost,
            Self::Each(costs) => costs.get(quota).copied().unwrap_or(0),
        }
    }
}

/// A cost with at most one permit of each quota.
pub(crate) struct AtMostOne<'a, C>(pub(crate) &'a C);

impl<C: Cost> Cost for AtMostOne<'_, C> {
    fn of(&self, quota: usize) -> u64 {
        self.0.of(quota).min(1)
    }
}

//! The permits that a check takes from each quota, and those that are charged or given back without a
//! check.

use std::sync::Arc;

/// The number of permits for the quota of an index.
pub(crate) trait Cost {
    fn of(&self, quota: usize) -> u64;

    /// At least as many as for any quota.
    fn most(&self) -> u64;

    /// The permits that must be left.
    fn needed(&self, quota: usize) -> u64 {
        self.of(quota)
    }

    /// Returns how long the check could wait. `None` if it does not wait.
    fn patience(&self) -> Option<Patience> {
        None
    }

    /// Returns true if a check that could wait is allowed to.
    fn may_wait(&self) -> bool {
        true
    }

    /// Returns how long the check may wait for permits of a quota. It does not wait for one that it takes nothing
    /// from: without a place in the queue, it would pass those that wait.
    fn patience_for(&self, quota: usize) -> Option<Patience> {
        self.patience().filter(|_| self.may_wait() && self.of(quota) > 0)
    }
}

/// The longest time that a check may wait for permits of a bucket that has no queue, in microseconds. A bucket
/// with a queue has its own longest wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(pub(crate) u64);

/// A charge that waits for its permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    pub(crate) charge: Charge,
    pub(crate) patience: Patience,
    /// False if too many wait already.
    pub(crate) may_wait: bool,
}

/// The place in the queues that a check took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The permits that the check gives back if it leaves.
    pub(crate) credit: Adjustment,
    /// The times at which the buckets are full, in microseconds, if nobody queues behind the check. 0 for other
    /// quotas, and those with a cost of 0.
    pub(crate) ends: Box<[u64]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charge {
    /// An equal number of permits from every quota.
    Same(u64),
    /// A number of permits from each quota, in the order of the policy.
    Each(Arc<[u64]>),
    /// Like `Each`, and at least one permit of every quota must be left.
    Later(Arc<[u64]>),
}

/// The permits that are charged without a check, in the order of the policy. Negative numbers are
/// given back, in units of the algorithm, such as the ticks of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment(Arc<[i64]>);

/// Permits that are given back until a time, because later they would have refilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedCredit {
    pub(crate) credit: Adjustment,
    /// The time in microseconds of the store's clock.
    pub(crate) until: u64,
}

/// The remains of a check, unless others have charged the quota since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Left {
    /// The permits that were in use after it.
    pub(crate) used: u64,
    /// The time from now until no permit is in use, in microseconds, like the next.
    pub(crate) reset_after: u64,
    /// The time from now for which all permits count that were taken last, in microseconds.
    pub(crate) counts_for: u64,
}

impl Left {
    /// Returns what is left after so many microseconds.
    pub(crate) fn after(self, time: u64) -> Self {
        let Self { used, reset_after, counts_for } = self;
        let (reset_after, counts_for) =
            (reset_after.saturating_sub(time), counts_for.saturating_sub(time));
        Self { used, reset_after, counts_for }
    }
}

impl Charge {
    pub(crate) fn is_nothing(&self) -> bool {
        match self {
            Self::Same(cost) => *cost == 0,
            Self::Each(costs) | Self::Later(costs) => costs.iter().all(|cost| *cost == 0),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_later(&self) -> bool {
        matches!(self, Self::Later(_))
    }
}

impl Adjustment {
    pub(crate) fn of(&self, quota: usize) -> i64 {
        self.0.get(quota).copied().unwrap_or(0)
    }

    /// Returns the sum of both.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let sum = |(quota, change): (usize, &i64)| change.saturating_add(other.of(quota));
        self.0.iter().enumerate().map(sum).collect()
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.0.iter().all(|change| *change == 0)
    }

    /// Returns true if a quota gets permits back.
    pub(crate) fn is_credit(&self) -> bool {
        self.0.iter().any(|change| *change < 0)
    }

    /// Returns true if a quota is charged.
    pub(crate) fn is_charge(&self) -> bool {
        self.0.iter().any(|change| *change > 0)
    }
}

impl FromIterator<i64> for Adjustment {
    fn from_iter<I: IntoIterator<Item = i64>>(changes: I) -> Self {
        Self(changes.into_iter().collect())
    }
}

impl Cost for u64 {
    fn of(&self, _: usize) -> u64 {
        *self
    }

    fn most(&self) -> u64 {
        *self
    }
}

impl Cost for Charge {
    fn of(&self, quota: usize) -> u64 {
        match self {
            Self::Same(cost) => *cost,
            Self::Each(costs) | Self::Later(costs) => costs.get(quota).copied().unwrap_or(0),
        }
    }

    #[inline]
    fn most(&self) -> u64 {
        match self {
            Self::Same(cost) => *cost,
            Self::Each(costs) | Self::Later(costs) => costs.iter().copied().max().unwrap_or(0),
        }
    }

    fn needed(&self, quota: usize) -> u64 {
        match self {
            Self::Same(_) | Self::Each(_) => self.of(quota),
            Self::Later(_) => self.of(quota).max(1),
        }
    }
}

impl Cost for Queued {
    fn of(&self, quota: usize) -> u64 {
        self.charge.of(quota)
    }

    fn most(&self) -> u64 {
        self.charge.most()
    }

    fn needed(&self, quota: usize) -> u64 {
        self.charge.needed(quota)
    }

    fn patience(&self) -> Option<Patience> {
        Some(self.patience)
    }

    fn may_wait(&self) -> bool {
        self.may_wait
    }
}

/// A cost with at most one permit of each quota.
pub(crate) struct AtMostOne<'a, C>(pub(crate) &'a C);

impl<C: Cost> Cost for AtMostOne<'_, C> {
    fn of(&self, quota: usize) -> u64 {
        self.0.of(quota).min(1)
    }

    fn most(&self) -> u64 {
        self.0.most().min(1)
    }

    fn needed(&self, quota: usize) -> u64 {
        self.0.needed(quota).min(1)
    }

    fn patience(&self) -> Option<Patience> {
        self.0.patience()
    }

    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }
}

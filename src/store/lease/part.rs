//! What one reply has leased. The time at which a part ends is counted from when its call was sent.

use smallvec::SmallVec;

use crate::algorithm::{Limits, Permits};
use crate::charge::{Charge, Left, TimedCredit};

/// Permits that were leased together.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The permits of each quota that are not used yet.
    pub(super) left: Permits,
    /// The permits of each quota that were leased.
    pub(super) leased: Permits,
    /// Used before this time, in nanoseconds of the process, like the next.
    pub(super) ends: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// When they were charged, in microseconds of the store's clock.
    pub(super) decided: u64,
    /// What was in use after they were charged.
    pub(super) after: SmallVec<[Left; 1]>,
}

impl Part {
    pub(super) fn is_live(&self, now: u64) -> bool {
        now < self.ends
    }

    /// Returns the permits that are not used: the most of any quota. A check takes permits of all quotas at once, so
    /// a sum would count too many.
    pub(crate) fn unused(&self) -> u64 {
        self.left.iter().copied().max().unwrap_or(0)
    }

    /// Returns the permits that were used, like [`unused`](Self::unused).
    pub(super) fn used(&self) -> u64 {
        self.leased.iter().copied().max().unwrap_or(0).saturating_sub(self.unused())
    }

    /// Splits so many unused permits of each quota off.
    pub(super) fn split(&mut self, permits: &Permits) -> Self {
        let split = |(of, permits): (&mut u64, &u64)| *of = of.saturating_sub(*permits);
        self.left.iter_mut().zip(permits).for_each(split);
        self.leased.iter_mut().zip(permits).for_each(split);
        Self { left: permits.clone(), leased: permits.clone(), ..self.clone() }
    }

    /// Returns what gives the unused permits back to a store that has it within `delay`, in nanoseconds. `None` if all
    /// of them have refilled by then.
    ///
    /// The store has charged them at the earliest when the call was sent. What has refilled is not given back, because
    /// it would be admitted twice. For the same reason nothing is given back later.
    pub(crate) fn credit(&self, limits: &Limits, now: u64, delay: u64) -> Option<TimedCredit> {
        let arrival = now.saturating_add(delay);
        let elapsed = arrival.saturating_sub(self.sent).div_ceil(1_000);
        let left = |quota: usize| {
            let Left { used, reset_after, counts_for } =
                self.after.get(quota).copied().unwrap_or_default();
            let (reset_after, counts_for) =
                (reset_after.saturating_sub(elapsed), counts_for.saturating_sub(elapsed));
            Left { used, reset_after, counts_for }
        };
        let unused = Charge::Each(self.left.iter().copied().collect());
        let credit = limits.settle(&0, &unused, left, 0);
        // The store decided before its reply was received.
        let until = self.decided.saturating_add(arrival.saturating_sub(self.received) / 1_000);
        (!credit.is_nothing()).then_some(TimedCredit { credit, until })
    }
}

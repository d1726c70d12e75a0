//! The checks of a hold: what they have taken, and what replaces it at the end.

use std::mem;

use smallvec::SmallVec;

use super::taken::Taken;
use crate::algorithm::{Permits, QuotaId};
use crate::charge::{Adjustment, Charge, Cost};
use crate::{Decision, Source};

/// The most checks whose permits a hold tracks separately. Beyond that, the permits of an older check that can still be
/// given back, in whole permits, are added to those of the next one.
const MAX_CHECKS: usize = 32;

/// The checks of a hold.
pub(super) struct HeldChecks {
    /// The latest is the last.
    pub(super) checks: Vec<HeldCheck>,
    /// The permits of earlier checks that cannot be given back, of each quota.
    pub(super) used: SmallVec<[(QuotaId, u64); 1]>,
}

/// A check that has taken permits.
pub(super) struct HeldCheck {
    pub(super) taken: Taken,
    pub(super) charge: Charge,
}

/// The changes that end a hold, each in the units of a check.
#[must_use]
pub(super) struct Ending(Vec<(Taken, Adjustment)>);

impl HeldCheck {
    /// Returns what a check has taken, unless that is nothing.
    pub(super) fn of(mut taken: Taken, charge: Charge, decision: &Decision) -> Option<Self> {
        if decision.would_be_denied() {
            return None;
        }
        match decision.source() {
            // Nothing was charged, but the actual cost may be.
            Source::FailureMode => Some(Self { taken, charge: Charge::Same(0) }),
            _ => {
                taken.decided(decision);
                let check = Self { taken, charge };
                check.taken.metrics().held(check.held_in_process());
                Some(check)
            }
        }
    }

    /// Returns what it has taken of a quota.
    fn charged(&self, id: QuotaId) -> u64 {
        let quota = self.taken.whole().ids().position(|other| other == id);
        quota.map_or(0, |quota| self.charge.of(quota))
    }

    /// Returns the permits that it holds, of each quota.
    pub(super) fn held(&self) -> Permits {
        self.taken.whole().held_of(|quota| self.charge.of(quota))
    }

    /// Returns the number of permits that it holds in this process, of all quotas together.
    fn held_in_process(&self) -> i64 {
        match self.taken.holder() {
            None => self.held().into_iter().sum::<u64>().try_into().unwrap_or(i64::MAX),
            Some(_) => 0,
        }
    }
}

impl HeldChecks {
    pub(super) fn of(first: Option<HeldCheck>) -> Self {
        Self { checks: first.into_iter().collect(), used: SmallVec::new() }
    }

    /// Returns what the latest check has taken.
    pub(super) fn latest(&self) -> Option<&Taken> {
        self.checks.last().map(|check| &check.taken)
    }

    pub(super) fn push(&mut self, check: HeldCheck) {
        self.checks.push(check);
        let is_alike = |pair: &[HeldCheck]| pair[0].taken.is_alike(&pair[1].taken);
        if self.checks.len() > MAX_CHECKS
            && let Some(index) = self.checks.windows(2).position(is_alike)
        {
            let HeldCheck { taken, charge } = self.checks.remove(index);
            let returnable = taken.returnable(&charge);
            let next = &mut self.checks[index].charge;
            let sum =
                |(quota, returnable): (usize, &u64)| next.of(quota).saturating_add(*returnable);
            *next = Charge::Each(returnable.iter().enumerate().map(sum).collect());
            for (quota, (id, returnable)) in taken.whole().ids().zip(returnable).enumerate() {
                let used = charge.of(quota).saturating_sub(returnable);
                match self.used.iter_mut().find(|(other, _)| *other == id) {
                    Some((_, sum)) => *sum = sum.saturating_add(used),
                    None => self.used.push((id, used)),
                }
            }
        }
    }

    /// Replaces the sum of all charges by the actual cost, of the quotas of the latest check. Permits are given back
    /// from the latest checks first.
    pub(super) fn settle(self, actual: &Charge) -> Ending {
        let Self { checks, used } = self;
        let Some(last) = checks.last() else { return Ending(Vec::new()) };
        let difference = |(quota, id): (usize, QuotaId)| {
            let used = used.iter().find(|(other, _)| *other == id).map_or(0, |(_, used)| *used);
            let charged =
                checks.iter().map(|check| check.charged(id)).fold(used, u64::saturating_add);
            let actual = actual.of(quota);
            (id, charged.saturating_sub(actual), actual.saturating_sub(charged))
        };
        let mut differences: Vec<_> =
            last.taken.whole().ids().enumerate().map(difference).collect();
        replace(checks, |check, quota| {
            let (id, charge) = (check.taken.whole().ids().nth(quota), check.charge.of(quota));
            let known = differences.iter_mut().find(|(other, ..)| Some(*other) == id);
            // An update has removed the quota.
            let Some((_, excess, missing)) = known else { return charge };
            let less = charge.min(*excess);
            *excess -= less;
            (charge - less).saturating_add(mem::take(missing))
        })
    }

    /// Gives all permits back.
    pub(super) fn release(self) -> Ending {
        replace(self.checks, |_, _| 0)
    }

    /// Gives the permits of concurrent quotas back. What was taken of others stays used.
    pub(super) fn finish(self) -> Ending {
        replace(self.checks, |check, quota| check.charge.of(quota))
    }
}

/// Replaces each charge by the actual cost of each quota, the latest first. Permits of concurrent quotas are given
/// back.
fn replace(checks: Vec<HeldCheck>, mut actual: impl FnMut(&HeldCheck, usize) -> u64) -> Ending {
    let mut sums = Vec::<(Taken, Adjustment)>::new();
    for check in checks.into_iter().rev() {
        check.taken.metrics().held(-check.held_in_process());
        let limits = check.taken.whole();
        let costs = (0..limits.len()).map(|quota| actual(&check, quota)).collect();
        let costs = limits.without_held(&Charge::Each(costs));
        let adjustment = check.taken.adjustment(&check.charge, &costs);
        match sums.last_mut() {
            Some((other, sum)) if other.is_alike(&check.taken) => *sum = sum.plus(&adjustment),
            _ => sums.push((check.taken, adjustment)),
        }
    }
    Ending(sums)
}

impl Ending {
    /// Makes the changes, without waiting for the store.
    pub(super) fn send(self) {
        for (taken, adjustment) in self.0 {
            taken.adjust(adjustment);
        }
    }

    /// Returns the changes, each with the permits that it adjusts.
    pub(super) fn into_changes(self) -> impl Iterator<Item = (Taken, Adjustment)> {
        self.0.into_iter()
    }
}

//! The quotas of a policy. A check takes from all of them, or from none.
//!
//! All checks of a call are decided at one time. At that time each quota is a level: how much of it is used,
//! between 0 and its capacity. Of a token bucket it is the debt. An allowed check raises a level, and time
//! lowers it. The algorithm says how. The levels of all quotas of a key together are its standing.
//!
//! A state that another revision of the policy has left may have other quotas. So each is found by identity
//! and algorithm, and quotas that only the other revision has are kept until their time is over. If an
//! algorithm changes, each revision keeps its own entry, and starts full.

use std::borrow::Cow;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::LeaseFault;
use super::limit::{Level, Limit};
use super::rate::BucketState;
#[cfg(test)]
use super::rate::Debt;
#[cfg(feature = "redis")]
use super::rate::FullAt;
use super::state::{QuotaEntry, QuotaId};
use super::token_bucket::TokenBucket;
use crate::charge::{Adjustment, AtMostOne, Charge, Cost, Left, Place, Queued, TimedCredit};
use crate::costs::SpecialCosts;
use crate::verdict::{Outcome, QuotaInfo, Verdict};
use crate::{ConfigError, Costs, Policy};

#[derive(Clone, Debug)]
pub struct Limits {
    quotas: SmallVec<[Named; 1]>,
    infos: Arc<[QuotaInfo]>,
    /// The least capacity of any quota, for checks that do not wait.
    least_capacity: u64,
    has_queue: bool,
    has_holds: bool,
}

#[derive(Clone, Debug)]
struct Named {
    id: QuotaId,
    limit: Limit,
    /// The most permits in use that charges without a check can leave. A share of a limit can owe as much as
    /// the whole.
    most_charged: u64,
}

/// A number of permits of each quota, in their order.
pub(crate) type Permits = SmallVec<[u64; 1]>;

/// The levels of the quotas at one time, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing(SmallVec<[Level; 1]>);

impl Limits {
    /// Compiles the quotas of a policy, at a time in microseconds since 1970.
    pub(crate) fn new(policy: &Policy, now: u64) -> Result<Self, ConfigError> {
        let mut quotas = SmallVec::<[Named; 1]>::new();
        for (name, quota) in policy.quotas() {
            let id = QuotaId::of(name);
            if quotas.iter().any(|other| other.id == id) {
                return Err(ConfigError::new(format!(
                    "quota `{name}` of policy `{}`: another has the same name, or one with the same \
                     hash: choose another name",
                    policy.name()
                )));
            }
            let limit = Limit::new(name, quota, now)?;
            quotas.push(Named::new(id, limit, quota.most_debt()));
        }
        let infos = policy.quotas().zip(&quotas);
        let infos = infos.map(|((name, _), quota)| quota.limit.info(name)).collect();
        Ok(Self::of(quotas, infos))
    }

    fn of(quotas: SmallVec<[Named; 1]>, infos: Arc<[QuotaInfo]>) -> Self {
        let capacities = quotas.iter().map(|quota| quota.limit.capacity(None));
        let least_capacity = capacities.min().unwrap_or(0);
        let has_queue = quotas.iter().any(|quota| quota.limit.is_queue());
        let has_holds = quotas.iter().any(|quota| quota.limit.is_held());
        Self { quotas, infos, least_capacity, has_queue, has_holds }
    }

    /// The limits of a single bucket without a queue.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn of_bucket(bucket: TokenBucket) -> Self {
        let limit = Limit::TokenBucket(bucket);
        let quotas = [Named::new(QuotaId::of("q"), limit, None)].into();
        Self::of(quotas, [limit.info("q")].into())
    }

    /// The share of an instance if a fleet divides the limits. `None` if a quota has none for it.
    pub(crate) fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
        let divided = |quota: &Named| {
            let limit = quota.limit.divided(share)?;
            let most_charged = quota.most_charged.min(limit.most_stored());
            Some(Named { id: quota.id, limit, most_charged })
        };
        let quotas = self.quotas.iter().map(divided).collect::<Option<_>>()?;
        Some(Self::of(quotas, self.infos.clone()))
    }

    /// Returns the limits that a store enforces if processes may keep permits for so long, in microseconds. The
    /// capacity that responses report is that of the policy.
    pub(crate) fn leased(&self, lease: u64) -> Result<Self, ConfigError> {
        let leased = |(quota, info): (&Named, &QuotaInfo)| match quota.limit.leased(lease) {
            Ok(limit) => {
                let most_charged = quota.most_charged.min(limit.most_stored());
                Ok(Named { id: quota.id, limit, most_charged })
            }
            Err(fault) => Err(ConfigError::new(unleased(info.name(), fault, lease))),
        };
        if self.has_holds && self.len() > 1 {
            return Err(ConfigError::new(
                "a concurrent quota has leases only as the only quota of its policy: remove `lease`, or use a policy \
                 for each",
            ));
        }
        let quotas = self.quotas.iter().zip(&*self.infos).map(leased);
        Ok(Self::of(quotas.collect::<Result<_, _>>()?, self.infos.clone()))
    }

    /// Returns the limits of an instance that holds permits for so many microseconds without renewing them.
    pub(crate) fn held_by(&self, instance: u64, lifetime: u64) -> Self {
        let mut limits = self.clone();
        for quota in &mut limits.quotas {
            if let Limit::Concurrent(limit) = &mut quota.limit {
                *limit = limit.held_by(instance, lifetime);
            }
        }
        limits
    }

    /// Converts an adjustment in units of the other limits, which are a share of these, or of which these are
    /// a share.
    pub(crate) fn in_units_of(&self, other: &Self, adjustment: &Adjustment) -> Adjustment {
        let quotas = self.quotas.iter().zip(&other.quotas).enumerate();
        let of = |(index, (own, other)): (usize, (&Named, &Named))| match adjustment.of(index) {
            units @ ..0 => {
                let units = i128::from(units) * i128::from(other.limit.unit());
                let units = units / i128::from(own.limit.unit());
                units.try_into().unwrap_or(i64::MIN)
            }
            permits => permits,
        };
        quotas.map(of).collect()
    }

    /// The time in which all calendars are in their current windows. `None` if there are no calendars.
    pub(crate) fn valid_during(&self) -> Option<Range<u64>> {
        let windows = self.quotas.iter().filter_map(|quota| quota.limit.valid_during());
        windows.reduce(|a, b| a.start.max(b.start)..a.end.min(b.end))
    }

    /// Replaces a charge by the actual cost. Nothing is given back that is available again by now:
    /// `left` is what is left of the check for the quota of an index, and `delay` the longest time until
    /// the store knows.
    pub(crate) fn settle(
        &self,
        actual: &impl Cost,
        charged: &impl Cost,
        left: impl Fn(usize) -> Left,
        delay: u64,
    ) -> Adjustment {
        let quotas = self.quotas.iter().enumerate();
        let of = |(index, quota): (usize, &Named)| {
            let (actual, charged) = (actual.of(index), charged.of(index));
            match actual.checked_sub(charged) {
                Some(more) => saturating(more),
                None => -saturating(quota.limit.returnable(charged - actual, left(index), delay)),
            }
        };
        quotas.map(of).collect()
    }

    /// Returns the permits that an adjustment gives back of those that are held, and the rest of it.
    pub(crate) fn split_held(&self, adjustment: &Adjustment) -> (Permits, Adjustment) {
        let returned = self.held_of(|quota| adjustment.of(quota).min(0).unsigned_abs());
        let rest = |(index, quota): (usize, &Named)| match quota.limit.is_held() {
            true => 0,
            false => adjustment.of(index),
        };
        (returned, self.quotas.iter().enumerate().map(rest).collect())
    }

    /// Charges a cost without a check.
    pub(crate) fn debit(&self, cost: &impl Cost) -> Adjustment {
        (0..self.len()).map(|index| saturating(cost.of(index))).collect()
    }

    /// Gives all permits of a cost back.
    pub(crate) fn credit(&self, cost: &impl Cost) -> Adjustment {
        let units = |(index, quota): (usize, &Named)| {
            -saturating(cost.of(index).saturating_mul(quota.limit.unit()))
        };
        self.quotas.iter().enumerate().map(units).collect()
    }

    /// The most permits in use that charges without a check can leave, of each quota.
    #[cfg(feature = "redis")]
    pub(crate) fn most_charged(&self) -> impl Iterator<Item = u64> {
        self.quotas.iter().map(|quota| quota.most_charged)
    }

    /// The whole permits of each quota that an adjustment gives back.
    pub(crate) fn returned(&self, adjustment: &Adjustment) -> Permits {
        let quotas = self.quotas.iter().enumerate();
        let of = |(index, quota): (usize, &Named)| match adjustment.of(index) {
            units @ ..0 => units.unsigned_abs() / quota.limit.unit(),
            _ => 0,
        };
        quotas.map(of).collect()
    }

    /// The permits that a check gives back that leaves its place now: `left` and `delay` as for
    /// [`settle`](Self::settle). The end of a bucket tells whether others have taken permits since. If it
    /// is full by now, the permits are there again, and nobody queues behind the check.
    pub(crate) fn leaving(&self, place: &Place, left: impl Fn(usize) -> Left, delay: u64) -> Place {
        let quotas = self.quotas.iter().zip(&place.ends).enumerate();
        let of = |(index, (Named { limit, .. }, end)): (usize, (&Named, &u64))| {
            let (units, left) = (place.credit.of(index), left(index));
            match end {
                0 => {
                    let permits = units.unsigned_abs() / limit.unit();
                    (0, -saturating(limit.returnable(permits, left, delay)))
                }
                _ if left.reset_after == 0 => (0, 0),
                end => (*end, units),
            }
        };
        let (ends, units): (Vec<u64>, Vec<i64>) = quotas.map(of).unzip();
        Place { credit: units.into_iter().collect(), ends: ends.into() }
    }

    /// The facts about the quotas that responses contain.
    pub(crate) fn infos(&self) -> &[QuotaInfo] {
        &self.infos
    }

    pub(crate) fn len(&self) -> usize {
        self.quotas.len()
    }

    /// The token bucket that is the only quota of its policy. `None` for any other policy.
    #[inline]
    pub(crate) fn only_bucket(&self) -> Option<&TokenBucket> {
        match &*self.quotas {
            [Named { limit: Limit::TokenBucket(bucket), .. }] => Some(bucket),
            _ => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (QuotaId, &Limit)> {
        self.quotas.iter().map(|quota| (quota.id, &quota.limit))
    }

    /// The levels at `now` (microseconds) of a key of which a store has these entries.
    pub(crate) fn standing(&self, entries: &[QuotaEntry], now: u64) -> Standing {
        let level = |Named { id, limit, .. }: &Named| {
            let is_own = |entry: &&QuotaEntry| entry.quota == *id && limit.reads(&entry.state);
            let entry = entries.iter().find(is_own);
            limit.level(entry.map(|entry| entry.state.clone()), now)
        };
        Standing(match &*self.quotas {
            // Without the loop, which costs more than the rest.
            [quota] => SmallVec::from_buf([level(quota)]),
            quotas => quotas.iter().map(level).collect(),
        })
    }

    /// The levels of a policy whose only quota is a token bucket, from a level in ticks that are
    /// microseconds. `None` for any other policy.
    #[cfg(feature = "redis")]
    pub(crate) fn standing_of_bucket(&self, ticks: u64) -> Option<Standing> {
        let rate = self.only_bucket().map(TokenBucket::rate).filter(|rate| rate.scale() == 1)?;
        Some(Standing(SmallVec::from_buf([Level::TokenBucket(rate.debt(ticks))])))
    }

    /// The levels of a key of which all permits are taken.
    pub(crate) fn empty(&self, now: u64) -> Standing {
        Standing(self.quotas.iter().map(|quota| quota.limit.empty(now)).collect())
    }

    /// The entries to store after a check. Entries of quotas that only another revision of the policy has
    /// stay as they were found, until their time is over.
    pub(crate) fn entries(
        &self,
        standing: &Standing,
        found: &[QuotaEntry],
        now: u64,
    ) -> Box<[QuotaEntry]> {
        let own = self.quotas.iter().zip(&standing.0);
        let own = own.map(|(quota, level)| QuotaEntry { quota: quota.id, state: level.state(now) });
        let is_own = |entry: &QuotaEntry| {
            let mut quotas = self.quotas.iter();
            quotas.any(|quota| quota.id == entry.quota && quota.limit.reads(&entry.state))
        };
        let is_kept = |entry: &&QuotaEntry| !is_own(entry) && entry.state.until() > now;
        own.chain(found.iter().filter(is_kept).cloned()).collect()
    }

    /// Lowers the level of a token bucket to what is possible if it was empty at this time, or will be.
    #[cfg(feature = "redis")]
    pub(crate) fn cap(&self, standing: &mut Standing, id: QuotaId, empty_at: FullAt, now: u64) {
        for (quota, level) in self.quotas.iter().zip(&mut standing.0) {
            if let (Limit::TokenBucket(bucket), Level::TokenBucket(debt)) = (&quota.limit, level)
                && quota.id == id
            {
                bucket.cap(debt, empty_at, now);
            }
        }
    }

    /// Makes the levels those of this revision, as a charge does.
    #[cfg(feature = "redis")]
    pub(crate) fn adopt(&self, standing: &mut Standing) {
        for (quota, level) in self.quotas.iter().zip(&mut standing.0) {
            quota.limit.charge(level, 0);
        }
    }

    /// The permits that a check takes from each quota, of those whose permits are held only if the costs name them. The
    /// error is a name that no quota has.
    #[inline]
    pub(crate) fn charge(&self, costs: &Costs) -> Result<Charge, Cow<'static, str>> {
        match &costs.special {
            None if !self.has_holds => Ok(Charge::Same(costs.others)),
            special => self.charge_each(costs.others, 0, special.as_deref()),
        }
    }

    /// The permits that a hold takes from each quota: one of those whose permits are held, unless the costs name them.
    /// The error is a name that no quota has.
    pub(crate) fn hold_charge(&self, costs: &Costs) -> Result<Charge, Cow<'static, str>> {
        match &costs.special {
            None if !self.has_holds || costs.others == 1 => Ok(Charge::Same(costs.others)),
            special => self.charge_each(costs.others, 1, special.as_deref()),
        }
    }

    fn charge_each(
        &self,
        others: u64,
        held: u64,
        special: Option<&SpecialCosts>,
    ) -> Result<Charge, Cow<'static, str>> {
        let unnamed = |quota: &Named| if quota.limit.is_held() { held } else { others };
        let mut each: Vec<u64> = self.quotas.iter().map(unnamed).collect();
        let Some(special) = special else { return Ok(Charge::Each(each.into())) };
        for (name, cost) in &special.named {
            let index = self.infos.iter().position(|info| info.name() == name);
            each[index.ok_or_else(|| name.clone())?] = *cost;
        }
        Ok(match special.is_charged_later {
            false => Charge::Each(each.into()),
            true => Charge::Later(each.into()),
        })
    }

    /// The verdict on a cost above the capacity of a quota, which needs no state.
    #[inline]
    pub(crate) fn exceeding_capacity(&self, cost: &impl Cost) -> Option<Verdict> {
        // No wait makes a capacity smaller.
        if cost.most() <= self.least_capacity {
            return None;
        }
        self.exceeds_capacity(cost).then(|| self.check(&mut self.standing(&[], 0), cost))
    }

    /// The verdict at the earliest of these times on a check of a key that a check has left with these
    /// entries, if it is denied at the latest too, whatever other checks do meanwhile.
    pub(crate) fn denial(
        &self,
        entries: &[QuotaEntry],
        cost: &impl Cost,
        times: RangeInclusive<u64>,
    ) -> Option<Verdict> {
        let latest = self.standing(entries, *times.end());
        let is_allowed = match self.is_own(&latest) {
            true => self.is_allowed(&latest, cost),
            // Any check that is charged to another quota sets a bucket to this revision's rate, which may be
            // faster.
            false if self.len() > 1 => true,
            // So does a smaller check that is allowed. Until there is a permit, none is.
            false => self.is_allowed(&latest, &AtMostOne(cost)),
        };
        let denial = || self.check(&mut self.standing(entries, *times.start()), cost);
        // Permits that are held may be given back at any time.
        let is_final = |verdict: &Verdict| {
            verdict.outcome == Outcome::ExceedsCapacity || verdict.numbers.retry_after != u64::MAX
        };
        (!is_allowed).then(denial).filter(is_final)
    }

    /// Decides a check, and charges its cost if it is allowed.
    pub(crate) fn check(&self, standing: &mut Standing, cost: &impl Cost) -> Verdict {
        if let ([quota], [level]) = (&*self.quotas, &mut *standing.0) {
            return quota.limit.decide(level, cost);
        }
        let outcome = if self.is_allowed(standing, cost) {
            let mut indices = 0..self.quotas.len();
            if indices.any(|index| cost.of(index) > 0) {
                self.charge_all(standing, cost);
            }
            Outcome::Allowed
        } else if self.exceeds_capacity(cost) {
            Outcome::ExceedsCapacity
        } else {
            Outcome::Denied
        };
        self.verdict(standing, outcome, cost)
    }

    /// Charges a cost that fits. Also quotas with a cost of 0, which are stored with the others from now on.
    fn charge_all(&self, standing: &mut Standing, cost: &impl Cost) {
        for (index, (quota, level)) in self.quotas.iter().zip(&mut standing.0).enumerate() {
            quota.limit.charge(level, cost.of(index));
        }
    }

    /// True if a check is allowed.
    pub(crate) fn is_allowed(&self, standing: &Standing, cost: &impl Cost) -> bool {
        let mut quotas = self.quotas.iter().zip(&standing.0).enumerate();
        quotas.all(|(index, (quota, level))| {
            let needed = cost.needed(index);
            needed == 0 || quota.limit.fits(level, needed, cost.patience_for(index))
        })
    }

    /// Charges and gives back permits without a check, and returns the verdict on a check of cost 1
    /// afterwards. It says how much of the charge was forgiven.
    pub(crate) fn adjust(&self, standing: &mut Standing, adjustment: &Adjustment) -> Verdict {
        let mut forgiven = 0;
        for (index, (quota, level)) in self.quotas.iter().zip(&mut standing.0).enumerate() {
            match adjustment.of(index) {
                units @ ..0 => quota.limit.credit(level, units.unsigned_abs()),
                // Also 0, which is stored with the others from now on.
                permits => {
                    let (most, permits) = (quota.most_charged, permits.unsigned_abs());
                    forgiven = quota.limit.charge_up_to(most, level, permits).max(forgiven);
                }
            }
        }
        let mut verdict = self.peek(standing);
        verdict.forgive(forgiven, &self.infos);
        verdict
    }

    /// Decides checks of equal costs, one after the other, until one is denied. Returns the number of those that
    /// are allowed.
    #[cfg(feature = "redis")]
    pub(crate) fn check_run(&self, standing: &mut Standing, count: u64, cost: &impl Cost) -> u64 {
        for checked in 0..count {
            if !self.is_allowed(standing, cost) {
                return checked;
            }
            self.charge_all(standing, cost);
        }
        count
    }

    /// Returns the verdict on an allowed check of a key at these levels, as if the permits that `unused` has
    /// were not in use. `unused` says how many of a quota.
    pub(crate) fn verdict_without(
        &self,
        mut standing: Standing,
        unused: impl Fn(usize) -> u64,
        cost: &impl Cost,
    ) -> Verdict {
        self.give_back(&mut standing, unused);
        self.verdict(&standing, Outcome::Allowed, cost)
    }

    /// Gives whole permits of each quota back.
    pub(crate) fn give_back(&self, standing: &mut Standing, permits: impl Fn(usize) -> u64) {
        for (index, (quota, level)) in self.quotas.iter().zip(&mut standing.0).enumerate() {
            let permits = permits(index);
            if permits > 0 {
                quota.limit.credit(level, permits.saturating_mul(quota.limit.unit()));
            }
        }
    }

    /// Gives permits back unless it is too late. Then the verdict is that it is allowed.
    pub(crate) fn give_back_until(
        &self,
        standing: &mut Standing,
        timed: &TimedCredit,
        now: u64,
    ) -> Verdict {
        let outcome = match now <= timed.until {
            true => {
                let _ = self.adjust(standing, &timed.credit);
                Outcome::Allowed
            }
            false => Outcome::Denied,
        };
        self.verdict(standing, outcome, &1)
    }

    /// Reduces a credit by what refills in a time beyond what is subtracted for a lease, both in microseconds.
    pub(crate) fn within_reserve(&self, credit: &Adjustment, lease: u64, time: u64) -> Adjustment {
        let of = |(index, quota): (usize, &Named)| {
            let beyond = saturating(quota.limit.beyond_reserve(lease, time));
            credit.of(index).saturating_add(beyond).min(0)
        };
        self.quotas.iter().enumerate().map(of).collect()
    }

    /// Returns the permits of each quota that are not in use.
    pub(crate) fn free(&self, standing: &Standing) -> Permits {
        self.used(standing).map(|(used, limit)| limit.saturating_sub(used)).collect()
    }

    /// Returns the time for which permits that are taken now may be kept, in microseconds.
    #[cfg(feature = "redis")]
    pub(crate) fn keeps(&self, standing: &Standing) -> u64 {
        standing.0.iter().map(Level::keeps).min().unwrap_or(0)
    }

    /// Returns what is left of a check that has just left these levels.
    #[cfg(feature = "redis")]
    pub(crate) fn left(&self, standing: &Standing) -> SmallVec<[Left; 1]> {
        let quotas = self.quotas.iter().zip(&standing.0);
        let left = quotas.map(|(quota, level)| {
            let numbers = quota.limit.numbers_after(level, Outcome::Allowed, 0, &0);
            let used = level.used();
            Left { used, reset_after: numbers.reset_after, counts_for: numbers.counts_for }
        });
        left.collect()
    }

    /// The most permits of the quota of an index that can be in use without a debt.
    pub(crate) fn limit(&self, quota: usize) -> u64 {
        self.quotas.get(quota).map_or(0, |quota| quota.limit.limit())
    }

    /// The units in a permit of the quota of an index.
    pub(crate) fn unit(&self, quota: usize) -> u64 {
        self.quotas.get(quota).map_or(1, |quota| quota.limit.unit())
    }

    /// Decides a check that may wait. If it has to, the verdict says for how long.
    pub(crate) fn enqueue(&self, standing: &mut Standing, queued: &Queued, now: u64) -> Verdict {
        let mut verdict = self.check(standing, queued);
        if !verdict.is_allowed() {
            return verdict;
        }
        let place = |(index, (quota, level)): (usize, (&Named, &Level))| match queued.of(index) {
            0 => (0, 0),
            _ => quota.limit.place(level, now).unwrap_or_default(),
        };
        let places = self.quotas.iter().zip(&standing.0).enumerate().map(place);
        let (waits, ends): (Vec<u64>, Vec<u64>) = places.unzip();
        let wait = waits.into_iter().max().unwrap_or(0);
        if wait > 0 {
            let place = Place { credit: self.credit(queued), ends: ends.into() };
            verdict.wait_for(wait, place, &self.infos);
        }
        verdict
    }

    /// Gives the permits of a place in the queues back if nobody queued behind it. Then the verdict is
    /// that it is allowed.
    pub(crate) fn leave(&self, standing: &mut Standing, place: &Place, now: u64) -> Verdict {
        let mut quotas = self.quotas.iter().zip(&standing.0).zip(&place.ends);
        let is_last = quotas.all(|((quota, level), end)| {
            *end == 0 || quota.limit.place(level, now).is_some_and(|(_, full_at)| full_at == *end)
        });
        let outcome = match is_last {
            true => {
                let _ = self.adjust(standing, &place.credit);
                Outcome::Allowed
            }
            false => Outcome::Denied,
        };
        self.verdict(standing, outcome, &1)
    }

    /// True if checks of a quota wait without being asked to.
    pub(crate) fn has_queue(&self) -> bool {
        self.has_queue
    }

    /// True if a quota has permits that are held, and have to be given back.
    #[inline]
    pub(crate) fn has_holds(&self) -> bool {
        self.has_holds
    }

    /// Gives back all permits of the quotas whose permits are not held.
    pub(crate) fn refill(&self) -> Adjustment {
        let of = |quota: &Named| if quota.limit.is_held() { 0 } else { i64::MIN };
        self.quotas.iter().map(of).collect()
    }

    /// Returns a number of permits of each quota whose permits are held, and 0 of the others.
    pub(crate) fn held_of(&self, permits: impl Fn(usize) -> u64) -> Permits {
        let of = |(index, quota): (usize, &Named)| match quota.limit.is_held() {
            true => permits(index),
            false => 0,
        };
        self.quotas.iter().enumerate().map(of).collect()
    }

    /// Returns what a charge takes of the quotas whose permits are not held.
    pub(crate) fn without_held(&self, charge: &impl Cost) -> Charge {
        let quotas = self.quotas.iter().enumerate();
        let of = |(index, quota): (usize, &Named)| match quota.limit.is_held() {
            true => 0,
            false => charge.of(index),
        };
        Charge::Each(quotas.map(of).collect())
    }

    /// Returns the identities of the quotas, in their order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = QuotaId> {
        self.quotas.iter().map(|quota| quota.id)
    }

    /// Notes how many permits of each quota an instance holds, as a call of this number says. Of quotas whose
    /// permits are not held, the numbers do not count.
    pub(crate) fn hold(&self, standing: &mut Standing, held: &[u64], call: u64) {
        for (index, (quota, level)) in self.quotas.iter().zip(&mut standing.0).enumerate() {
            match (&quota.limit, level) {
                (Limit::Concurrent(limit), Level::Concurrent(level)) => {
                    limit.hold(level, held.get(index).copied().unwrap_or(0), call);
                }
                // It is stored with the others from now on.
                (limit, level) => limit.charge(level, 0),
            }
        }
    }

    /// The verdict on a check of cost 1, without charging it.
    pub(crate) fn peek(&self, standing: &Standing) -> Verdict {
        let is_allowed = self.is_allowed(standing, &1);
        self.verdict(standing, if is_allowed { Outcome::Allowed } else { Outcome::Denied }, &1)
    }

    fn exceeds_capacity(&self, cost: &impl Cost) -> bool {
        let mut quotas = self.quotas.iter().enumerate();
        quotas.any(|(index, quota)| quota.limit.capacity(cost.patience()) < cost.of(index))
    }

    fn verdict(&self, standing: &Standing, outcome: Outcome, cost: &impl Cost) -> Verdict {
        let numbers = |(index, (quota, level)): (usize, (&Named, &Level))| {
            quota.limit.numbers_after(level, outcome, index, cost)
        };
        if let ([quota], [level]) = (&*self.quotas, &*standing.0) {
            return Verdict::new(outcome, numbers((0, (quota, level))));
        }
        let quotas = self.quotas.iter().zip(&standing.0).enumerate();
        Verdict::of_several(outcome, self.infos.clone(), quotas.map(numbers).collect())
    }

    /// The permits of each quota that are in use, rounded up, and its limit.
    pub(crate) fn used(&self, standing: &Standing) -> impl Iterator<Item = (u64, u64)> {
        self.quotas
            .iter()
            .zip(&standing.0)
            .map(|(quota, level)| (level.used(), quota.limit.limit()))
    }

    /// True if time and checks change these levels as they would change those that this revision of the
    /// policy has left.
    pub(crate) fn is_own(&self, standing: &Standing) -> bool {
        self.quotas.iter().zip(&standing.0).all(|(quota, level)| quota.limit.is_own(level))
    }
}

impl Standing {
    /// The state of the token bucket that is the only quota. `None` for any other policy.
    pub(crate) fn only_bucket(&self, now: u64) -> Option<BucketState> {
        match &*self.0 {
            [Level::TokenBucket(debt)] => Some(debt.state(now)),
            _ => None,
        }
    }
}

impl Named {
    /// A quota that can owe at most so much, or as much as fits.
    fn new(id: QuotaId, limit: Limit, debt: Option<u64>) -> Self {
        let most_charged = limit.most_taken().saturating_add(debt.unwrap_or(u64::MAX));
        Self { id, limit, most_charged: most_charged.min(limit.most_stored()) }
    }
}

/// Returns the text that says why a quota has no leases of so many microseconds, and what to change.
fn unleased(quota: &str, fault: LeaseFault, lease: u64) -> String {
    match fault {
        LeaseFault::NoLeases => format!(
            "quota `{quota}` has an algorithm without leases: remove `lease`, or use a token bucket without a \
             queue, `interval_refill`, `fixed_window` or `calendar`"
        ),
        LeaseFault::TooLong { permits, limit } => format!(
            "quota `{quota}` gains {permits} permits during a lease of {:?}, which is more than half of its \
             capacity of {limit}: use a shorter `lease`, or a larger `burst` if it has one",
            Duration::from_micros(lease)
        ),
    }
}

/// No quota has as many permits or units.
fn saturating(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(super) fn check_bucket(bucket: TokenBucket, debt: &mut Debt, cost: u64) -> Verdict {
    let mut standing = Standing(SmallVec::from([Level::TokenBucket(*debt)]));
    let verdict = Limits::of_bucket(bucket).check(&mut standing, &cost);
    if let Level::TokenBucket(after) = standing.0[0] {
        *debt = after;
    }
    verdict
}

#[cfg(test)]
pub(super) fn peek_bucket(bucket: TokenBucket, debt: Debt) -> Verdict {
    let standing = Standing(SmallVec::from([Level::TokenBucket(debt)]));
    Limits::of_bucket(bucket).peek(&standing)
}

#[cfg(test)]
mod tests;

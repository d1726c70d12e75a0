//! The quotas of a policy. A check takes from all of them, or from none.
//!
//! All checks of a call are decided at one time. At that time each quota is a level between 0 and its
//! capacity: an allowed check raises it, and time lowers it. The algorithm says how.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

#[cfg(test)]
use super::TokenBucket;
use super::charge::{Adjustment, Charge, Cost, Place, Queued};
use super::limit::{Level, Limit};
#[cfg(test)]
use super::rate::Debt;
use super::state::{Entry, QuotaId, State};
use crate::verdict::{Outcome, QuotaInfo, Verdict};
use crate::{ConfigError, Costs, Policy};

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    quotas: SmallVec<[Named; 1]>,
    infos: Arc<[QuotaInfo]>,
}

#[derive(Clone, Debug)]
struct Named {
    id: QuotaId,
    limit: Limit,
    /// A lone token bucket belongs to the first of a policy, whatever its name.
    is_first_bucket: bool,
}

/// The levels of the quotas at one time, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing(SmallVec<[Level; 1]>);

impl Limits {
    /// Of a policy that has quotas, at a time in microseconds since 1970.
    pub(crate) fn new(policy: &Policy, now: u64) -> Result<Self, ConfigError> {
        let mut quotas = SmallVec::<[Named; 1]>::new();
        for (name, quota) in policy.quotas() {
            let id = QuotaId::of(name);
            if id == QuotaId::LONE || quotas.iter().any(|other| other.id == id) {
                return Err(ConfigError::new(format!(
                    "quota `{name}` of policy `{}`: another has the same name, or one with the same \
                     hash: choose another name",
                    policy.name()
                )));
            }
            let limit = Limit::new(name, quota, now)?;
            let has_bucket = quotas.iter().any(|other| other.is_first_bucket);
            let is_first_bucket = limit.is_bucket() && !has_bucket;
            quotas.push(Named { id, limit, is_first_bucket });
        }
        let infos = policy.quotas().zip(&quotas);
        let infos = infos.map(|((name, _), quota)| quota.limit.info(name)).collect();
        Ok(Self { quotas, infos })
    }

    /// While all calendars are in their current windows, if there are any.
    pub(crate) fn valid_during(&self) -> Option<Range<u64>> {
        let windows = self.quotas.iter().filter_map(|quota| quota.limit.valid_during());
        windows.reduce(|a, b| a.start.max(b.start)..a.end.min(b.end))
    }

    /// What replaces a charge by the actual cost. Nothing is given back that is available again by now:
    /// `left` is the time in which the quota of an index resets, unless others charge it, and `delay` the
    /// longest time until the store knows.
    pub(crate) fn settle(
        &self,
        actual: &impl Cost,
        charged: &impl Cost,
        left: impl Fn(usize) -> u64,
        delay: u64,
    ) -> Adjustment {
        let quotas = self.quotas.iter().enumerate();
        let of = |(index, quota): (usize, &Named)| {
            let (actual, charged) = (actual.of(index), charged.of(index));
            match actual.checked_sub(charged) {
                Some(more) => i64::try_from(more).unwrap_or(i64::MAX),
                None => {
                    let units = quota.limit.returnable(charged - actual, left(index), delay);
                    i64::try_from(units).map_or(i64::MIN, |units| -units)
                }
            }
        };
        Adjustment::in_units(quotas.map(of).collect())
    }

    /// The whole permits of a charge that can be given back.
    pub(crate) fn returnable(
        &self,
        charge: &impl Cost,
        left: impl Fn(usize) -> u64,
        delay: u64,
    ) -> Charge {
        let quotas = self.quotas.iter().enumerate();
        let of = |(index, Named { limit, .. }): (usize, &Named)| {
            limit.returnable(charge.of(index), left(index), delay) / limit.unit()
        };
        Charge::Each(quotas.map(of).collect())
    }

    /// What responses say about the quotas.
    pub(crate) fn infos(&self) -> &[QuotaInfo] {
        &self.infos
    }

    pub(crate) fn len(&self) -> usize {
        self.quotas.len()
    }

    /// Whether a token bucket is the only quota.
    #[cfg(feature = "redis")]
    pub(crate) fn is_lone_bucket(&self) -> bool {
        matches!(&*self.quotas, [quota] if quota.limit.is_bucket())
    }

    #[cfg(any(feature = "redis", test))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (QuotaId, &Limit)> {
        self.quotas.iter().map(|quota| (quota.id, &quota.limit))
    }

    /// The levels at `now` (microseconds) of a key in this state. `None` if nothing is stored.
    pub(crate) fn standing(&self, state: Option<&State>, now: u64) -> Standing {
        let level = |Named { id, limit, is_first_bucket }: &Named| {
            let state = state.and_then(|state| state.find(*id, limit, *is_first_bucket));
            limit.level(state, now)
        };
        Standing(self.quotas.iter().map(level).collect())
    }

    /// The levels of a key of which all permits are taken.
    #[cfg(feature = "redis")]
    pub(crate) fn empty(&self, now: u64) -> Standing {
        Standing(self.quotas.iter().map(|quota| quota.limit.empty(now)).collect())
    }

    /// What to store after a check. Quotas that only another revision of the policy has stay as they
    /// were found, until they are full.
    pub(crate) fn state(&self, standing: &Standing, found: Option<&State>, now: u64) -> State {
        let has_identities = matches!(found, Some(State::Several(entries)) if !entries.is_empty());
        // If the state has identities, it keeps them: the other quotas may be unused at the moment.
        if let [level] = &*standing.0
            && !has_identities
            && let Some(state) = level.lone(now)
        {
            return State::Lone(state);
        }
        let is_own = |entry: &Entry| {
            self.quotas.iter().any(|quota| {
                let is_lone = entry.quota == QuotaId::LONE && quota.is_first_bucket;
                (is_lone || entry.quota == quota.id) && quota.limit.reads(&entry.state)
            })
        };
        let others = found.into_iter().flat_map(State::entries);
        let others = others.filter(|entry| !is_own(entry) && entry.until() > now);
        let own = self.quotas.iter().zip(&standing.0);
        let own = own.map(|(quota, level)| Entry { quota: quota.id, state: level.state(now) });
        State::Several(own.chain(others).collect())
    }

    /// What a check takes from each quota. The error is a name that no quota has.
    pub(crate) fn charge(&self, costs: &Costs) -> Result<Charge, Cow<'static, str>> {
        if costs.named.is_empty() && !costs.is_charged_later {
            return Ok(Charge::Same(costs.others));
        }
        let mut each = vec![costs.others; self.quotas.len()];
        for (name, cost) in &costs.named {
            let index = self.infos.iter().position(|info| info.name() == name);
            each[index.ok_or_else(|| name.clone())?] = *cost;
        }
        Ok(match costs.is_charged_later {
            false => Charge::Each(each.into()),
            true => Charge::Later(each.into()),
        })
    }

    /// The verdict on a cost above the capacity of a quota, which needs no state.
    pub(crate) fn exceeding_capacity(&self, cost: &impl Cost) -> Option<Verdict> {
        self.exceeds_capacity(cost).then(|| self.check(&mut self.standing(None, 0), cost))
    }

    /// Decides a check, and charges its cost if it is allowed.
    pub(crate) fn check(&self, standing: &mut Standing, cost: &impl Cost) -> Verdict {
        let outcome = if self.is_allowed(standing, cost) {
            let mut indices = 0..self.quotas.len();
            if indices.any(|index| cost.of(index) > 0) {
                // Also those with a cost of 0, which are stored with the others from now on.
                for (index, (quota, level)) in self.quotas.iter().zip(&mut standing.0).enumerate() {
                    quota.limit.charge(level, cost.of(index));
                }
            }
            Outcome::Allowed
        } else if self.exceeds_capacity(cost) {
            Outcome::ExceedsCapacity
        } else {
            Outcome::Denied
        };
        self.verdict(standing, outcome, cost)
    }

    /// Whether a check is allowed.
    pub(crate) fn is_allowed(&self, standing: &Standing, cost: &impl Cost) -> bool {
        let patience = cost.patience().filter(|_| cost.may_wait());
        let mut quotas = self.quotas.iter().zip(&standing.0).enumerate();
        quotas.all(|(index, (quota, level))| {
            let needed = cost.needed(index);
            needed == 0 || quota.limit.fits(level, needed, patience)
        })
    }

    /// Charges and gives back permits without a check, and returns the verdict on a check of cost 1
    /// afterwards.
    pub(crate) fn adjust(&self, standing: &mut Standing, adjustment: &Adjustment) -> Verdict {
        for (index, (quota, level)) in self.quotas.iter().zip(&mut standing.0).enumerate() {
            match adjustment.of(index) {
                units @ ..0 if adjustment.has_units() => {
                    quota.limit.credit_units(level, units.unsigned_abs());
                }
                permits @ ..0 => quota.limit.credit(level, permits.unsigned_abs()),
                // Also 0, which is stored with the others from now on.
                permits => quota.limit.charge_anyway(level, permits.unsigned_abs()),
            }
        }
        self.peek(standing)
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
            let place = Place { charge: queued.charge.clone(), ends: ends.into() };
            verdict.wait_for(wait, place, &self.infos);
        }
        verdict
    }

    /// Gives the permits of a place in the queues back if nobody queued behind it, and returns the
    /// verdict on a check of cost 1 afterwards.
    pub(crate) fn leave(&self, standing: &mut Standing, place: &Place, now: u64) -> Verdict {
        let mut quotas = self.quotas.iter().zip(&standing.0).zip(&place.ends);
        let is_last = quotas.all(|((quota, level), end)| {
            *end == 0 || quota.limit.place(level, now).is_some_and(|(_, full_at)| full_at == *end)
        });
        match is_last {
            true => self.adjust(standing, &Adjustment::new(self.len(), &0, &place.charge)),
            false => self.peek(standing),
        }
    }

    /// Whether checks of a quota wait without being asked to.
    pub(crate) fn has_queue(&self) -> bool {
        self.quotas.iter().any(|quota| quota.limit.is_queue())
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
        let patience = cost.patience();
        let numbers = |(index, (quota, level)): (usize, (&Named, &Level))| {
            let mut numbers = quota.limit.numbers(level);
            let needed = cost.needed(index);
            numbers.retry_after = match outcome {
                Outcome::Denied if needed > 0 && cost.may_wait() => {
                    quota.limit.time_to_fit(level, needed, patience)
                }
                Outcome::Denied if needed > quota.limit.capacity(None) => {
                    numbers.reset_after.max(1)
                }
                Outcome::Denied if needed > 0 => quota.limit.time_to_fit(level, needed, None),
                Outcome::ExceedsCapacity if quota.limit.capacity(patience) < needed => u64::MAX,
                _ => 0,
            };
            numbers
        };
        if let ([quota], [level]) = (&*self.quotas, &*standing.0) {
            return Verdict::new(outcome, numbers((0, (quota, level))));
        }
        let quotas = self.quotas.iter().zip(&standing.0).enumerate();
        Verdict::of_several(outcome, self.infos.clone(), quotas.map(numbers).collect())
    }

    /// Whether time and checks change these levels as they would change those that this revision of
    /// the policy has left.
    pub(crate) fn is_own(&self, standing: &Standing) -> bool {
        self.quotas.iter().zip(&standing.0).all(|(quota, level)| quota.limit.is_own(level))
    }
}

#[cfg(test)]
impl Limits {
    pub(crate) fn of_bucket(bucket: TokenBucket) -> Self {
        let (id, limit) = (QuotaId::LONE, Limit::TokenBucket(bucket));
        let named = Named { id, limit, is_first_bucket: true };
        Self { quotas: [named].into(), infos: [limit.info("q")].into() }
    }
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
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Patience;
    use crate::quota::{Kind, WindowStart};
    use crate::verdict::Numbers;
    use crate::{Costs, Quota};

    const NOW: u64 = 1 << 50;

    /// The quotas are named `a`, `b` and so on.
    fn limits(quotas: &[Quota]) -> Limits {
        let named = quotas.iter().zip('a'..);
        let policy = named.fold(Policy::new("test"), |policy, (quota, name)| {
            policy.quota(name.to_string(), *quota)
        });
        Limits::new(&policy, NOW).unwrap()
    }

    fn of_names(quotas: &[(&'static str, Quota)]) -> Limits {
        let policy = quotas
            .iter()
            .fold(Policy::new("test"), |policy, &(name, quota)| policy.quota(name, quota));
        Limits::new(&policy, NOW).unwrap()
    }

    /// Of any kind.
    fn quota() -> impl Strategy<Value = Quota> {
        (1..=20u64, 1_000..=10_000_000u64, 1..=20u64, 1..=20u64, 0..8).prop_map(
            |(permits, micros, burst, borrow, kind)| {
                let quota = Quota::new(permits, Duration::from_micros(micros));
                match kind {
                    0 => quota.burst(burst),
                    1 => quota.burst(burst).borrow_up_to(borrow),
                    2 => quota.burst(burst).interval_refill(),
                    3 => quota.fixed_window(),
                    4 => quota.calendar(),
                    5 => quota.sliding_window(),
                    6 => quota.burst(burst).queue(Duration::from_micros(borrow * micros / 7 + 1)),
                    _ => {
                        let period = Duration::from_micros(micros * burst);
                        Quota::new(permits, period).sliding_blocks(burst as u32)
                    }
                }
            },
        )
    }

    fn quotas() -> impl Strategy<Value = Vec<Quota>> {
        prop::collection::vec(quota(), 1..=4)
    }

    /// Pauses in microseconds, and costs.
    fn checks() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0..=3_000_000u64, 0..=21u64), 1..60)
    }

    fn numbers(verdict: &Verdict) -> &[Numbers] {
        match &verdict.several {
            Some(several) => &several.numbers,
            None => std::slice::from_ref(&verdict.numbers),
        }
    }

    proptest! {
        /// Compared with policies of one quota each, which are charged only if all of them allow the
        /// check.
        #[test]
        fn a_check_takes_from_all_quotas_or_from_none(quotas in quotas(), checks in checks()) {
            let limits = limits(&quotas);
            let alone: Vec<_> = quotas.iter().map(|quota| self::limits(&[*quota])).collect();
            let (mut state, mut now) = (None, NOW);
            let mut states = vec![None; quotas.len()];
            for (pause, cost) in checks {
                now += pause;
                let mut standing = limits.standing(state.as_ref(), now);
                let verdict = limits.check(&mut standing, &cost);
                state = Some(limits.state(&standing, state.as_ref(), now));
                let separate: Vec<_> = alone
                    .iter()
                    .zip(&states)
                    .map(|(alone, state): (&Limits, &Option<State>)| {
                        let mut standing = alone.standing(state.as_ref(), now);
                        (alone.check(&mut standing, &cost), alone.state(&standing, None, now))
                    })
                    .collect();
                let is_allowed = separate.iter().all(|(verdict, _)| verdict.is_allowed());
                prop_assert_eq!(verdict.is_allowed(), is_allowed);
                if is_allowed {
                    states = separate.into_iter().map(|(_, state)| Some(state)).collect();
                }
                let remaining = |(alone, state): (&Limits, &Option<State>)| {
                    alone.peek(&alone.standing(state.as_ref(), now)).numbers.remaining
                };
                let remaining: Vec<_> = alone.iter().zip(&states).map(remaining).collect();
                let listed: Vec<_> = numbers(&verdict).iter().map(|n| n.remaining).collect();
                prop_assert_eq!(listed, remaining);
            }
        }

        #[test]
        fn a_denied_check_is_allowed_after_exactly_the_reported_wait(
            quotas in quotas(), checks in checks(), cost in 1..=20u64,
        ) {
            let limits = limits(&quotas);
            let capacity = limits.iter().map(|(_, limit)| limit.capacity(None)).min().unwrap();
            let cost = 1 + cost % capacity;
            let (mut state, mut now) = (None, NOW);
            for (pause, cost) in checks {
                now += pause;
                let mut standing = limits.standing(state.as_ref(), now);
                let _ = limits.check(&mut standing, &cost);
                state = Some(limits.state(&standing, state.as_ref(), now));
            }
            let check = |at| limits.check(&mut limits.standing(state.as_ref(), at), &cost);
            let verdict = check(now);
            let wait = verdict.numbers.retry_after;
            prop_assert!(check(now + wait).is_allowed());
            prop_assert!(verdict.is_allowed() || !check(now + wait - 1).is_allowed());
        }

        /// Only time lowers a level, however it passes.
        #[test]
        fn time_in_two_steps_is_time_in_one(quotas in quotas(), cost in 1..=20u64, a in 0..=3_000_000u64, b in 0..=3_000_000u64) {
            let limits = limits(&quotas);
            let mut standing = limits.standing(None, NOW);
            let _ = limits.check(&mut standing, &cost);
            let state = limits.state(&standing, None, NOW);
            let between = limits.standing(Some(&state), NOW + a);
            let state_between = limits.state(&between, Some(&state), NOW + a);
            let end = NOW + a + b;
            prop_assert_eq!(
                limits.standing(Some(&state_between), end),
                limits.standing(Some(&state), end)
            );
        }
    }

    #[test]
    fn a_quota_that_is_added_or_removed_leaves_the_others_as_they_are() {
        let (slow, other) = (Quota::per_day(5), Quota::per_day(9));
        let both = of_names(&[("a", slow), ("b", other)]);
        let mut standing = both.standing(None, NOW);
        assert!(both.check(&mut standing, &3).is_allowed());
        let state = both.state(&standing, None, NOW);
        let remaining = |limits: &Limits, state: &State| {
            let verdict = limits.peek(&limits.standing(Some(state), NOW));
            numbers(&verdict).iter().map(|n| n.remaining).collect::<Vec<_>>()
        };
        let more = of_names(&[("b", other), ("c", slow), ("a", slow)]);
        assert_eq!(remaining(&more, &state), [6, 5, 2]);
        // Without `a`, which stays in the state for those that have it.
        let less = of_names(&[("b", other)]);
        let mut standing = less.standing(Some(&state), NOW);
        assert!(less.check(&mut standing, &1).is_allowed());
        let state = less.state(&standing, Some(&state), NOW);
        assert_eq!(remaining(&both, &state), [2, 5]);
        // Until it is full again. What is left still belongs to `b`.
        let later = NOW + 2 * 86_400_000_000;
        let mut standing = less.standing(Some(&state), later);
        assert!(less.check(&mut standing, &4).is_allowed());
        let state = less.state(&standing, Some(&state), later);
        assert!(state.entries().count() == 1, "{state:?}");
        let verdict = both.peek(&both.standing(Some(&state), later));
        assert_eq!(numbers(&verdict).iter().map(|n| n.remaining).collect::<Vec<_>>(), [5, 5]);
    }

    /// The most that a quota admits in a span, according to the guide.
    fn most(quota: &Quota, first: u64, span: u64) -> u64 {
        let (n, period) = (quota.permits(), quota.period().as_micros() as u64);
        let capacity = quota.capacity() + quota.borrowed();
        match quota.kind() {
            Kind::TokenBucket | Kind::Queue(_) => capacity + n * span / period,
            // Each refill is a period after the one before.
            Kind::IntervalRefill => capacity + n * span.div_ceil(period),
            // Windows after the first start at least a period after the one before.
            Kind::FixedWindow(WindowStart::FirstCheck) => n * (span.div_ceil(period) + 1),
            Kind::FixedWindow(_) => {
                let start =
                    if period.is_multiple_of(604_800_000_000) { 345_600_000_000 } else { 0 };
                n * ((first + span - start) / period - (first - start) / period + 1)
            }
            Kind::SlidingCounters => 2 * n * (span / period + 1),
            Kind::SlidingBlocks(_) => n * (span / period + 1),
        }
    }

    proptest! {
        #[test]
        fn no_span_admits_more_than_the_documented_most(
            quota in quota(), checks in prop::collection::vec((0..=3_000_000u64, 1..=40u64), 1..60),
        ) {
            let limits = limits(&[quota]);
            let (mut state, mut now, mut admitted) = (None, NOW, Vec::new());
            for (pause, cost) in checks {
                now += pause;
                let mut standing = limits.standing(state.as_ref(), now);
                if limits.check(&mut standing, &cost).is_allowed() {
                    admitted.push((now, cost));
                    state = Some(limits.state(&standing, state.as_ref(), now));
                }
            }
            for (index, (first, _)) in admitted.iter().enumerate() {
                let mut total = 0;
                for (at, cost) in &admitted[index..] {
                    total += cost;
                    let most = most(&quota, *first, at - first);
                    prop_assert!(total <= most, "{} > {} from {} to {}: {}", total, most, first, at, quota);
                }
            }
        }

        /// As during a rolling deployment. A window can be used up at its end and again at the start
        /// of the next, so twice the larger limit.
        #[test]
        fn revisions_in_random_alternation_admit_no_more_than_the_larger_numbers(
            kind in 0..7, numbers in prop::collection::vec((1..=5u64, 1..=60u64), 2..=3),
            checks in prop::collection::vec((0..3usize, 0..=1_000_000u64, 1..=20u64), 400),
        ) {
            let quota = |&(rate, seconds): &(u64, u64)| {
                let quota = Quota::new(rate * seconds, Duration::from_secs(seconds));
                match kind {
                    0 => quota,
                    1 => quota.borrow_up_to(10),
                    2 => quota.interval_refill(),
                    3 => quota.fixed_window(),
                    4 => quota.calendar(),
                    5 => quota.sliding_window(),
                    _ => quota.sliding_blocks(seconds as u32),
                }
            };
            let quotas: Vec<_> = numbers.iter().map(quota).collect();
            let revisions: Vec<_> = quotas.iter().map(|quota| self::limits(&[*quota])).collect();
            let (mut state, mut now, mut admitted) = (None, NOW, 0);
            for (revision, pause, cost) in checks {
                now += pause;
                let limits = &revisions[revision % revisions.len()];
                let mut standing = limits.standing(state.as_ref(), now);
                if limits.check(&mut standing, &cost).is_allowed() {
                    admitted += cost;
                    state = Some(limits.state(&standing, state.as_ref(), now));
                }
            }
            let capacity = quotas.iter().map(|quota| quota.capacity() + quota.borrowed()).max();
            let rate = |quota: &Quota| quota.permits() as f64 / quota.period().as_secs_f64();
            // Windows on the clock end at the times of each revision, so their limits add up.
            let (add, factor) = match kind {
                4 => (std::ops::Add::add as fn(f64, f64) -> f64, 2.0 * quotas.len() as f64),
                _ => (f64::max as fn(f64, f64) -> f64, 2.0),
            };
            let rate = quotas.iter().map(rate).fold(0.0, add);
            let most = factor * capacity.unwrap_or(0) as f64 + rate * (now - NOW) as f64 / 1e6;
            prop_assert!(admitted as f64 <= most, "{} > {}: {:?}", admitted, most, quotas);
        }

        /// Another process may charge the key after a denial was cached.
        #[test]
        fn what_is_denied_by_an_older_state_is_denied_by_a_newer_one(
            quotas in quotas(), checks in checks(), cached_at in 0..30usize, cost in 1..=20u64,
        ) {
            let limits = limits(&quotas);
            let (mut state, mut now, mut cached) = (None, NOW, None);
            for (index, (pause, taken)) in checks.into_iter().enumerate() {
                now += pause / 8;
                let mut standing = limits.standing(state.as_ref(), now);
                if index == cached_at {
                    cached = Some(limits.state(&standing, None, now));
                }
                if let Some(cached) = &cached {
                    let cached = limits.standing(Some(cached), now);
                    prop_assert!(
                        limits.is_allowed(&cached, &cost) || !limits.is_allowed(&standing, &cost)
                    );
                }
                let _ = limits.check(&mut standing, &taken);
                state = Some(limits.state(&standing, state.as_ref(), now));
            }
        }

        /// As a batch reads the clock once, and a clock may be set back.
        #[test]
        fn equal_times_and_a_clock_that_steps_back_admit_no_more_than_the_capacity(
            quota in quota(), costs in prop::collection::vec((1..=5u64, 0..=1u64), 1..60),
        ) {
            let limits = limits(&[quota]);
            let (mut state, mut now, mut admitted) = (None, NOW, 0);
            for (cost, step) in costs {
                now -= step * 1_000;
                let mut standing = limits.standing(state.as_ref(), now);
                if limits.check(&mut standing, &cost).is_allowed() {
                    admitted += cost;
                    state = Some(limits.state(&standing, state.as_ref(), now));
                }
            }
            // A window on the clock that is left backwards is kept, not started again.
            prop_assert!(admitted <= quota.capacity() + quota.borrowed());
        }
    }

    fn queued(cost: u64, patience: u64) -> Queued {
        Queued { charge: Charge::Same(cost), patience: Patience(patience), may_wait: true }
    }

    /// A token bucket, with or without a queue, and for how long a check may wait.
    fn bucket() -> impl Strategy<Value = (Quota, u64)> {
        let wait = prop_oneof![1..=10_000_000u64, Just(1)];
        (1..=20u64, 1_000..=10_000_000u64, 1..=20u64, wait, any::<bool>()).prop_map(
            |(permits, micros, burst, wait, is_queue)| {
                let quota = Quota::new(permits, Duration::from_micros(micros)).burst(burst);
                let longest = Duration::from_micros(wait);
                (if is_queue { quota.queue(longest) } else { quota }, wait)
            },
        )
    }

    proptest! {
        /// What proceeds, and not what arrives, is at most the burst and what refills. The order is
        /// kept.
        #[test]
        fn checks_that_wait_proceed_in_order_at_the_rate_of_the_bucket(
            (quota, longest) in bucket(), checks in checks(),
        ) {
            let limits = limits(&[quota]);
            let (mut state, mut now, mut proceeding) = (None, NOW, Vec::<(u64, u64)>::new());
            for (pause, cost) in checks {
                now += pause / 4;
                let mut standing = limits.standing(state.as_ref(), now);
                let before = standing.clone();
                let verdict = limits.enqueue(&mut standing, &queued(cost, longest), now);
                if !verdict.is_allowed() {
                    prop_assert_eq!(standing, before);
                    if verdict.outcome == Outcome::Denied {
                        // The reported wait is for a place in the queue, and exact.
                        let check = |at| {
                            let mut standing = limits.standing(state.as_ref(), at);
                            limits.enqueue(&mut standing, &queued(cost, longest), at)
                        };
                        prop_assert!(check(now + verdict.numbers.retry_after).is_allowed());
                        prop_assert!(!check(now + verdict.numbers.retry_after - 1).is_allowed());
                    }
                    continue;
                }
                let waiting = verdict.several.and_then(|several| several.waiting);
                let wait = waiting.map_or(0, |waiting| waiting.wait);
                prop_assert!(wait <= longest);
                if cost > 0 {
                    let last = proceeding.last().map_or(0, |(at, _)| *at);
                    prop_assert!(now + wait >= last);
                    proceeding.push((now + wait, cost));
                }
                state = Some(limits.state(&standing, state.as_ref(), now));
            }
            for (index, (first, cost)) in proceeding.iter().enumerate() {
                // One that takes more than the burst has waited for the rest.
                let mut total = (*cost).min(quota.capacity());
                for (at, cost) in &proceeding[index + 1..] {
                    total += cost;
                    // Waits are rounded up to a microsecond.
                    prop_assert!(total <= most(&quota, *first, at - first + 1));
                }
            }
        }

        #[test]
        fn the_last_waiter_gives_its_place_back_and_others_keep_it(
            (quota, longest) in bucket(), checks in checks(), cost in 1..=5u64, other in 0..=5u64,
        ) {
            let limits = limits(&[quota]);
            let (mut state, mut now) = (None, NOW);
            for (pause, cost) in checks {
                now += pause / 4;
                let mut standing = limits.standing(state.as_ref(), now);
                let _ = limits.enqueue(&mut standing, &queued(cost, longest), now);
                state = Some(limits.state(&standing, state.as_ref(), now));
            }
            let before = limits.standing(state.as_ref(), now);
            let mut standing = before.clone();
            let verdict = limits.enqueue(&mut standing, &queued(cost, longest), now);
            let Some(waiting) = verdict.several.and_then(|several| several.waiting) else {
                return Ok(());
            };
            let behind = limits.enqueue(&mut standing, &queued(other, longest), now);
            let with_both = standing.clone();
            let state = limits.state(&standing, None, now);
            let later = now + waiting.wait / 2;
            let mut standing = limits.standing(Some(&state), later);
            let _ = limits.leave(&mut standing, &waiting.place, later);
            if behind.is_allowed() && other > 0 {
                let with_both = limits.state(&with_both, None, now);
                prop_assert_eq!(standing, limits.standing(Some(&with_both), later));
            } else {
                let before = limits.state(&before, None, now);
                prop_assert_eq!(standing, limits.standing(Some(&before), later));
            }
        }
    }

    fn adjustment(permits: i64) -> Adjustment {
        match u64::try_from(permits) {
            Ok(charge) => Adjustment::new(1, &charge, &0),
            Err(_) => Adjustment::new(1, &0, &permits.unsigned_abs()),
        }
    }

    proptest! {
        /// What is charged without a check counts like what is taken. A debt is bounded.
        #[test]
        fn charges_and_credits_never_admit_more_than_the_documented_most(
            quota in quota(),
            steps in prop::collection::vec((0..=3_000_000u64, 1..=40u64, -30..=30i64), 1..60),
        ) {
            let limits = limits(&[quota]);
            let (mut state, mut now, mut taken) = (None, NOW, Vec::new());
            for (pause, cost, permits) in steps {
                now += pause;
                let mut standing = limits.standing(state.as_ref(), now);
                let before = standing.0[0].used() as i64;
                let _ = limits.adjust(&mut standing, &adjustment(permits));
                let after = standing.0[0].used() as i64;
                let is_as_far = if permits < 0 { after >= before + permits } else { after <= before + permits };
                prop_assert!(is_as_far && (after - before).signum() * permits.signum() >= 0);
                // What is charged beyond this is a debt, and was not admitted.
                let most = (quota.capacity() + quota.borrowed()) as i64;
                taken.push((now, after.min(most) - before.min(most)));
                if limits.check(&mut standing, &cost).is_allowed() {
                    taken.push((now, cost as i64));
                }
                state = Some(limits.state(&standing, state.as_ref(), now));
            }
            for (index, (first, _)) in taken.iter().enumerate() {
                let mut total = 0;
                for (at, permits) in &taken[index..] {
                    total += permits;
                    let most = most(&quota, *first, at - first);
                    prop_assert!(total <= most as i64, "{} > {}: {}", total, most, quota);
                }
            }
        }

        /// Compared with the same checks of others, if the charge had never been.
        #[test]
        fn what_is_given_back_late_admits_no_more_than_without_the_charge(
            quota in quota(), before in checks(), cost in 1..=20u64,
            others in prop::collection::vec((0..=3_000_000u64, 0..=10u64), 0..20), actual in 0..=5u64,
        ) {
            // The first charge determines when intervals and these windows end, also if it is returned.
            let starts_with_charge = matches!(
                quota.kind(),
                Kind::IntervalRefill | Kind::FixedWindow(WindowStart::FirstCheck)
            );
            if starts_with_charge {
                return Ok(());
            }
            let limits = limits(&[quota]);
            let (mut state, mut now) = (None, NOW);
            for (pause, cost) in before {
                now += pause;
                let mut standing = limits.standing(state.as_ref(), now);
                let _ = limits.check(&mut standing, &cost);
                state = Some(limits.state(&standing, state.as_ref(), now));
            }
            let mut without = state.clone();
            let mut standing = limits.standing(state.as_ref(), now);
            let verdict = limits.check(&mut standing, &cost);
            if !verdict.is_allowed() {
                return Ok(());
            }
            let (since, reset) = (now, verdict.numbers.reset_after);
            state = Some(limits.state(&standing, None, now));
            for (pause, cost) in others {
                now += pause / 4;
                let mut standing = limits.standing(state.as_ref(), now);
                if limits.check(&mut standing, &cost).is_allowed() {
                    state = Some(limits.state(&standing, None, now));
                    let mut standing = limits.standing(without.as_ref(), now);
                    let _ = limits.adjust(&mut standing, &Adjustment::new(1, &cost, &0));
                    without = Some(limits.state(&standing, None, now));
                }
            }
            let left = |_| reset.saturating_sub(now - since);
            let adjustment = limits.settle(&actual.min(cost), &cost, left, 0);
            let mut standing = limits.standing(state.as_ref(), now);
            let _ = limits.adjust(&mut standing, &adjustment);
            let without = limits.standing(without.as_ref(), now);
            prop_assert!(standing.0[0].used() >= without.0[0].used(), "{standing:?} {without:?}");
            let wait = |standing: &Standing| limits.peek(standing).numbers.reset_after;
            prop_assert!(wait(&standing) >= wait(&without), "{standing:?} {without:?}");
        }

        #[test]
        fn a_charge_that_is_given_back_leaves_nothing_behind(
            quota in quota(), checks in checks(), permits in 1..=20i64,
        ) {
            let limits = limits(&[quota]);
            let (mut state, mut now) = (None, NOW);
            for (pause, cost) in checks {
                now += pause;
                let mut standing = limits.standing(state.as_ref(), now);
                let _ = limits.check(&mut standing, &cost);
                state = Some(limits.state(&standing, state.as_ref(), now));
            }
            let before = limits.standing(state.as_ref(), now);
            let mut standing = before.clone();
            let permits = permits.min(limits.peek(&before).numbers.remaining as i64);
            let _ = limits.adjust(&mut standing, &adjustment(permits));
            prop_assert_eq!(limits.peek(&standing).numbers.remaining as i64,
                limits.peek(&before).numbers.remaining as i64 - permits);
            let _ = limits.adjust(&mut standing, &adjustment(-permits));
            prop_assert_eq!(limits.peek(&standing), limits.peek(&before));
        }

        #[test]
        fn a_debt_is_at_most_the_capacity_and_what_may_be_borrowed(
            quota in quota(), charges in prop::collection::vec(1..=i64::MAX, 1..5),
        ) {
            // A queue has a bound of its own.
            if let Kind::Queue(_) = quota.kind() {
                return Ok(());
            }
            let limits = limits(&[quota]);
            let mut standing = limits.standing(None, NOW);
            for permits in charges {
                let _ = limits.adjust(&mut standing, &adjustment(permits));
            }
            let debt = (quota.capacity() + quota.borrowed()) as i64;
            let _ = limits.adjust(&mut standing, &adjustment(1 - debt));
            prop_assert_eq!(limits.peek(&standing).numbers.remaining, 0);
            let _ = limits.adjust(&mut standing, &adjustment(-2));
            prop_assert_eq!(limits.peek(&standing).numbers.remaining, 1);
            let _ = limits.adjust(&mut standing, &adjustment(i64::MIN));
            prop_assert_eq!(limits.peek(&standing).numbers.remaining, quota.capacity());
        }
    }

    #[test]
    fn a_quota_that_is_charged_later_denies_while_nothing_is_left() {
        let limits =
            of_names(&[("a", Quota::per_day(2)), ("b", Quota::per_day(9).borrow_up_to(9))]);
        let later = |a, b| limits.charge(&Costs::new(b).with("a", a).charged_later()).unwrap();
        let mut standing = limits.standing(None, NOW);
        assert!(limits.check(&mut standing, &later(0, 0)).is_allowed());
        assert!(limits.check(&mut standing, &later(2, 0)).is_allowed());
        let denied = limits.check(&mut standing, &later(0, 1));
        let waits: Vec<_> = numbers(&denied).iter().map(|n| n.retry_after > 0).collect();
        assert_eq!((denied.outcome, waits), (Outcome::Denied, vec![true, false]));
        assert_eq!(numbers(&denied)[1].remaining, 9);
    }

    #[test]
    fn a_quota_with_a_cost_of_0_neither_denies_nor_is_charged() {
        let limits = of_names(&[("a", Quota::per_day(1)), ("b", Quota::per_day(9))]);
        let mut standing = limits.standing(None, NOW);
        let charge = |a, b| limits.charge(&Costs::new(b).with("a", a)).unwrap();
        assert!(limits.check(&mut standing, &charge(1, 0)).is_allowed());
        let verdict = limits.check(&mut standing, &charge(0, 4));
        assert!(verdict.is_allowed());
        assert_eq!(numbers(&verdict).iter().map(|n| n.remaining).collect::<Vec<_>>(), [0, 5]);
        let denied = limits.check(&mut standing, &charge(0, 6));
        let waits: Vec<_> = numbers(&denied).iter().map(|n| n.retry_after > 0).collect();
        assert_eq!((denied.outcome, waits), (Outcome::Denied, vec![false, true]));
        assert_eq!(limits.charge(&Costs::new(1).with("c", 1)).unwrap_err(), "c");
    }

    #[test]
    fn names_that_cannot_be_told_apart_are_an_error() {
        let policy = Policy::new("p").quota("a", Quota::per_day(1)).quota("a", Quota::per_day(2));
        let error = Limits::new(&policy, NOW).unwrap_err().to_string();
        assert!(error.contains("quota `a`") && error.contains("choose another name"), "{error}");
    }

    #[test]
    fn a_lone_bucket_belongs_to_the_first_one() {
        let lone = of_names(&[("any", Quota::per_day(5))]);
        let mut standing = lone.standing(None, NOW);
        assert!(lone.check(&mut standing, &3).is_allowed());
        let state = lone.state(&standing, None, NOW);
        let two = of_names(&[("a", Quota::per_day(5)), ("b", Quota::per_day(9))]);
        let standing = two.standing(Some(&state), NOW);
        let verdict = two.peek(&standing);
        assert_eq!(numbers(&verdict).iter().map(|n| n.remaining).collect::<Vec<_>>(), [2, 9]);
        let State::Several(entries) = two.state(&standing, Some(&state), NOW) else {
            panic!("two quotas are not a lone one");
        };
        assert_eq!(entries.len(), 2, "the lone one is now the first: {entries:?}");
    }

    #[test]
    fn the_quota_with_the_longest_wait_or_the_fewest_permits_matters_most() {
        let limits = of_names(&[("a", Quota::per_second(10)), ("b", Quota::per_minute(15))]);
        let mut standing = limits.standing(None, NOW);
        let tightest = |verdict: Verdict| verdict.several.unwrap().tightest;
        assert_eq!(tightest(limits.check(&mut standing, &9)), 0);
        assert_eq!(tightest(limits.check(&mut standing, &7)), 1);
        let exceeds = limits.exceeding_capacity(&11).unwrap();
        assert_eq!((exceeds.numbers.remaining, tightest(exceeds)), (10, 0));
    }
}

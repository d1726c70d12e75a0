use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Patience;
use crate::algorithm::rate::MAX_TICKS;
use crate::quota::{Kind, WindowStart};
use crate::verdict::Numbers;
use crate::{Costs, Quota};

/// A day, a week and a month begin in Berlin, on 2004-11-01. The day before had 25 hours.
const MIDNIGHT: u64 = 1_099_263_600_000_000;

/// So soon before that most tests see these windows end.
const NOW: u64 = MIDNIGHT - 5_000_001;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// How many kinds of quotas [`Drawn::quota`] knows.
const KINDS: usize = if cfg!(feature = "jiff") { 11 } else { 8 };

/// The quotas are named `a`, `b` and so on.
fn limits(quotas: &[Quota]) -> Limits {
    let named = quotas.iter().zip('a'..);
    let policy = named
        .fold(Policy::new("test"), |policy, (quota, name)| policy.quota(name.to_string(), *quota));
    Limits::new(&policy, NOW).unwrap()
}

fn of_names(quotas: &[(&'static str, Quota)]) -> Limits {
    let policy =
        quotas.iter().fold(Policy::new("test"), |policy, &(name, quota)| policy.quota(name, quota));
    Limits::new(&policy, NOW).unwrap()
}

/// Numbers of which a quota of any kind can be made.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    permits: u64,
    micros: u64,
    burst: u64,
    borrow: u64,
    /// How many permits less than a quota of the kind can have. `None` for few permits.
    below_most: Option<u64>,
}

impl Drawn {
    fn few() -> impl Strategy<Value = Self> {
        (1..=20u64, 1_000..=10_000_000u64, 1..=20u64, 1..=20u64).prop_map(
            |(permits, micros, burst, borrow)| Self {
                permits,
                micros,
                burst,
                borrow,
                below_most: None,
            },
        )
    }

    fn any() -> impl Strategy<Value = Self> {
        let below_most = prop::option::weighted(0.15, prop_oneof![Just(0u64), Just(1)]);
        (Self::few(), below_most).prop_map(|(few, below_most)| Self { below_most, ..few })
    }

    fn quota(self, kind: usize) -> Quota {
        let Self { permits, micros, burst, borrow, below_most } = self;
        if let Some(below_most) = below_most {
            return self.largest(kind, below_most);
        }
        let quota = Quota::new(permits, Duration::from_micros(micros));
        match kind {
            0 => quota.burst(burst),
            1 => quota.burst(burst).borrow_up_to(borrow),
            2 => quota.burst(burst).interval_refill(),
            3 => quota.fixed_window(),
            4 => quota.calendar(),
            5 => quota.sliding_window(),
            6 => quota.burst(burst).queue(Duration::from_micros(borrow * micros / 7 + 1)),
            #[cfg(feature = "jiff")]
            7 => Quota::per_day(permits).calendar_in("Europe/Berlin"),
            #[cfg(feature = "jiff")]
            8 => Quota::new(permits, Duration::from_secs(604_800)).calendar_in("Europe/Berlin"),
            #[cfg(feature = "jiff")]
            9 => Quota::per_month(permits).calendar_in("Europe/Berlin"),
            _ => {
                let period = Duration::from_micros(micros * burst);
                Quota::new(permits, period).sliding_blocks(burst as u32)
            }
        }
    }

    fn largest(self, kind: usize, below_most: u64) -> Quota {
        let few = Self { below_most: None, ..self };
        let (quota, most) = (few.quota(kind), MAX_TICKS - below_most);
        // A permit is one tick.
        let bucket = Quota::new(1, Duration::from_micros(1));
        match quota.kind() {
            Kind::TokenBucket => {
                bucket.burst(most - quota.borrowed()).borrow_up_to(quota.borrowed())
            }
            Kind::Queue(wait) => bucket.burst(most - wait.as_micros() as u64).queue(wait),
            Kind::IntervalRefill => Self { permits: most, burst: most, ..few }.quota(kind),
            Kind::FixedWindow(_) => Self { permits: most, ..few }.quota(kind),
            Kind::SlidingCounters | Kind::SlidingBlocks(_) => {
                Self { permits: u64::from(u32::MAX) - below_most, ..few }.quota(kind)
            }
        }
    }
}

/// Of any kind.
fn quota() -> impl Strategy<Value = Quota> {
    (0..KINDS, Drawn::any()).prop_map(|(kind, drawn)| drawn.quota(kind))
}

/// One that single permits use up.
fn small_quota() -> impl Strategy<Value = Quota> {
    (0..KINDS, Drawn::few()).prop_map(|(kind, drawn)| drawn.quota(kind))
}

fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    prop::collection::vec(quota(), 1..=4)
}

/// Revisions of a policy, in which a quota has other numbers, or is missing.
fn revisions() -> impl Strategy<Value = Vec<Vec<(&'static str, Quota)>>> {
    let kinds = prop::collection::vec(0..KINDS, 1..=4);
    let revision = (prop::collection::vec(Drawn::any(), NAMES.len()), 0..8usize);
    (kinds, prop::collection::vec(revision, 1..=3)).prop_map(|(kinds, revisions)| {
        let quotas = |(drawn, missing): &(Vec<Drawn>, usize)| {
            let all = NAMES.into_iter().zip(&kinds).zip(drawn).enumerate();
            let others = all.filter(|(index, _)| index != missing || kinds.len() == 1);
            others.map(|(_, ((name, kind), drawn))| (name, drawn.quota(*kind))).collect::<Vec<_>>()
        };
        revisions.iter().map(quotas).collect()
    })
}

/// Mostly small. The others are the limits of the numbers.
fn cost() -> impl Strategy<Value = u64> {
    let edge = prop_oneof![
        Just(u64::from(u32::MAX)),
        Just(MAX_TICKS - 1),
        Just(MAX_TICKS),
        Just(u64::MAX)
    ];
    prop_oneof![1 => Just(0u64), 16 => 0..=21u64, 3 => edge]
}

fn charge() -> impl Strategy<Value = Charge> {
    let each = || prop::collection::vec(cost(), NAMES.len());
    prop_oneof![
        4 => cost().prop_map(Charge::Same),
        1 => each().prop_map(|costs| Charge::Each(costs.into())),
        1 => each().prop_map(|costs| Charge::Later(costs.into())),
    ]
}

/// Pauses in microseconds, and costs.
fn checks() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..=3_000_000u64, cost()), 1..60)
}

/// A key that is checked from time to time.
#[derive(Clone, Debug)]
struct Used<'a> {
    limits: &'a Limits,
    state: Option<State>,
    now: u64,
}

impl<'a> Used<'a> {
    fn new(limits: &'a Limits) -> Self {
        Self { limits, state: None, now: NOW }
    }

    /// After pauses and checks.
    fn after(limits: &'a Limits, checks: Vec<(u64, u64)>) -> Self {
        let mut used = Self::new(limits);
        for (pause, cost) in checks {
            used.now += pause;
            used.check(cost);
        }
        used
    }

    fn standing(&self) -> Standing {
        self.limits.standing(self.state.as_ref(), self.now)
    }

    fn keep(&mut self, standing: &Standing) {
        self.state = Some(self.limits.state(standing, self.state.as_ref(), self.now));
    }

    fn check(&mut self, cost: u64) -> Verdict {
        let mut standing = self.standing();
        let verdict = self.limits.check(&mut standing, &cost);
        if verdict.is_allowed() {
            self.keep(&standing);
        }
        verdict
    }

    fn enqueue(&mut self, cost: u64, longest: u64) -> Verdict {
        let mut standing = self.standing();
        let queued =
            Queued { charge: Charge::Same(cost), patience: Patience(longest), may_wait: true };
        let verdict = self.limits.enqueue(&mut standing, &queued, self.now);
        if verdict.is_allowed() {
            self.keep(&standing);
        }
        verdict
    }

    fn adjust(&mut self, adjustment: &Adjustment) {
        let mut standing = self.standing();
        let _ = self.limits.adjust(&mut standing, adjustment);
        self.keep(&standing);
    }

    fn peek(&self) -> Verdict {
        self.limits.peek(&self.standing())
    }

    fn remaining(&self) -> u64 {
        self.peek().numbers.remaining
    }

    /// The permits in use of the first quota.
    fn used(&self) -> u64 {
        self.standing().0[0].used()
    }
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
        let mut together = Used::new(&limits);
        let mut alone: Vec<_> = alone.iter().map(Used::new).collect();
        for (pause, cost) in checks {
            together.now += pause;
            alone.iter_mut().for_each(|used| used.now += pause);
            let verdict = together.check(cost);
            let mut after = alone.clone();
            let is_allowed = after.iter_mut().all(|used| used.check(cost).is_allowed());
            prop_assert_eq!(verdict.is_allowed(), is_allowed);
            if is_allowed {
                alone = after;
            }
            let remaining: Vec<_> = alone.iter().map(Used::remaining).collect();
            let listed: Vec<_> = numbers(&verdict).iter().map(|n| n.remaining).collect();
            prop_assert_eq!(listed, remaining);
        }
    }

    #[test]
    fn a_denied_check_is_allowed_after_exactly_the_reported_wait(
        quotas in quotas(), checks in checks(), cost in cost(),
    ) {
        let limits = limits(&quotas);
        let capacity = limits.iter().map(|(_, limit)| limit.capacity(None)).min().unwrap();
        let cost = 1 + cost % capacity;
        let used = Used::after(&limits, checks);
        let check = |wait| Used { now: used.now + wait, ..used.clone() }.check(cost);
        let verdict = check(0);
        let wait = verdict.numbers.retry_after;
        prop_assert!(check(wait).is_allowed());
        prop_assert!(verdict.is_allowed() || !check(wait - 1).is_allowed());
    }

    #[test]
    fn a_cost_exceeds_only_a_capacity_that_is_smaller(quota in quota()) {
        let limits = limits(&[quota]);
        let (mut used, most) = (Used::new(&limits), quota.capacity() + quota.borrowed());
        prop_assert!(limits.exceeding_capacity(&most).is_none());
        let exceeds = |verdict: Verdict| (verdict.outcome, verdict.numbers.retry_after);
        let expected = (Outcome::ExceedsCapacity, u64::MAX);
        prop_assert_eq!(limits.exceeding_capacity(&(most + 1)).map(exceeds), Some(expected));
        prop_assert!(used.check(most).is_allowed());
        let verdict = used.check(most);
        prop_assert_eq!(verdict.outcome, Outcome::Denied);
        prop_assert!((1..u64::MAX).contains(&verdict.numbers.retry_after));
    }

    /// Only time lowers a level, however it passes.
    #[test]
    fn time_in_two_steps_is_time_in_one(quotas in quotas(), cost in cost(), a in 0..=3_000_000u64, b in 0..=3_000_000u64) {
        let limits = limits(&quotas);
        let mut in_two = Used::after(&limits, vec![(0, cost)]);
        let mut in_one = in_two.clone();
        in_two.now += a;
        in_two.keep(&in_two.standing());
        in_two.now += b;
        in_one.now += a + b;
        prop_assert_eq!(in_two.standing(), in_one.standing());
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
    let mut standing = less.standing(Some(&state), NOW);
    assert!(less.check(&mut standing, &4).is_allowed());
    let state = less.state(&standing, Some(&state), NOW);
    let later = NOW + 7 * 86_400_000_000 / 10;
    let mut standing = less.standing(Some(&state), later);
    assert!(less.check(&mut standing, &1).is_allowed());
    let state = less.state(&standing, Some(&state), later);
    assert!(state.entries().count() == 1, "{state:?}");
    let verdict = both.peek(&both.standing(Some(&state), later));
    assert_eq!(numbers(&verdict).iter().map(|n| n.remaining).collect::<Vec<_>>(), [5, 6]);
    // What has ended is as good as nothing, whether it is still stored or not.
    let end = NOW + 3 * 86_400_000_000;
    let mut standing = less.standing(Some(&state), end);
    assert!(less.check(&mut standing, &1).is_allowed());
    assert_eq!(less.state(&standing, Some(&state), end), less.state(&standing, None, end));
}

/// One revision waits for a refill, and the other takes it.
#[test]
fn a_refill_of_another_size_is_not_gained_in_the_time_of_a_smaller_one() {
    let second = |permits, seconds| {
        let quota = Quota::new(permits, Duration::from_secs(seconds));
        limits(&[quota.interval_refill()])
    };
    for (often, seldom) in [(second(15, 5), second(66, 22)), (second(1, 1), second(60, 60))] {
        let (mut used, mut admitted, capacity) = (Used::new(&often), 0, seldom.infos()[0].limit);
        while used.check(1).is_allowed() {
            admitted += 1;
        }
        for _ in 0..1_000 {
            for (limits, wait) in [(&often, 990_000), (&seldom, 10_000)] {
                used.limits = limits;
                used.now += wait;
                let cost = used.remaining();
                let _ = used.check(cost);
                admitted += cost;
                used.adjust(&limits.debit(&0));
            }
        }
        let rate = often.infos()[0].limit / often.infos()[0].window;
        let most = 2 * capacity + rate * (used.now - NOW) / 1_000_000;
        assert!(admitted <= most, "{admitted} > {most}");
        assert!(admitted >= most - 4 * capacity, "{admitted} of {most}");
    }
}

/// The most that a quota admits in a span, according to the guide.
fn most(quota: &Quota, first: u64, span: u64) -> u128 {
    let (n, period) = (u128::from(quota.permits()), quota.period().as_micros());
    let (first, span) = (u128::from(first), u128::from(span));
    let capacity = u128::from(quota.capacity() + quota.borrowed());
    match quota.kind() {
        Kind::TokenBucket | Kind::Queue(_) => capacity + n * span / period,
        // Each refill is a period after the one before.
        Kind::IntervalRefill => capacity + n * span.div_ceil(period),
        // Windows after the first start at least a period after the one before.
        Kind::FixedWindow(WindowStart::FirstCheck) => n * (span.div_ceil(period) + 1),
        // The tests end before the next window does.
        Kind::FixedWindow(WindowStart::Zone(_) | WindowStart::Month(_)) => {
            let midnight = u128::from(MIDNIGHT);
            n * (1 + u128::from(first < midnight && midnight <= first + span))
        }
        Kind::FixedWindow(WindowStart::Clock) => {
            let start = if period.is_multiple_of(604_800_000_000) { 345_600_000_000 } else { 0 };
            n * ((first + span - start) / period - (first - start) / period + 1)
        }
        Kind::SlidingCounters => 2 * n * (span / period + 1),
        Kind::SlidingBlocks(_) => n * (span / period + 1),
    }
}

proptest! {
    #[test]
    fn no_span_admits_more_than_the_documented_most(
        quota in quota(),
        checks in prop::collection::vec(
            (0..=3_000_000u64, prop_oneof![4 => 1..=40u64, 1 => cost()]), 1..60,
        ),
    ) {
        let limits = limits(&[quota]);
        let (mut used, mut admitted) = (Used::new(&limits), Vec::new());
        for (pause, cost) in checks {
            used.now += pause;
            if used.check(cost).is_allowed() {
                admitted.push((used.now, cost));
            }
        }
        for (index, (first, _)) in admitted.iter().enumerate() {
            let mut total = 0;
            for (at, cost) in &admitted[index..] {
                total += u128::from(*cost);
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
        let (mut used, mut admitted) = (Used::new(&revisions[0]), 0);
        for (revision, pause, cost) in checks {
            used.now += pause;
            used.limits = &revisions[revision % revisions.len()];
            if used.check(cost).is_allowed() {
                admitted += cost;
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
        let most = factor * capacity.unwrap_or(0) as f64 + rate * (used.now - NOW) as f64 / 1e6;
        prop_assert!(admitted as f64 <= most, "{} > {}: {:?}", admitted, most, quotas);
    }

    /// Another process may charge the key after a denial was cached.
    #[test]
    fn what_is_denied_by_an_older_state_is_denied_by_a_newer_one(
        quotas in quotas(), checks in checks(), cached_at in 0..30usize, cost in cost(),
    ) {
        let limits = limits(&quotas);
        let (mut used, mut cached) = (Used::new(&limits), None);
        for (index, (pause, taken)) in checks.into_iter().enumerate() {
            used.now += pause / 8;
            if index == cached_at {
                cached = Some(limits.state(&used.standing(), None, used.now));
            }
            if let Some(cached) = &cached {
                let cached = limits.standing(Some(cached), used.now);
                prop_assert!(
                    limits.is_allowed(&cached, &cost)
                        || !limits.is_allowed(&used.standing(), &cost)
                );
            }
            used.check(taken);
        }
    }

    /// As a batch reads the clock once, and a clock may be set back.
    #[test]
    fn equal_times_and_a_clock_that_steps_back_admit_no_more_than_the_capacity(
        quota in quota(),
        costs in prop::collection::vec(
            (prop_oneof![4 => 1..=5u64, 1 => cost()], 0..=1u64), 1..60,
        ),
    ) {
        let limits = limits(&[quota]);
        let (mut used, mut admitted) = (Used::new(&limits), 0);
        for (cost, step) in costs {
            used.now -= step * 1_000;
            if used.check(cost).is_allowed() {
                admitted += cost;
            }
        }
        // A window on the clock that is left backwards is kept, not started again.
        prop_assert!(admitted <= quota.capacity() + quota.borrowed());
    }
}

/// What the limiter relies on when it returns a cached denial. `part` in a thousand of the wait, less
/// `early`, are the times at which the store may decide. `is_own` if no other revision has charged the
/// key.
fn expect_denial_like_the_store<C: Cost>(
    used: &Used<'_>,
    cost: &C,
    (part, early): (u64, u64),
    mut others: Vec<(u64, C)>,
    is_own: bool,
) -> Result<(), TestCaseError> {
    let (limits, earliest) = (used.limits, used.now);
    let state = used.state.clone().unwrap_or_else(State::unused);
    let check = |state: &State, at: u64, cost: &C| {
        let mut standing = limits.standing(Some(state), at);
        (limits.check(&mut standing, cost), standing)
    };
    // There is no wait for a cost above the capacity.
    let wait = check(&state, earliest, cost).0.numbers.retry_after.min(MAX_TICKS);
    let span = (wait * part / 1_000).saturating_sub(early);
    let denial = limits.denial(&state, cost, earliest..=earliest + span);
    if is_own {
        let (at_latest, _) = check(&state, earliest + span, cost);
        prop_assert_eq!(denial.is_none(), at_latest.is_allowed());
    }
    let Some(denial) = denial else { return Ok(()) };
    let mut changed = state.clone();
    others.sort_by_key(|(part, _)| *part);
    for (part, other) in others {
        let passed = span * part / 1_000;
        let at = earliest + passed;
        let (real, _) = check(&state, at, cost);
        prop_assert_eq!(denial.outcome, real.outcome);
        let each = numbers(&denial).iter().zip(numbers(&real));
        for (cached, real) in each.chain([(&denial.numbers, &real.numbers)]) {
            let least = real.retry_after;
            let waits = least..=least.saturating_add(passed);
            prop_assert!(waits.contains(&cached.retry_after), "{:?} {:?}", cached, real);
        }
        let (verdict, standing) = check(&changed, at, &other);
        if verdict.is_allowed() {
            changed = limits.state(&standing, Some(&changed), at);
        }
        prop_assert!(!check(&changed, at, cost).0.is_allowed(), "{:?} at {}", changed, at);
    }
    Ok(())
}

proptest! {
    /// The store decides at any of the times, after any checks of the revision that has cached the
    /// denial. If there are none, a client that honors the wait is not early, and later only by what is
    /// unknown of the time.
    #[test]
    fn a_cached_denial_denies_nothing_that_the_store_allows_and_no_wait_is_too_short(
        revisions in revisions(),
        before in prop::collection::vec((0..3usize, 0..=1_000_000u64, cost()), 0..12),
        drains in prop::collection::vec(0..3usize, 0..=2),
        pause in 0..=100_000u64,
        charge in charge(),
        patience in prop::option::weighted(0.3, (0..=10_000_000u64, any::<bool>())),
        latest in (prop_oneof![0..=1_200u64, Just(1_000u64)], 0..=1u64),
        others in prop::collection::vec(
            (prop_oneof![Just(0u64), 0..=1_000u64, Just(1_000u64)], charge()), 1..8,
        ),
    ) {
        let revisions: Vec<_> = revisions.iter().map(|quotas| of_names(quotas)).collect();
        let of = |number: usize| &revisions[number % revisions.len()];
        let mut used = Used::new(of(0));
        for (revision, pause, cost) in before {
            used.limits = of(revision);
            used.now += pause;
            match patience {
                None => used.check(cost),
                Some((longest, _)) => used.enqueue(cost, longest),
            };
        }
        for revision in drains {
            used.limits = of(revision);
            let remaining = used.remaining();
            used.check(remaining);
        }
        used.limits = of(0);
        used.now += pause;
        let is_own = revisions.len() == 1;
        match patience {
            None => expect_denial_like_the_store(&used, &charge, latest, others, is_own)?,
            // All wait for as long. One that waits for longer may change the rate of a bucket.
            Some((longest, may_wait)) => {
                let queued =
                    |charge| Queued { charge, patience: Patience(longest), may_wait };
                let others = others.into_iter().map(|(part, other)| (part, queued(other)));
                let others = others.collect();
                expect_denial_like_the_store(&used, &queued(charge), latest, others, is_own)?;
            }
        }
    }
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
        let (mut used, mut proceeding) = (Used::new(&limits), Vec::<(u64, u64)>::new());
        for (pause, cost) in checks {
            used.now += pause / 4;
            let before = used.clone();
            let verdict = used.enqueue(cost, longest);
            if !verdict.is_allowed() {
                prop_assert_eq!(used.standing(), before.standing());
                if verdict.outcome == Outcome::Denied {
                    // The reported wait is for a place in the queue, and exact.
                    let now = used.now + verdict.numbers.retry_after;
                    let check = |now| Used { now, ..before.clone() }.enqueue(cost, longest);
                    prop_assert!(check(now).is_allowed());
                    prop_assert!(!check(now - 1).is_allowed());
                }
                continue;
            }
            let waiting = verdict.several.and_then(|several| several.waiting);
            let wait = waiting.map_or(0, |waiting| waiting.wait);
            prop_assert!(wait <= longest);
            if cost > 0 {
                let last = proceeding.last().map_or(0, |(at, _)| *at);
                prop_assert!(used.now + wait >= last);
                proceeding.push((used.now + wait, cost));
            }
        }
        for (index, (first, cost)) in proceeding.iter().enumerate() {
            // One that takes more than the burst has waited for the rest.
            let mut total = (*cost).min(quota.capacity());
            for (at, cost) in &proceeding[index + 1..] {
                total += cost;
                // Waits are rounded up to a microsecond.
                prop_assert!(u128::from(total) <= most(&quota, *first, at - first + 1));
            }
        }
    }

    #[test]
    fn the_last_waiter_gives_its_place_back_and_others_keep_it(
        (quota, longest) in bucket(), checks in checks(), cost in 1..=5u64, other in 0..=5u64,
    ) {
        let limits = limits(&[quota]);
        let mut used = Used::new(&limits);
        for (pause, cost) in checks {
            used.now += pause / 4;
            used.enqueue(cost, longest);
        }
        let mut before = used.clone();
        let verdict = used.enqueue(cost, longest);
        let Some(waiting) = verdict.several.and_then(|several| several.waiting) else {
            return Ok(());
        };
        let behind = used.enqueue(other, longest);
        let mut left = Used { now: used.now + waiting.wait / 2, ..used.clone() };
        let mut standing = left.standing();
        let _ = limits.leave(&mut standing, &waiting.place, left.now);
        left.keep(&standing);
        let expected = if behind.is_allowed() && other > 0 { &mut used } else { &mut before };
        expected.now = left.now;
        prop_assert_eq!(standing, expected.standing());
    }
}

fn adjustment(limits: &Limits, permits: i64) -> Adjustment {
    match u64::try_from(permits) {
        Ok(charge) => limits.debit(&charge),
        Err(_) => limits.credit(&permits.unsigned_abs()),
    }
}

proptest! {
    /// What is charged without a check counts like what is taken. A debt is bounded.
    #[test]
    fn charges_and_credits_never_admit_more_than_the_documented_most(
        quota in quota(),
        steps in prop::collection::vec(
            (
                0..=3_000_000u64,
                prop_oneof![4 => 1..=40u64, 1 => cost()],
                prop_oneof![16 => -30..=30i64, 1 => Just(1i64 << 52), 1 => Just(-1i64 << 52)],
            ),
            1..60,
        ),
    ) {
        let limits = limits(&[quota]);
        let (mut used, mut taken) = (Used::new(&limits), Vec::new());
        for (pause, cost, permits) in steps {
            used.now += pause;
            let before = used.used() as i64;
            used.adjust(&adjustment(&limits, permits));
            let after = used.used() as i64;
            let is_as_far =
                if permits < 0 { after >= before + permits } else { after <= before + permits };
            prop_assert!(is_as_far && (after - before).signum() * permits.signum() >= 0);
            // What is charged beyond this is a debt, and was not admitted.
            let most = (quota.capacity() + quota.borrowed()) as i64;
            taken.push((used.now, after.min(most) - before.min(most)));
            if used.check(cost).is_allowed() {
                taken.push((used.now, cost as i64));
            }
        }
        for (index, (first, _)) in taken.iter().enumerate() {
            let mut total = 0;
            for (at, permits) in &taken[index..] {
                total += i128::from(*permits);
                let most = most(&quota, *first, at - first);
                prop_assert!(total <= most as i128, "{} > {}: {}", total, most, quota);
            }
        }
    }

    /// Compared with the same checks of others, if the charge had never been.
    #[test]
    fn what_is_given_back_late_admits_no_more_than_without_the_charge(
        quota in quota(), before in checks(), cost in cost(),
        others in prop::collection::vec(
            (0..=3_000_000u64, prop_oneof![4 => 0..=10u64, 1 => cost()]), 0..20,
        ),
        actual in 0..=5u64,
    ) {
        // The first charge determines when intervals and these windows end, also if it is returned.
        let starts_with_charge = matches!(
            quota.kind(),
            Kind::IntervalRefill | Kind::FixedWindow(WindowStart::FirstCheck)
        );
        let limits = limits(&[quota]);
        let mut used = Used::after(&limits, before);
        let mut without = used.clone();
        let verdict = used.check(cost);
        if !verdict.is_allowed() {
            return Ok(());
        }
        let since = used.now;
        for (pause, cost) in others {
            used.now += pause / 4;
            without.now = used.now;
            if starts_with_charge && without.used() == 0 {
                return Ok(());
            }
            if used.check(cost).is_allowed() {
                without.adjust(&limits.debit(&cost));
            }
        }
        if starts_with_charge && without.used() == 0 {
            return Ok(());
        }
        let passed = used.now - since;
        let left = |_| Left {
            used: quota.capacity() - verdict.numbers.remaining,
            reset_after: verdict.numbers.reset_after.saturating_sub(passed),
            counts_for: verdict.numbers.counts_for.saturating_sub(passed),
        };
        used.adjust(&limits.settle(&actual.min(cost), &cost, left, 0));
        prop_assert!(used.used() >= without.used(), "{:?} {:?}", used, without);
        let wait = |used: &Used<'_>| used.peek().numbers.reset_after;
        prop_assert!(wait(&used) >= wait(&without), "{:?} {:?}", used, without);
    }

    /// To the rounding of a wait.
    #[test]
    fn all_of_a_check_is_given_back_at_once(quota in quota(), checks in checks(), cost in cost()) {
        let limits = limits(&[quota]);
        let is_bucket = matches!(quota.kind(), Kind::TokenBucket | Kind::Queue(_));
        let mut used = Used::after(&limits, checks);
        let before = used.clone();
        let verdict = used.check(cost);
        if verdict.is_allowed() {
            let Numbers { remaining, reset_after, counts_for, .. } = verdict.numbers;
            let left = Left { used: quota.capacity() - remaining, reset_after, counts_for };
            used.adjust(&limits.settle(&0, &cost, |_| left, 0));
            let lost = before.remaining() - used.remaining();
            prop_assert!(lost <= u64::from(is_bucket), "{} of {}: {}", lost, cost, quota);
        }
    }

    #[test]
    fn a_charge_that_is_given_back_leaves_nothing_behind(
        quota in quota(), checks in checks(),
        permits in prop_oneof![8 => 1..=20i64, 1 => Just(1i64 << 52)],
    ) {
        let limits = limits(&[quota]);
        let mut used = Used::after(&limits, checks);
        let before = used.clone();
        let permits = permits.min(before.remaining() as i64);
        used.adjust(&adjustment(&limits, permits));
        prop_assert_eq!(used.remaining() as i64, before.remaining() as i64 - permits);
        used.adjust(&adjustment(&limits, -permits));
        prop_assert_eq!(used.peek(), before.peek());
    }

    #[test]
    fn a_debt_is_at_most_the_capacity_and_what_may_be_borrowed(
        quota in small_quota(), charges in prop::collection::vec(1..=i64::MAX, 1..5),
    ) {
        // A queue has a bound of its own.
        if let Kind::Queue(_) = quota.kind() {
            return Ok(());
        }
        let limits = limits(&[quota]);
        let mut used = Used::new(&limits);
        for permits in charges {
            used.adjust(&adjustment(&limits, permits));
        }
        let debt = (quota.capacity() + quota.borrowed()) as i64;
        used.adjust(&adjustment(&limits, 1 - debt));
        prop_assert_eq!(used.remaining(), 0);
        used.adjust(&adjustment(&limits, -2));
        prop_assert_eq!(used.remaining(), 1);
        used.adjust(&adjustment(&limits, i64::MIN));
        prop_assert_eq!(used.remaining(), quota.capacity());
    }
}

/// Of a sliding window.
fn limit_of_window() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1..=20u64, 1 => Just(u64::from(u32::MAX) - 1), 1 => Just(u64::from(u32::MAX))]
}

/// Checks near the edges of windows or blocks: tenths of a length that pass, the microseconds since the
/// one before that tenth, and the cost.
fn checks_at_edges(most: u64) -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let cost = prop_oneof![3 => 1..=3u64, 1 => cost()];
    prop::collection::vec((0..=most, 0..=2u64, cost), 1..100)
}

proptest! {
    /// Compared with a log of what was admitted.
    #[test]
    fn sliding_blocks_forget_no_permit_early_and_none_more_than_a_block_late(
        limit in limit_of_window(), width in 1_000..=1_000_000u64, blocks in 1..=12u32,
        checks in checks_at_edges(30),
    ) {
        let period = width * u64::from(blocks);
        let quota = Quota::new(limit, Duration::from_micros(period)).sliding_blocks(blocks);
        let limits = limits(&[quota]);
        let (mut used, mut log) = (Used::new(&limits), Vec::<(u64, u64)>::new());
        let (start, mut tenths) = (NOW.next_multiple_of(width), 0);
        for (pause, micros, cost) in checks {
            tenths += pause;
            used.now = used.now.max(start + width * tenths / 10 + micros - 1);
            let allows = |span: u64| {
                let counted = log.iter().filter(|(at, _)| used.now - at < span);
                cost <= limit.saturating_sub(counted.map(|(_, cost)| cost).sum())
            };
            let (longer, exact) = (allows(period + width), allows(period));
            let is_allowed = used.check(cost).is_allowed();
            prop_assert!(is_allowed || !longer, "{} at {} after {:?}", cost, used.now, log);
            prop_assert!(exact || !is_allowed, "{} at {} after {:?}", cost, used.now, log);
            if is_allowed {
                log.push((used.now, cost));
            }
        }
    }

    /// Compared with a log of what was admitted. A share is exact if the window has no more than
    /// 2^20 microseconds.
    #[test]
    fn two_counters_admit_what_they_estimate_and_at_most_twice_the_limit_in_any_period(
        limit in limit_of_window(),
        period in prop_oneof![1_000..=1u64 << 20, 1_000..=100_000_000u64],
        checks in checks_at_edges(6),
    ) {
        let limits = limits(&[Quota::new(limit, Duration::from_micros(period)).sliding_window()]);
        let (mut used, mut log) = (Used::new(&limits), Vec::<(u64, u64)>::new());
        let (start, mut tenths) = (NOW.next_multiple_of(period), 0);
        for (pause, micros, cost) in checks {
            tenths += pause;
            used.now = used.now.max(start + period * tenths / 10 + micros - 1);
            let of_window = |number: u64| -> u64 {
                let counted = log.iter().filter(|(at, _)| at / period == number);
                counted.map(|(_, cost)| cost).sum()
            };
            let window = used.now / period;
            let (current, previous) = (of_window(window), of_window(window - 1));
            let is_allowed = used.check(cost).is_allowed();
            let left = limit.saturating_sub(current);
            prop_assert!(cost <= left || !is_allowed, "{} at {} after {:?}", cost, used.now, log);
            prop_assert!(
                is_allowed || cost > left.saturating_sub(previous),
                "{} at {} after {:?}", cost, used.now, log
            );
            if period <= 1 << 20 {
                let covered = period - used.now % period;
                let share = u128::from(previous) * u128::from(covered) / u128::from(period);
                let left = u128::from(left).saturating_sub(share);
                prop_assert_eq!(is_allowed, u128::from(cost) <= left);
            }
            if is_allowed {
                log.push((used.now, cost));
            }
            let in_period = log.iter().filter(|(at, _)| used.now - at < period);
            prop_assert!(in_period.map(|(_, cost)| cost).sum::<u64>() <= 2 * limit);
        }
    }
}

proptest! {
    /// All take what they can at the same times.
    #[test]
    fn the_parts_of_a_fleet_admit_no_more_than_the_whole(
        quota in small_quota(), weights in prop::collection::vec(0..5u64, 1..5),
        pauses in prop::collection::vec(0..=3_000_000u64, 1..20),
    ) {
        let total = weights.iter().sum::<u64>().max(1);
        // The first gets what is left over.
        let part = |index: usize, permits: u64| {
            let floor = |weight: &u64| permits * weight / total;
            let rest = permits - weights.iter().map(floor).sum::<u64>();
            floor(&weights[index]) + if index == 0 { rest } else { 0 }
        };
        let whole = limits(&[quota]);
        let parts: Vec<_> =
            (0..weights.len()).filter_map(|index| whole.divided(&|n| part(index, n))).collect();
        let mut users: Vec<_> = parts.iter().map(Used::new).collect();
        let (mut of_whole, mut admitted, mut of_parts) = (Used::new(&whole), 0, 0);
        let mut rounded = 0;
        for pause in pauses {
            rounded += weights.len() as u64;
            users.iter_mut().chain([&mut of_whole]).for_each(|user| user.now += pause);
            while of_whole.check(1).is_allowed() {
                admitted += 1;
            }
            for user in &mut users {
                while user.check(1).is_allowed() {
                    of_parts += 1;
                }
            }
            let most = match quota.kind() {
                // Each part rounds its estimate down.
                Kind::SlidingCounters => admitted + rounded,
                // The whole starts a new interval when it is full. A part that is not full goes on, so
                // its refill may come earlier.
                Kind::IntervalRefill => admitted + quota.permits(),
                _ => admitted,
            };
            prop_assert!(of_parts <= most, "{of_parts} of {admitted}");
            let least = match quota.kind() {
                Kind::IntervalRefill => 0,
                _ => admitted / 2,
            };
            prop_assert!(of_parts + 2 * weights.len() as u64 >= least, "{of_parts} of {admitted}");
        }
    }
}

#[test]
fn a_quota_that_is_charged_later_denies_while_nothing_is_left() {
    let limits = of_names(&[("a", Quota::per_day(2)), ("b", Quota::per_day(9).borrow_up_to(9))]);
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

//! Several quotas in one check.

use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::drawn::*;
use crate::algorithm::QuotaState;
use crate::charge::Patience;
use crate::quota::Kind;
use crate::{Costs, Quota};

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

    /// Nearly all checks in memory take the shorter path.
    #[test]
    fn the_shorter_path_of_an_only_bucket_decides_and_stores_the_same(
        quota in quota(), checks in checks(),
    ) {
        let limits = limits(&[quota]);
        let Some(bucket) = limits.only_bucket() else { return Ok(()) };
        let mut used = Used::new(&limits);
        for (pause, cost) in checks {
            used.now += pause;
            let found = used.entries.first().map(|entry| entry.state.clone());
            let verdict = used.check(cost);
            let Some(QuotaState::TokenBucket(mut state)) = found else { continue };
            prop_assert_eq!(bucket.decide_in_place(&mut state, cost, used.now), verdict);
            if cost > 0 {
                prop_assert_eq!(&used.entries[0].state, &QuotaState::TokenBucket(state));
            }
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
        if wait == u64::MAX {
            // Somebody has to give permits back.
            prop_assert!(quotas.iter().any(|quota| quota.kind() == Kind::Concurrent));
            return Ok(());
        }
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
        let has_wait = (1..u64::MAX).contains(&verdict.numbers.retry_after);
        prop_assert_eq!(has_wait, quota.kind() != Kind::Concurrent);
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
    let mut standing = both.standing(&[], NOW);
    assert!(both.check(&mut standing, &3).is_allowed());
    let state = both.entries(&standing, &[], NOW);
    let remaining = |limits: &Limits, state: &[QuotaEntry]| {
        let verdict = limits.peek(&limits.standing(state, NOW));
        numbers(&verdict).iter().map(|n| n.remaining).collect::<Vec<_>>()
    };
    let more = of_names(&[("b", other), ("c", slow), ("a", slow)]);
    assert_eq!(remaining(&more, &state), [6, 5, 2]);
    // Without `a`, which stays in the state for those that have it.
    let less = of_names(&[("b", other)]);
    let mut standing = less.standing(&state, NOW);
    assert!(less.check(&mut standing, &1).is_allowed());
    let state = less.entries(&standing, &state, NOW);
    assert_eq!(remaining(&both, &state), [2, 5]);
    // Until it is full again. What is left still belongs to `b`.
    let mut standing = less.standing(&state, NOW);
    assert!(less.check(&mut standing, &4).is_allowed());
    let state = less.entries(&standing, &state, NOW);
    let later = NOW + 7 * 86_400_000_000 / 10;
    let mut standing = less.standing(&state, later);
    assert!(less.check(&mut standing, &1).is_allowed());
    let state = less.entries(&standing, &state, later);
    assert_eq!(state.len(), 1, "{state:?}");
    let verdict = both.peek(&both.standing(&state, later));
    assert_eq!(numbers(&verdict).iter().map(|n| n.remaining).collect::<Vec<_>>(), [5, 6]);
    // What has ended is as good as nothing, whether it is still stored or not.
    let end = NOW + 3 * 86_400_000_000;
    let mut standing = less.standing(&state, end);
    assert!(less.check(&mut standing, &1).is_allowed());
    assert_eq!(less.entries(&standing, &state, end), less.entries(&standing, &[], end));
}

#[test]
fn a_quota_whose_number_changes_keeps_what_was_consumed() {
    let kinds: [fn(Quota) -> Quota; 8] = [
        |quota| quota,
        |quota| quota.borrow_up_to(5),
        |quota| quota.burst(quota.permits()).queue(Duration::from_secs(1)),
        Quota::interval_refill,
        Quota::fixed_window,
        Quota::calendar,
        Quota::approximate_sliding_window,
        |quota| quota.sliding_window(6),
    ];
    for kind in kinds {
        let quota = |permits| kind(Quota::per_hour(permits));
        let only = |permits| of_names(&[("a", quota(permits))]);
        let both = |permits| of_names(&[("b", Quota::per_day(9)), ("a", quota(permits))]);
        for (old, new, remaining) in
            [(6, 9, 5), (6, 5, 1), (6, 3, 0)].into_iter().flat_map(|(old, new, remaining)| {
                [(only(old), only(new), remaining), (both(old), both(new), remaining)]
            })
        {
            let mut standing = old.standing(&[], NOW);
            assert!(old.check(&mut standing, &4).is_allowed());
            let state = old.entries(&standing, &[], NOW);
            let mut standing = new.standing(&state, NOW);
            let verdict = new.peek(&standing);
            assert_eq!(numbers(&verdict).last().unwrap().remaining, remaining, "{new:?}");
            assert_eq!(new.check(&mut standing, &1).is_allowed(), remaining > 0, "{new:?}");
        }
    }
}

#[test]
fn a_quota_whose_algorithm_changes_starts_full() {
    let hour = Quota::per_hour(10);
    let algorithms = [
        hour,
        hour.interval_refill(),
        hour.fixed_window(),
        hour.approximate_sliding_window(),
        hour.sliding_window(6),
    ];
    let other = Quota::per_day(10);
    let both = |quota| of_names(&[("a", quota), ("b", other)]);
    let pairs = algorithms.iter().flat_map(|old| algorithms.map(|new| (*old, new)));
    for (old, new) in pairs {
        let only = |quota| of_names(&[("a", quota)]);
        for (old_limits, new_limits) in [(both(old), both(new)), (only(old), only(new))] {
            let mut standing = old_limits.standing(&[], NOW);
            assert!(old_limits.check(&mut standing, &7).is_allowed());
            let state = old_limits.entries(&standing, &[], NOW);
            let verdict = new_limits.peek(&new_limits.standing(&state, NOW));
            let remaining: Vec<_> = numbers(&verdict).iter().map(|n| n.remaining).collect();
            assert_eq!(remaining[0], if old == new { 3 } else { 10 }, "{old:?}, {new:?}");
            assert!(remaining[1..].iter().all(|remaining| *remaining == 3), "{remaining:?}");
        }
    }
}

#[test]
fn a_quota_that_is_charged_later_denies_while_nothing_is_left() {
    let limits = of_names(&[("a", Quota::per_day(2)), ("b", Quota::per_day(9).borrow_up_to(9))]);
    let later = |a, b| limits.charge(&Costs::new(b).with("a", a).charged_later()).unwrap();
    let mut standing = limits.standing(&[], NOW);
    assert!(limits.check(&mut standing, &later(0, 0)).is_allowed());
    assert!(limits.check(&mut standing, &later(2, 0)).is_allowed());
    let denied = limits.check(&mut standing, &later(0, 1));
    let waits: Vec<_> = numbers(&denied).iter().map(|n| n.retry_after > 0).collect();
    assert_eq!((denied.outcome, waits), (Outcome::Denied, vec![true, false]));
    assert_eq!(numbers(&denied)[1].remaining, 9);
}

/// Otherwise such checks would pass those that wait, without a place in the queue.
#[test]
fn a_quota_that_is_charged_later_does_not_wait_either() {
    let limits = of_names(&[("a", Quota::per_second(5).queue(Duration::from_secs(30)))]);
    let later = |cost| Queued {
        charge: limits.charge(&Costs::new(cost).charged_later()).unwrap(),
        patience: Patience(30_000_000),
        may_wait: true,
    };
    let mut standing = limits.standing(&[], NOW);
    assert!(limits.check(&mut standing, &later(0)).is_allowed());
    assert!(limits.check(&mut standing, &later(1)).is_allowed());
    let denied = limits.check(&mut standing, &later(0));
    let [numbers] = numbers(&denied)[..] else { panic!("{denied:?}") };
    assert_eq!((denied.outcome, numbers.retry_after), (Outcome::Denied, 200_000));
    assert!(limits.check(&mut standing, &later(1)).is_allowed(), "this one has a place");
}

#[test]
fn a_quota_with_a_cost_of_0_neither_denies_nor_is_charged() {
    let limits = of_names(&[("a", Quota::per_day(1)), ("b", Quota::per_day(9))]);
    let mut standing = limits.standing(&[], NOW);
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
fn the_quota_with_the_longest_wait_or_the_fewest_permits_matters_most() {
    let limits = of_names(&[("a", Quota::per_second(10)), ("b", Quota::per_minute(15))]);
    let mut standing = limits.standing(&[], NOW);
    let tightest = |verdict: Verdict| verdict.several.unwrap().tightest;
    assert_eq!(tightest(limits.check(&mut standing, &9)), 0);
    assert_eq!(tightest(limits.check(&mut standing, &7)), 1);
    let exceeds = limits.exceeding_capacity(&11).unwrap();
    assert_eq!((exceeds.numbers.remaining, tightest(exceeds)), (10, 0));
}

#[cfg(feature = "redis")]
#[test]
fn a_level_in_ticks_is_that_of_an_only_bucket_whose_ticks_are_microseconds() {
    let bucket = of_names(&[("a", Quota::per_second(5))]);
    let mut used = Used::new(&bucket);
    used.check(2);
    // A permit refills in 200 ms.
    assert_eq!(bucket.standing_of_bucket(400_000), Some(used.standing()));
    for others in [
        of_names(&[("a", Quota::per_second(7))]),
        of_names(&[("a", Quota::per_second(5)), ("b", Quota::per_second(5))]),
        of_names(&[("a", Quota::per_second(5).approximate_sliding_window())]),
    ] {
        assert_eq!(others.standing_of_bucket(400_000), None);
    }
}

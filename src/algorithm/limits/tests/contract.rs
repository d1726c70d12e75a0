//! Tests of what stores, responses and limiters rely on, for each algorithm.

use std::time::Duration;

use crate::algorithm::rate::{FullAt, ROOM};
use crate::algorithm::*;
use crate::charge::{Adjustment, AtMostOne, Charge, Left, Patience, Place, Queued};
use crate::{Costs, Policy, Quota};

const NOW: u64 = 1 << 50;
const SECOND: u64 = 1_000_000;
/// The most that a counter of a sliding window holds.
const COUNT: u64 = 1 << 33;

fn limit(quota: Quota) -> Limit {
    Limit::new("q", &quota, NOW).unwrap()
}

fn limits(quotas: &[(&'static str, Quota)]) -> Limits {
    let add = |policy: Policy, &(name, quota): &(&'static str, Quota)| policy.quota(name, quota);
    Limits::new(&quotas.iter().fold(Policy::new("test"), add), NOW).unwrap()
}

fn counters(current: u64, previous: u64, starts_at: u64) -> QuotaState {
    let span = Span::new(1_000).unwrap();
    QuotaState::ApproximateSlidingWindow(CountersState { current, previous, starts_at, span })
}

fn segments(newest: u64, used: &[u32]) -> QuotaState {
    QuotaState::SlidingWindow(SegmentsState { width: 1_000, newest, used: used.into() })
}

fn interval(missing: u64, refills_at: u64, permits: u64) -> QuotaState {
    let rate = Refills { permits, interval: 1_000 };
    QuotaState::IntervalRefill(IntervalState { missing, refills_at, rate })
}

fn window(used: u64, ends_at: u64) -> QuotaState {
    QuotaState::FixedWindow(WindowState { used, starts_at: 0, ends_at })
}

fn bucket(micros: u64, ticks: u64) -> QuotaState {
    let rate = Rate::new(1, 10).unwrap();
    QuotaState::TokenBucket(BucketState { full_at: FullAt { micros, ticks }, rate })
}

/// A key that expired earlier would grant permits again. One that stays longer costs memory.
#[test]
fn a_state_lasts_until_it_means_nothing_any_more() {
    for (state, until) in [
        (bucket(7_000, 0), 7_000),
        (bucket(7_000, 1), 7_001),
        (interval(0, 7_000, 3), 0),
        (interval(3, 7_000, 3), 7_000),
        (interval(4, 7_000, 3), 8_000),
        (window(3, 7_000), 7_000),
        (counters(0, 0, 7_000), 0),
        (counters(0, 5, 7_000), 8_000),
        (counters(3, 0, 7_000), 9_000),
        (counters(3, 5, 7_000), 9_000),
        (segments(7, &[0, 0, 0]), 0),
        (segments(7, &[1, 0, 0]), 10_000),
        (segments(7, &[0, 9, 0]), 9_000),
        (segments(7, &[0, 2, 5]), 9_000),
    ] {
        assert_eq!(state.until(), until, "{state:?}");
    }
}

/// Of a quota of each kind with the largest numbers.
#[test]
fn a_debt_of_ten_capacities_fits_into_any_quota() {
    let most = MAX_TICKS / ROOM;
    let micro = |permits| Quota::new(permits, Duration::from_micros(1));
    let queue = micro(1).burst(most / 2).queue(Duration::from_micros(most / 2));
    let (segments, counters) = (u64::from(u32::MAX) / ROOM, COUNT / ROOM);
    let thirds = Quota::new(3_000_001, Duration::from_secs(1)).burst(most / 1_000_000);
    for (quota, larger) in [
        (micro(1).burst(most), micro(1).burst(most + 1)),
        (thirds, thirds.burst(most / 1_000_000 + 1)),
        (micro(1).burst(most - 9).borrow_up_to(9), micro(1).burst(most - 9).borrow_up_to(10)),
        (queue, queue.burst(most + 1)),
        (
            Quota::per_second(1).burst(most / SECOND).interval_refill(),
            Quota::per_second(1).burst(most / SECOND + 1).interval_refill(),
        ),
        (Quota::per_hour(most).interval_refill(), Quota::per_hour(most + 1).interval_refill()),
        (Quota::per_hour(most).fixed_window(), Quota::per_hour(most + 1).fixed_window()),
        (Quota::per_hour(most).calendar(), Quota::per_hour(most + 1).calendar()),
        (
            Quota::per_hour(counters).approximate_sliding_window(),
            Quota::per_hour(counters + 1).approximate_sliding_window(),
        ),
        (
            Quota::per_hour(segments).sliding_window(6),
            Quota::per_hour(segments + 1).sliding_window(6),
        ),
    ] {
        let limits = limits(&[("q", quota)]);
        let mut standing = limits.standing(&[], NOW);
        assert!(limits.check(&mut standing, &quota.capacity()).is_allowed());
        for _ in 0..10 {
            let verdict = limits.adjust(&mut standing, &limits.debit(&quota.capacity()));
            assert_eq!(verdict.forgiven(), 0, "{quota}");
        }
        let state = limits.entries(&standing, &[], NOW);
        let used = limits.used(&limits.standing(&state, NOW)).next().unwrap().0;
        assert_eq!(used, 11 * quota.capacity(), "{quota}");
        let error = Limit::new("q", &larger, NOW).unwrap_err().to_string();
        assert!(error.contains("use ") || error.contains("at most"), "{error}");
    }
}

/// A value that is taken for corrupt denies until it expires, and one that is not may deny forever.
#[test]
fn only_what_no_revision_can_have_left_is_too_far() {
    for (possible, impossible) in [
        (interval(MAX_TICKS, NOW, MAX_TICKS), interval(MAX_TICKS + 1, NOW, MAX_TICKS + 1)),
        (interval(1, NOW + MAX_TICKS, 1), interval(1, NOW + MAX_TICKS + 1, 1)),
        (window(MAX_TICKS, NOW), window(MAX_TICKS + 1, NOW)),
        (window(1, NOW + MAX_TICKS), window(1, NOW + MAX_TICKS + 1)),
        (counters(COUNT, 0, NOW), counters(COUNT + 1, 0, NOW)),
        (counters(0, COUNT, NOW), counters(0, COUNT + 1, NOW)),
        (counters(1, 1, NOW + MAX_TICKS), counters(1, 1, NOW + MAX_TICKS + 1)),
        (segments((NOW + MAX_TICKS) / 1_000, &[1]), segments((NOW + MAX_TICKS) / 1_000 + 1, &[1])),
        (bucket(NOW + MAX_TICKS / 10, 0), bucket(NOW + MAX_TICKS / 10 + 1, 0)),
    ] {
        assert!(!possible.is_too_far(NOW), "{possible:?}");
        assert!(impossible.is_too_far(NOW), "{impossible:?}");
        assert!(!possible.is_too_far(NOW + 1), "{possible:?}");
    }
}

/// The expiry of a packed value is rounded up to a part of this time.
#[test]
fn the_longest_time_is_that_of_an_exhausted_quota() {
    let seconds = |quota| limit(quota).longest() as f64 / SECOND as f64;
    assert_eq!(seconds(Quota::per_second(10).burst(25)), 2.5);
    assert_eq!(seconds(Quota::per_second(10).burst(25).borrow_up_to(5)), 3.0);
    assert_eq!(seconds(Quota::per_second(10).queue(Duration::from_secs(7))), 7.1);
    assert_eq!(seconds(Quota::per_second(10).burst(25).interval_refill()), 3.0);
    assert_eq!(seconds(Quota::per_minute(10).fixed_window()), 60.0);
    assert_eq!(seconds(Quota::per_minute(10).calendar()), 60.0);
    assert_eq!(seconds(Quota::per_minute(10).approximate_sliding_window()), 120.0);
    assert_eq!(seconds(Quota::per_minute(10).sliding_window(6)), 70.0);
}

#[test]
fn responses_name_the_window_of_each_quota() {
    let seconds = |quota| limit(quota).info("q").window;
    assert_eq!(seconds(Quota::per_second(10).burst(30)), 3);
    assert_eq!(seconds(Quota::per_second(10).burst(25)), 0, "it is not whole");
    assert_eq!(seconds(Quota::per_second(10).burst(25).interval_refill()), 3);
    assert_eq!(seconds(Quota::per_minute(10).fixed_window()), 60);
    assert_eq!(seconds(Quota::per_minute(10).calendar()), 60);
    assert_eq!(seconds(Quota::per_minute(10).approximate_sliding_window()), 60);
    assert_eq!(seconds(Quota::per_minute(10).sliding_window(6)), 60);
}

/// As [`Algorithm::is_own`], of a level that the first quota has charged.
fn is_own(charged: Quota, other: Quota) -> bool {
    let of = |quota| limits(&[("q", quota)]);
    let mut standing = of(charged).standing(&[], NOW);
    assert!(of(charged).check(&mut standing, &1).is_allowed());
    let state = of(charged).entries(&standing, &[], NOW);
    let limits = of(other);
    limits.is_own(&limits.standing(&state, NOW))
}

/// The denial cache trusts a level of its own numbers longer.
#[test]
fn a_level_is_own_if_it_falls_as_one_of_the_same_numbers() {
    let (second, minute) = (Quota::per_second(10), Quota::per_minute(10));
    for kind in [
        |quota: Quota| quota,
        |quota: Quota| quota.interval_refill(),
        |quota: Quota| quota.approximate_sliding_window(),
        |quota: Quota| quota.sliding_window(5),
    ] {
        assert!(is_own(kind(second), kind(second)));
        assert!(!is_own(kind(second), kind(minute)), "{:?}", kind(second));
    }
    assert!(!is_own(second.sliding_window(5), second.sliding_window(4)));
    // The same width, and another number.
    assert!(!is_own(
        second.sliding_window(5),
        Quota::new(10, Duration::from_secs(2)).sliding_window(10)
    ));
    assert!(is_own(second.fixed_window(), minute.fixed_window()), "a window ends when it ends");
    let two = limits(&[("a", second), ("b", second)]);
    let mut standing = two.standing(&[], NOW);
    assert!(two.is_own(&standing));
    standing = limits(&[("a", second), ("b", minute)]).standing(&[], NOW);
    assert!(!two.is_own(&standing));
}

#[test]
fn a_check_can_take_what_it_may_wait_for_unless_the_bucket_lends() {
    let capacity = |quota, wait: Option<u64>| limit(quota).capacity(wait.map(Patience));
    let bucket = Quota::per_second(1).burst(2);
    assert_eq!((capacity(bucket, None), capacity(bucket, Some(5 * SECOND))), (2, 7));
    let lends = bucket.borrow_up_to(4);
    assert_eq!((capacity(lends, None), capacity(lends, Some(5 * SECOND))), (6, 6));
    // A queue has a wait of its own.
    let queue = bucket.queue(Duration::from_secs(3));
    assert_eq!((capacity(queue, None), capacity(queue, Some(5 * SECOND))), (2, 5));
    assert_eq!(capacity(bucket, Some(u64::MAX)), MAX_TICKS / SECOND);
}

fn queued(cost: u64, wait: u64) -> Queued {
    Queued { charge: Charge::Same(cost), patience: Patience(wait), may_wait: true }
}

#[test]
fn a_bucket_that_lends_has_no_queue() {
    let limits = limits(&[("q", Quota::per_second(1).burst(2).borrow_up_to(4))]);
    let mut standing = limits.standing(&[], NOW);
    assert!(limits.check(&mut standing, &5).is_allowed());
    let verdict = limits.enqueue(&mut standing.clone(), &queued(1, 60 * SECOND), NOW);
    assert!(!verdict.is_allowed());
    // Until nothing is owed, and one permit is there.
    assert_eq!(verdict.numbers.retry_after, 4 * SECOND);
    let mut standing = limits.standing(&[], NOW);
    let verdict = limits.enqueue(&mut standing, &queued(5, 60 * SECOND), NOW);
    assert!(verdict.is_allowed() && verdict.waiting().is_none(), "it proceeds at once");
}

#[test]
fn a_check_that_charges_nothing_takes_no_place_in_a_queue() {
    let queue = Quota::per_second(1).queue(Duration::from_secs(9));
    let limits = limits(&[("a", queue), ("b", queue)]);
    let mut standing = limits.standing(&[], NOW);
    for _ in 0..2 {
        let _ = limits.enqueue(&mut standing, &queued(1, 0), NOW);
    }
    let costs = limits.charge(&Costs::new(0).with("b", 1)).unwrap();
    let op = Queued { charge: costs, patience: Patience(0), may_wait: true };
    let verdict = limits.enqueue(&mut standing, &op, NOW);
    let place = &verdict.waiting().unwrap().place;
    assert_eq!((place.ends[0], place.credit.of(0)), (0, 0));
    assert!(place.ends[1] > NOW && place.credit.of(1) < 0);
    assert_eq!(verdict.waiting().unwrap().wait, 2 * SECOND);
    // At once: nobody waits.
    let mut standing = limits.standing(&[], NOW);
    assert!(limits.enqueue(&mut standing, &queued(1, 0), NOW).waiting().is_none());
}

#[test]
fn a_check_that_leaves_late_gets_back_what_is_not_available_again() {
    let queue = Quota::per_second(1).queue(Duration::from_secs(9));
    let limits = limits(&[("a", queue), ("b", Quota::per_minute(10).sliding_window(6))]);
    let credit = limits.credit(&Charge::Same(3));
    let place = Place { credit, ends: [NOW, 0].into() };
    let left = |reset_after| move |_| Left { used: 3, reset_after, counts_for: 0 };
    let leave = |reset_after| {
        let place = limits.leaving(&place, left(reset_after), SECOND);
        (place.credit.of(0), place.credit.of(1))
    };
    assert_eq!(leave(65 * SECOND), (-3 * SECOND as i64, -3));
    assert_eq!(leave(61 * SECOND), (-3 * SECOND as i64, 0), "the segment has ended");
    assert_eq!(leave(0), (0, 0), "all permits are there again");
    // In units of the algorithm.
    let two = [("a", queue), ("b", Quota::per_second(5).burst(10))];
    let two = self::limits(&two);
    let place = Place { credit: two.credit(&Charge::Same(3)), ends: [NOW, 0].into() };
    let place = two.leaving(&place, left(60 * SECOND), SECOND);
    assert_eq!(place.credit.of(1), -3 * 200_000);
}

/// What a denial says about a quota, for a cost of which `needed` permits must be left.
#[test]
fn a_denial_says_how_long_to_wait_for_each_quota() {
    let (small, large) = (Quota::per_second(1).burst(2), Quota::per_second(1).burst(9));
    let limits = limits(&[("small", small), ("large", large)]);
    let mut standing = limits.standing(&[], NOW);
    assert!(limits.check(&mut standing, &1).is_allowed());
    let waits = |cost: &Costs| {
        let charge = limits.charge(cost).unwrap();
        let verdict = limits.check(&mut standing.clone(), &charge);
        assert!(!verdict.is_allowed());
        let several = verdict.several.unwrap();
        [several.numbers[0].retry_after, several.numbers[1].retry_after]
    };
    assert_eq!(waits(&Costs::new(2)), [SECOND, 0]);
    assert_eq!(waits(&Costs::new(0).with("large", 9)), [0, SECOND]);
    assert_eq!(waits(&Costs::new(3)), [u64::MAX, 0]);
    assert_eq!(waits(&Costs::new(2).with("large", 10)), [0, u64::MAX]);
    // Equal to a capacity is not above it.
    assert_eq!(waits(&Costs::new(2).with("large", 9)), [SECOND, SECOND]);
}

/// Or a denial would name a quota that has nothing to do with it.
#[test]
fn a_quota_that_did_not_deny_has_no_wait() {
    let (small, large) = (Quota::per_second(1).burst(2), Quota::per_second(1).burst(9));
    let limits = limits(&[("small", small), ("large", large)]);
    for may_wait in [true, false] {
        let waits = |charged: &Costs, cost: &Costs| {
            let mut standing = limits.standing(&[], NOW);
            let _ = limits.adjust(&mut standing, &limits.debit(&limits.charge(charged).unwrap()));
            let charge = limits.charge(cost).unwrap();
            let op = Queued { charge, patience: Patience(0), may_wait };
            let several = limits.check(&mut standing, &op).several.unwrap();
            [several.numbers[0].retry_after, several.numbers[1].retry_after]
        };
        let both_in_debt = Costs::new(4).with("large", 9);
        assert_eq!(waits(&both_in_debt, &Costs::new(0).with("large", 1)), [0, SECOND]);
        let small_used = Costs::new(2).with("large", 0);
        assert_eq!(waits(&small_used, &Costs::new(1).with("large", 9)), [SECOND, 0]);
    }
}

#[test]
fn a_check_that_may_not_wait_is_told_when_it_could_proceed_at_once() {
    let limits = limits(&[("q", Quota::per_second(1).burst(2))]);
    let mut standing = limits.standing(&[], NOW);
    assert!(limits.check(&mut standing, &2).is_allowed());
    let denied = |cost, may_wait| {
        let op = Queued { charge: Charge::Same(cost), patience: Patience(SECOND), may_wait };
        let verdict = limits.check(&mut standing.clone(), &op);
        assert!(!verdict.is_allowed());
        verdict.numbers
    };
    assert_eq!(denied(2, true).retry_after, SECOND, "then it may wait for a second");
    assert_eq!(denied(2, false).retry_after, 2 * SECOND);
    // It could only wait for these. The bucket being full is the first chance.
    assert_eq!(denied(3, false).retry_after, 2 * SECOND);
    let full = limits.standing(&[], NOW);
    let op = Queued { charge: Charge::Same(3), patience: Patience(SECOND), may_wait: false };
    assert_eq!(limits.check(&mut full.clone(), &op).numbers.retry_after, 1);
}

#[test]
fn an_instance_without_permits_has_no_part() {
    let quota = Quota::per_second(9);
    for quota in [
        quota,
        quota.borrow_up_to(9),
        quota.queue(Duration::from_secs(1)),
        quota.interval_refill(),
        quota.fixed_window(),
        quota.calendar(),
        quota.approximate_sliding_window(),
        quota.sliding_window(4),
    ] {
        assert!(limit(quota).divided(&|_| 0).is_none(), "{quota:?}");
        let share = limit(quota.burst(quota.capacity())).divided(&|permits| permits.div_ceil(3));
        assert_eq!(share.unwrap().limit(), quota.capacity().div_ceil(3), "{quota:?}");
    }
    // A share of the limit without one of each refill.
    let refills = Quota::per_second(1).burst(9).interval_refill();
    assert!(limit(refills).divided(&|permits| permits / 3).is_none());
    let limits = limits(&[("a", quota), ("b", quota.fixed_window())]);
    assert!(limits.divided(&|_| 0).is_none());
    assert_eq!(limits.divided(&|_| 3).unwrap().len(), 2);
}

/// A third of the permits at a third of the rate.
#[test]
fn a_share_of_a_bucket_refills_as_slowly_as_it_is_small() {
    for (quota, wait) in [
        (Quota::per_second(9), 333_333_000),
        (Quota::per_hour(3), 3_600_000_000_000),
        (Quota::per_second(3_000_000).burst(9), 1),
        (Quota::new(1, Duration::from_micros(1)).burst(MAX_TICKS / ROOM), 3_000),
    ] {
        let third = limits(&[("q", quota)]).divided(&|permits| permits / 3).unwrap();
        let mut standing = third.standing(&[], NOW);
        assert!(third.check(&mut standing, &(quota.capacity() / 3)).is_allowed());
        let verdict = third.check(&mut standing, &1);
        let nanos = 1_000 * verdict.numbers.retry_after;
        assert!((wait..wait + 1_001).contains(&nanos) || nanos == 1_000, "{quota:?}: {nanos}");
    }
}

/// The share holds 3 permits, and each of its refills has 10.
#[test]
fn a_share_of_a_bucket_repays_a_debt_with_all_permits_of_its_refill() {
    let quota = Quota::per_minute(30).burst(9).interval_refill();
    let third = limits(&[("q", quota)]).divided(&|permits| permits / 3).unwrap();
    let mut standing = third.standing(&[], NOW);
    let _ = third.adjust(&mut standing, &third.debit(&12));
    let state = third.entries(&standing, &[], NOW);
    let after = third.peek(&third.standing(&state, NOW + 60_000_000));
    assert_eq!(after.numbers.remaining, 1);
}

#[test]
fn a_share_of_a_bucket_lends_its_share() {
    let lends = limit(Quota::per_second(9).borrow_up_to(30));
    let third = lends.divided(&|permits| permits / 3).unwrap();
    assert_eq!((third.capacity(None), lends.capacity(None)), (13, 39));
}

#[test]
fn a_window_that_was_given_back_needs_no_key() {
    let limits = limits(&[("q", Quota::per_hour(3).fixed_window())]);
    let mut standing = limits.standing(&[], NOW);
    assert!(limits.check(&mut standing, &1).is_allowed());
    assert!(limits.entries(&standing, &[], NOW)[0].state.until() > NOW);
    let _ = limits.adjust(&mut standing, &limits.credit(&Charge::Same(1)));
    assert_eq!(limits.entries(&standing, &[], NOW)[0].state.until(), 0);
}

/// A tick that is a fraction of a microsecond makes times round up.
#[test]
fn fractions_of_a_microsecond_are_neither_lost_nor_won() {
    let (whole, thirds) = (limit(Quota::per_second(1_000)), limit(Quota::per_second(3_000_000)));
    let left = Left { used: 9, reset_after: 7, counts_for: 0 };
    assert_eq!(whole.returnable(9, left, 0), 7, "7 us");
    assert_eq!(thirds.returnable(9, Left { reset_after: 2, ..left }, 0), 3, "1 us, and a fraction");
    assert_eq!(limit(Quota::per_second(3_000_000).burst(9)).longest(), 3);
    let full_at = |micros| {
        let full_at = FullAt { micros, ticks: 0 };
        QuotaState::TokenBucket(BucketState { full_at, rate: Rate::FASTEST })
    };
    assert!(
        !full_at(NOW + MAX_TICKS).is_too_far(NOW) && full_at(NOW + MAX_TICKS + 1).is_too_far(NOW)
    );
}

#[test]
fn numbers_outside_of_their_ranges_are_errors() {
    let is_valid = |quota: Quota| Limit::new("q", &quota, NOW).is_ok();
    let queue = |wait| is_valid(Quota::per_second(1).queue(wait));
    assert!(queue(Duration::from_micros(1)) && queue(Duration::from_secs(3_600)));
    assert!(!queue(Duration::ZERO) && !queue(Duration::from_nanos(1_500)));
    assert!(!queue(Duration::from_micros(MAX_TICKS + 1)) && !queue(Duration::MAX));
    assert!(!is_valid(Quota::per_second(1).borrow_up_to(1).fixed_window()));
    let permits = |permits| is_valid(Quota::per_second(permits).approximate_sliding_window());
    assert!(permits(COUNT / ROOM) && !permits(COUNT / ROOM + 1) && !permits(0) && permits(1));
    let micros = |micros| {
        is_valid(Quota::new(1, Duration::from_micros(micros)).approximate_sliding_window())
    };
    assert!(micros(1_000) && micros(MAX_TICKS / 2));
    assert!(!micros(999) && !micros(MAX_TICKS / 2 + 1));
}

#[test]
fn what_is_given_back_to_a_share_is_in_its_units() {
    let whole =
        limits(&[("a", Quota::per_second(1_000)), ("b", Quota::per_hour(9).fixed_window())]);
    let share = whole.divided(&|permits| permits / 3).unwrap();
    let units = |limits: &Limits| {
        let credit = limits.credit(&Charge::Same(3));
        [credit.of(0), credit.of(1)]
    };
    let in_units = |permits| {
        let adjustment = whole.in_units_of(&share, &permits);
        [adjustment.of(0), adjustment.of(1)]
    };
    assert_ne!(units(&whole)[0], units(&share)[0]);
    assert_eq!(in_units(whole.credit(&Charge::Same(3))), units(&share));
    assert_eq!(in_units(whole.debit(&3)), [3, 3], "charges are in permits");
    assert_eq!(in_units([i64::MIN, -1].into_iter().collect())[0], i64::MIN);
}

/// Otherwise a peek of another revision would change how long a wait is.
#[test]
fn a_check_that_charges_nothing_leaves_the_rate() {
    let (fast, slow) = (Quota::per_second(10), Quota::per_second(1).burst(10));
    for others in [vec![], vec![("other", fast)]] {
        let with = |quota| limits(&[vec![("q", quota)], others.clone()].concat());
        let mut standing = with(slow).standing(&[], NOW);
        assert!(with(slow).check(&mut standing, &10).is_allowed());
        let state = with(slow).entries(&standing, &[], NOW);
        let mut found = with(fast).standing(&state, NOW);
        let verdict = with(fast).check(&mut found, &0);
        assert!(verdict.is_allowed());
        let numbers = verdict.several.map_or(verdict.numbers, |several| several.numbers[0]);
        assert_eq!(numbers.refill_after, SECOND);
    }
}

#[test]
fn charges_and_adjustments_know_what_they_are() {
    let each: Charge = limits(&[("a", Quota::per_second(1)), ("b", Quota::per_second(1))])
        .charge(&Costs::new(0).with("b", 1))
        .unwrap();
    for (charge, is_nothing) in [
        (Charge::Same(0), true),
        (Charge::Same(1), false),
        (each, false),
        (Charge::Each([0, 0].into()), true),
        (Charge::Later([0].into()), true),
    ] {
        assert_eq!(charge.is_nothing(), is_nothing, "{charge:?}");
    }
    assert!(Charge::Later([0].into()).is_later() && !Charge::Each([0].into()).is_later());
    for (changes, is_nothing, is_credit, is_charge) in [
        (&[][..], true, false, false),
        (&[0, 0], true, false, false),
        (&[0, 1], false, false, true),
        (&[0, -1], false, true, false),
        (&[1, -1], false, true, true),
    ] {
        let adjustment: Adjustment = changes.iter().copied().collect();
        assert_eq!(adjustment.is_nothing(), is_nothing, "{changes:?}");
        assert_eq!(adjustment.is_credit(), is_credit, "{changes:?}");
        assert_eq!(adjustment.is_charge(), is_charge, "{changes:?}");
    }
}

#[test]
fn at_most_one_permit_of_a_cost_is_a_cost_like_it() {
    let op = |may_wait| Queued {
        charge: Charge::Later([0, 7, 1].into()),
        patience: Patience(5),
        may_wait,
    };
    for may_wait in [false, true] {
        let op = op(may_wait);
        let one = AtMostOne(&op);
        assert_eq!([one.of(0), one.of(1), one.of(2)], [0, 1, 1]);
        assert_eq!([one.needed(0), one.needed(1)], [1, 1]);
        assert_eq!((one.patience(), one.may_wait()), (Some(Patience(5)), may_wait));
    }
    let none = Charge::Each([0, 7].into());
    assert_eq!([AtMostOne(&none).needed(0), AtMostOne(&none).needed(1)], [0, 1]);
    assert!(none.may_wait() && none.patience().is_none());
}

#[test]
fn limits_know_their_quotas() {
    let (bucket, window) = (Quota::per_second(1), Quota::per_second(1).fixed_window());
    let queue = bucket.queue(Duration::from_secs(1));
    for (quotas, len, is_only_bucket, has_queue) in [
        (&[("a", bucket)][..], 1, true, false),
        (&[("a", queue)], 1, true, true),
        (&[("a", window)], 1, false, false),
        (&[("a", bucket), ("b", bucket)], 2, false, false),
        (&[("a", bucket), ("b", queue), ("c", window)], 3, false, true),
    ] {
        let limits = limits(quotas);
        assert_eq!(limits.len(), len, "{quotas:?}");
        assert_eq!(limits.only_bucket().is_some(), is_only_bucket, "{quotas:?}");
        assert_eq!(limits.has_queue(), has_queue, "{quotas:?}");
    }
}

#[cfg(feature = "jiff")]
#[test]
fn limits_are_valid_while_all_calendars_are() {
    const DAY: u64 = 86_400 * SECOND;
    let (day, month) = (Quota::per_day(1).calendar_in("Europe/Berlin"), Quota::per_month(1));
    assert_eq!(
        limits(&[("a", Quota::per_day(1)), ("b", Quota::per_day(1).calendar())]).valid_during(),
        None
    );
    let of = |quota| limits(&[("q", quota)]).valid_during().unwrap();
    assert_eq!(of(day).end - of(day).start, DAY);
    assert!(of(month).contains(&NOW) && of(day).contains(&NOW));
    let both = limits(&[("month", month), ("none", Quota::per_second(1)), ("day", day)]);
    assert_eq!(both.valid_during().unwrap(), of(day));
}

/// Scripts have these numbers as arguments.
#[test]
fn the_numbers_of_the_scripts_are_those_of_the_quota() {
    let quota = Quota::per_minute(10);
    let Limit::SlidingWindow(segments) = limit(quota.sliding_window(6)) else { panic!() };
    assert_eq!((segments.width(), segments.segments()), (10 * SECOND, 6));
    let Limit::ApproximateSlidingWindow(counters) = limit(quota.approximate_sliding_window())
    else {
        panic!()
    };
    assert_eq!(counters.span().micros(), 60 * SECOND);
    assert_eq!(counters.span().unit(), 58, "about 1/2^20 of the window");
    assert_eq!(counters.span().units(), 1_034_483);
    let Limit::IntervalRefill(bucket) = limit(quota.interval_refill()) else { panic!() };
    assert_eq!(bucket.rate(), Refills { permits: 10, interval: 60 * SECOND });
    assert_eq!(QuotaId::from_u32(7).to_u32(), 7);
}

/// An unused window starts with the next check.
#[test]
fn what_is_not_used_any_more_is_as_if_it_had_never_been_used() {
    let unused =
        |quota, state| limit(quota).level(Some(state), NOW) == limit(quota).level(None, NOW);
    let quota = Quota::new(10, Duration::from_millis(3));
    assert!(unused(quota.fixed_window(), window(0, NOW + 9)));
    assert!(unused(quota.fixed_window(), window(3, NOW)));
    assert!(!unused(quota.fixed_window(), window(3, NOW + 1)));
    assert!(unused(quota.interval_refill(), interval(3, NOW, 3)));
    assert!(!unused(quota.interval_refill(), interval(3, NOW + 1, 3)));
    let newest = NOW / 1_000;
    assert!(unused(quota.sliding_window(3), segments(newest - 4, &[5, 5, 5, 5])));
    assert!(!unused(quota.sliding_window(3), segments(newest - 3, &[5, 0, 0, 0])));
    // Of another number of segments, without any permits.
    assert!(unused(quota.sliding_window(3), segments(newest, &[0])));
    assert!(unused(quota.approximate_sliding_window(), counters(0, 0, NOW)));
}

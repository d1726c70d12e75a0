//! Charges and credits.

use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::bounds::most;
use super::drawn::*;
use crate::Quota;
use crate::quota::{Kind, WindowStart};
use crate::verdict::Numbers;

fn adjustment(limits: &Limits, permits: i64) -> Adjustment {
    match u64::try_from(permits) {
        Ok(charge) => limits.debit(&charge),
        Err(_) => limits.credit(&permits.unsigned_abs()),
    }
}

/// The bucket holds a third of what a period adds.
#[test]
fn a_refill_repays_a_debt_with_all_permits_of_its_period() {
    const MINUTE: u64 = 60_000_000;
    let limits = limits(&[Quota::per_minute(30).burst(10).interval_refill()]);
    for (debt, left_after) in [(10, [10, 10]), (20, [10, 10]), (21, [9, 10]), (45, [0, 10])] {
        let mut used = Used::new(&limits);
        assert!(used.check(10).is_allowed());
        used.adjust(&adjustment(&limits, debt));
        let left = |now| Used { now, ..used.clone() }.remaining();
        assert_eq!(left(used.now + MINUTE - 1), 0, "{debt}");
        assert_eq!([1, 2].map(|refills| left(used.now + refills * MINUTE)), left_after, "{debt}");
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
    fn a_debt_is_kept_whole_unless_the_quota_limits_it(
        quota in small_quota(), charges in prop::collection::vec(0..=100_000u64, 1..5),
        debt in prop::option::of(0..=300_000u64),
    ) {
        let waited_for = match quota.kind() {
            Kind::Queue(wait) => {
                wait.as_micros() * u128::from(quota.permits()) / quota.period().as_micros()
            }
            _ => 0,
        };
        let most = quota.capacity() + quota.borrowed() + waited_for as u64;
        let most = debt.map_or(u64::MAX, |debt| most + debt);
        let limits = limits(&[debt.map_or(quota, |debt| quota.debt_up_to(debt))]);
        let (mut used, mut charged) = (Used::new(&limits), 0);
        for permits in charges {
            let mut standing = used.standing();
            let verdict = limits.adjust(&mut standing, &limits.debit(&permits));
            used.keep(&standing);
            let room = permits.min(most - charged);
            charged += room;
            prop_assert_eq!(used.used(), charged);
            prop_assert_eq!(verdict.forgiven(), permits - room);
        }
        // To the permit.
        used.adjust(&limits.credit(&(charged.saturating_sub(1))));
        prop_assert_eq!(used.used(), charged.min(1));
    }

    /// Whoever spends several times the limit at once gets the limit on average.
    #[test]
    fn spending_more_than_the_capacity_at_once_admits_no_more_than_the_rate(
        permits in 1..=20u64, micros in 1_000..=10_000_000u64, burst in 1..=20u64,
        kind in 0..3, costs in prop::collection::vec(1..=1_000u64, 1..20),
    ) {
        let quota = Quota::new(permits, Duration::from_micros(micros)).burst(burst);
        let quota = match kind {
            0 => quota,
            1 => quota.borrow_up_to(3),
            _ => quota.interval_refill(),
        };
        let limits = limits(&[quota]);
        let (mut used, mut spent) = (Used::new(&limits), 0);
        let last = *costs.last().unwrap();
        for cost in costs {
            used.now += used.peek().numbers.retry_after;
            prop_assert!(used.check(1).is_allowed());
            used.adjust(&limits.debit(&(cost - 1)));
            spent += cost;
        }
        let admitted = most(&quota, NOW, used.now - NOW);
        prop_assert!(u128::from(spent - last) <= admitted, "{} > {}: {}", spent, admitted, quota);
    }
}

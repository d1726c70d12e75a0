//! The most that is admitted in any span.

use std::time::Duration;

use proptest::prelude::*;

use super::drawn::*;
use crate::Quota;
use crate::quota::{Kind, WindowStart};

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
pub(super) fn most(quota: &Quota, first: u64, span: u64) -> u128 {
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
        Kind::ApproximateSlidingWindow => 2 * n * (span / period + 1),
        Kind::SlidingWindow(_) => n * (span / period + 1),
        // Nothing is given back.
        Kind::Concurrent => n,
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
    /// of the next, so twice the larger limit, and a refill of an interval can come right after a burst.
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
                5 => quota.approximate_sliding_window(),
                _ => quota.sliding_window(seconds as u32),
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
            0 | 1 | 6 => (f64::max as fn(f64, f64) -> f64, 1.0),
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
                cached = Some(limits.entries(&used.standing(), &[], used.now));
            }
            if let Some(cached) = &cached {
                let cached = limits.standing(cached, used.now);
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

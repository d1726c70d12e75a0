//! Checks that wait for their turn.

use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::bounds::most;
use super::drawn::*;
use crate::Quota;

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

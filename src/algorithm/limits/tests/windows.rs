//! Sliding windows, compared with a log of admissions.

use std::time::Duration;

use proptest::prelude::*;

use super::drawn::*;
use crate::Quota;
use crate::algorithm::rate::ROOM;

/// The most permits of a sliding window.
const MOST: u64 = u32::MAX as u64 / ROOM;

/// The limit of a sliding window.
fn limit_of_window() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1..=20u64, 1 => Just(MOST - 1), 1 => Just(MOST)]
}

/// Checks near the edges of windows or segments: tenths of a length that pass, the microseconds since the
/// one before that tenth, and the cost.
fn checks_at_edges(most: u64) -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let cost = prop_oneof![3 => 1..=3u64, 1 => cost()];
    prop::collection::vec((0..=most, 0..=2u64, cost), 1..100)
}

proptest! {
    /// Compared with a log of what was admitted.
    #[test]
    fn sliding_window_forget_no_permit_early_and_none_more_than_a_segment_late(
        limit in limit_of_window(), width in 1_000..=1_000_000u64, segments in 1..=12u32,
        checks in checks_at_edges(30),
    ) {
        let period = width * u64::from(segments);
        let quota = Quota::new(limit, Duration::from_micros(period)).sliding_window(segments);
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
        let limits = limits(&[Quota::new(limit, Duration::from_micros(period)).approximate_sliding_window()]);
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

//! A token bucket with continuous refill, stored as the generic cell rate algorithm stores it
//! (ITU-T I.371, annex A): a single number, the time at which the bucket will be full.
//!
//! The rate is the fraction permits/period in lowest terms. A tick is a fraction of a microsecond,
//! chosen so that every number is whole: a permit refills in `permit` ticks, and a microsecond has
//! `scale` ticks. Nothing is ever rounded.

use crate::decision::{Outcome, QuotaInfo, Verdict};
use crate::{ConfigError, Quota};

/// Numbers in Lua are exact up to 2^53. The bucket may use half of that range. The clock has the
/// other half, until the year 2112.
const MAX_CAPACITY: u128 = 1 << 52;

#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    limit: u64,
    permit: u64,
    scale: u64,
    capacity: u64,
}

/// The ticks until the bucket is full, at the time of the check: 0 for a full bucket, `capacity`
/// for an empty one.
pub(crate) type Debt = u64;

/// When the bucket will be full. This is what a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FullAt {
    pub(crate) micros: u64,
    /// Ticks after `micros`, less than a microsecond.
    pub(crate) ticks: u64,
}

impl TokenBucket {
    pub(crate) fn new(name: &str, quota: &Quota) -> Result<Self, ConfigError> {
        let error = |text: &str| Err(ConfigError::new(format!("quota `{name}`: {text}")));
        let (permits, period, burst) = (quota.permits(), quota.period(), quota.capacity());
        if permits == 0 {
            return error("0 permits per period would deny everything: use 1 or more");
        }
        if burst == 0 {
            return error("a burst of 0 would deny everything: use 1 or more");
        }
        if period.is_zero() || period.subsec_nanos() % 1_000 != 0 {
            return error("the period must be a whole number of microseconds, 1 or more");
        }
        let micros = period.as_micros();
        let divisor = gcd(micros, u128::from(permits));
        let permit = micros / divisor;
        let scale = u128::from(permits) / divisor;
        let capacity = permit.saturating_mul(u128::from(burst));
        if scale > MAX_CAPACITY {
            return error(&format!(
                "{permits} permits per {period:?} is too large to represent exactly: use fewer \
                 permits, or a number that divides the period"
            ));
        }
        if capacity > MAX_CAPACITY {
            let most = MAX_CAPACITY / permit;
            let advice = if most == 0 {
                "shorten the period".to_owned()
            } else {
                format!("use a burst of {most} or less, or permits that divide the period")
            };
            return error(&format!(
                "{permits} permits per {period:?} with a burst of {burst} is too large to represent \
                 exactly: {advice}"
            ));
        }
        // All three are at most MAX_CAPACITY.
        Ok(Self {
            limit: burst,
            permit: permit as u64,
            scale: scale as u64,
            capacity: capacity as u64,
        })
    }

    /// What responses say about a quota of these numbers.
    pub(crate) fn info(&self, name: &str) -> QuotaInfo {
        let second = u128::from(self.scale) * 1_000_000;
        let capacity = u128::from(self.capacity);
        let window = if capacity.is_multiple_of(second) { capacity / second } else { 0 };
        QuotaInfo::new(name, self.limit, window as u64)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn permit(&self) -> u64 {
        self.permit
    }

    #[cfg(feature = "redis")]
    pub(crate) fn scale(&self) -> u64 {
        self.scale
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The debt at `now` (microseconds) of a bucket that will be full at `full_at`. It is at most
    /// that of an empty bucket, so that after a change of the quota's numbers as much consumption
    /// as possible survives.
    pub(crate) fn debt(&self, full_at: FullAt, now: u64) -> Debt {
        let micros = full_at.micros.saturating_sub(now);
        if micros == 0 && full_at.micros < now {
            return 0;
        }
        micros.saturating_mul(self.scale).saturating_add(full_at.ticks).min(self.capacity)
    }

    /// The debt of a bucket that will be full in this many microseconds.
    pub(crate) fn debt_of(&self, micros: u64) -> Debt {
        micros.saturating_mul(self.scale).min(self.capacity)
    }

    pub(crate) fn full_at(&self, debt: Debt, now: u64) -> FullAt {
        let (micros, ticks) = self.micros(debt);
        FullAt { micros: now + micros, ticks }
    }

    /// The verdict on a cost above the capacity, which needs no state: that of a full bucket.
    pub(crate) fn exceeding_capacity(&self, cost: u64) -> Option<Verdict> {
        (cost > self.limit).then(|| self.check(&mut 0, cost))
    }

    /// Decides a check, and adds its cost to the debt if it is allowed.
    pub(crate) fn check(&self, debt: &mut Debt, cost: u64) -> Verdict {
        let free = self.capacity - *debt;
        let (outcome, retry_after) = if cost > self.limit {
            (Outcome::ExceedsCapacity, 0)
        } else {
            // At most the capacity, which is the price of `limit` permits.
            let price = cost * self.permit;
            if price <= free {
                *debt += price;
                (Outcome::Allowed, 0)
            } else {
                (Outcome::Denied, self.whole_micros(price - free))
            }
        };
        let free = self.capacity - *debt;
        let remaining = free / self.permit;
        let refill = if *debt == 0 { 0 } else { self.permit - (free - remaining * self.permit) };
        Verdict {
            outcome,
            remaining,
            retry_after,
            refill_after: self.whole_micros(refill),
            reset_after: self.whole_micros(*debt),
        }
    }

    /// The verdict on a check of cost 1, without charging it.
    pub(crate) fn peek(&self, mut debt: Debt) -> Verdict {
        let now = self.check(&mut debt.clone(), 0);
        let Verdict { outcome, retry_after, .. } = self.check(&mut debt, 1);
        Verdict { outcome, retry_after, ..now }
    }

    /// Rounded up.
    fn whole_micros(&self, ticks: u64) -> u64 {
        let (micros, rest) = self.micros(ticks);
        micros + u64::from(rest > 0)
    }

    /// Whole microseconds, and the ticks after them.
    fn micros(&self, ticks: u64) -> (u64, u64) {
        match self.scale {
            // The most common scale needs no divisions.
            1 => (ticks, 0),
            scale => (ticks / scale, ticks % scale),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn bucket(quota: Quota) -> TokenBucket {
        TokenBucket::new("test", &quota).unwrap()
    }

    fn any_quota() -> impl Strategy<Value = Quota> {
        (1..=1_000_000u64, 1..=100_000_000_000u64, 1..=1_000_000u64)
            .prop_map(|(n, micros, burst)| {
                Quota::new(n, Duration::from_micros(micros)).burst(burst)
            })
            .prop_filter("too large to represent exactly", |quota| {
                TokenBucket::new("", quota).is_ok()
            })
    }

    #[test]
    fn three_per_second_is_exactly_three_per_second() {
        let bucket = bucket(Quota::per_second(3).burst(1));
        let (mut state, mut now, mut admitted) = (FullAt { micros: 0, ticks: 0 }, 1_000_000u64, 0);
        let end = now + 1_000 * 1_000_000;
        while now < end {
            let mut debt = bucket.debt(state, now);
            let verdict = bucket.check(&mut debt, 1);
            admitted += u32::from(verdict.is_allowed());
            state = bucket.full_at(debt, now);
            now += verdict.retry_after.max(verdict.refill_after).max(1);
        }
        // Waits are whole microseconds, up to one too long per permit, so the last permit of the
        // span may fall just after it.
        assert_eq!(admitted, 3_000);
    }

    #[test]
    fn a_quota_that_cannot_work_is_an_error_that_says_what_to_change() {
        for (quota, says) in [
            (Quota::per_second(0), "1 or more"),
            (Quota::per_second(1).burst(0), "burst of 0"),
            (Quota::new(1, Duration::ZERO), "whole number of microseconds"),
            (Quota::new(1, Duration::from_nanos(1_500)), "whole number of microseconds"),
            (Quota::new(1, Duration::MAX).burst(1), "whole number of microseconds"),
            (Quota::new(1, Duration::from_secs(u64::MAX)), "shorten the period"),
            (Quota::new(u64::MAX, Duration::from_secs(1)), "fewer permits"),
            (
                Quota::new(u32::MAX.into(), Duration::from_secs(u64::MAX)),
                "use a burst of 1 or less",
            ),
            (Quota::per_day(1).burst(u32::MAX.into()), "use a burst of 52124 or less"),
            (Quota::per_second(1).burst(u64::MAX), "use a burst of 4503599627 or less"),
            (Quota::per_day(1_000_003), "permits that divide the period"),
        ] {
            let error = TokenBucket::new("q", &quota).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("`q`"), "{quota:?}: {error}");
        }
        assert!(TokenBucket::new("q", &Quota::per_day(1).burst(52_124)).is_ok());
        assert!(TokenBucket::new("q", &Quota::per_second(1).burst(u32::MAX.into())).is_ok());
        assert!(TokenBucket::new("q", &Quota::per_second(u32::MAX.into())).is_ok());
    }

    #[test]
    fn bytes_per_month_are_exact() {
        let month = Duration::from_secs(30 * 86_400);
        let terabyte = bucket(Quota::new(1_000_000_000_000, month));
        let mut debt = 0;
        assert!(terabyte.check(&mut debt, 999_999_999_999).is_allowed());
        assert_eq!(terabyte.check(&mut debt, 2).outcome, Outcome::Denied);
        assert!(terabyte.check(&mut debt, 1).is_allowed());
        assert_eq!(terabyte.info("monthly").window, month.as_secs());
    }

    #[test]
    fn a_cost_above_the_capacity_is_denied_without_a_wait() {
        let bucket = bucket(Quota::per_second(5));
        let mut debt = 0;
        let verdict = bucket.check(&mut debt, 6);
        assert_eq!(verdict.outcome, Outcome::ExceedsCapacity);
        assert_eq!((debt, verdict.retry_after, verdict.remaining), (0, 0, 5));
        assert_eq!(bucket.check(&mut debt, u64::MAX).outcome, Outcome::ExceedsCapacity);
    }

    proptest! {
        #[test]
        fn a_check_is_denied_until_exactly_the_reported_wait(
            quota in any_quota(), used in 0.0..=1.0f64, cost in 1..=1_000_000u64, now in 0..=1u64 << 51,
        ) {
            let bucket = bucket(quota);
            let debt = (bucket.capacity as f64 * used) as u64;
            let state = bucket.full_at(debt, now);
            let verdict = bucket.check(&mut debt.clone(), cost);
            prop_assume!(verdict.outcome != Outcome::ExceedsCapacity);
            let at = now + verdict.retry_after;
            prop_assert!(bucket.check(&mut bucket.debt(state, at), cost).is_allowed());
            if !verdict.is_allowed() {
                prop_assert!(!bucket.check(&mut bucket.debt(state, at - 1), cost).is_allowed());
            }
        }

        #[test]
        fn a_denied_check_changes_nothing(quota in any_quota(), used in 0.0..=1.0f64, cost: u64) {
            let bucket = bucket(quota);
            let before = (bucket.capacity as f64 * used) as u64;
            let mut debt = before;
            if !bucket.check(&mut debt, cost).is_allowed() {
                prop_assert_eq!(debt, before);
            }
        }

        #[test]
        fn remaining_can_be_taken_and_grows_after_the_reported_time(
            quota in any_quota(), used in 0.0..=1.0f64, now in 0..=1u64 << 51,
        ) {
            let bucket = bucket(quota);
            let debt = (bucket.capacity as f64 * used) as u64;
            let state = bucket.full_at(debt, now);
            let Verdict { remaining, refill_after, reset_after, .. } = bucket.check(&mut debt.clone(), 0);
            prop_assert!(bucket.check(&mut debt.clone(), remaining).is_allowed());
            let at = |wait| bucket.debt(state, now + wait);
            prop_assert_eq!(at(reset_after), 0);
            if remaining < bucket.limit {
                prop_assert!(!bucket.check(&mut debt.clone(), remaining + 1).is_allowed());
                prop_assert!(bucket.check(&mut at(refill_after), remaining + 1).is_allowed());
                let early = refill_after - 1;
                prop_assert!(!bucket.check(&mut at(early), remaining + 1).is_allowed());
            }
        }

        #[test]
        fn no_span_admits_more_than_burst_plus_rate(
            quota in any_quota(), steps in prop::collection::vec((0..=5_000_000u64, 0..=2_000u64), 1..100),
        ) {
            let bucket = bucket(quota);
            let (mut state, mut now, mut taken) = (FullAt { micros: 0, ticks: 0 }, 1 << 50, 0u128);
            let start = now;
            for (wait, cost) in steps {
                now += wait;
                let mut debt = bucket.debt(state, now);
                if bucket.check(&mut debt, cost).is_allowed() {
                    taken += u128::from(cost);
                    state = bucket.full_at(debt, now);
                }
                let refilled = u128::from(now - start) * u128::from(bucket.scale);
                prop_assert!(taken * u128::from(bucket.permit) <= u128::from(bucket.capacity) + refilled);
            }
        }

        #[test]
        fn a_stored_state_is_read_back_unchanged(quota in any_quota(), used in 0.0..=1.0f64, now in 0..=1u64 << 51) {
            let bucket = bucket(quota);
            let debt = (bucket.capacity as f64 * used) as u64;
            prop_assert_eq!(bucket.debt(bucket.full_at(debt, now), now), debt);
        }

        #[test]
        fn no_quota_and_no_cost_panics(n: u64, secs: u64, nanos in 0..1_000_000_000u32, burst: u64, cost: u64, micros: u64, ticks: u64, now in 0..=1u64 << 52) {
            if let Ok(bucket) = TokenBucket::new("", &Quota::new(n, Duration::new(secs, nanos)).burst(burst)) {
                let mut debt = bucket.debt(FullAt { micros, ticks }, now);
                bucket.check(&mut debt, cost);
                bucket.peek(debt);
                bucket.full_at(debt, now);
            }
        }
    }
}

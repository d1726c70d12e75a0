//! A token bucket with interval refill: it gains a number of permits at the end of each interval.
//!
//! The first interval starts with the first check that takes from a full bucket. The state has the rate
//! at which the bucket refills, so that revisions with another rate read how many permits are missing.

use super::rate::{MAX_TICKS, ROOM};
use super::{Algorithm, LeaseFault};
use crate::Quota;
use crate::charge::Left;

#[derive(Clone, Copy, Debug)]
pub(crate) struct IntervalRefill {
    limit: u64,
    rate: Refills,
}

/// The permits that a bucket gains at the end of each interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refills {
    pub(crate) permits: u64,
    /// The length of an interval, in microseconds.
    pub(crate) interval: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntervalLevel {
    missing: u64,
    /// The microseconds until the next refill.
    next: u64,
    rate: Refills,
}

/// The state of a bucket that a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntervalState {
    pub(crate) missing: u64,
    pub(crate) refills_at: u64,
    pub(crate) rate: Refills,
}

impl IntervalRefill {
    pub(crate) fn new(quota: &Quota) -> Result<Self, String> {
        let (permits, limit, period) = (quota.permits(), quota.capacity(), quota.period());
        if permits == 0 || limit == 0 {
            return Err(
                "0 permits per interval or a burst of 0 would deny everything: use 1 or more"
                    .into(),
            );
        }
        if quota.borrowed() > 0 {
            return Err(
                "a bucket that is refilled by intervals lends no permits: remove `borrow`".into()
            );
        }
        if period.subsec_nanos() % 1_000 != 0 || period.as_micros() < 1_000 {
            return Err(
                "an interval is a whole number of microseconds, and at least 1 ms long".into()
            );
        }
        let longest = period.as_micros().saturating_mul(limit.div_ceil(permits).into());
        let most = MAX_TICKS / ROOM;
        if limit > most {
            return Err(format!("a bucket of this kind holds at most {most} permits"));
        }
        if longest > most.into() {
            return Err("an empty bucket refills in more than 12 years: use a smaller burst".into());
        }
        // The interval is not longer than `longest`. A refill can repay a debt, so it may have more permits
        // than the bucket holds, but never more than a state does.
        let rate = Refills { permits: permits.min(MAX_TICKS), interval: period.as_micros() as u64 };
        Ok(Self { limit, rate })
    }

    #[cfg(feature = "redis")]
    pub(crate) fn rate(&self) -> Refills {
        self.rate
    }

    /// The missing permits that take the longest time to refill that a value can describe.
    fn longest_debt(&self) -> u64 {
        let Refills { permits, interval } = self.rate;
        permits.saturating_mul(MAX_TICKS / interval).min(MAX_TICKS)
    }

    fn of(&self, missing: u64) -> IntervalLevel {
        IntervalLevel { missing, next: self.rate.interval, rate: self.rate }
    }
}

impl Refills {
    /// The refills that add so many permits.
    fn count(self, permits: u64) -> u64 {
        permits.div_ceil(self.permits)
    }

    /// The time at which so many permits are added, if the next refill is at the time `next`. 0 for no
    /// permits.
    fn time(self, permits: u64, next: u64) -> u64 {
        match self.count(permits) {
            0 => 0,
            refills => next.saturating_add((refills - 1).saturating_mul(self.interval)),
        }
    }
}

impl Algorithm for IntervalRefill {
    type Level = IntervalLevel;
    type State = IntervalState;

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> u64 {
        self.rate.count(self.limit) * self.rate.interval
    }

    /// Returns the share of an instance. One without a share of each refill has none of the limit either.
    fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
        let (limit, permits) = (share(self.limit), share(self.rate.permits));
        let rate = Refills { permits, interval: self.rate.interval };
        (limit > 0 && permits > 0).then_some(Self { limit, rate })
    }

    /// Permits are used in the interval in which they were charged.
    fn leased(&self, lease: u64) -> Result<Self, LeaseFault> {
        let Refills { permits, interval } = self.rate;
        LeaseFault::check(lease, permits, interval, self.limit).map(|()| *self)
    }

    #[cfg(feature = "redis")]
    fn keeps(level: &IntervalLevel) -> u64 {
        level.next
    }

    fn level(&self, state: Option<IntervalState>, now: u64) -> IntervalLevel {
        let Some(IntervalState { missing, refills_at, rate }) = state else { return self.of(0) };
        let (refills, next) = match now.checked_sub(refills_at) {
            None => (0, refills_at - now),
            Some(late) => (late / rate.interval + 1, rate.interval - late % rate.interval),
        };
        match missing.saturating_sub(refills.saturating_mul(rate.permits)) {
            0 => self.of(0),
            missing => IntervalLevel { missing, next, rate },
        }
    }

    fn empty(&self, _: u64) -> IntervalLevel {
        self.of(self.limit)
    }

    fn used(level: &IntervalLevel) -> u64 {
        level.missing
    }

    fn time_to(level: &IntervalLevel, used: u64) -> u64 {
        level.rate.time(level.missing.saturating_sub(used), level.next)
    }

    /// The bucket has gained as much of the next refill as before, but not more than one refill.
    fn charge(&self, level: &mut IntervalLevel, cost: u64) {
        let (theirs, ours) = (level.rate, self.rate);
        let next = if theirs == ours {
            level.next
        } else {
            // As the script computes it.
            let ratio = theirs.permits as f64 / ours.permits as f64
                * (ours.interval as f64 / theirs.interval as f64);
            let elapsed = theirs.interval.saturating_sub(level.next) as f64 * ratio;
            (ours.interval as f64 - elapsed).ceil().max(1.0) as u64
        };
        // What refills later than that is as good as any other debt.
        let missing = level.missing.min(self.longest_debt());
        *level = IntervalLevel { missing: missing + cost, next, rate: self.rate };
    }

    fn most_stored(&self) -> u64 {
        self.longest_debt()
    }

    /// The permits that are still missing. The last refill adds the remainder.
    fn returnable(&self, permits: u64, left: Left, delay: u64) -> u64 {
        let last = left.used.saturating_sub(1) % self.rate.permits + 1;
        match left.reset_after.saturating_sub(delay).div_ceil(self.rate.interval) {
            0 => 0,
            refills => {
                permits.min((refills - 1).saturating_mul(self.rate.permits).saturating_add(last))
            }
        }
    }

    fn credit(&self, level: &mut IntervalLevel, permits: u64) {
        self.charge(level, 0);
        level.missing = level.missing.saturating_sub(permits);
        if level.missing == 0 {
            *level = self.of(0);
        }
    }

    fn is_own(&self, level: &IntervalLevel) -> bool {
        level.rate == self.rate
    }

    #[cfg(feature = "redis")]
    fn longest(&self) -> u64 {
        self.window()
    }

    fn state(level: &IntervalLevel, now: u64) -> IntervalState {
        let IntervalLevel { missing, next, rate } = *level;
        IntervalState { missing, refills_at: now.saturating_add(next), rate }
    }

    fn until(state: &IntervalState) -> u64 {
        state.rate.time(state.missing, state.refills_at)
    }

    #[cfg(feature = "redis")]
    fn earlier(state: IntervalState, by: u64, _: u64) -> IntervalState {
        IntervalState { refills_at: state.refills_at.saturating_sub(by), ..state }
    }

    #[cfg(feature = "redis")]
    fn is_too_far(state: &IntervalState, now: u64) -> bool {
        state.missing > MAX_TICKS || Self::until(state).saturating_sub(now) > MAX_TICKS
    }
}

//! A token bucket with interval refill: it gains a number of permits at the end of each interval.
//!
//! The first interval starts with the first check that takes from a full bucket. The state has the
//! numbers at which the bucket refills, so that revisions with other numbers read how many permits are
//! missing.

use super::Algorithm;
use super::rate::MAX_TICKS;
use crate::decision::{Numbers, QuotaInfo};
use crate::{ConfigError, Quota};

#[derive(Clone, Copy, Debug)]
pub(crate) struct IntervalRefill {
    limit: u64,
    rate: Refills,
}

/// What a bucket gains, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refills {
    pub(crate) permits: u64,
    /// In microseconds.
    pub(crate) interval: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntervalLevel {
    missing: u64,
    /// The microseconds until the next refill.
    next: u64,
    rate: Refills,
}

/// What a store keeps of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntervalState {
    pub(crate) missing: u64,
    pub(crate) refills_at: u64,
    pub(crate) rate: Refills,
}

impl IntervalRefill {
    pub(crate) fn new(name: &str, quota: &Quota) -> Result<Self, ConfigError> {
        let error = |text: &str| Err(ConfigError::new(format!("quota `{name}`: {text}")));
        let (permits, limit, period) = (quota.permits(), quota.capacity(), quota.period());
        if permits == 0 || limit == 0 {
            return error(
                "0 permits per interval or a burst of 0 would deny everything: use 1 or more",
            );
        }
        if quota.borrowed() > 0 {
            return error(
                "a bucket that is refilled by intervals lends no permits: remove `borrow`",
            );
        }
        if period.subsec_nanos() % 1_000 != 0 || period.as_micros() < 1_000 {
            return error("an interval is a whole number of microseconds, and at least 1 ms long");
        }
        let longest = period.as_micros().saturating_mul(limit.div_ceil(permits).into());
        if longest.max(limit.into()) > MAX_TICKS.into() {
            return error("an empty bucket refills in more than 142 years: use a smaller burst");
        }
        // The interval is not longer than `longest`, and more permits than fit make no difference.
        let rate = Refills { permits: permits.min(limit), interval: period.as_micros() as u64 };
        Ok(Self { limit, rate })
    }

    #[cfg(feature = "redis")]
    pub(crate) fn rate(&self) -> Refills {
        self.rate
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
}

impl IntervalLevel {
    /// The time until at most so many permits are missing.
    fn wait(&self, missing: u64) -> u64 {
        match self.rate.count(self.missing.saturating_sub(missing)) {
            0 => 0,
            refills => self.next.saturating_add((refills - 1).saturating_mul(self.rate.interval)),
        }
    }
}

impl Algorithm for IntervalRefill {
    type Level = IntervalLevel;
    type State = IntervalState;

    fn info(&self, name: &str) -> QuotaInfo {
        let micros = self.rate.count(self.limit) * self.rate.interval;
        let window = if micros.is_multiple_of(1_000_000) { micros / 1_000_000 } else { 0 };
        QuotaInfo::new(name, self.limit, window)
    }

    fn capacity(&self) -> u64 {
        self.limit
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

    #[cfg(any(feature = "redis", test))]
    fn empty(&self, _: u64) -> IntervalLevel {
        self.of(self.limit)
    }

    fn fits(&self, level: &IntervalLevel, cost: u64) -> bool {
        level.missing.saturating_add(cost) <= self.limit
    }

    /// The part of an interval until the next refill is the same in intervals of another length.
    fn charge(&self, level: &mut IntervalLevel, cost: u64) {
        let (theirs, ours) = (level.rate.interval, self.rate.interval);
        let next = if theirs == ours {
            level.next
        } else {
            // As the script computes it.
            let next = (level.next as f64 * (ours as f64 / theirs as f64)).ceil();
            (next as u64).min(ours)
        };
        *level = IntervalLevel { missing: level.missing + cost, next, rate: self.rate };
    }

    fn wait(&self, level: &IntervalLevel, cost: u64) -> u64 {
        level.wait(self.limit.saturating_sub(cost))
    }

    fn is_own(&self, level: &IntervalLevel) -> bool {
        level.rate == self.rate
    }

    fn numbers(&self, level: &IntervalLevel) -> Numbers {
        let remaining = self.limit.saturating_sub(level.missing);
        Numbers {
            remaining,
            retry_after: 0,
            refill_after: level.wait(self.limit.saturating_sub(remaining + 1)),
            reset_after: level.wait(0),
        }
    }

    #[cfg(feature = "redis")]
    fn longest(&self) -> u64 {
        self.rate.count(self.limit) * self.rate.interval
    }

    fn state(level: &IntervalLevel, now: u64) -> IntervalState {
        let IntervalLevel { missing, next, rate } = *level;
        IntervalState { missing, refills_at: now.saturating_add(next), rate }
    }

    fn until(state: &IntervalState) -> u64 {
        let IntervalState { missing, refills_at, rate } = *state;
        match rate.count(missing) {
            0 => 0,
            refills => refills_at.saturating_add((refills - 1).saturating_mul(rate.interval)),
        }
    }

    #[cfg(feature = "redis")]
    fn is_too_far(state: &IntervalState, now: u64) -> bool {
        state.missing > MAX_TICKS || Self::until(state).saturating_sub(now) > MAX_TICKS
    }
}

//! The table of algorithms: the macro `algorithms!` makes the enums `Limit`, `Level` and `QuotaState` of it,
//! which pass each method of `Algorithm` on to the algorithm of a quota. `Limit::new` chooses that by the
//! `Kind` of the quota.

use std::ops::Range;

use super::approximate_sliding_window::{ApproximateSlidingWindow, CountersLevel, CountersState};
use super::concurrent::{Concurrent, HeldLevel, HeldState};
use super::fixed_window::{FixedWindow, WindowLevel, WindowState};
use super::interval_refill::{IntervalLevel, IntervalRefill, IntervalState};
use super::rate::{BucketState, Debt, Rate};
use super::sliding_window::{SegmentsLevel, SegmentsState, SlidingWindow};
use super::token_bucket::TokenBucket;
use super::{Algorithm, LeaseFault};
use crate::charge::{Cost, Left, Patience};
use crate::quota::Kind;
use crate::verdict::{Numbers, Outcome, QuotaInfo, Verdict};
use crate::{ConfigError, Quota};

/// The algorithms, with their levels and states.
macro_rules! algorithms {
    ($($name:ident: $level:ident, $state:ident;)+) => {
        /// A quota, compiled.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Limit { $($name($name)),+ }

        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Level { $($name($level)),+ }

        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum QuotaState { $($name($state)),+ }

        impl Limit {
            /// The facts about the quota that responses contain.
            pub(crate) fn info(&self, name: &str) -> QuotaInfo {
                match self {
                    _ if self.is_held() => QuotaInfo::held(name, self.limit()),
                    $(Self::$name(limit) => QuotaInfo::new(name, limit.limit(), limit.window()),)+
                }
            }

            pub(crate) fn limit(&self) -> u64 {
                match self { $(Self::$name(limit) => limit.limit(),)+ }
            }

            pub(crate) fn capacity(&self, patience: Option<Patience>) -> u64 {
                match self { $(Self::$name(limit) => limit.capacity(patience),)+ }
            }

            pub(crate) fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
                match self { $(Self::$name(limit) => limit.divided(share).map(Self::$name),)+ }
            }

            pub(crate) fn leased(&self, lease: u64) -> Result<Self, LeaseFault> {
                match self { $(Self::$name(limit) => limit.leased(lease).map(Self::$name),)+ }
            }

            pub(crate) fn beyond_reserve(&self, lease: u64, time: u64) -> u64 {
                match self { $(Self::$name(limit) => limit.beyond_reserve(lease, time),)+ }
            }

            /// True if the state is one of this algorithm.
            pub(crate) fn reads(&self, state: &QuotaState) -> bool {
                matches!((self, state), $((Self::$name(_), QuotaState::$name(_)))|+)
            }

            /// A state of another algorithm counts for nothing.
            pub(crate) fn level(&self, state: Option<QuotaState>, now: u64) -> Level {
                match self {
                    $(Self::$name(limit) => {
                        let state = match state {
                            Some(QuotaState::$name(state)) => Some(state),
                            _ => None,
                        };
                        Level::$name(limit.level(state, now))
                    })+
                }
            }

            pub(crate) fn empty(&self, now: u64) -> Level {
                match self { $(Self::$name(limit) => Level::$name(limit.empty(now)),)+ }
            }

            pub(crate) fn fits(&self, level: &Level, cost: u64, patience: Option<Patience>) -> bool {
                match (self, level) {
                    $((Self::$name(limit), Level::$name(level)) => limit.fits(level, cost, patience),)+
                    _ => false,
                }
            }

            pub(crate) fn charge(&self, level: &mut Level, cost: u64) {
                match (self, level) {
                    $((Self::$name(limit), Level::$name(level)) => limit.charge(level, cost),)+
                    _ => {}
                }
            }

            pub(crate) fn most_taken(&self) -> u64 {
                match self { $(Self::$name(limit) => limit.most_taken(),)+ }
            }

            pub(crate) fn most_stored(&self) -> u64 {
                match self { $(Self::$name(limit) => limit.most_stored(),)+ }
            }

            pub(crate) fn returnable(&self, permits: u64, left: Left, delay: u64) -> u64 {
                match self { $(Self::$name(limit) => limit.returnable(permits, left, delay),)+ }
            }

            pub(crate) fn unit(&self) -> u64 {
                match self { $(Self::$name(limit) => limit.unit(),)+ }
            }

            pub(crate) fn credit(&self, level: &mut Level, units: u64) {
                match (self, level) {
                    $((Self::$name(limit), Level::$name(level)) => limit.credit(level, units),)+
                    _ => {}
                }
            }

            pub(crate) fn decide(&self, level: &mut Level, cost: &impl Cost) -> Verdict {
                match (self, level) {
                    $((Self::$name(limit), Level::$name(level)) => limit.decide(level, cost),)+
                    _ => Verdict::new(Outcome::Denied, Numbers::default()),
                }
            }

            pub(crate) fn is_own(&self, level: &Level) -> bool {
                match (self, level) {
                    $((Self::$name(limit), Level::$name(level)) => limit.is_own(level),)+
                    _ => false,
                }
            }

            pub(crate) fn numbers_after(
                &self, level: &Level, outcome: Outcome, quota: usize, cost: &impl Cost,
            ) -> Numbers {
                match (self, level) {
                    $((Self::$name(limit), Level::$name(level)) => {
                        limit.numbers_after(level, outcome, quota, cost)
                    })+
                    _ => Numbers::default(),
                }
            }

            #[cfg(feature = "redis")]
            pub(crate) fn longest(&self) -> u64 {
                match self { $(Self::$name(limit) => limit.longest(),)+ }
            }
        }

        impl Level {
            pub(crate) fn used(&self) -> u64 {
                match self { $(Self::$name(level) => $name::used(level),)+ }
            }

            #[cfg(feature = "redis")]
            pub(crate) fn keeps(&self) -> u64 {
                match self { $(Self::$name(level) => $name::keeps(level),)+ }
            }

            pub(crate) fn state(&self, now: u64) -> QuotaState {
                match self { $(Self::$name(level) => QuotaState::$name($name::state(level, now)),)+ }
            }
        }

        impl QuotaState {
            #[cfg(feature = "redis")]
            pub(crate) fn is_too_far(&self, now: u64) -> bool {
                match self { $(Self::$name(state) => $name::is_too_far(state, now),)+ }
            }

            #[cfg(feature = "redis")]
            pub(crate) fn earlier(self, by: u64, now: u64) -> Self {
                match self {
                    $(Self::$name(state) => Self::$name($name::earlier(state, by, now)),)+
                }
            }

            pub(crate) fn until(&self) -> u64 {
                match self { $(Self::$name(state) => $name::until(state),)+ }
            }
        }
    };
}

algorithms! {
    TokenBucket: Debt, BucketState;
    IntervalRefill: IntervalLevel, IntervalState;
    FixedWindow: WindowLevel, WindowState;
    ApproximateSlidingWindow: CountersLevel, CountersState;
    SlidingWindow: SegmentsLevel, SegmentsState;
    Concurrent: HeldLevel, HeldState;
}

impl Limit {
    /// Compiles a quota at a time in microseconds since 1970, which matters to calendars.
    pub(crate) fn new(name: &str, quota: &Quota, now: u64) -> Result<Self, ConfigError> {
        let limit = match quota.kind() {
            Kind::TokenBucket | Kind::Queue(_) => TokenBucket::new(quota).map(Self::TokenBucket),
            Kind::IntervalRefill => IntervalRefill::new(quota).map(Self::IntervalRefill),
            Kind::FixedWindow(start) => FixedWindow::new(quota, start, now).map(Self::FixedWindow),
            Kind::ApproximateSlidingWindow => {
                ApproximateSlidingWindow::new(quota).map(Self::ApproximateSlidingWindow)
            }
            Kind::SlidingWindow(segments) => {
                SlidingWindow::new(quota, segments).map(Self::SlidingWindow)
            }
            Kind::Concurrent => Concurrent::new(quota).map(Self::Concurrent),
        };
        limit.map_err(|text| ConfigError::new(format!("quota `{name}`: {text}")))
    }

    /// Charges a cost without a check, as long as at most so many permits are in use. Returns the permits
    /// that are not charged.
    pub(crate) fn charge_up_to(&self, most: u64, level: &mut Level, cost: u64) -> u64 {
        let room = most.saturating_sub(level.used());
        self.charge(level, cost.min(room));
        cost.saturating_sub(room)
    }

    /// The rate of a token bucket.
    pub(crate) fn rate(&self) -> Option<Rate> {
        match self {
            Self::TokenBucket(bucket) => Some(bucket.rate()),
            _ => None,
        }
    }

    /// The current window of a calendar, in which these limits are valid.
    pub(crate) fn valid_during(&self) -> Option<Range<u64>> {
        match self {
            Self::FixedWindow(window) => window.valid_during(),
            _ => None,
        }
    }

    /// True if its permits are held until they are given back.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Concurrent(_))
    }

    /// True if checks wait without being asked to.
    pub(crate) fn is_queue(&self) -> bool {
        matches!(self, Self::TokenBucket(bucket) if bucket.is_queue())
    }

    /// The time that a check has to wait that has taken permits and left this level, and the time at which
    /// the bucket is full.
    pub(crate) fn place(&self, level: &Level, now: u64) -> Option<(u64, u64)> {
        match (self, level) {
            (Self::TokenBucket(bucket), Level::TokenBucket(debt)) if !bucket.borrows() => {
                Some((TokenBucket::time_to(debt, bucket.limit()), debt.full_at(now).micros))
            }
            _ => None,
        }
    }
}

//! The algorithms, one variant each.
//!
//! An algorithm reads a state as a level at the time of a check, raises the level, and says how long
//! it takes until the level has fallen far enough. Everything else is the same for all of them.

use super::fixed_window::{FixedWindow, WindowLevel, WindowState};
#[cfg(feature = "redis")]
use super::rate::MAX_TICKS;
use super::rate::{BucketState, Debt};
use super::token_bucket::TokenBucket;
use crate::decision::{Numbers, QuotaInfo};
use crate::quota::Algorithm;
use crate::{ConfigError, Quota};

/// A quota, compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
}

/// How much of a quota is used at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    TokenBucket(Debt),
    FixedWindow(WindowLevel),
}

/// What a store keeps of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaState {
    TokenBucket(BucketState),
    FixedWindow(WindowState),
}

impl Limit {
    pub(crate) fn new(name: &str, quota: &Quota) -> Result<Self, ConfigError> {
        match quota.algorithm() {
            Algorithm::TokenBucket => TokenBucket::new(name, quota).map(Self::TokenBucket),
            Algorithm::FixedWindow(start) => {
                FixedWindow::new(name, quota, start).map(Self::FixedWindow)
            }
        }
    }

    pub(crate) fn info(&self, name: &str) -> QuotaInfo {
        match self {
            Self::TokenBucket(bucket) => bucket.info(name),
            Self::FixedWindow(window) => window.info(name),
        }
    }

    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket(_))
    }

    /// The most permits that can be taken at once.
    pub(crate) fn capacity(&self) -> u64 {
        match self {
            Self::TokenBucket(bucket) => bucket.limit(),
            Self::FixedWindow(window) => window.limit(),
        }
    }

    /// The level at `now` of a state that a revision of the quota has left.
    pub(crate) fn level(&self, state: Option<QuotaState>, now: u64) -> Level {
        match self {
            Self::TokenBucket(bucket) => Level::TokenBucket(match state {
                Some(QuotaState::TokenBucket(state)) => state.debt(now),
                _ => bucket.rate().debt(0),
            }),
            Self::FixedWindow(window) => Level::FixedWindow(match state {
                Some(QuotaState::FixedWindow(state)) => window.level(Some(state), now),
                _ => window.level(None, now),
            }),
        }
    }

    /// The level if all permits are taken.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn empty(&self, now: u64) -> Level {
        match self {
            Self::TokenBucket(bucket) => Level::TokenBucket(bucket.empty()),
            Self::FixedWindow(window) => Level::FixedWindow(window.empty(now)),
        }
    }

    /// Whether a cost of 1 or more can be charged.
    pub(crate) fn fits(&self, level: &Level, cost: u64) -> bool {
        match (self, level) {
            (Self::TokenBucket(bucket), Level::TokenBucket(debt)) => bucket.fits(debt, cost),
            (Self::FixedWindow(window), Level::FixedWindow(level)) => window.fits(level, cost),
            _ => false,
        }
    }

    /// Charges a cost that fits.
    pub(crate) fn charge(&self, level: &mut Level, cost: u64) {
        match (self, level) {
            (Self::TokenBucket(bucket), Level::TokenBucket(debt)) => bucket.charge(debt, cost),
            (Self::FixedWindow(_), Level::FixedWindow(level)) => level.used += cost,
            _ => {}
        }
    }

    /// The microseconds until this cost fits if nothing else is charged. It is at most the capacity.
    pub(crate) fn wait(&self, level: &Level, cost: u64) -> u64 {
        match (self, level) {
            (Self::TokenBucket(bucket), Level::TokenBucket(debt)) => bucket.wait(debt, cost),
            (Self::FixedWindow(window), Level::FixedWindow(level)) => window.wait(level, cost),
            _ => 0,
        }
    }

    /// Whether the level falls as fast as one that this revision of the quota has left.
    pub(crate) fn is_own(&self, level: &Level) -> bool {
        match (self, level) {
            (Self::TokenBucket(bucket), Level::TokenBucket(debt)) => debt.rate == bucket.rate(),
            // A window ends when it ends, whatever the length of the next.
            _ => true,
        }
    }

    /// The microseconds in which the quota, if all permits are taken, becomes as if it had never been
    /// used. Rounded down.
    #[cfg(feature = "redis")]
    pub(crate) fn longest(&self) -> u64 {
        match self {
            Self::TokenBucket(bucket) => bucket.capacity() / bucket.rate().scale(),
            Self::FixedWindow(window) => window.span(),
        }
    }

    pub(crate) fn numbers(&self, level: &Level) -> Numbers {
        match (self, level) {
            (Self::TokenBucket(bucket), Level::TokenBucket(debt)) => bucket.numbers(debt),
            (Self::FixedWindow(window), Level::FixedWindow(level)) => window.numbers(level),
            _ => Numbers::default(),
        }
    }
}

impl Level {
    /// The state, if this is a token bucket.
    pub(crate) fn lone(&self, now: u64) -> Option<BucketState> {
        match self {
            Self::TokenBucket(debt) => Some(debt.state(now)),
            Self::FixedWindow(_) => None,
        }
    }

    pub(crate) fn state(&self, now: u64) -> QuotaState {
        match self {
            Self::TokenBucket(debt) => QuotaState::TokenBucket(debt.state(now)),
            Self::FixedWindow(level) => QuotaState::FixedWindow(level.state(now)),
        }
    }
}

impl QuotaState {
    #[cfg(feature = "redis")]
    pub(crate) fn is_too_far(&self, now: u64) -> bool {
        match self {
            Self::TokenBucket(state) => state.debt(now).ticks > MAX_TICKS,
            Self::FixedWindow(state) => state.is_too_far(now),
        }
    }

    /// When the quota is as if it had never been used, in microseconds, rounded up.
    pub(crate) fn until(&self) -> u64 {
        match self {
            Self::TokenBucket(state) => state.until(),
            Self::FixedWindow(state) => state.ends_at,
        }
    }
}

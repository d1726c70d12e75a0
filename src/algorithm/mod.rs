//! The algorithms as pure integer functions of a state, a time and a cost. They are the executable
//! specification: the memory store runs them, and the Lua fragments must agree with them.

mod charge;
mod fixed_window;
mod interval_refill;
mod limit;
mod limits;
mod rate;
mod sliding_blocks;
mod sliding_counters;
mod state;
mod token_bucket;

pub(crate) use charge::{AtMostOne, Charge, Cost};
#[cfg(feature = "redis")]
pub(crate) use fixed_window::WindowState;
#[cfg(feature = "redis")]
pub(crate) use interval_refill::{IntervalState, Refills};
#[cfg(feature = "redis")]
pub(crate) use limit::{Limit, QuotaState};
pub(crate) use limits::{Limits, Standing};
#[cfg(feature = "redis")]
pub(crate) use rate::{BucketState, FullAt, MAX_TICKS, Rate};
#[cfg(feature = "redis")]
pub(crate) use sliding_blocks::BlocksState;
#[cfg(feature = "redis")]
pub(crate) use sliding_counters::{CountersState, Span};
pub(crate) use state::State;
#[cfg(feature = "redis")]
pub(crate) use state::{Entry, QuotaId};
#[cfg(test)]
pub(crate) use token_bucket::TokenBucket;

use crate::decision::{Numbers, QuotaInfo};

/// What an algorithm does. Everything else is the same for all of them. All times are in
/// microseconds.
pub(crate) trait Algorithm {
    /// How much of a quota is used at one time, as the revision that charged it last sees it.
    type Level;
    /// What a store keeps of a quota.
    type State;

    /// What responses say about the quota.
    fn info(&self, name: &str) -> QuotaInfo;

    /// The most permits that can be taken at once.
    fn capacity(&self) -> u64;

    /// The level at `now` of a state that a revision of the quota has left, or that of an unused quota.
    fn level(&self, state: Option<Self::State>, now: u64) -> Self::Level;

    /// The level if all permits are taken.
    #[cfg(any(feature = "redis", test))]
    fn empty(&self, now: u64) -> Self::Level;

    /// Whether a cost of 1 or more can be charged.
    fn fits(&self, level: &Self::Level, cost: u64) -> bool;

    /// Charges a cost that fits, or is 0. From now on the level falls as one that this revision has left.
    fn charge(&self, level: &mut Self::Level, cost: u64);

    /// The time until a cost fits, if nothing else is charged. The cost is at most the capacity. 0 if
    /// it fits now.
    fn wait(&self, level: &Self::Level, cost: u64) -> u64;

    /// Whether the level falls as fast as one that this revision of the quota has left.
    fn is_own(&self, level: &Self::Level) -> bool;

    fn numbers(&self, level: &Self::Level) -> Numbers;

    /// The time in which the quota, if all permits are taken, becomes as if it had never been used.
    /// Rounded down.
    #[cfg(feature = "redis")]
    fn longest(&self) -> u64;

    fn state(level: &Self::Level, now: u64) -> Self::State;

    /// When the quota is as if it had never been used, rounded up.
    fn until(state: &Self::State) -> u64;

    /// Whether no revision can have left this state before `now`.
    #[cfg(feature = "redis")]
    fn is_too_far(state: &Self::State, now: u64) -> bool;
}

//! The algorithms as pure integer functions of a state, a time and a cost. They are the executable
//! specification: the memory store runs them, the Redis store replays with them what a script decided, and the
//! Lua fragments must agree with them. They do no I/O and read no clock.
//!
//! `limits` decides for a whole policy. `limit` is the table of algorithms, and the trait `Algorithm` in this
//! file says what one does. `state` is what a store keeps of a key, and `validation` finds what is wrong with
//! policies. Each algorithm has a file: `token_bucket` (`rate` converts its debt from one rate to another),
//! `interval_refill`, `fixed_window`, `sliding_window`, `approximate_sliding_window` and `concurrent`; `window` is
//! what all windows have in common. A leaky bucket as a queue is a `token_bucket`, too. The tests of one algorithm are
//! in its file, and those of all algorithms in `limits/tests/` (`contract` has what stores, responses and
//! limiters rely on).
//!
//! At one time every quota is a level. An algorithm reads a state as the level at that time, raises the level
//! by a cost, and says how long it takes until another cost fits. Everything else exists once for all
//! algorithms: whether a cost fits and the numbers of a verdict follow from what is in use and when less will
//! be.
//!
//! To add an algorithm in Rust: a file here that implements `Algorithm`, a line in the table of `limit.rs` and
//! in `Limit::new`, a variant of `Kind` with its method on `Quota`, and its word in `quota_text.rs`. In Lua: a
//! fragment, and in `store/redis/script/fragment.rs` its tag, its numbers, and how its cells are read;
//! `lua/frame.lua` lists the sections of a fragment.
//!
//! Its tests: each `match` on `Kind` in `limits/tests/` (`bounds` does not compile without it, but a `_` in
//! `fleet` and `adjustments` accepts it silently); the strategies in `limits/tests/drawn.rs`,
//! `store/revision_states.rs` and `tests/it/mixes.rs`; and the lists of quotas in `limits/tests/contract.rs`,
//! `store/memory.rs`, `store/divided.rs` and `tests/it/` (`state`, `clock_steps`, `clock_expiry`, `charges`,
//! `debts`, `settlement`). It also needs mutations in `scripts/mutants.sh`, a row in `bench/src/admission.rs`,
//! the most that it admits in the guide, and `docs/server.md`. An algorithm whose permits are held has tests of its own
//! instead of those in `tests/it/` that check over time (`concurrent`, `holds`, `held_fleet`).

mod approximate_sliding_window;
mod concurrent;
mod fixed_window;
mod interval_refill;
mod limit;
mod limits;
mod rate;
mod sliding_window;
mod state;
mod token_bucket;
mod validation;
mod window;

#[cfg(feature = "redis")]
pub(crate) use approximate_sliding_window::{CountersState, Span};
#[cfg(feature = "redis")]
pub(crate) use concurrent::{Held, HeldState};
#[cfg(feature = "redis")]
pub(crate) use fixed_window::{WindowState, Windows};
#[cfg(feature = "redis")]
pub(crate) use interval_refill::{IntervalState, Refills};
pub(crate) use limit::Limit;
pub(crate) use limit::QuotaState;
pub(crate) use limits::{Limits, Permits, Standing};
pub(crate) use rate::{BucketState, Rate};
#[cfg(feature = "redis")]
pub(crate) use rate::{FullAt, MAX_TICKS};
#[cfg(feature = "redis")]
pub(crate) use sliding_window::SegmentsState;
pub(crate) use state::{QuotaEntry, QuotaId};
pub(crate) use token_bucket::TokenBucket;
#[cfg(feature = "serde")]
pub(crate) use validation::policy_errors;

use crate::charge::{Cost, Left, Patience};
use crate::verdict::{Numbers, Outcome, Verdict};

/// The reason why a quota cannot have leases of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseFault {
    /// Its algorithm has no leases.
    NoLeases,
    /// A lease has more than half of the permits that the quota can hold.
    TooLong { permits: u64, limit: u64 },
}

impl LeaseFault {
    /// Returns an error if a lease has more than half of a limit, at so many permits per period.
    fn check(lease: u64, permits: u64, period: u64, limit: u64) -> Result<(), Self> {
        let leased = u128::from(lease) * u128::from(permits);
        if 2 * leased <= u128::from(limit) * u128::from(period) {
            return Ok(());
        }
        let permits = u64::try_from(leased.div_ceil(period.max(1).into())).unwrap_or(u64::MAX);
        Err(Self::TooLong { permits, limit })
    }
}

/// An algorithm, reduced to what distinguishes it from the others. All times are in microseconds.
///
/// A *revision* is one version of a policy. Revisions can have other quotas, or a quota with another rate
/// and burst, and use the same keys. A level is *own* if it falls as one that this revision has left.
pub(crate) trait Algorithm {
    /// The part of a quota that is used at one time, as the revision that charged it last sees it.
    type Level;
    /// The state of a quota that a store keeps.
    type State;

    /// The most permits that can be in use without a debt, as responses say.
    fn limit(&self) -> u64;

    /// The most permits that a check can take.
    fn capacity(&self, _patience: Option<Patience>) -> u64 {
        self.limit()
    }

    /// The length of a window, or the time in which an empty bucket refills. 0 if it is not whole.
    fn window(&self) -> u64;

    /// The share of an instance if a fleet divides the limit: an equal fraction of everything, rounded so that
    /// the shares together admit no more than the whole. `share` returns how many permits of a number are for
    /// this instance. `None` if the limit has none for it.
    fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self>
    where
        Self: Sized;

    /// Returns the limit that the store enforces if a process may keep permits for so long before it uses them, in
    /// microseconds: with it, what is used in any span is at most what the whole limit allows.
    ///
    /// The default is for algorithms that have no leases.
    fn leased(&self, _lease: u64) -> Result<Self, LeaseFault>
    where
        Self: Sized,
    {
        Err(LeaseFault::NoLeases)
    }

    /// Returns the units that refill in this time, in microseconds, beyond those that are subtracted for a lease. 0 if
    /// nothing is.
    fn beyond_reserve(&self, _lease: u64, _time: u64) -> u64 {
        0
    }

    /// Returns the time for which a process may keep permits that it takes now, if it is less than a lease.
    #[cfg(feature = "redis")]
    fn keeps(_: &Self::Level) -> u64 {
        u64::MAX
    }

    /// The level at `now` of a state that a revision of the quota has left, or that of an unused quota.
    fn level(&self, state: Option<Self::State>, now: u64) -> Self::Level;

    /// The level if all permits are taken.
    fn empty(&self, now: u64) -> Self::Level;

    /// The permits in use, rounded up.
    fn used(level: &Self::Level) -> u64;

    /// The time until at most so many permits are in use, if nothing else is charged. 0 if that is so
    /// now.
    fn time_to(level: &Self::Level, used: u64) -> u64;

    /// The most permits that may be in use for a cost of 1 or more to fit.
    fn most_used(&self, cost: u64) -> u64 {
        self.limit().saturating_sub(cost)
    }

    /// True if a cost of 1 or more can be charged.
    fn fits(&self, level: &Self::Level, cost: u64, _patience: Option<Patience>) -> bool {
        cost <= self.limit() && Self::used(level) <= self.most_used(cost)
    }

    /// The time until a cost fits that is not above the capacity.
    fn time_to_fit(&self, level: &Self::Level, cost: u64, _patience: Option<Patience>) -> u64 {
        Self::time_to(level, self.most_used(cost))
    }

    /// Charges a cost that fits, or is 0. From now on the level falls as one that this revision has
    /// left.
    fn charge(&self, level: &mut Self::Level, cost: u64);

    /// The most permits in use that checks can leave, in a bucket with a queue those that wait too. What
    /// charges leave beyond it is a debt.
    fn most_taken(&self) -> u64 {
        self.limit()
    }

    /// The most permits in use that a state can hold.
    fn most_stored(&self) -> u64 {
        rate::MAX_TICKS
    }

    /// The permits that a check has taken and that can be given back without admitting one more than if it
    /// had not taken them: those that are not available again by now, unless others charge the quota. The
    /// number is in [units](Self::unit), because parts of a permit may have refilled. The store gets the
    /// credit within `delay`.
    fn returnable(&self, permits: u64, left: Left, delay: u64) -> u64 {
        if left.reset_after > delay { permits } else { 0 }
    }

    /// The units in a permit.
    fn unit(&self) -> u64 {
        1
    }

    /// The time for which all permits count that were taken last, if they count less and less afterwards.
    fn counts_for(_: &Self::Level) -> u64 {
        0
    }

    /// Gives permits back, at most those in use. From now on the level falls as one that this
    /// revision has left.
    fn credit(&self, level: &mut Self::Level, units: u64);

    /// True if a check of the only quota is allowed.
    fn allows(&self, level: &Self::Level, cost: &impl Cost) -> bool {
        let needed = cost.needed(0);
        needed == 0 || self.fits(level, needed, cost.patience_for(0))
    }

    /// Decides a check of the only quota, and charges its cost if it is allowed.
    #[inline]
    fn decide(&self, level: &mut Self::Level, cost: &impl Cost) -> Verdict {
        if !self.allows(level, cost) {
            return self.deny(level, cost);
        }
        if cost.of(0) > 0 {
            self.charge(level, cost.of(0));
        }
        Verdict::new(Outcome::Allowed, self.numbers_after(level, Outcome::Allowed, 0, cost))
    }

    /// The verdict on a check of the only quota that is not allowed.
    #[inline]
    fn deny(&self, level: &Self::Level, cost: &impl Cost) -> Verdict {
        let outcome = match self.capacity(cost.patience()) < cost.of(0) {
            true => Outcome::ExceedsCapacity,
            false => Outcome::Denied,
        };
        Verdict::new(outcome, self.numbers_after(level, outcome, 0, cost))
    }

    /// The numbers in a decision about this quota, whose index is `quota`.
    #[inline]
    fn numbers_after(
        &self,
        level: &Self::Level,
        outcome: Outcome,
        quota: usize,
        cost: &impl Cost,
    ) -> Numbers {
        let mut numbers = self.numbers(level);
        let (needed, patience) = (cost.needed(quota), cost.patience());
        numbers.retry_after = match outcome {
            Outcome::Denied if needed > 0 && cost.may_wait() => {
                self.time_to_fit(level, needed, cost.patience_for(quota))
            }
            Outcome::Denied if needed > self.capacity(None) => numbers.reset_after.max(1),
            Outcome::Denied if needed > 0 => self.time_to_fit(level, needed, None),
            Outcome::ExceedsCapacity if self.capacity(patience) < needed => u64::MAX,
            _ => 0,
        };
        numbers
    }

    /// True if the level falls as fast as one that this revision of the quota has left.
    fn is_own(&self, level: &Self::Level) -> bool;

    #[inline]
    fn numbers(&self, level: &Self::Level) -> Numbers {
        let remaining = self.limit().saturating_sub(Self::used(level));
        Numbers {
            remaining,
            retry_after: 0,
            refill_after: Self::time_to(level, self.limit().saturating_sub(remaining + 1)),
            reset_after: Self::time_to(level, 0),
            counts_for: Self::counts_for(level),
        }
    }

    /// The time in which the quota, if all permits are taken, becomes as if it had never been used.
    /// Rounded down.
    #[cfg(feature = "redis")]
    fn longest(&self) -> u64;

    fn state(level: &Self::Level, now: u64) -> Self::State;

    /// The time at which the quota is as if it had never been used, rounded up.
    fn until(state: &Self::State) -> u64;

    /// The state if the clock has stepped back since it was written, by so much to `now`: what was in use
    /// then is in use now.
    #[cfg(feature = "redis")]
    fn earlier(state: Self::State, by: u64, now: u64) -> Self::State;

    /// True if no revision can have left this state before `now`.
    #[cfg(feature = "redis")]
    fn is_too_far(state: &Self::State, now: u64) -> bool;
}

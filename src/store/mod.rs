//! The stores, where buckets are kept: in `memory`, or in `redis`.
//!
//! This file is their interface: a complete check goes in, a complete verdict comes out. A store that can
//! decide at once returns the verdict as a value, not as a future that has to be woken, so the layer calls the
//! service without cloning it first.
//!
//! The stores without a server, `memory` and `divided` (the share of one instance), keep buckets in a
//! `memory_backend`. `shards` spreads them, `key_state` is one bucket of theirs (`unnamed` if it has no
//! identity), and `key_hasher` makes their hashes unpredictable. `manual_clock` is a clock for simulations.
//!
//! `registry` is what the limiters on a store share: the policies in use, and the `state_cache`, which has what
//! a server said last about each key; `revision_states` reads it for one revision of a policy, and is the cache
//! of denials. `lease` has the permits that a process keeps in advance, and `hold` tells a store which permits a
//! process holds. `fleet` has the shares by which a fleet
//! divides limits without a server, and `local` decides by one while a server fails. `blocks` has the keys that an
//! operator has blocked. `observation` is the latency and the span of a check that waits (`no_observation` in
//! builds without metrics and traces).

// What only a remote store needs.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

pub(crate) mod blocks;
mod divided;
mod fleet;
mod hold;
mod key_hasher;
mod key_state;
pub(crate) mod lease;
#[cfg(feature = "redis")]
mod local;
mod manual_clock;
mod memory;
mod memory_backend;
#[cfg_attr(not(any(feature = "metrics", feature = "tracing")), path = "no_observation.rs")]
mod observation;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod registry;
mod revision_states;
mod shards;
mod state_cache;
mod unnamed;

#[cfg(feature = "redis")]
use std::borrow::Cow;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use self::blocks::Blocks;
#[cfg(feature = "redis")]
use self::lease::RequestGuard;
use self::lease::{LeaseOp, LeaseTerms};
use crate::algorithm::{Limits, Standing};
#[cfg(feature = "redis")]
use crate::charge::Cost;
use crate::charge::{Adjustment, Charge, Place, Queued, TimedCredit};
use crate::metrics::PolicyMetrics;
use crate::verdict::Verdict;
use crate::{ConfigError, Error, Key};

pub use divided::DividedStore;
pub(crate) use hold::HoldOp;
pub(crate) use key_state::KeyState;
pub use manual_clock::ManualClock;
pub use memory::MemoryStore;
pub(crate) use observation::{Observation, Observed, observe};
#[cfg(feature = "sentinel")]
pub use redis::SentinelService;
#[cfg(feature = "redis")]
pub use redis::{RedisCredentials, RedisServer, RedisStore};
pub(crate) use registry::{Leaving, Registry, RevisionId, Subscriber};
pub(crate) use revision_states::RevisionStates;
pub(crate) use state_cache::{CachedState, SentAt, StateCache};

/// The place where buckets are kept: a [`MemoryStore`] or a `RedisStore`, or an [`AnyStore`](crate::AnyStore) if
/// configuration decides which. An `Arc<dyn Store>` is a store, too.
///
/// The trait is sealed. A store promises exactness, which the signature of a trait cannot express,
/// so only the stores of this crate implement it.
pub trait Store: sealed::Open + Debug + Send + Sync + 'static {}

impl<S: Store + ?Sized> Store for Arc<S> {}

/// A validated policy, ready for a store.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    pub(crate) name: Arc<str>,
    pub(crate) limits: Limits,
    /// The longest that a check may take.
    pub(crate) timeout: Duration,
    /// Receives the states in which the store has left keys.
    pub(crate) states: Arc<RevisionStates>,
    pub(crate) metrics: PolicyMetrics,
    /// The terms of leases, if there are any. Then the limits are [those of the store](Limits::leased).
    pub(crate) leases: Option<Arc<LeaseTerms>>,
}

pub(crate) mod sealed {
    use super::*;

    pub trait Open {
        /// The buckets of one policy.
        fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError>;

        /// The time in microseconds since 1970, as far as this process knows. It tells which
        /// windows of a calendar are near. Only the store's own clock decides which one it is.
        fn clock(&self) -> u64;

        /// Returns the registry that the limiters on this store share, and the namespace in which this handle has its
        /// buckets: in Redis the prefix of the keys.
        fn registry(&self) -> (&Registry, &str);

        /// The keys of this store that are blocked.
        fn blocks(&self) -> Arc<dyn Blocks>;

        /// Returns true if processes may have leases: not in a store that decides in this process.
        fn has_leases(&self) -> bool {
            false
        }
    }

    impl<S: Open + ?Sized> Open for Arc<S> {
        fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError> {
            (**self).open(spec)
        }

        fn clock(&self) -> u64 {
            (**self).clock()
        }

        fn registry(&self) -> (&Registry, &str) {
            (**self).registry()
        }

        fn blocks(&self) -> Arc<dyn Blocks> {
            (**self).blocks()
        }

        fn has_leases(&self) -> bool {
            (**self).has_leases()
        }
    }
}

/// The buckets of one policy in a store. Every check completes within the policy's timeout.
pub trait Backend: Debug + Send + Sync {
    /// The verdict on a check, if the store can decide immediately. A check that is allowed is
    /// charged.
    fn decide(&self, _key: &Key, _op: &Op) -> Option<Result<Verdict, Error>> {
        None
    }

    /// Starts a check that [`decide`](Self::decide) does not decide, or continues it. Dropping
    /// `check` cancels it.
    fn poll_check(
        &self,
        key: &Key,
        op: &Op,
        check: &mut PendingVerdict,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>>;

    /// Gives back what an adjustment has of permits that this process holds, if it counts them itself. Returns the
    /// rest of it.
    fn adjust_holds(&self, _key: &Key, adjustment: Adjustment) -> Adjustment {
        adjustment
    }

    /// Returns the same buckets for a holder of permits that is not this process. They end after so many microseconds
    /// unless the holder renews them.
    fn held_by(&self, holder: u64, lifetime: u64) -> Arc<dyn Backend>;

    /// Takes permits that this process keeps after they were given back. `None` if it keeps none, or not as many.
    fn take_kept(&self, _key: &Key, _permits: u64) -> Option<Verdict> {
        None
    }

    /// Fills the bucket.
    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    /// Returns true if a check leaves the process, so that caching denials pays.
    fn is_remote(&self) -> bool;

    /// The share of the limits that is for this process, if checks of the key are decided by it: always, or
    /// [locally](Self::decide_locally).
    fn share(&self, _key: &Key) -> Option<Limits> {
        None
    }

    /// Returns true if so many checks wait for the server of a key that what nobody waits for should not join them.
    fn is_busy(&self, _key: &Key) -> bool {
        false
    }

    /// Sends an operation whose verdict nobody waits for.
    fn send(&self, _key: &Key, _op: &Op) {}

    /// Returns the number of processes that share the limits, as far as this one knows.
    fn instances(&self) -> u64 {
        1
    }

    /// Makes the store register in its fleet from now on, because shares and the sizes of leases depend on that.
    fn register_in_fleet(&self) {}

    /// Decides a check by the share of the limits that is for this process, without the server.
    fn decide_locally(&self, _key: &Key, _op: &Op) -> Option<Verdict> {
        None
    }
}

/// The effect of a check on its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes permits if they are there.
    Acquire(Charge),
    /// Takes none.
    Peek,
    /// Charges and gives back permits without a check.
    Adjust(Adjustment),
    /// Takes permits if they will be there soon enough.
    Queue(Box<Queued>),
    /// Gives the permits of a check back that does not wait any more, if nobody queued behind it.
    Leave(Box<Place>),
    /// Asks for a lease, maybe with a check.
    Lease(Box<LeaseOp>),
    /// Gives permits back that were leased and not used.
    Return(Box<TimedCredit>),
    /// Says how many permits this process holds, and takes more.
    Hold(HoldOp),
}

impl Op {
    /// Takes permits from all quotas if they are there.
    #[cfg(feature = "redis")]
    pub(crate) fn acquire(cost: u64) -> Self {
        Self::Acquire(Charge::Same(cost))
    }

    /// Returns the permits that an allowed check has taken from a quota.
    #[cfg(feature = "redis")]
    pub(crate) fn taken(&self, quota: usize) -> u64 {
        match self {
            Self::Acquire(charge) => charge.of(quota),
            Self::Queue(queued) => queued.of(quota),
            Self::Adjust(adjustment) => adjustment.of(quota).try_into().unwrap_or(0),
            Self::Lease(lease) => lease.charge.as_ref().map_or(0, |charge| charge.of(quota)),
            Self::Peek | Self::Leave(_) | Self::Return(_) | Self::Hold(_) => 0,
        }
    }

    /// Notes that a request for a lease is not in flight any more.
    #[cfg(feature = "redis")]
    pub(crate) fn land(&mut self) {
        if let Self::Lease(lease) = self {
            lease.guard = RequestGuard::default();
        }
    }

    /// Returns the check without the request for a lease.
    #[cfg(feature = "redis")]
    pub(crate) fn without_lease(&self) -> Cow<'_, Self> {
        match self {
            Self::Lease(lease) => {
                Cow::Owned(lease.charge.clone().map_or(Self::Peek, Self::Acquire))
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// Returns true if a key is different afterwards. `exists` says whether anything is stored.
    fn changes(&self, exists: bool, verdict: &Verdict) -> bool {
        match self {
            Self::Acquire(charge) => verdict.is_allowed() && !charge.is_nothing(),
            Self::Peek => false,
            Self::Adjust(adjustment) => exists || adjustment.is_charge(),
            Self::Queue(queued) => verdict.is_allowed() && !queued.charge.is_nothing(),
            Self::Leave(_) | Self::Return(_) => exists,
            Self::Hold(_) => true,
            Self::Lease(lease) => {
                verdict.is_allowed()
                    && lease.charge.as_ref().is_some_and(|charge| !charge.is_nothing())
            }
        }
    }

    /// Decides on what is stored, and changes it.
    #[inline]
    pub(crate) fn apply_to(&self, limits: &Limits, stored: &mut KeyState, now: u64) -> Verdict {
        if let Self::Acquire(Charge::Same(cost)) = self
            && let Some((bucket, state)) = stored.only_bucket(limits)
        {
            return bucket.decide_in_place(state, *cost, now);
        }
        let (verdict, changed) = self.apply(limits, Some(stored), now);
        if let Some(state) = changed {
            *stored = state;
        }
        verdict
    }

    /// Decides on what is found, and returns what to store instead if it changes.
    pub(crate) fn apply(
        &self,
        limits: &Limits,
        found: Option<&KeyState>,
        now: u64,
    ) -> (Verdict, Option<KeyState>) {
        let mut standing = KeyState::standing(found, limits, now);
        let verdict = self.decide(limits, &mut standing, now);
        let changes = self.changes(found.is_some(), &verdict);
        (verdict, changes.then(|| KeyState::after(&standing, found, limits, now)))
    }

    /// The verdict, for a peek or after an adjustment that on a check of cost 1.
    pub(crate) fn decide(&self, limits: &Limits, standing: &mut Standing, now: u64) -> Verdict {
        match self {
            // Without a look at the kind of charge for each number.
            Self::Acquire(Charge::Same(cost)) => limits.check(standing, cost),
            Self::Acquire(charge) => limits.check(standing, charge),
            Self::Peek => limits.peek(standing),
            Self::Adjust(adjustment) => limits.adjust(standing, adjustment),
            Self::Queue(queued) => limits.enqueue(standing, queued, now),
            Self::Leave(place) => limits.leave(standing, place, now),
            Self::Lease(lease) => lease.decide(limits, standing, now),
            Self::Return(timed) => limits.give_back_until(standing, timed, now),
            Self::Hold(hold) => hold.decide(limits, standing),
        }
    }
}

/// The progress of a check on a remote store.
#[cfg(feature = "redis")]
pub(crate) use redis::PendingVerdict;

/// No store is remote.
#[cfg(not(feature = "redis"))]
#[derive(Debug, Default)]
pub struct PendingVerdict(Observation);

#[cfg(not(feature = "redis"))]
impl PendingVerdict {
    pub(crate) fn new(observation: Observation) -> Self {
        Self(observation)
    }

    pub(crate) fn observed(&self) -> Option<&Observed> {
        self.0.as_ref()
    }

    pub(crate) fn was_sent(&self) -> bool {
        false
    }
}

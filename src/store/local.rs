//! Decisions while the server fails: each instance enforces its share of the limits in memory (`fleet`). What it
//! takes is charged on the server later (`redis/fleet/repayment.rs`).
//!
//! A bucket starts from the last known state of its key, which is in the store's cache. To keep the states
//! of all keys would cost every check, so the cache has those that have used more than an eighth of a
//! limit. What others have used is within the bound of an outage in any case.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::fleet::{InstanceId, Plan, Share};
use super::shards::PolicyIndex;
use super::{KeyState, MemoryStore, Op, RevisionStates, divided};
use crate::algorithm::Limits;
use crate::charge::Adjustment;
use crate::verdict::Verdict;
use crate::{Key, random};

/// The buckets of one process, for all limiters on a store.
pub(crate) struct Local {
    /// The identity under which this store holds permits.
    holder: InstanceId,
    memory: MemoryStore,
    share: ArcSwap<Share>,
    max_keys: usize,
    known: Mutex<Known>,
    /// True if a limiter decides locally if the server fails.
    is_used: AtomicBool,
    /// The checks that the server has decided or should have.
    demand: AtomicU64,
}

/// The facts about the fleet that this instance knows.
struct Known {
    /// The identity of this instance, until the server reports another.
    id: u64,
    /// The number of instances to assume until it is known.
    assumed: u64,
    /// The number of instances that the application has set. 0 if it has set none.
    total: usize,
    /// The share that the server reported last.
    share: Option<Share>,
}

/// A policy whose limits are divided.
#[derive(Clone)]
pub(crate) struct LocalPolicy {
    local: Arc<Local>,
    buckets: PolicyIndex,
    limits: Limits,
    states: Arc<RevisionStates>,
    /// True if the holder of permits is not this process.
    is_detached: bool,
}

impl Local {
    /// Creates buckets for at most this number of keys, in a fleet of this number of instances until more is
    /// known.
    pub(crate) fn new(max_keys: NonZeroUsize, instances: u64) -> Self {
        let known = Known { id: random::id(), assumed: instances, total: 0, share: None };
        Self {
            holder: random::id(),
            memory: MemoryStore::with_max_keys(max_keys),
            share: ArcSwap::from_pointee(known.share()),
            known: Mutex::new(known),
            max_keys: max_keys.get(),
            is_used: AtomicBool::new(false),
            demand: AtomicU64::new(0),
        }
    }

    pub(crate) fn holder(&self) -> InstanceId {
        self.holder
    }

    pub(crate) fn share(&self) -> Arc<Share> {
        self.share.load_full()
    }

    /// Sets the share of this instance on which the fleet has agreed.
    pub(crate) fn set_share(&self, share: Share) {
        self.learn(|known| known.share = Some(share));
    }

    /// Sets the number of instances as the application knows it.
    pub(crate) fn set_instances(&self, instances: usize) {
        self.learn(|known| known.total = instances);
    }

    /// Returns the number of instances that are assumed. `None` if it is known.
    pub(crate) fn assumed_instances(&self) -> Option<u64> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (known.share.is_none() && known.total == 0).then_some(known.assumed)
    }

    /// Sets a plan of a fleet that has agreed on none. The share that this instance knew before still
    /// counts.
    pub(crate) fn propose(&self, me: InstanceId, plan: Plan) {
        self.learn(|known| known.share = Some(known.undivided().proposed(me, plan)));
    }

    /// Gives up the share of this instance, which the others may have divided among themselves. Returns true
    /// if it had one.
    pub(crate) fn lose_share(&self) -> bool {
        let mut is_lost = false;
        self.learn(|known| {
            if let Some(share) = known.share.as_ref().and_then(Share::forgotten) {
                (known.share, is_lost) = (Some(share), true);
            }
        });
        is_lost
    }

    fn learn(&self, change: impl FnOnce(&mut Known)) {
        // Nothing that panics runs under the lock.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut known);
        self.share.store(known.share().into());
    }

    pub(crate) fn max_keys(&self) -> usize {
        self.max_keys
    }

    pub(crate) fn set_used(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Adds a number of checks to the demand.
    pub(crate) fn add_demand(&self, checks: usize) {
        self.demand.fetch_add(checks as u64, Ordering::Relaxed);
    }

    /// Returns the number of checks since the last call.
    pub(crate) fn take_demand(&self) -> u64 {
        self.demand.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn policy(
        self: &Arc<Self>,
        name: &Arc<str>,
        limits: &Limits,
        states: Arc<RevisionStates>,
    ) -> LocalPolicy {
        let buckets = self.memory.buckets(name);
        LocalPolicy {
            local: self.clone(),
            buckets,
            limits: limits.clone(),
            states,
            is_detached: false,
        }
    }
}

impl LocalPolicy {
    pub(crate) fn local(&self) -> &Arc<Local> {
        &self.local
    }

    /// Returns the same policy for a holder of permits that is not this process. They end after so many microseconds.
    pub(crate) fn held_by(&self, holder: u64, lifetime: u64) -> Self {
        Self { limits: self.limits.held_by(holder, lifetime), is_detached: true, ..self.clone() }
    }

    /// Decides a check by the share of this instance.
    pub(crate) fn decide(&self, key: &Key, op: &Op) -> Verdict {
        self.local.add_demand(1);
        let (memory, share) = (&self.local.memory, self.local.share.load());
        let unknown = |divided: &Limits, now| self.initial(divided, key, &share, now);
        let verdict =
            divided::decide(memory, self.buckets, &self.limits, &share, (key, op), unknown);
        // More than the share is not more than the limit.
        verdict.denied_for_now()
    }

    /// Returns the share of the limits of a key.
    pub(crate) fn share(&self, key: &Key) -> Option<Limits> {
        divided::share_of(&self.limits, &self.local.share.load(), key)
    }

    /// Returns the permits that this instance has taken locally from each quota and that still count: at most
    /// these numbers.
    pub(crate) fn owed(&self, key: &Key, taken: &[u64]) -> Adjustment {
        let used: Vec<u64> = match self.local.memory.state(self.buckets, key) {
            Some((state, now)) => {
                let standing = KeyState::standing(Some(&state), &self.limits, now);
                self.limits.used(&standing).map(|(used, _)| used).collect()
            }
            None => Vec::new(),
        };
        let still = taken.iter().zip(used).map(|(taken, used)| *taken.min(&used));
        still.map(|permits| i64::try_from(permits).unwrap_or(i64::MAX)).collect()
    }

    /// Fills the local bucket of a key, after the permits that were taken from it have been charged on the
    /// server.
    pub(crate) fn settled(&self, key: &Key) {
        self.local.memory.fill(self.buckets, key);
    }

    /// Returns the state of a key without a local bucket: this instance has its share of what remains by the
    /// last known state.
    fn initial(&self, divided: &Limits, key: &Key, share: &Share, now: u64) -> Option<KeyState> {
        let hash = key.stable_hash();
        let of_share = |permits| share.of(hash, permits);
        let (state, earliest) = self.states.last(key)?;
        let whole = KeyState::standing(Some(&state), &self.limits, earliest);
        let used = self.limits.used(&whole).map(|(used, limit)| {
            let remaining = of_share(limit.saturating_sub(used));
            let debt = of_share(used.saturating_sub(limit));
            of_share(limit).saturating_sub(remaining).saturating_add(debt)
        });
        let used: Adjustment =
            used.map(|permits| i64::try_from(permits).unwrap_or(i64::MAX)).collect();
        // What this process holds, it says itself. What other holders have, is nobody's here.
        let divided = match self.is_detached {
            true => &divided.held_by(0, state.until().saturating_sub(earliest)),
            false => divided,
        };
        let mut standing = divided.standing(&[], now);
        divided.adjust(&mut standing, &used);
        Some(KeyState::after(&standing, None, divided, now))
    }
}

impl Known {
    /// Returns the share of this instance.
    fn share(&self) -> Share {
        self.undivided().among(self.total)
    }

    /// Returns the share without the instances that the server does not know.
    fn undivided(&self) -> Share {
        self.share.clone().unwrap_or_else(|| {
            let instances = if self.total > 0 { self.total as u64 } else { self.assumed };
            let plan = Plan::even(instances.max(1));
            Share::new(self.id % plan.len() as u64, plan, None)
        })
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("share", &self.share).finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalPolicy").field("local", &self.local).finish_non_exhaustive()
    }
}

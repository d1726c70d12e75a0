//! The keys of which this process holds permits, and the calls about them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use indexmap::{Equivalent, IndexMap};
use tokio::runtime::Handle;

use super::key_holds::{CheckId, KeyHolds, Landed, NextCall, TaskWakers};
use crate::charge::{Adjustment, Charge, Cost};
use crate::store::local::LocalPolicy;
use crate::store::redis::no_reply::timed_out;
use crate::store::redis::queue::Queues;
use crate::store::redis::script::RedisPolicy;
use crate::store::redis::sole_task::SoleTask;
use crate::store::{HoldOp, Op};
use crate::timer::{self, Timer};
use crate::verdict::Verdict;
use crate::{Error, Key};

/// The permits that a store holds in this process.
#[derive(Debug)]
pub(crate) struct Holds {
    pub(super) queues: Arc<Queues>,
    /// The time for which the server counts permits that are not renewed.
    pub(super) lifetime: Duration,
    keys: Mutex<IndexMap<HoldId, Arc<HeldKey>, RandomState>>,
    /// The number of the latest call.
    calls: AtomicU64,
    pub(super) task: Arc<SoleTask>,
}

/// The policy and key whose permits are counted together.
#[derive(Debug, PartialEq, Eq, Hash)]
struct HoldId {
    /// The policy, whatever its revision.
    policy: u64,
    key: Key,
}

/// A borrowed [`HoldId`] with the same hash.
#[derive(Hash)]
struct HoldIdRef<'a> {
    policy: u64,
    key: &'a Key,
}

impl Equivalent<HoldId> for HoldIdRef<'_> {
    fn equivalent(&self, id: &HoldId) -> bool {
        self.policy == id.policy && *self.key == id.key
    }
}

/// A key of which permits are held, or wanted.
#[derive(Debug)]
pub(super) struct HeldKey {
    key: Key,
    holds: Weak<Holds>,
    state: Mutex<KeyHolds>,
}

impl Holds {
    pub(crate) fn new(queues: &Arc<Queues>, lifetime: Duration) -> Self {
        let (keys, calls, task) = Default::default();
        Self { queues: queues.clone(), lifetime, keys, calls, task }
    }

    /// Adds a check, and sends it unless it has to wait for a call in flight.
    pub(super) fn add(
        self: &Arc<Self>,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        charge: &Charge,
        waker: &Waker,
    ) -> (Arc<HeldKey>, CheckId) {
        let (now, runtime) = (Instant::now(), Handle::try_current().ok());
        let runtime = runtime.map(|runtime| runtime.id());
        let deadline = now + policy.timeout;
        let (key, (id, next, is_first)) = self.with(policy, key, |state| {
            let id = state.add(policy, charge, now, runtime, waker);
            let next = state.begin(self.next_number(), now);
            // Otherwise its own call fails in time.
            let is_timed = next.as_ref().is_some_and(|next| next.policy.timeout <= policy.timeout);
            (id, next, !is_timed && state.arm(deadline))
        });
        self.start_renewal();
        if is_first {
            timer::arm(deadline, key.timer());
        }
        if let Some(next) = next {
            self.send(&key, next);
        }
        (key, id)
    }

    /// Changes what is known of a key, which is added to the table if it is not there.
    fn with<T>(
        self: &Arc<Self>,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        change: impl FnOnce(&mut KeyHolds) -> T,
    ) -> (Arc<HeldKey>, T) {
        loop {
            let held = self.find(policy, key).unwrap_or_else(|| {
                let id = HoldId { policy: policy.states.policy(), key: key.clone() };
                self.keys().entry(id).or_insert_with(|| self.new_key(key)).clone()
            });
            let mut state = held.state();
            // It may have been removed since it was found.
            if !state.is_removed() {
                let result = change(&mut state);
                drop(state);
                return (held, result);
            }
        }
    }

    fn new_key(self: &Arc<Self>, key: &Key) -> Arc<HeldKey> {
        let state = Mutex::new(KeyHolds::new(Instant::now()));
        Arc::new(HeldKey { key: key.clone(), holds: Arc::downgrade(self), state })
    }

    fn find(&self, policy: &RedisPolicy, key: &Key) -> Option<Arc<HeldKey>> {
        self.keys().get(&HoldIdRef { policy: policy.states.policy(), key }).cloned()
    }

    /// Returns the result of a check, and begins its call if the one before it has ended.
    pub(super) fn poll(
        &self,
        key: &Arc<HeldKey>,
        id: CheckId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let mut state = key.state();
        let result = state.poll(id, cx);
        let begin = |state: &mut KeyHolds| state.begin(self.next_number(), Instant::now());
        let next = if result.is_pending() { begin(&mut state) } else { None };
        drop(state);
        match next {
            None => result,
            Some(next) => {
                self.send(key, next);
                key.state().poll(id, cx)
            }
        }
    }

    pub(super) fn cancel(&self, key: &Arc<HeldKey>, id: CheckId) {
        key.state().cancel(id);
        self.send_next(key);
    }

    /// Gives back what an adjustment has of permits that are held. Returns the rest of it.
    pub(crate) fn adjust(
        self: &Arc<Self>,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        adjustment: &Adjustment,
    ) -> Adjustment {
        let (returned, rest) = policy.limits.split_held(adjustment);
        if returned.iter().any(|permits| *permits > 0)
            && let Some(key) = self.find(policy, key)
        {
            let permits = |quota: usize| returned.get(quota).copied().unwrap_or(0);
            self.give_back(policy, &key, permits);
            // Its runtime may have ended.
            self.start_renewal();
        }
        rest
    }

    fn give_back(
        &self,
        policy: &RedisPolicy,
        key: &Arc<HeldKey>,
        permits: impl Fn(usize) -> u64 + Copy,
    ) {
        let instances = |local: &LocalPolicy| local.local().share().instances() as u64;
        let instances = policy.local.as_ref().map_or(1, instances);
        let mut state = key.state();
        state.give_back_or_keep(policy, permits, instances, Instant::now());
        let timer = state.spare_end().filter(|end| state.arm(*end));
        drop(state);
        if let Some(end) = timer {
            timer::arm(end, key.timer());
        }
        self.send_next(key);
    }

    /// Takes permits that are kept since they were given back. Returns those that are free afterwards.
    pub(crate) fn take_kept(&self, policy: &RedisPolicy, key: &Key, permits: u64) -> Option<u64> {
        let key = self.find(policy, key)?;
        key.state().take_kept(policy, permits, Instant::now(), self.lifetime)
    }

    /// Returns the permits of a key that are kept since they were given back.
    pub(crate) fn kept(&self, policy: &RedisPolicy, key: &Key) -> u64 {
        self.find(policy, key).map_or(0, |key| key.state().kept())
    }

    /// Decides a check by the share of this process, of which it may hold a part already.
    pub(crate) fn decide_locally(
        self: &Arc<Self>,
        policy: &Arc<RedisPolicy>,
        local: &LocalPolicy,
        key: &Key,
        charge: &Charge,
    ) -> Verdict {
        let (_, verdict) = self.with(policy, key, |state| {
            let held = state.held_under(policy);
            let op = Op::Hold(HoldOp::new(self.next_number(), held, vec![charge.clone()]));
            let verdict = local.decide(key, &op);
            if verdict.is_allowed() {
                state.count_local(policy, |quota| charge.of(quota), Instant::now());
            }
            verdict
        });
        self.start_renewal();
        verdict
    }

    /// Reports what is held of a key again, after its bucket was reset on the server.
    pub(crate) fn forget(&self, policy: &RedisPolicy, key: &Key) {
        if let Some(key) = self.find(policy, key) {
            key.state().forget();
            self.send_next(&key);
        }
    }

    /// Sends the next call of a key, if one is needed and none is in flight.
    pub(super) fn send_next(&self, key: &Arc<HeldKey>) {
        let next = key.state().begin(self.next_number(), Instant::now());
        if let Some(next) = next {
            self.send(key, next);
        }
    }

    /// Renews what is held of a key, unless a call is in flight. Returns the number of the call.
    pub(super) fn renew(&self, key: &Arc<HeldKey>) -> Option<u64> {
        let next = key.state().renew(self.next_number(), Instant::now())?;
        let number = next.op.number();
        self.send(key, next);
        Some(number)
    }

    fn send(&self, key: &Arc<HeldKey>, NextCall { policy, op }: NextCall) {
        let waker = Waker::from(key.clone());
        let sent = Op::Hold(op.clone());
        let started = self.queues.begin(&policy, &key.key, &sent, &waker);
        key.state().started(&op, started);
        // It may have ended before this.
        key.land();
    }

    pub(super) fn all(&self) -> Vec<Arc<HeldKey>> {
        self.keys().values().cloned().collect()
    }

    /// Removes the keys of which nothing is held or wanted. Returns true if none is left.
    pub(super) fn remove_idle(&self) -> bool {
        let (mut keys, now) = (self.keys(), Instant::now());
        keys.retain(|_, key| !key.state().remove_if_idle(now, self.lifetime));
        keys.is_empty()
    }

    fn next_number(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn keys(&self) -> MutexGuard<'_, IndexMap<HoldId, Arc<HeldKey>, RandomState>> {
        // Nothing that panics runs under the lock.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldKey {
    pub(super) fn state(&self) -> MutexGuard<'_, KeyHolds> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timer(self: &Arc<Self>) -> Weak<dyn Timer> {
        let timer: Arc<dyn Timer> = self.clone();
        Arc::downgrade(&timer)
    }

    /// Ends the call in flight if it has a result, and sees to the next one.
    fn land(self: &Arc<Self>) {
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        let mut state = self.state();
        let Some(Landed { is_ok, mut wakers }) = state.land() else { return };
        // A call must not depend on another runtime than those of its checks.
        let is_sent_here = match state.has_unsent() {
            true => state.has_unsent_on(runtime),
            false => is_ok,
        };
        if !is_sent_here {
            wakers.extend(state.unsent_wakers());
        }
        drop(state);
        wake(wakers);
        let Some(holds) = self.holds.upgrade() else { return };
        if is_sent_here {
            holds.send_next(self);
        }
        // It may have ended, or its runtime, since the check was added.
        holds.start_renewal();
    }
}

/// A call of the key has a result.
impl Wake for HeldKey {
    fn wake(self: Arc<Self>) {
        self.land();
    }
}

/// A check has waited too long for the call before its own.
impl Timer for HeldKey {
    fn fire(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let holds = self.holds.upgrade()?;
        let topology = &holds.queues.topology;
        let late =
            |policy: &RedisPolicy| timed_out(&topology.server(policy.encoder.slot(&self.key)));
        let (next, wakers) = self.state().expire(now, late);
        wake(wakers);
        holds.send_next(&self);
        next
    }
}

fn wake(wakers: TaskWakers) {
    for waker in wakers {
        // A waker of another crate may panic. The other checks must be woken all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

//! What was taken locally while a server failed, until it is charged on that server.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Context;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indexmap::IndexMap;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::policy::RedisPolicy;
use super::queue::{QueuedCheck, Queues};
use super::timer;
use crate::error::with_causes;
use crate::store::Op;
use crate::{Key, random};

/// How many keys are charged at a time, and how long the pause before is. So a fleet that returns does
/// not flood the server.
const KEYS: usize = 128;
const PAUSE: Duration = Duration::from_millis(50);

/// While the server fails.
const LONG_PAUSE: Duration = Duration::from_millis(250);

/// The permits that are owed, of each quota, by the name of the bucket.
#[derive(Debug)]
pub(super) struct Repayment {
    owed: Mutex<IndexMap<String, Owed, RandomState>>,
    max_keys: usize,
    is_running: AtomicBool,
}

#[derive(Debug)]
struct Owed {
    policy: Arc<RedisPolicy>,
    key: Key,
    permits: SmallVec<[u64; 1]>,
}

impl Repayment {
    pub(super) fn new(max_keys: usize) -> Self {
        Self { owed: Mutex::default(), max_keys, is_running: AtomicBool::new(false) }
    }

    /// A check of this key was allowed locally.
    pub(super) fn add(&self, policy: &Arc<RedisPolicy>, key: &Key, op: &Op) {
        let permits: SmallVec<_> = (0..policy.limits.len()).map(|quota| op.taken(quota)).collect();
        if permits.iter().all(|permits| *permits == 0) {
            return;
        }
        let name = policy.encoder.name(key);
        self.put(name, Owed { policy: policy.clone(), key: key.clone(), permits });
    }

    fn put(&self, name: String, new: Owed) {
        let mut owed = self.owed();
        if let Some(owed) = owed.get_mut(&name) {
            owed.permits.resize(new.permits.len().max(owed.permits.len()), 0);
            for (permits, more) in owed.permits.iter_mut().zip(&new.permits) {
                *permits = permits.saturating_add(*more);
            }
            owed.policy = new.policy;
        } else if owed.len() < self.max_keys {
            // What does not fit is not charged.
            owed.insert(name, new);
        }
    }

    /// Charges what is owed from now on, until nothing is.
    pub(super) fn start(self: &Arc<Self>, queues: &Arc<Queues>) {
        if self.is_running.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_running.swap(true, Ordering::Relaxed) {
            let (repayment, queues) = (self.clone(), Arc::downgrade(queues));
            runtime.spawn(Run { repayment, queues, has_ended: false }.run());
        }
    }

    /// Charges what a key owes before its next check, so that the server does not decide without it.
    #[inline]
    pub(super) fn charge_before_check(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        policy: &RedisPolicy,
        key: &Key,
        cx: &mut Context<'_>,
    ) {
        if self.is_running.load(Ordering::Relaxed) {
            self.charge_now(queues, policy, key, cx);
        }
    }

    #[cold]
    fn charge_now(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        policy: &RedisPolicy,
        key: &Key,
        cx: &mut Context<'_>,
    ) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !queues.is_open(policy, key) {
            return;
        }
        let name = policy.encoder.name(key);
        let Some(owed) = self.owed().swap_remove(&name) else { return };
        // The first poll adds the charge to the queue, where the check will be behind it.
        let mut charge = Box::pin(charge(self.clone(), queues.clone(), name, owed));
        if charge.as_mut().poll(cx).is_pending() {
            runtime.spawn(charge);
        }
    }

    fn is_owed(&self, name: &str) -> bool {
        self.owed().contains_key(name)
    }

    /// The keys that have waited longest.
    fn take(&self) -> Vec<(String, Owed)> {
        let mut owed = self.owed();
        let count = owed.len().min(KEYS);
        owed.drain(..count).collect()
    }

    /// Whether a run has to go on. If not, the next debt starts another.
    fn continues(&self) -> bool {
        let owed = self.owed();
        if owed.is_empty() {
            self.is_running.store(false, Ordering::Relaxed);
        }
        !owed.is_empty()
    }

    fn owed(&self) -> MutexGuard<'_, IndexMap<String, Owed, RandomState>> {
        // Nothing that panics runs under the lock.
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Run {
    repayment: Arc<Repayment>,
    queues: Weak<Queues>,
    has_ended: bool,
}

impl Run {
    async fn run(mut self) {
        let mut pause = LONG_PAUSE;
        while self.repayment.continues() {
            timer::sleep_until(Instant::now() + pause.mul_f64(0.5 + random::unit())).await;
            let Some(queues) = self.queues.upgrade() else { return };
            pause = PAUSE;
            let mut charges = FuturesUnordered::new();
            for (name, owed) in self.repayment.take() {
                if queues.is_open(&owed.policy, &owed.key) {
                    charges.push(charge(self.repayment.clone(), queues.clone(), name, owed));
                } else {
                    self.repayment.put(name, owed);
                    pause = LONG_PAUSE;
                }
            }
            while charges.next().await.is_some() {}
        }
        self.has_ended = true;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.has_ended {
            self.repayment.is_running.store(false, Ordering::Relaxed);
        }
    }
}

/// Charges once. If no reply arrives, the charge may have been made.
async fn charge(repayment: Arc<Repayment>, queues: Arc<Queues>, name: String, owed: Owed) {
    let Some(local) = &owed.policy.local else { return };
    let adjustment = local.owed(&owed.key, &owed.permits);
    if adjustment.is_nothing() {
        return local.settled(&owed.key);
    }
    let (op, mut check) = (Op::Adjust(adjustment), QueuedCheck::default());
    let charged = poll_fn(|cx| queues.poll(&owed.policy, &owed.key, &op, &mut check, cx)).await;
    match charged {
        // Unless more was taken meanwhile.
        Ok(_) if repayment.is_owed(&name) => {}
        Ok(_) => local.settled(&owed.key),
        Err(error) if !check.was_sent() || error.is_transient_reply() => {
            repayment.put(name, owed);
            repayment.start(&queues);
        }
        // The local bucket stays as it is.
        Err(error) => {
            let (permits, reason) = (owed.permits.iter().sum::<u64>(), with_causes(&error));
            tracing::debug!(
                target: "tollgate", permits, reason,
                "permits that were taken locally may not be charged"
            );
        }
    }
}

//! What was taken locally while a server failed, until it is charged on that server.

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
use crate::store::Op;
use crate::{Error, Key, random};

/// How many keys are charged at a time, and how long the pause before is. So a fleet that returns does
/// not flood the server.
const KEYS: usize = 128;
const PAUSE: Duration = Duration::from_millis(50);

/// While the server fails.
const LONG_PAUSE: Duration = Duration::from_millis(250);

/// The permits that are owed, of each quota, by the name of the bucket.
#[derive(Debug)]
pub(super) struct Repayment {
    owed: Mutex<Ledger>,
    /// The number of keys that owe, to be read without the lock.
    count: AtomicUsize,
    max_keys: usize,
    is_running: AtomicBool,
}

#[derive(Debug, Default)]
struct Ledger {
    keys: IndexMap<String, Owed, RandomState>,
    /// Which key is charged next.
    next: usize,
}

#[derive(Debug)]
struct Owed {
    policy: Arc<RedisPolicy>,
    key: Key,
    permits: Permits,
    /// Its charge is under way. What is taken meanwhile is charged later.
    is_charging: bool,
}

type Permits = SmallVec<[u64; 1]>;

/// A charge that has to be made, or is under way.
struct Charge {
    name: String,
    policy: Arc<RedisPolicy>,
    key: Key,
    permits: Permits,
}

impl Repayment {
    pub(super) fn new(max_keys: usize) -> Self {
        let (owed, count) = (Mutex::default(), AtomicUsize::new(0));
        Self { owed, count, max_keys, is_running: AtomicBool::new(false) }
    }

    /// A check of this key was allowed locally.
    pub(super) fn add(&self, policy: &Arc<RedisPolicy>, key: &Key, op: &Op) {
        let permits: Permits = (0..policy.limits.len()).map(|quota| op.taken(quota)).collect();
        if permits.iter().all(|permits| *permits == 0) {
            return;
        }
        let mut ledger = self.ledger();
        if let Some(owed) = ledger.keys.get_mut(&policy.encoder.name(key)) {
            owed.add(&permits);
            owed.policy = policy.clone();
        } else if ledger.keys.len() < self.max_keys {
            let (policy, key) = (policy.clone(), key.clone());
            let owed = Owed { policy, key, permits, is_charging: false };
            ledger.keys.insert(owed.policy.encoder.name(&owed.key), owed);
            self.count.store(ledger.keys.len(), Ordering::Relaxed);
        }
        // What does not fit is not charged.
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
        if self.count.load(Ordering::Relaxed) > 0 {
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
        // If the runtime of the last run has ended.
        self.start(queues);
        let Ok(runtime) = Handle::try_current() else { return };
        if !queues.is_open(policy, key) {
            return;
        }
        let Some(charge) = self.begin(&policy.encoder.name(key)) else { return };
        let Some(op) = charge.op() else { return self.end(&charge, Ok(())) };
        // The check joins the same batch behind it.
        match queues.add(&charge.policy, &charge.key, &op, cx.waker()) {
            Ok((queue, check)) => {
                let (repayment, queues) = (self.clone(), queues.clone());
                runtime.spawn(async move {
                    queue.start();
                    repayment.finish(&queues, charge, op, check).await;
                });
            }
            Err(error) => self.end(&charge, Err(Some(error))),
        }
    }

    /// Waits for the reply to a charge.
    async fn finish(&self, queues: &Queues, charge: Charge, op: Op, mut check: QueuedCheck) {
        let Charge { policy, key, .. } = &charge;
        let charged = poll_fn(|cx| queues.poll(policy, key, &op, &mut check, cx)).await;
        let may_be_charged = |error: &Error| check.was_sent() && !error.is_transient_reply();
        match charged {
            Ok(_) => self.end(&charge, Ok(())),
            Err(error) if may_be_charged(&error) => self.end(&charge, Err(None)),
            Err(error) => self.end(&charge, Err(Some(error))),
        }
    }

    /// Begins the charge of a key, unless another one is under way.
    fn begin(&self, name: &str) -> Option<Charge> {
        let mut ledger = self.ledger();
        let (_, name, owed) = ledger.keys.get_full_mut(name)?;
        owed.begin(name)
    }

    /// Begins the charges of the keys whose turn it is.
    fn begin_some(&self, may_charge: impl Fn(&RedisPolicy, &Key) -> bool) -> Vec<Charge> {
        let mut ledger = self.ledger();
        let Ledger { keys, next } = &mut *ledger;
        let count = KEYS.min(keys.len());
        let mut charges = Vec::with_capacity(count);
        for _ in 0..count {
            *next = if *next >= keys.len() { 0 } else { *next };
            if let Some((name, owed)) = keys.get_index_mut(*next)
                && may_charge(&owed.policy, &owed.key)
            {
                charges.extend(owed.begin(name));
            }
            *next += 1;
        }
        charges
    }

    /// A charge has been made, or it has not (with the error), or nobody knows.
    fn end(&self, charge: &Charge, result: Result<(), Option<Error>>) {
        let Charge { name, policy, key, permits } = charge;
        let mut ledger = self.ledger();
        let Some(owed) = ledger.keys.get_mut(name) else { return };
        owed.is_charging = false;
        if let Err(Some(_)) = &result {
            owed.add(permits);
        }
        let is_paid = owed.permits.iter().all(|permits| *permits == 0);
        if is_paid {
            ledger.keys.swap_remove(name);
            self.count.store(ledger.keys.len(), Ordering::Relaxed);
        }
        drop(ledger);
        match result {
            // Unless more was taken meanwhile, the next outage starts from what the server says.
            Ok(()) if is_paid => policy.local.iter().for_each(|local| local.settled(key)),
            Ok(()) | Err(Some(_)) => {}
            // The local bucket stays as it is.
            Err(None) => {
                let permits = permits.iter().sum::<u64>();
                tracing::debug!(
                    target: "tollgate", permits, "permits that were taken locally may not be charged"
                );
            }
        }
    }

    /// Whether a run has to go on. If not, the next debt starts another.
    fn continues(&self) -> bool {
        let ledger = self.ledger();
        if ledger.keys.is_empty() {
            self.is_running.store(false, Ordering::Relaxed);
        }
        !ledger.keys.is_empty()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Nothing that panics runs under the lock.
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owed {
    fn add(&mut self, more: &Permits) {
        self.permits.resize(more.len().max(self.permits.len()), 0);
        for (permits, more) in self.permits.iter_mut().zip(more) {
            *permits = permits.saturating_add(*more);
        }
    }

    fn begin(&mut self, name: &str) -> Option<Charge> {
        if self.is_charging {
            return None;
        }
        self.is_charging = true;
        let (policy, key) = (self.policy.clone(), self.key.clone());
        Some(Charge { name: name.to_owned(), policy, key, permits: mem::take(&mut self.permits) })
    }
}

impl Charge {
    /// What still counts. `None` if nothing does.
    fn op(&self) -> Option<Op> {
        let adjustment = self.policy.local.as_ref()?.owed(&self.key, &self.permits);
        (!adjustment.is_nothing()).then_some(Op::Adjust(adjustment))
    }
}

/// Charges keys in the background, a few at a time.
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
            let is_open = |policy: &RedisPolicy, key: &Key| queues.is_open(policy, key);
            let begun = self.repayment.begin_some(is_open);
            pause = if begun.is_empty() { LONG_PAUSE } else { PAUSE };
            let mut charges = FuturesUnordered::new();
            for charge in begun {
                match charge.op() {
                    None => self.repayment.end(&charge, Ok(())),
                    Some(op) => {
                        let check = QueuedCheck::default();
                        charges.push(self.repayment.finish(&queues, charge, op, check));
                    }
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

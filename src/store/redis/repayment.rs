//! What was taken locally while a server failed, until it is charged on that server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::policy::RedisPolicy;
use super::queue::{QueuedCheck, Queues};
use super::{backoff, timer};
use crate::store::Op;
use crate::{Error, Key};

/// How many keys are charged at a time, and how long the pause before is. So a fleet that returns does
/// not flood the server.
const KEYS: usize = 64;
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
        let permits = (0..policy.limits.len()).map(|quota| op.taken(quota)).collect();
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
            let run = Run { repayment: self.clone(), queues: Arc::downgrade(queues) };
            runtime.spawn(run.run());
        }
    }

    fn take(&self, count: usize) -> VecDeque<(String, Owed)> {
        let mut owed = self.owed();
        let rest = owed.len().saturating_sub(count);
        owed.split_off(rest).into_iter().collect()
    }

    fn is_empty(&self) -> bool {
        self.owed().is_empty()
    }

    fn owed(&self) -> MutexGuard<'_, IndexMap<String, Owed, RandomState>> {
        // Nothing that panics runs under the lock.
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Run {
    repayment: Arc<Repayment>,
    queues: Weak<Queues>,
}

impl Run {
    async fn run(self) {
        let mut pause = LONG_PAUSE;
        while !self.repayment.is_empty() {
            timer::sleep_until(Instant::now() + pause.mul_f64(0.5 + backoff::random())).await;
            let Some(queues) = self.queues.upgrade() else { return };
            pause = PAUSE;
            for (name, owed) in self.repayment.take(KEYS) {
                if !queues.is_open(&owed.policy, &owed.key) {
                    self.repayment.put(name, owed);
                    pause = LONG_PAUSE;
                } else if let Err(error) = charge(&queues, &owed).await {
                    log_loss(&owed, &error);
                }
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.repayment.is_running.store(false, Ordering::Relaxed);
    }
}

/// Charges once. If no reply arrives, the charge may have been made.
async fn charge(queues: &Queues, owed: &Owed) -> Result<(), Error> {
    let Some(local) = &owed.policy.local else { return Ok(()) };
    let adjustment = local.settle(&owed.key, &owed.permits);
    if adjustment.is_nothing() {
        return Ok(());
    }
    let (op, mut check) = (Op::Adjust(adjustment), QueuedCheck::default());
    poll_fn(|cx| queues.poll(&owed.policy, &owed.key, &op, &mut check, cx)).await?;
    Ok(())
}

fn log_loss(owed: &Owed, error: &Error) {
    let (permits, reason) = (owed.permits.iter().sum::<u64>(), crate::error::with_causes(error));
    tracing::debug!(
        target: "tollgate", permits, reason,
        "permits that were taken locally may not be charged"
    );
}

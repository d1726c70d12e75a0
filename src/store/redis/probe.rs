//! Probes of a server: calls that no check waits for. They do what a check does, on a key of their own.

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::call::Call;
use super::health::WAKE_INTERVAL;
use super::node_queue::{NodeQueue, shut_down};
use super::policy::RedisPolicy;
use super::queue::timed_out;
use super::topology::Failure;
use super::{reply, timer};
use crate::store::Op;
use crate::{Error, Key};

/// Probes a server until it works. It ends earlier if the queue is dropped, or its node leaves the
/// cluster.
pub(super) struct Prober {
    queue: Weak<NodeQueue>,
    target: Target,
    is_done: bool,
}

/// The key next to which a probe writes, because on a cluster its slot leads to the node.
#[derive(Clone, Debug)]
pub(super) struct Target {
    policy: Arc<RedisPolicy>,
    key: Key,
    slot: u16,
}

impl Target {
    /// Of a check, which the probe imitates.
    pub(super) fn new(policy: &RedisPolicy, key: &Key, slot: u16) -> Self {
        Self { policy: policy.probe().into(), key: key.clone(), slot }
    }
}

impl Prober {
    pub(super) fn new(queue: &Arc<NodeQueue>, target: Target) -> Self {
        Self { queue: Arc::downgrade(queue), target, is_done: false }
    }

    /// The first probe may take so long, the others a whole timeout.
    pub(super) async fn run(mut self, mut patience: Duration) {
        while let Some(queue) = self.queue.upgrade() {
            let result = probe(&queue, &self.target, patience).await;
            let Some(next) = queue.probed(result) else {
                self.is_done = true;
                return;
            };
            // On a cluster another node may serve the slot by now. If checks still come here, they are
            // sent, and the next fault starts another prober.
            if !queue.is_used() || !queue.serves(self.target.slot) {
                self.is_done = true;
                queue.end_breaker();
                return;
            }
            patience = queue.timeout();
            drop(queue);
            timer::sleep_until(next).await;
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        if !self.is_done
            && let Some(queue) = self.queue.upgrade()
        {
            queue.probe_abandoned();
        }
    }
}

async fn probe(queue: &Arc<NodeQueue>, target: &Target, patience: Duration) -> Result<(), Error> {
    // In a task of its own, because the reply shows whether the connection works.
    let mut call = tokio::spawn(call(queue.clone(), target.clone()));
    // If all workers were blocked, it is polled again to read what has arrived meanwhile.
    for patience in [patience, WAKE_INTERVAL / 2] {
        if let Some(result) = timer::timeout_at(Instant::now() + patience, &mut call).await {
            return result.unwrap_or_else(|_| Err(shut_down()));
        }
    }
    Err(timed_out(queue.connections.server()))
}

async fn call(queue: Arc<NodeQueue>, target: Target) -> Result<(), Error> {
    let connection = queue.connections.acquire().await.inspect_err(|_| {
        queue.topology.failed(&queue.connections);
    })?;
    let (batch, op, now) = (Batch::default(), Op::acquire(1), Instant::now());
    batch.push(&target.policy, &target.key, target.slot, &op, now, Waker::noop());
    let is_cluster = queue.topology.is_cluster();
    let mut calls = batch.freeze(|_| false, shut_down, |groups| Call::of_batch(groups, is_cluster));
    let replies = queue.topology.send(&mut calls, &queue.connections, &connection).await;
    let replies = replies.into_iter().map(|reply| match reply {
        Ok(reply) => reply::parse(reply, 1)?.into_iter().try_for_each(|found| found.map(|_| ())),
        // The server has replied.
        Err(Failure::UnknownScript | Failure::Redirected) => Ok(()),
        Err(Failure::Refused(error) | Failure::Lost(error)) => Err(error),
    });
    replies.collect()
}

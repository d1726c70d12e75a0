//! Where checks wait: each server has its own queue.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use foldhash::fast::RandomState;
use tokio::runtime::Handle;

use super::batch::Batch;
use super::key_encoder::KeyEncoder;
use super::node_queue::{NodeQueue, shut_down};
use super::script::Script;
use super::timer;
use super::topology::{Call, QueueKey, Topology};
use crate::decision::Verdict;
use crate::store::{Op, PolicySpec};
use crate::{Error, ErrorKind, Key};

/// The queues of a policy.
#[derive(Debug)]
pub(super) struct Queue {
    policy: Arc<QueuedPolicy>,
    /// The queue of a single server, which is found without a hash.
    all: Option<Arc<NodeQueue>>,
    others: Mutex<HashMap<QueueKey, Arc<NodeQueue>, RandomState>>,
}

/// What the queues of a policy share.
#[derive(Debug)]
pub(super) struct QueuedPolicy {
    pub(super) spec: PolicySpec,
    pub(super) encoder: KeyEncoder,
    pub(super) topology: Topology,
    pub(super) script: Script,
}

/// A check that has not been answered yet. It joins a queue at its first poll.
#[derive(Default)]
pub struct QueuedCheck(Option<Place>);

/// The place of a check in a batch.
pub(super) struct Place {
    batch: Arc<Batch>,
    index: usize,
    call: Option<LoneCall>,
    is_done: bool,
}

/// The call of a batch of one check. The check runs it itself, and nobody else depends on it. If
/// the check is dropped, a task takes over, because the reply shows whether the connection works.
pub(super) struct LoneCall {
    queue: Arc<NodeQueue>,
    /// Never locked: the mutex makes the check `Sync`.
    future: Option<Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Queue {
    pub(super) fn new(spec: PolicySpec, encoder: KeyEncoder, topology: Topology) -> Self {
        let script = Script::new(&spec.bucket);
        let policy = Arc::new(QueuedPolicy { spec, encoder, topology, script });
        let all = policy.topology.single_server();
        let all = all.map(|connections| Arc::new(NodeQueue::new(policy.clone(), connections)));
        Self { policy, all, others: Mutex::default() }
    }

    pub(super) fn poll(
        &self,
        key: &Key,
        op: Op,
        check: &mut QueuedCheck,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let place = match &mut check.0 {
            Some(place) => place,
            None => match self.enqueue(key, op, cx.waker()) {
                Ok(place) => {
                    let place = check.0.insert(place);
                    if place.call.is_none() {
                        return Poll::Pending;
                    }
                    place
                }
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        if let Some(call) = &mut place.call {
            call.poll(cx);
        }
        let verdict = ready!(place.batch.poll(place.index, cx));
        place.is_done = true;
        Poll::Ready(verdict)
    }

    fn enqueue(&self, key: &Key, op: Op, waker: &Waker) -> Result<Place, Error> {
        if let Some(queue) = &self.all {
            return queue.enqueue(key, 0, op, waker);
        }
        let slot = self.policy.encoder.slot(key);
        let (queue_key, connections) = self.policy.topology.node(key, slot);
        let queue = {
            let mut others = self.others();
            match others.get(&queue_key) {
                Some(queue) => queue.clone(),
                None => {
                    // Queues of keys, and of nodes that have left the cluster, come and go.
                    others.retain(|_, queue| !queue.is_abandoned());
                    let queue = Arc::new(NodeQueue::new(self.policy.clone(), connections));
                    others.insert(queue_key, queue.clone());
                    queue
                }
            }
        };
        queue.enqueue(key, slot, op, waker)
    }

    /// Deletes a bucket.
    pub(super) async fn reset(&self, key: &Key) -> Result<(), Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let QueuedPolicy { spec, encoder, topology, .. } = &*self.policy;
        let slot = if topology.is_cluster() { encoder.slot(key) } else { 0 };
        let mut command = redis::cmd("DEL");
        command.arg(encoder.name(key));
        let call = Call { slot, groups: Default::default(), command };
        let deadline = Instant::now() + spec.timeout;
        // In a task of its own, because the reply shows whether the connection works.
        let policy = self.policy.clone();
        let reply = runtime.spawn(async move { policy.topology.follow_redirects(&call).await });
        timer::timeout_at(deadline, reply)
            .await
            .ok_or_else(|| self.policy.timed_out(slot))?
            .map_err(|_| shut_down())?
            .map_err(|failure| Error::from(failure).with_server(&topology.server(slot)))?;
        Ok(())
    }

    fn others(&self) -> MutexGuard<'_, HashMap<QueueKey, Arc<NodeQueue>, RandomState>> {
        // Nothing that panics runs under the lock.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedPolicy {
    pub(super) fn timed_out(&self, slot: u16) -> Error {
        Error::new(ErrorKind::Timeout, "Redis did not reply in time")
            .with_server(&self.topology.server(slot))
    }
}

impl Place {
    pub(super) fn new(batch: Arc<Batch>, index: usize, call: Option<LoneCall>) -> Self {
        Self { batch, index, call, is_done: false }
    }
}

impl LoneCall {
    pub(super) fn new(
        queue: Arc<NodeQueue>,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self { queue, future: Some(Mutex::new(Box::pin(future))) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some(future) = &mut self.future {
            let future = future.get_mut().unwrap_or_else(PoisonError::into_inner);
            if future.as_mut().poll(cx).is_ready() {
                self.future = None;
            }
        }
    }
}

impl Drop for LoneCall {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.queue.spawn(future.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_done {
            self.batch.cancel(self.index);
        }
    }
}

impl std::fmt::Debug for QueuedCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuedCheck").finish_non_exhaustive()
    }
}

pub(super) fn no_runtime() -> Error {
    Error::new(ErrorKind::Unavailable, "a check on Redis needs a Tokio runtime")
}

//! Where checks wait: each server has its own queues.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use tokio::runtime::Handle;

use super::batch::{Batch, CheckIndex};
use super::node_queue::{NodeQueue, shut_down};
use super::policy::RedisPolicy;
use super::timer;
use super::topology::{Destination, Topology};
use crate::store::Op;
use crate::verdict::Verdict;
use crate::{Error, ErrorKind, Key};

/// The queues of a store: one for each server and timeout. Policies with the same timeout share them,
/// and so share batches too.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) topology: Topology,
    /// Read without a lock, and copied when a queue is added.
    queues: ArcSwap<QueueMap>,
    adding: Mutex<()>,
}

type QueueMap = HashMap<(Destination, Duration), Arc<NodeQueue>, RandomState>;

/// A check that has not been answered yet. It joins a queue at its first poll.
#[derive(Default)]
pub struct QueuedCheck(Option<Place>);

impl QueuedCheck {
    /// Whether it has not been polled.
    pub(super) fn is_new(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the server may have received it.
    pub(super) fn was_sent(&self) -> bool {
        self.0.as_ref().is_some_and(|place| place.batch.was_sent(place.index))
    }
}

/// The place of a check in a batch. Small, because it moves with the check.
pub(super) struct Place {
    batch: Arc<Batch>,
    call: Option<Box<LoneCall>>,
    /// Of a check that may reserve a place in a queue of the policy.
    queue: Option<Arc<NodeQueue>>,
    index: CheckIndex,
    is_done: bool,
}

/// The call of a batch of one check. The check runs it itself, and nobody else depends on it. If
/// the check is dropped, a task takes over, because the reply shows whether the connection works.
pub(super) struct LoneCall {
    queue: Arc<NodeQueue>,
    /// Never locked: the mutex makes the check `Sync`.
    future: Option<Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Queues {
    pub(super) fn new(topology: Topology) -> Self {
        Self { topology, queues: ArcSwap::default(), adding: Mutex::default() }
    }

    pub(super) fn poll(
        &self,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        op: &Op,
        check: &mut QueuedCheck,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let place = match &mut check.0 {
            Some(place) => place,
            None => match self.enqueue(policy, key, op, cx.waker()) {
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

    /// Adds a check that is sent with the next one of its queue, or by [`NodeQueue::start`].
    pub(super) fn add(
        &self,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        op: &Op,
        waker: &Waker,
    ) -> Result<(Arc<NodeQueue>, QueuedCheck), Error> {
        let slot = self.slot(policy, key);
        let queue = self.queue(slot, policy.timeout);
        let place = queue.add(policy, key, slot, op, waker)?;
        Ok((queue, QueuedCheck(Some(place))))
    }

    fn enqueue(
        &self,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        op: &Op,
        waker: &Waker,
    ) -> Result<Place, Error> {
        let slot = self.slot(policy, key);
        let queues = self.queues.load();
        match queues.get(&(self.topology.destination(slot), policy.timeout)) {
            Some(queue) => queue.enqueue(policy, key, slot, op, waker),
            None => self.queue(slot, policy.timeout).enqueue(policy, key, slot, op, waker),
        }
    }

    fn slot(&self, policy: &RedisPolicy, key: &Key) -> u16 {
        if self.topology.is_cluster() { policy.encoder.slot(key) } else { 0 }
    }

    /// Whether the checks of a key are sent.
    pub(super) fn is_open(&self, policy: &RedisPolicy, key: &Key) -> bool {
        let slot = self.slot(policy, key);
        let queues = self.queues.load();
        let queue = queues.get(&(self.topology.destination(slot), policy.timeout));
        queue.is_none_or(|queue| queue.is_open())
    }

    /// The queue of a slot's destination, which is added unless there is one.
    fn queue(&self, slot: u16, timeout: Duration) -> Arc<NodeQueue> {
        // Nothing runs under the lock that could panic.
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = self.topology.connections(slot);
        let id = (self.topology.destination_of(&connections), timeout);
        let queues = self.queues.load();
        if let Some(queue) = queues.get(&id) {
            return queue.clone();
        }
        let used = queues.iter().filter(|(_, queue)| queue.is_used());
        let mut queues: QueueMap = used.map(|(&id, queue)| (id, queue.clone())).collect();
        let queue = Arc::new(NodeQueue::new(self.topology.clone(), connections, timeout));
        queues.insert(id, queue.clone());
        self.queues.store(queues.into());
        queue
    }

    /// Deletes a bucket.
    pub(super) async fn reset(&self, policy: Arc<RedisPolicy>, key: &Key) -> Result<(), Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let topology = self.topology.clone();
        let slot = if topology.is_cluster() { policy.encoder.slot(key) } else { 0 };
        let mut command = redis::cmd("DEL");
        command.arg(policy.encoder.name(key));
        let deadline = Instant::now() + policy.timeout;
        // In a task of its own, because the reply shows whether the connection works.
        let reply = runtime.spawn(async move { topology.follow_redirects(slot, &command).await });
        let server = || self.topology.server(slot);
        timer::timeout_at(deadline, reply)
            .await
            .ok_or_else(|| timed_out(&server()))?
            .map_err(|_| shut_down())?
            .map_err(|failure| Error::from(failure).with_server(&server()))?;
        Ok(())
    }
}

impl Place {
    pub(super) fn new(
        queue: &Arc<NodeQueue>,
        op: &Op,
        batch: Arc<Batch>,
        index: CheckIndex,
        call: Option<LoneCall>,
    ) -> Self {
        let queue = matches!(op, Op::Queue(_)).then(|| queue.clone());
        Self { batch, call: call.map(Box::new), queue, index, is_done: false }
    }

    /// Nobody waits for the result, but it is not cancelled.
    pub(super) fn detach(mut self) {
        self.is_done = true;
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
        if self.is_done {
            return;
        }
        let abandoned = self.batch.cancel(self.index);
        if let (Some(abandoned), Some(queue)) = (abandoned, &self.queue) {
            queue.give_back(abandoned);
        }
    }
}

impl std::fmt::Debug for QueuedCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuedCheck").finish_non_exhaustive()
    }
}

pub(super) fn timed_out(server: &Arc<str>) -> Error {
    Error::new(ErrorKind::Timeout, "Redis did not reply in time").with_server(server)
}

pub(super) fn no_runtime() -> Error {
    Error::new(ErrorKind::Unavailable, "a check on Redis needs a Tokio runtime")
}

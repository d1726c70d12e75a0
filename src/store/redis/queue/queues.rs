//! The queues of a store: one for each runtime, server and timeout.
//!
//! Each node of a cluster has its own queues, so a slow one delays only its own keys. Policies with the same
//! timeout share queues: with a queue for each policy, a thousand policies sent a thousand small batches, at
//! a third of the decisions per second of one policy, and each queue saw only a part of the load on the
//! server. The price is that under overload, checks of all these policies are rejected alike. Different
//! timeouts have separate queues: in one queue, checks with a long timeout could wait for longer, and would
//! leave no room for the others.
//!
//! A check joins a queue at its first poll, so one that is created and not polled delays nobody.
//!
//! A reset is a call outside of the queues. It deletes the key, whatever is stored there, so it also works if
//! a value has the wrong type or the script cannot run. Resets are rare: they gain nothing from a batch, and
//! do not wait for one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use tokio::runtime::{Handle, Id};

use super::batch::{Batch, CheckIndex};
use super::bucket::BucketRef;
use super::lone_call::LoneCall;
use super::node_queue::{Enqueued, NodeQueue, ServerState};
use crate::store::redis::cluster::{Destination, Topology};
use crate::store::redis::connection::ConnectionSet;
use crate::store::redis::no_reply::no_runtime;
use crate::store::redis::runtime_end;
use crate::store::redis::script::RedisPolicy;
use crate::store::{Observation, Observed, Op};
use crate::verdict::Verdict;
use crate::{Error, Key};

/// The queues of a store: one for each runtime, server and timeout. Policies with the same timeout share
/// them, and so share batches too.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) topology: Topology,
    table: Arc<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Read without a lock, and copied when it changes.
    queues: ArcSwap<QueueMap>,
    /// Locked to change the queues.
    servers: Mutex<ServerStates>,
}

/// A queue is removed when its runtime ends.
type QueueMap = HashMap<(Id, Destination, Duration), Arc<NodeQueue>, RandomState>;

/// The state of a server lives as long as the set of its connections, because an open breaker may outlive the
/// last queue.
type ServerStates = HashMap<Destination, (Weak<ConnectionSet>, Arc<ServerState>), RandomState>;

/// A check that has not been answered yet. It joins a queue at its first poll.
pub(crate) struct QueuedCheck(QueueProgress);

enum QueueProgress {
    New(Observation),
    Queued(BatchPlace),
}

impl QueuedCheck {
    #[inline]
    pub(crate) fn new(observation: Observation) -> Self {
        Self(QueueProgress::New(observation))
    }

    /// Takes the observation of a check that has not been polled.
    pub(crate) fn take_observation(&mut self) -> Observation {
        match &mut self.0 {
            QueueProgress::New(observation) => observation.take(),
            QueueProgress::Queued(_) => None,
        }
    }

    /// Returns true if the check has not been polled.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.0, QueueProgress::New(_))
    }

    /// Returns true if the server may have received the check.
    pub(crate) fn was_sent(&self) -> bool {
        match &self.0 {
            QueueProgress::New(_) => false,
            QueueProgress::Queued(place) => place.batch.was_sent(place.index),
        }
    }

    /// Returns the batch and the index of the check, once it has joined a queue.
    pub(crate) fn place(&self) -> Option<(Arc<Batch>, CheckIndex)> {
        match &self.0 {
            QueueProgress::New(_) => None,
            QueueProgress::Queued(place) => Some((place.batch.clone(), place.index)),
        }
    }

    /// Cancels the check. Returns whether the server may have received it.
    pub(crate) fn cancel(&mut self) -> bool {
        if let QueueProgress::Queued(place) = &self.0 {
            // A charge reserves nothing that would have to be given back.
            let _ = place.batch.cancel(place.index);
        }
        self.was_sent()
    }

    #[inline]
    pub(crate) fn observed(&self) -> Option<&Observed> {
        match &self.0 {
            QueueProgress::New(observation) => observation.as_ref(),
            QueueProgress::Queued(place) => place.special.as_ref()?.observation.as_ref(),
        }
    }
}

impl Default for QueuedCheck {
    fn default() -> Self {
        Self::new(None)
    }
}

/// The place of a check in a batch. Small, because it moves with the check.
struct BatchPlace {
    batch: Arc<Batch>,
    /// The call of a check that is sent alone.
    call: Option<LoneCall>,
    /// The data of a check that may reserve a place in a queue of the policy, or that is observed.
    special: Option<Box<SpecialCheck>>,
    index: CheckIndex,
    is_done: bool,
}

/// An operation that was sent, and that no task waits for.
#[derive(Debug)]
pub(crate) struct StartedCall {
    batch: Arc<Batch>,
    index: CheckIndex,
}

impl StartedCall {
    /// Returns the result, once it is there, and true if the server may have received the operation.
    pub(crate) fn result(&self) -> Option<(Result<Verdict, Error>, bool)> {
        self.batch.unread(self.index)
    }
}

/// The data that few checks have.
struct SpecialCheck {
    queue: Arc<NodeQueue>,
    observation: Observation,
}

impl Queues {
    pub(crate) fn new(topology: Topology) -> Self {
        Self { topology, table: Arc::default() }
    }

    pub(crate) fn poll(
        &self,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        op: &Op,
        check: &mut QueuedCheck,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        if let QueueProgress::New(observation) = &mut check.0 {
            let place = self.enqueue(policy, key, op, observation, cx.waker())?;
            let has_call = place.call.is_some();
            check.0 = QueueProgress::Queued(place);
            if !has_call {
                return Poll::Pending;
            }
        }
        let QueueProgress::Queued(place) = &mut check.0 else { return Poll::Pending };
        place.poll_call(cx);
        let verdict = ready!(place.batch.poll(place.index, cx));
        place.is_done = true;
        Poll::Ready(verdict)
    }

    /// Adds a check that is sent with the next one of the queue with this timeout, or by
    /// [`NodeQueue::start`].
    pub(crate) fn add(
        &self,
        policy: &Arc<RedisPolicy>,
        timeout: Duration,
        key: &Key,
        op: &Op,
        waker: &Waker,
    ) -> Result<(Arc<NodeQueue>, QueuedCheck), Error> {
        let bucket = self.bucket(policy, key);
        let queue = self.queue(bucket.slot, timeout)?;
        let enqueued = queue.add(bucket, op, waker)?;
        let place = BatchPlace::new(&queue, op, enqueued);
        Ok((queue, QueuedCheck(QueueProgress::Queued(place))))
    }

    /// Sends an operation that no task waits for. `waker` is woken once it has a result.
    pub(crate) fn begin(
        &self,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        op: &Op,
        waker: &Waker,
    ) -> Result<StartedCall, Error> {
        let bucket = self.bucket(policy, key);
        let queue = self.queue_of(bucket)?;
        let Enqueued { batch, index, call } = queue.enqueue(bucket, op, waker)?;
        if let Some(call) = call {
            call.spawn_and_wake(waker.clone());
        }
        Ok(StartedCall { batch, index })
    }

    /// Returns true if a full batch waits for the server of a key.
    pub(crate) fn is_busy(&self, policy: &Arc<RedisPolicy>, key: &Key) -> bool {
        let bucket = self.bucket(policy, key);
        let queues = self.table.queues.load();
        self.find(&queues, bucket).is_some_and(|queue| queue.has_full())
    }

    /// Sends an operation whose verdict nobody waits for. If it cannot be sent, it is not made.
    pub(crate) fn send(&self, policy: &Arc<RedisPolicy>, key: &Key, op: &Op) {
        let bucket = self.bucket(policy, key);
        if let Ok(queue) = self.queue_of(bucket) {
            queue.send(bucket, op);
        }
    }

    fn enqueue(
        &self,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        op: &Op,
        observation: &mut Observation,
        waker: &Waker,
    ) -> Result<BatchPlace, Error> {
        let bucket = self.bucket(policy, key);
        let queues = self.table.queues.load();
        let added;
        let queue = match self.find(&queues, bucket) {
            Some(queue) => queue,
            None => {
                added = self.queue(bucket.slot, policy.timeout)?;
                &added
            }
        };
        let mut place = BatchPlace::new(queue, op, queue.enqueue(bucket, op, waker)?);
        if observation.is_some() {
            place.observe(queue, observation.take());
        }
        Ok(place)
    }

    fn bucket<'a>(&self, policy: &'a Arc<RedisPolicy>, key: &'a Key) -> BucketRef<'a> {
        let slot = if self.topology.is_cluster() { policy.encoder.slot(key) } else { 0 };
        BucketRef { policy, key, slot }
    }

    /// Returns an error if a check must not be sent: see [`NodeQueue::admit`].
    pub(crate) fn admit(&self, policy: &Arc<RedisPolicy>, key: &Key) -> Result<(), Error> {
        let bucket = self.bucket(policy, key);
        let queues = self.table.queues.load();
        let queue = self.find(&queues, bucket);
        queue.map_or(Ok(()), |queue| queue.admit(bucket))
    }

    /// Returns true if the server of a key is available: see [`NodeQueue::is_available`].
    pub(crate) fn is_available(&self, policy: &Arc<RedisPolicy>, key: &Key) -> bool {
        let bucket = self.bucket(policy, key);
        let queues = self.table.queues.load();
        let queue = self.find(&queues, bucket);
        queue.is_none_or(|queue| queue.is_available(bucket))
    }

    /// Returns the queue of a bucket's server in this runtime. Outside of a runtime, that of any runtime.
    fn find<'a>(&self, queues: &'a QueueMap, bucket: BucketRef<'_>) -> Option<&'a Arc<NodeQueue>> {
        let (destination, timeout) =
            (self.topology.destination(bucket.slot), bucket.policy.timeout);
        match Handle::try_current() {
            Ok(runtime) => queues.get(&(runtime.id(), destination, timeout)),
            Err(_) => {
                let leads_there =
                    |&&(_, other, its): &&(_, _, _)| (other, its) == (destination, timeout);
                let id = queues.keys().find(leads_there)?;
                queues.get(id)
            }
        }
    }

    /// Returns the queue of a bucket's server in this runtime, which is added unless there is one.
    fn queue_of(&self, bucket: BucketRef<'_>) -> Result<Arc<NodeQueue>, Error> {
        let queues = self.table.queues.load();
        match self.find(&queues, bucket) {
            Some(queue) => Ok(queue.clone()),
            None => self.queue(bucket.slot, bucket.policy.timeout),
        }
    }

    /// Returns the queue of a slot's destination in this runtime, which is added unless there is one.
    fn queue(&self, slot: u16, timeout: Duration) -> Result<Arc<NodeQueue>, Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let mut servers = self.table.change();
        let connections = self.topology.connections(slot);
        let id = (runtime.id(), self.topology.destination_of(&connections), timeout);
        let queues = self.table.queues.load();
        if let Some(queue) = queues.get(&id) {
            return Ok(queue.clone());
        }
        let of_node = |node| queues.keys().filter(|(_, other, _)| *other == node).count();
        let all = queues.iter().map(|(&id, queue)| (id, queue.clone()));
        let (mut used, unused): (QueueMap, QueueMap) =
            all.partition(|((_, node, _), queue)| queue.is_used(of_node(*node)));
        servers.retain(|_, (connections, _)| connections.strong_count() > 0);
        let known = (Arc::downgrade(&connections), Arc::default());
        let server_state = servers.entry(id.1).or_insert(known).1.clone();
        let topology = self.topology.clone();
        let queue = NodeQueue::new(topology, connections, server_state, timeout, &runtime);
        let queue = Arc::new(queue);
        used.insert(id, queue.clone());
        self.table.queues.store(used.into());
        drop((servers, queues));
        let table = Arc::downgrade(&self.table);
        let watch = runtime_end::watch(&runtime, move || {
            if let Some(table) = table.upgrade() {
                table.remove(id.0);
            }
        });
        let _ = queue.end.set(watch);
        // This may log, and the code of a subscriber must not run under a lock of the caller.
        runtime.spawn(async move { unused.values().for_each(|queue| queue.end_breaker()) });
        Ok(queue)
    }

    /// Deletes a bucket.
    pub(crate) async fn reset(&self, policy: &Arc<RedisPolicy>, key: &Key) -> Result<(), Error> {
        let mut command = redis::cmd("DEL");
        command.arg(policy.encoder.name(key));
        let deadline = Instant::now() + policy.timeout;
        self.topology.call(self.bucket(policy, key).slot, command, deadline).await?;
        Ok(())
    }
}

impl Table {
    fn change(&self) -> MutexGuard<'_, ServerStates> {
        // Nothing runs under the lock that could panic.
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the queues of a runtime that has ended.
    fn remove(&self, ended: Id) {
        let servers = self.change();
        let queues = self.queues.load();
        let of_others = queues.iter().filter(|((runtime, ..), _)| *runtime != ended);
        let of_others: QueueMap = of_others.map(|(&id, queue)| (id, queue.clone())).collect();
        let all = self.queues.swap(of_others.into());
        drop((servers, queues));
        // Without the lock, because a queue may log when it ends.
        drop(all);
    }
}

impl BatchPlace {
    fn new(queue: &Arc<NodeQueue>, op: &Op, Enqueued { batch, index, call }: Enqueued) -> Self {
        let may_reserve = matches!(op, Op::Queue(_));
        let special = may_reserve.then(|| SpecialCheck::new(queue.clone()));
        Self { batch, call, special, index, is_done: false }
    }

    #[cold]
    fn observe(&mut self, queue: &Arc<NodeQueue>, observation: Observation) {
        let special = self.special.get_or_insert_with(|| SpecialCheck::new(queue.clone()));
        special.observation = observation;
    }

    fn poll_call(&mut self, cx: &mut Context<'_>) {
        if let Some(call) = &mut self.call
            && call.poll(cx).is_ready()
        {
            self.call = None;
        }
    }
}

impl SpecialCheck {
    fn new(queue: Arc<NodeQueue>) -> Box<Self> {
        Box::new(Self { queue, observation: None })
    }
}

impl Drop for BatchPlace {
    fn drop(&mut self) {
        let abandoned = if self.is_done { None } else { self.batch.cancel(self.index) };
        if let Some(call) = self.call.take() {
            call.spawn();
        }
        if let Some(abandoned) = abandoned
            && let Some(SpecialCheck { queue, .. }) = self.special.as_deref()
        {
            queue.give_back(abandoned);
        }
    }
}

impl std::fmt::Debug for QueuedCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuedCheck").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::net::TcpListener;

    use super::super::flight::FlightEnd;
    use super::*;
    use crate::ErrorKind;
    use crate::store::redis::connection::Connector;
    use crate::store::redis::no_reply::timed_out;

    /// The runtime of the last prober may have ended, or stand still. Without checks, only charges notice.
    #[tokio::test]
    async fn a_server_that_is_not_available_is_probed() {
        for (timeout, is_abandoned) in [(1, false), (1_000, true)] {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("redis://{}", server.local_addr().unwrap());
            let queues = Queues::new(Topology::new(Connector::url(url).unwrap()));
            let policy = RedisPolicy::for_tests(Duration::from_millis(timeout));
            let queue = queues.queue(0, policy.timeout).unwrap();
            queue.returned(FlightEnd::Lost(queue.sent(1, Instant::now())), &Batch::default());
            queue.probed(Err(no_runtime()));
            if is_abandoned {
                queue.probe_abandoned();
            }
            let probed = async {
                let accept = || {
                    assert!(!queues.is_available(&policy, &Key::from("key")));
                    tokio::time::timeout(Duration::from_millis(1), server.accept())
                };
                while accept().await.is_err() {}
            };
            let probed = tokio::time::timeout(Duration::from_secs(10), probed).await;
            assert!(probed.is_ok(), "nobody connects");
        }
    }

    /// Each timeout has a queue and a breaker of its own. Otherwise those whose breaker overload opens would
    /// be without a limit in the failure mode `Open`.
    #[tokio::test]
    async fn a_probe_that_is_late_shows_overload_if_any_queue_keeps_the_server_busy() {
        let queues = Queues::new(Topology::new(Connector::url("redis://127.0.0.1:1").unwrap()));
        let policies = [1, 2].map(|seconds| RedisPolicy::for_tests(Duration::from_secs(seconds)));
        let queue = |policy: &Arc<RedisPolicy>| queues.queue(0, policy.timeout).unwrap();
        let [busy, other] = policies.each_ref().map(queue);
        let key = Key::from("key");
        let after_probe = |queue: &Arc<NodeQueue>, policy| {
            queue.returned(FlightEnd::Lost(queue.sent(1, Instant::now())), &Batch::default());
            queue.probed(Err(timed_out(queue.connections.server())));
            queue.admit(BucketRef { policy, key: &key, slot: 0 }).unwrap_err().kind()
        };
        assert_eq!(after_probe(&other, &policies[1]), ErrorKind::Timeout, "an outage");
        let _waits = busy
            .add(BucketRef { policy: &policies[0], key: &key, slot: 0 }, &Op::Peek, Waker::noop())
            .unwrap();
        let (sent, at) = (busy.sent(1, Instant::now()), Instant::now());
        busy.returned(FlightEnd::Replied { sent, at, is_good: true }, &Batch::default());
        for (queue, policy) in [&busy, &other].into_iter().zip(&policies) {
            assert_eq!(after_probe(queue, policy), ErrorKind::Overloaded, "{:?}", policy.timeout);
        }
    }

    /// A subscriber may check with the same limiter.
    #[tokio::test]
    async fn what_a_queue_logs_when_it_ends_is_logged_without_locks() {
        let topology = || Topology::new(Connector::url("redis://127.0.0.1:1").unwrap());
        let (queues, timeout) = (Queues::new(topology()), Duration::from_secs(1));
        let (runtime, connections) = (Handle::current(), topology().connections(0));
        let gone =
            Arc::new(NodeQueue::new(topology(), connections, Arc::default(), timeout, &runtime));
        gone.returned(FlightEnd::Lost(gone.sent(1, Instant::now())), &Batch::default());
        gone.probed(Err(no_runtime()));
        let id = (runtime.id(), Destination::Node(1), timeout);
        queues.table.queues.store(Arc::new(QueueMap::from_iter([(id, gone)])));
        let [has_returned, has_logged] = [false; 2].map(|flag| Arc::new(AtomicBool::new(flag)));
        let writer = {
            let (has_returned, has_logged) = (has_returned.clone(), has_logged.clone());
            move || {
                assert!(has_returned.load(Ordering::Relaxed), "the caller may hold a lock");
                has_logged.store(true, Ordering::Relaxed);
                std::io::sink()
            }
        };
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        queues.queue(0, timeout).unwrap();
        has_returned.store(true, Ordering::Relaxed);
        tokio::task::yield_now().await;
        assert!(has_logged.load(Ordering::Relaxed));
    }

    /// Or each failover of a cluster would leave connections behind.
    #[tokio::test]
    async fn queues_of_a_node_that_has_left_do_not_keep_each_other() {
        let topology = || Topology::new(Connector::url("redis://127.0.0.1:1").unwrap());
        let (queues, gone) = (Queues::new(topology()), topology().connections(0));
        let timeouts = [1, 2].map(Duration::from_secs);
        let of_gone = timeouts.map(|timeout| {
            let (topology, runtime) = (queues.topology.clone(), Handle::current());
            let queue = NodeQueue::new(topology, gone.clone(), Arc::default(), timeout, &runtime);
            ((runtime.id(), Destination::Node(1), timeout), Arc::new(queue))
        });
        queues.table.queues.store(Arc::new(of_gone.into_iter().collect()));
        let is_known = || {
            let queues = queues.table.queues.load();
            queues.keys().any(|(_, node, _)| *node == Destination::Node(1))
        };
        queues.queue(0, timeouts[0]).unwrap();
        assert!(is_known(), "the node may still be in use");
        drop(gone);
        queues.queue(0, timeouts[1]).unwrap();
        assert!(!is_known());
    }
}

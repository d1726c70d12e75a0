//! Where checks wait: a batch is whatever has arrived while the last one was in flight.
//!
//! A check joins the queue of the server that it goes to. At most two flushes of a queue are in
//! flight. Each is a task that takes the pending batch, calls Redis, completes the checks, and ends
//! when nothing is pending. So no timer delays a check, a lone check waits for nobody, and an idle
//! queue holds nothing.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use foldhash::fast::RandomState;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::batch::{Batch, Check, Op};
use super::deadline_timer::DeadlineTimer;
use super::key_encoder::KeyEncoder;
use super::reply;
use super::script::Script;
use super::topology::{Call, Failure, QueueKey, Topology};
use crate::algorithm::Debt;
use crate::store::{PolicySpec, VerdictFuture};
use crate::{Error, ErrorKind, Key};

/// Enough to keep the server busy while a batch is on its way back.
const MAX_IN_FLIGHT: usize = 2;

#[derive(Debug)]
pub(super) struct Queue {
    spec: PolicySpec,
    encoder: KeyEncoder,
    topology: Topology,
    script: Script,
    timer: Arc<DeadlineTimer>,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    /// The queue of a single server, which is found without a hash.
    all: Pending,
    others: HashMap<QueueKey, Pending, RandomState>,
}

#[derive(Debug, Default)]
struct Pending {
    in_flight: usize,
    /// The batch that the next check joins.
    open: Batch,
    /// Batches before it that are full.
    full: VecDeque<Batch>,
}

impl Queue {
    pub(super) fn new(spec: PolicySpec, encoder: KeyEncoder, topology: Topology) -> Self {
        let script = Script::new(&spec.bucket);
        Self { spec, encoder, topology, script, timer: Arc::default(), queues: Mutex::default() }
    }

    /// Adds a check to its queue.
    pub(super) fn enqueue(self: &Arc<Self>, key: &Key, op: Op) -> VerdictFuture {
        let (reply_tx, verdict) = oneshot::channel();
        let check = Check::new(op, Instant::now() + self.spec.timeout, reply_tx);
        let slot = self.slot(key);
        let queue_key = self.topology.queue_key(key, slot);
        let mut queues = self.queues();
        let pending = queues.of(&queue_key);
        pending.push(key, slot, check);
        if pending.in_flight < MAX_IN_FLIGHT {
            // Only when it is needed, because all threads contend for its reference count.
            let Ok(runtime) = Handle::try_current() else {
                queues.forget_if_idle(&queue_key);
                return VerdictFuture::Ready(Err(no_runtime()));
            };
            pending.in_flight += 1;
            drop(queues);
            runtime.spawn(Flusher { queue: self.clone(), queue_key, done: false }.run());
        }
        VerdictFuture::Pending(verdict)
    }

    /// Deletes a bucket.
    pub(super) async fn reset(&self, key: &Key) -> Result<(), Error> {
        if Handle::try_current().is_err() {
            return Err(no_runtime());
        }
        let mut command = redis::cmd("DEL");
        command.arg(self.encoder.name(key));
        let call = Call { slot: self.slot(key), keys: 1, command };
        let reply = timeout(self.spec.timeout, self.topology.follow_redirects(&call)).await;
        reply.map_err(|_| self.timed_out(call.slot))?.map_err(|failure| {
            Error::from(failure).with_server(&self.topology.server(call.slot))
        })?;
        Ok(())
    }

    /// The slot of a bucket, which does not matter on a single server.
    fn slot(&self, key: &Key) -> u16 {
        if self.topology.is_cluster() { self.encoder.slot(key) } else { 0 }
    }

    fn timed_out(&self, slot: u16) -> Error {
        let message = if self.timer.clock_is_paused() {
            "Redis did not reply in time, because the Tokio clock is paused and jumped to the timeout: \
             use a MemoryStore in this test, or call tokio::time::resume()"
        } else {
            "Redis did not reply in time"
        };
        Error::new(ErrorKind::Timeout, message).with_server(&self.topology.server(slot))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // Nothing that panics runs under the lock.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn flush(&self, mut batch: Batch) {
        let calls = self.script.calls(&batch, &self.encoder, self.topology.is_cluster());
        let Some(replies) = self.within(&mut batch, self.topology.send(&calls)).await else {
            return;
        };
        let keys = batch.keys().len();
        let (mut found, mut again) = (Vec::with_capacity(keys), Vec::new());
        for (call, reply) in calls.into_iter().zip(replies) {
            let first = found.len();
            let call = match reply {
                Err(Failure::UnknownScript) => self.script.eval(&call),
                Err(Failure::Redirected) => call,
                reply => {
                    found.extend(self.read(reply, &call).into_iter().map(Some));
                    continue;
                }
            };
            found.extend((0..call.keys).map(|_| None));
            again.push((first, call));
        }
        batch.complete(found, &self.spec.bucket);
        if again.is_empty() {
            return;
        }
        // None of these has run. They may go to different servers, so none waits for another.
        let mut again: FuturesUnordered<_> =
            again.into_iter().map(|(first, call)| self.call_again(first, call)).collect();
        while let Some(Some((first, found))) = self.within(&mut batch, again.next()).await {
            let before = (0..first).map(|_| None);
            let after = (first + found.len()..keys).map(|_| None);
            let found = before.chain(found.into_iter().map(Some)).chain(after);
            batch.complete(found.collect(), &self.spec.bucket);
        }
    }

    /// Sends a call that has not run yet. Returns what it found, and the index of its first key.
    async fn call_again(&self, first: usize, call: Call) -> (usize, Vec<Result<Debt, Error>>) {
        let reply = match self.topology.follow_redirects(&call).await {
            Err(Failure::UnknownScript) => {
                self.topology.follow_redirects(&self.script.eval(&call)).await
            }
            reply => reply,
        };
        (first, self.read(reply, &call))
    }

    /// The debt that the checks of each key found.
    fn read(&self, reply: Result<Value, Failure>, call: &Call) -> Vec<Result<Debt, Error>> {
        let found = reply
            .map_err(Error::from)
            .and_then(|reply| reply::parse(reply, call.keys, &self.spec.bucket));
        let mut found = found.unwrap_or_else(|error| vec![Err(error); call.keys]);
        for error in found.iter_mut().filter_map(|found| found.as_mut().err()) {
            *error = error.clone().with_server(&self.topology.server(call.slot));
        }
        found
    }

    /// Waits for the future as long as a check of the batch does. `None` when none does any more.
    async fn within<F: Future>(&self, batch: &mut Batch, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        while let Some(deadline) = batch.next_deadline() {
            match self.timer.timeout_at(deadline, future.as_mut()).await {
                Some(output) => return Some(output),
                None => batch.expire(Instant::now(), |slot| self.timed_out(slot)),
            }
        }
        None
    }
}

/// A task that flushes a queue until nothing is pending.
struct Flusher {
    queue: Arc<Queue>,
    queue_key: QueueKey,
    done: bool,
}

impl Flusher {
    async fn run(mut self) {
        while let Some(batch) = self.take() {
            let batch = batch.freeze(Instant::now(), |slot| self.queue.timed_out(slot));
            if batch.is_empty() {
                continue;
            }
            let is_shared = batch.is_shared();
            self.queue.flush(batch).await;
            // Tasks whose checks were just completed often check again, and then share the next
            // batch. After a lone check there are few tasks, which meet only if there is time.
            if is_shared {
                yield_once().await;
            } else {
                yield_now().await;
            }
        }
    }

    /// Takes what is pending and fits in one call. The lock is held only for that.
    fn take(&mut self) -> Option<Batch> {
        let mut queues = self.queue.queues();
        let batch = queues.of(&self.queue_key).pop();
        if batch.is_none() {
            // Under the same lock, so that no check can join unnoticed.
            queues.leave(&self.queue_key);
            self.done = true;
        }
        batch
    }
}

impl Drop for Flusher {
    /// Runs the end of a task that was cut short by a panic or by the end of its runtime.
    fn drop(&mut self) {
        if !self.done {
            self.queue.queues().leave(&self.queue_key);
        }
    }
}

impl Queues {
    fn of(&mut self, queue_key: &QueueKey) -> &mut Pending {
        match queue_key {
            QueueKey::All => &mut self.all,
            queue_key => self.others.entry(queue_key.clone()).or_default(),
        }
    }

    /// Ends a flush.
    fn leave(&mut self, queue_key: &QueueKey) {
        self.of(queue_key).in_flight -= 1;
        self.forget_if_idle(queue_key);
    }

    /// Removes a queue that no task flushes. Checks that are still pending fail, because their
    /// senders are dropped.
    fn forget_if_idle(&mut self, queue_key: &QueueKey) {
        let pending = self.of(queue_key);
        if pending.in_flight == 0 {
            *pending = Pending::default();
            self.others.remove(queue_key);
        }
    }
}

impl Pending {
    fn push(&mut self, key: &Key, slot: u16, check: Check) {
        if !self.open.has_room_for(key) {
            self.full.push_back(mem::take(&mut self.open));
        }
        self.open.push(key, slot, check);
    }

    fn pop(&mut self) -> Option<Batch> {
        let open = || (!self.open.is_empty()).then(|| mem::take(&mut self.open));
        self.full.pop_front().or_else(open)
    }
}

/// Goes to the end of the thread's run queue. Tokio's `yield_now` also waits for what is queued
/// meanwhile and for a poll of I/O, which is too long while a batch could be sent.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn no_runtime() -> Error {
    Error::new(ErrorKind::Unavailable, "a check on Redis needs a Tokio runtime")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;
    use crate::algorithm::TokenBucket;
    use crate::store::redis::connector::Connector;
    use std::time::Duration;

    #[test]
    fn a_check_outside_a_runtime_does_not_stay_in_the_queue() {
        let spec = PolicySpec {
            name: "default".into(),
            bucket: TokenBucket::new("", &Quota::per_second(1)).unwrap(),
            timeout: Duration::from_secs(1),
        };
        let encoder = KeyEncoder::new("tollgate", &spec.name).unwrap();
        let topology = Topology::new(Connector::url("redis://localhost").unwrap());
        let queue = Arc::new(Queue::new(spec, encoder, topology));
        drop(queue.enqueue(&"a".into(), Op::Acquire(1)));
        assert!(queue.queues().all.open.is_empty());
    }
}

//! Where checks wait: a batch is whatever has arrived while the last one was in flight.
//!
//! A check joins a line. At most two flushes of a line are in flight; each is a task that takes
//! what waits, calls Redis, answers, and ends when nothing waits. So there is no timer, a lone
//! check waits for nobody, and an idle queue holds nothing.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Cmd, ErrorKind as RedisErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::batch::{Ask, Batch, Entry};
use super::connect::fault;
use super::lane::{Lane, Lease};
use super::name::Namer;
use super::reply::{self, Found};
use super::script::Script;
use crate::store::{Answer, Plan};
use crate::{Error, ErrorKind, Key};

/// Enough to keep the server busy while a batch is on its way back.
const MAX_IN_FLIGHT: usize = 2;

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) plan: Plan,
    pub(super) namer: Namer,
    script: Script,
    lanes: Arc<[Arc<Lane>]>,
    next_lane: AtomicUsize,
    /// One line for each key, so that a slow shard holds up its own keys only, and because a
    /// call can touch no more than one slot. Otherwise one line for all.
    line_per_key: bool,
    lines: Mutex<HashMap<Option<Key>, Line>>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Entry>,
    in_flight: usize,
}

impl Queue {
    pub(super) fn new(
        plan: Plan,
        namer: Namer,
        lanes: Arc<[Arc<Lane>]>,
        line_per_key: bool,
    ) -> Self {
        let script = Script::new(&plan.bucket);
        Self {
            plan,
            namer,
            script,
            lanes,
            next_lane: AtomicUsize::new(0),
            line_per_key,
            lines: Mutex::default(),
        }
    }

    /// Puts a check in its line.
    pub(super) fn join(self: &Arc<Self>, key: &Key, ask: Ask) -> Answer {
        let Ok(runtime) = Handle::try_current() else {
            return Answer::Ready(Err(no_runtime()));
        };
        let (caller, answer) = oneshot::channel();
        let entry =
            Entry { key: key.clone(), ask, deadline: Instant::now() + self.plan.deadline, caller };
        let name = self.line_per_key.then(|| key.clone());
        let mut lines = self.lines();
        // Not `entry`, which would need the name twice.
        let line = match lines.get_mut(&name) {
            Some(line) => line,
            None => lines.entry(name.clone()).or_default(),
        };
        line.waiting.push_back(entry);
        if line.in_flight < MAX_IN_FLIGHT {
            line.in_flight += 1;
            drop(lines);
            runtime.spawn(Flusher { queue: self.clone(), line: name, done: false }.run());
        }
        Answer::Waiting(answer)
    }

    pub(super) fn lane(&self) -> &Arc<Lane> {
        &self.lanes[self.next_lane.fetch_add(1, Ordering::Relaxed) % self.lanes.len()]
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Option<Key>, Line>> {
        // Nothing that panics runs under the lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn flush(&self, mut batch: Batch) {
        match self.call(&mut batch).await {
            Some(Ok(found)) => batch.settle(found, &self.plan.bucket),
            Some(Err(error)) => batch.fail(&error),
            None => {}
        }
    }

    /// `None` when everybody in the batch has been told that it took too long.
    async fn call(&self, batch: &mut Batch) -> Option<Result<Vec<Found>, Error>> {
        let lane = self.lane();
        let lease = match within(batch, lane.lease()).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return Some(Err(error)),
            Err(_) => return None,
        };
        let mut reply = send(batch, lane, &lease, self.script.by_hash(batch, &self.namer)).await?;
        if matches!(&reply, Err(error) if error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript))
        {
            reply = send(batch, lane, &lease, self.script.in_full(batch, &self.namer)).await?;
        }
        let found = match reply {
            Ok(reply) => reply::parse(reply, batch.len(), &self.plan.bucket),
            Err(error) => Err(fault(error)),
        };
        // The server has become a replica; its connection would stay as good as any to a PING.
        let demoted =
            |found: &Found| matches!(found, Found::Failed(text) if text.starts_with("READONLY"));
        if found.as_ref().is_ok_and(|found| found.iter().any(demoted)) {
            lane.discard(&lease);
        }
        Some(found)
    }
}

/// Sends a call, and discards the connection if it turns out to be broken or silent.
async fn send(
    batch: &mut Batch,
    lane: &Lane,
    lease: &Lease,
    call: Cmd,
) -> Option<RedisResult<Value>> {
    match within(batch, lease.link.clone().call(call)).await {
        Ok(reply) => {
            let broken = |error: &redis::RedisError| {
                error.is_unrecoverable_error()
                    || error.is_timeout()
                    || error.kind() == RedisErrorKind::Server(ServerErrorKind::ReadOnly)
            };
            if !lease.link.heals() && reply.as_ref().is_err_and(broken) {
                lane.discard(lease);
            }
            Some(reply)
        }
        // Left to run to the client's own response timeout, it makes the client replace the
        // silent node's connection.
        Err(call) if lease.link.heals() => {
            tokio::spawn(call);
            None
        }
        Err(_) => {
            lane.discard(lease);
            None
        }
    }
}

/// Waits for the future as long as somebody in the batch waits for it, and gives it back when
/// nobody does any more.
async fn within<F: Future>(batch: &mut Batch, future: F) -> Result<F::Output, Pin<Box<F>>> {
    let mut future = Box::pin(future);
    while let Some(deadline) = batch.next_deadline() {
        match timeout_at(deadline, &mut future).await {
            Ok(output) => return Ok(output),
            Err(_) => batch.expire(Instant::now()),
        }
    }
    Err(future)
}

/// A task that flushes a line until nothing waits in it.
struct Flusher {
    queue: Arc<Queue>,
    line: Option<Key>,
    done: bool,
}

impl Flusher {
    async fn run(mut self) {
        while let Some(batch) = self.take() {
            self.queue.flush(batch).await;
        }
    }

    /// What waits and fits in one call, less the callers that have gone.
    fn take(&mut self) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut lines = self.queue.lines();
        let line = lines.get_mut(&self.line)?;
        while let Some(entry) = line.waiting.pop_front() {
            if entry.caller.is_closed() {
                continue;
            }
            if !batch.has_room_for(&entry.key) {
                line.waiting.push_front(entry);
                break;
            }
            batch.push(entry);
        }
        if !batch.is_empty() {
            return Some(batch);
        }
        // Under the same lock as the look at the line, so that no check can join unseen.
        line.in_flight -= 1;
        if line.in_flight == 0 && self.line.is_some() {
            lines.remove(&self.line);
        }
        self.done = true;
        None
    }
}

impl Drop for Flusher {
    /// Ends a task that was cut short, by a panic or by the end of its runtime. If nobody else
    /// flushes the line, the callers in it are told by the drop of their senders.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut lines = self.queue.lines();
        if let Some(line) = lines.get_mut(&self.line) {
            line.in_flight -= 1;
            if line.in_flight == 0 {
                lines.remove(&self.line);
            }
        }
    }
}

pub(super) fn no_runtime() -> Error {
    Error::new(ErrorKind::Unavailable, "a check on Redis must be made inside a Tokio runtime")
}

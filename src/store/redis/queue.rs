//! Where checks wait: a batch is whatever has arrived while the last one was in flight.
//!
//! A check joins a line. At most two flushes of a line are in flight; each is a task that takes
//! what waits, calls Redis, answers, and ends when nothing waits. So there is no timer, a lone
//! check waits for nobody, and an idle queue holds nothing.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::batch::{Ask, Batch, Entry};
use super::name::Namer;
use super::reply;
use super::road::{Failure, Road};
use super::script::Script;
use crate::store::{Answer, Plan};
use crate::{Error, ErrorKind, Key};

/// Enough to keep the server busy while a batch is on its way back.
const MAX_IN_FLIGHT: usize = 2;

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) plan: Plan,
    pub(super) namer: Namer,
    pub(super) road: Road,
    script: Script,
    /// On a cluster one for each key, because a call can touch one slot only, and so that a slow
    /// shard holds up its own keys only. Otherwise one for all.
    lines: Mutex<HashMap<Option<Key>, Line>>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Entry>,
    in_flight: usize,
}

impl Queue {
    pub(super) fn new(plan: Plan, namer: Namer, road: Road) -> Self {
        let script = Script::new(&plan.bucket);
        Self { plan, namer, road, script, lines: Mutex::default() }
    }

    /// Puts a check in its line.
    pub(super) fn join(self: &Arc<Self>, key: &Key, ask: Ask) -> Answer {
        let Ok(runtime) = Handle::try_current() else {
            return Answer::Ready(Err(no_runtime()));
        };
        let (caller, answer) = oneshot::channel();
        let entry =
            Entry { key: key.clone(), ask, deadline: Instant::now() + self.plan.deadline, caller };
        let name = self.road.is_cluster().then(|| key.clone());
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

    /// The slot of a bucket, which one server has no use for.
    fn slot(&self, key: &Key) -> u16 {
        if self.road.is_cluster() { self.namer.slot(key) } else { 0 }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Option<Key>, Line>> {
        // Nothing that panics runs under the lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn flush(&self, mut batch: Batch) {
        let call = self.script.by_hash(&batch, &self.namer);
        let slot = batch.keys().next().map_or(0, |key| self.slot(key));
        let reply = within(&mut batch, async {
            match self.road.call(slot, &call).await {
                Err(Failure::UnknownScript) => {
                    self.road.call(slot, &self.script.in_full(&call)).await
                }
                reply => reply,
            }
        });
        // Without a reply, everybody has been told that it took too long.
        if let Some(reply) = reply.await {
            let found = reply
                .map_err(Error::from)
                .and_then(|reply| reply::parse(reply, batch.len(), &self.plan.bucket));
            match found {
                Ok(found) => batch.settle(found, &self.plan.bucket),
                Err(error) => batch.fail(&error),
            }
        }
    }

    /// Deletes a bucket.
    pub(super) async fn reset(&self, key: &Key) -> Result<(), Error> {
        let mut delete = redis::cmd("DEL");
        delete.arg(self.namer.name(key));
        let reply = timeout(self.plan.deadline, self.road.call(self.slot(key), &delete)).await;
        reply.map_err(|_| Error::new(ErrorKind::Timeout, "Redis did not answer in time"))??;
        Ok(())
    }
}

/// Waits for the future as long as somebody in the batch waits for it; `None` when nobody does any
/// more.
async fn within<F: Future>(batch: &mut Batch, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    while let Some(deadline) = batch.next_deadline() {
        match timeout_at(deadline, &mut future).await {
            Ok(output) => return Some(output),
            Err(_) => batch.expire(Instant::now()),
        }
    }
    None
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

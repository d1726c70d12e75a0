//! Where checks wait: a batch is whatever has arrived while the last one was in flight.
//!
//! A check joins the line of the server that it goes to. At most two flushes of a line are in
//! flight; each is a task that takes what waits, calls Redis, answers, and ends when nothing waits.
//! So no timer delays a check, a lone one waits for nobody, and an idle queue holds nothing.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use ahash::RandomState;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::alarm::Alarm;
use super::batch::{Ask, Batch, Check};
use super::name::Namer;
use super::reply;
use super::road::{Call, Failure, Line, Road};
use super::script::Script;
use crate::algorithm::Debt;
use crate::store::{Answer, Plan};
use crate::{Error, ErrorKind, Key};

/// Enough to keep the server busy while a batch is on its way back.
const MAX_IN_FLIGHT: usize = 2;

#[derive(Debug)]
pub(super) struct Queue {
    plan: Plan,
    namer: Namer,
    road: Road,
    script: Script,
    alarm: Arc<Alarm>,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    /// That of a single server, which is found without a hash.
    all: Waiting,
    others: HashMap<Line, Waiting, RandomState>,
}

#[derive(Debug, Default)]
struct Waiting {
    in_flight: usize,
    /// What the next check joins. Beside the lock, because all threads write here.
    open: Batch,
    /// Those before it that had no room for more.
    full: VecDeque<Batch>,
}

impl Queue {
    pub(super) fn new(plan: Plan, namer: Namer, road: Road) -> Self {
        let script = Script::new(&plan.bucket);
        Self { plan, namer, road, script, alarm: Arc::default(), lines: Mutex::default() }
    }

    /// Puts a check in its line.
    pub(super) fn join(self: &Arc<Self>, key: &Key, ask: Ask) -> Answer {
        let (caller, answer) = oneshot::channel();
        let check = Check::new(ask, Instant::now() + self.plan.deadline, caller);
        let slot = self.slot(key);
        let line = self.road.line(key, slot);
        let mut lines = self.lines();
        let waiting = lines.of(&line);
        waiting.push(key, slot, check);
        if waiting.in_flight < MAX_IN_FLIGHT {
            // Not looked for when it is not needed: all threads count on the same reference.
            let Ok(runtime) = Handle::try_current() else {
                lines.forget_if_idle(&line);
                return Answer::Ready(Err(no_runtime()));
            };
            waiting.in_flight += 1;
            drop(lines);
            runtime.spawn(Flusher { queue: self.clone(), line, done: false }.run());
        }
        Answer::Waiting(answer)
    }

    /// Deletes a bucket.
    pub(super) async fn reset(&self, key: &Key) -> Result<(), Error> {
        if Handle::try_current().is_err() {
            return Err(no_runtime());
        }
        let mut command = redis::cmd("DEL");
        command.arg(self.namer.name(key));
        let call = Call { slot: self.slot(key), keys: 1, command };
        let reply = timeout(self.plan.deadline, self.road.follow(&call)).await;
        reply.map_err(|_| Error::new(ErrorKind::Timeout, "Redis did not answer in time"))??;
        Ok(())
    }

    /// The slot of a bucket, which one server has no use for.
    fn slot(&self, key: &Key) -> u16 {
        if self.road.is_cluster() { self.namer.slot(key) } else { 0 }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        // Nothing that panics runs under the lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn flush(&self, mut batch: Batch) {
        let calls = self.script.calls(&batch, &self.namer, self.road.is_cluster());
        let Some(replies) = self.within(&mut batch, self.road.send(&calls)).await else { return };
        let keys = batch.keys().len();
        let (mut found, mut again) = (Vec::with_capacity(keys), Vec::new());
        for (call, reply) in calls.into_iter().zip(replies) {
            let first = found.len();
            let call = match reply {
                Err(Failure::UnknownScript) => self.script.in_full(&call),
                Err(Failure::Redirected) => call,
                reply => {
                    found.extend(self.read(reply, call.keys).into_iter().map(Some));
                    continue;
                }
            };
            found.extend((0..call.keys).map(|_| None));
            again.push((first, call));
        }
        batch.settle(found, &self.plan.bucket);
        if again.is_empty() {
            return;
        }
        // None of these has run. Nobody is kept waiting for another: they may go to other servers.
        let mut again: FuturesUnordered<_> =
            again.into_iter().map(|(first, call)| self.insist(first, call)).collect();
        while let Some(Some((first, found))) = self.within(&mut batch, again.next()).await {
            let before = (0..first).map(|_| None);
            let after = (first + found.len()..keys).map(|_| None);
            let found = before.chain(found.into_iter().map(Some)).chain(after);
            batch.settle(found.collect(), &self.plan.bucket);
        }
    }

    /// What a call finds that has not run yet, with the index of its first key.
    async fn insist(&self, first: usize, call: Call) -> (usize, Vec<Result<Debt, Error>>) {
        let reply = match self.road.follow(&call).await {
            Err(Failure::UnknownScript) => self.road.follow(&self.script.in_full(&call)).await,
            reply => reply,
        };
        (first, self.read(reply, call.keys))
    }

    /// What the checks of each key of a call met.
    fn read(&self, reply: Result<Value, Failure>, keys: usize) -> Vec<Result<Debt, Error>> {
        let found = reply
            .map_err(Error::from)
            .and_then(|reply| reply::parse(reply, keys, &self.plan.bucket));
        found.unwrap_or_else(|error| vec![Err(error); keys])
    }

    /// Waits for the future as long as somebody in the batch waits for it; `None` when nobody does
    /// any more.
    async fn within<F: Future>(&self, batch: &mut Batch, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        while let Some(deadline) = batch.next_deadline() {
            match self.alarm.timeout_at(deadline, future.as_mut()).await {
                Some(output) => return Some(output),
                None => batch.expire(Instant::now()),
            }
        }
        None
    }
}

/// A task that flushes a line until nothing waits in it.
struct Flusher {
    queue: Arc<Queue>,
    line: Line,
    done: bool,
}

impl Flusher {
    async fn run(mut self) {
        while let Some(batch) = self.take() {
            let batch = batch.seal(Instant::now());
            if batch.is_empty() {
                continue;
            }
            let is_shared = batch.is_shared();
            self.queue.flush(batch).await;
            // Those just answered often ask again, and then go together in the next batch. Where
            // there was one alone, callers are few and meet only if there is time.
            if is_shared {
                let_others_run().await;
            } else {
                yield_now().await;
            }
        }
    }

    /// What waits and fits in one call. All that joiners wait for is that it changes hands.
    fn take(&mut self) -> Option<Batch> {
        let mut lines = self.queue.lines();
        let batch = lines.of(&self.line).pop();
        if batch.is_none() {
            // Under the same lock as the look at the line, so that no check can join unseen.
            lines.leave(&self.line);
            self.done = true;
        }
        batch
    }
}

impl Drop for Flusher {
    /// Ends a task that was cut short, by a panic or by the end of its runtime.
    fn drop(&mut self) {
        if !self.done {
            self.queue.lines().leave(&self.line);
        }
    }
}

impl Lines {
    fn of(&mut self, line: &Line) -> &mut Waiting {
        match line {
            Line::All => &mut self.all,
            line => self.others.entry(line.clone()).or_default(),
        }
    }

    /// Takes a flush out of flight.
    fn leave(&mut self, line: &Line) {
        self.of(line).in_flight -= 1;
        self.forget_if_idle(line);
    }

    /// Forgets a line that nobody flushes; if somebody still waits in it, the drop of the senders
    /// tells them.
    fn forget_if_idle(&mut self, line: &Line) {
        let waiting = self.of(line);
        if waiting.in_flight == 0 {
            *waiting = Waiting::default();
            self.others.remove(line);
        }
    }
}

impl Waiting {
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

/// Goes to the end of the thread's queue. Tokio's `yield_now` waits until all of the queue has run,
/// and what comes after, and I/O has been looked at: too long where a batch could be on its way.
async fn let_others_run() {
    let mut have_run = false;
    poll_fn(|cx| {
        if mem::replace(&mut have_run, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn no_runtime() -> Error {
    Error::new(ErrorKind::Unavailable, "a check on Redis must be made inside a Tokio runtime")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;
    use crate::algorithm::TokenBucket;
    use crate::store::redis::connect::Connector;
    use std::time::Duration;

    #[test]
    fn a_check_outside_a_runtime_does_not_stay_in_line() {
        let plan = Plan {
            policy: "default".into(),
            bucket: TokenBucket::new("", &Quota::per_second(1)).unwrap(),
            deadline: Duration::from_secs(1),
        };
        let namer = Namer::new("tollgate", &plan.policy).unwrap();
        let road = Road::new(Connector::client("redis://localhost").unwrap());
        let queue = Arc::new(Queue::new(plan, namer, road));
        drop(queue.join(&"a".into(), Ask::Take(1)));
        assert!(queue.lines().all.open.is_empty());
    }
}

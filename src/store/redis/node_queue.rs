//! The queue of one server: a batch is whatever has arrived while others were in flight.
//!
//! A lone check is sent at once, by its own future. When more arrive, a flusher task takes the
//! pending batch, sends it, and ends when nothing is pending. So no timer delays a check, and an
//! idle queue holds nothing. A check depends neither on the future of another check nor on a single
//! flusher: the alarm of the queue fails what is late, on a thread of its own, and starts another
//! flusher if one is stuck on a blocked worker.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use tokio::runtime::Handle;

use super::batch::Batch;
use super::flight::Flight;
use super::queue::{LoneCall, Place, QueuedPolicy, no_runtime};
use super::shared_connection::ConnectionSet;
use super::timer::{self, Alarm};
use super::window::Window;
use crate::store::Op;
use crate::{Error, ErrorKind, Key};

/// How many batches wait to be used again, at most.
const MAX_USED: usize = 4;

#[derive(Debug)]
pub(super) struct NodeQueue {
    pub(super) policy: Arc<QueuedPolicy>,
    pub(super) connections: Arc<ConnectionSet>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: Window,
    /// The batch that the next check joins. It may be empty.
    open: Arc<Batch>,
    is_open_empty: bool,
    /// Batches before it that are full.
    full: VecDeque<Arc<Batch>>,
    /// Batches that have been sent, to watch their deadlines.
    sent: Vec<Arc<Batch>>,
    /// Batches whose memory is used again once their checks have read their verdicts.
    used: VecDeque<Arc<Batch>>,
    alarm: Option<Instant>,
    /// Where flushers run.
    runtime: Option<Handle>,
}

impl NodeQueue {
    pub(super) fn new(policy: Arc<QueuedPolicy>, connections: Arc<ConnectionSet>) -> Self {
        let state = State {
            window: Window::new(policy.spec.timeout),
            open: Arc::default(),
            is_open_empty: true,
            full: VecDeque::new(),
            sent: Vec::new(),
            used: VecDeque::new(),
            alarm: None,
            runtime: None,
        };
        Self { policy, connections, state: Mutex::new(state) }
    }

    /// Whether nothing is in flight, and nobody else uses the connections.
    pub(super) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.connections) == 1 && self.state().window.is_idle()
    }

    pub(super) fn enqueue(
        self: &Arc<Self>,
        key: &Key,
        slot: u16,
        op: Op,
        waker: &Waker,
    ) -> Result<Place, Error> {
        let now = Instant::now();
        let deadline = now + self.policy.spec.timeout;
        let mut state = self.state();
        if state.window.is_idle()
            && state.is_empty()
            && let Some(connection) = self.connections.established()
        {
            if state.runtime.is_none() {
                state.runtime = Handle::try_current().ok();
            }
            state.window.reserve(now);
            let batch = state.empty_batch();
            let index = batch.push(key, slot, op, deadline, waker).unwrap_or_default();
            let flight = state.start(self, batch.clone(), now);
            self.unlock_and_set_alarm(state, deadline);
            let place = InWindow(self.clone());
            let call = LoneCall::new(self.clone(), async move {
                let _place = place;
                flight.run(connection).await;
            });
            return Ok(Place::new(batch, index, Some(call)));
        }
        if state.window.is_overloaded(state.full.len()) {
            return Err(self.overloaded());
        }
        let index = match state.open.push(key, slot, op, deadline, waker) {
            Some(index) => index,
            None => {
                let empty = state.empty_batch();
                let full = mem::replace(&mut state.open, empty);
                state.full.push_back(full);
                state.open.push(key, slot, op, deadline, waker).unwrap_or_default()
            }
        };
        state.is_open_empty = false;
        let batch = state.open.clone();
        let starts = state.may_start(now);
        if starts || state.runtime.is_none() {
            match Handle::try_current() {
                Ok(runtime) => state.runtime = Some(runtime),
                Err(_) => {
                    drop(state);
                    batch.cancel(index);
                    return Err(no_runtime());
                }
            }
        }
        if starts {
            state.window.reserve(now);
        }
        let runtime = starts.then(|| state.runtime.clone()).flatten();
        let alarm = state.next_start().map_or(deadline, |start| start.min(deadline));
        self.unlock_and_set_alarm(state, alarm);
        if let Some(runtime) = runtime {
            self.spawn_flusher(&runtime);
        }
        Ok(Place::new(batch, index, None))
    }

    /// Returns a place in the window, and gives it to a flusher if checks wait for one.
    pub(super) fn release(self: &Arc<Self>) {
        let now = Instant::now();
        let mut state = self.state();
        state.window.release();
        if state.is_empty() || !state.may_start(now) {
            return;
        }
        let Some(runtime) = state.runtime.clone() else { return };
        state.window.reserve(now);
        drop(state);
        self.spawn_flusher(&runtime);
    }

    fn spawn_flusher(self: &Arc<Self>, runtime: &Handle) {
        runtime.spawn(Flusher { queue: self.clone(), is_done: false }.run());
    }

    /// A batch is not in flight any more. `round_trip` is when it was sent and when its reply
    /// arrived, if one did.
    pub(super) fn returned(&self, round_trip: Option<(Instant, Instant)>) {
        let mut state = self.state();
        let is_waiting = !state.full.is_empty();
        match round_trip {
            Some((sent, received)) => state.window.replied(sent, received, is_waiting),
            None => state.window.abandoned(),
        }
    }

    /// Stops watching the deadlines of a batch.
    pub(super) fn forget(&self, batch: &Arc<Batch>) {
        let mut state = self.state();
        let index = state.sent.iter().position(|sent| Arc::ptr_eq(sent, batch));
        let mut dropped = None;
        if let Some(index) = index {
            let batch = state.sent.swap_remove(index);
            state.used.push_back(batch);
            if state.used.len() > MAX_USED {
                dropped = state.used.pop_front();
            }
        }
        drop(state);
        // Outside the lock, because this may run code of another crate.
        drop(dropped);
    }

    /// A check with an earlier deadline would be answered too late if it were sent now.
    pub(super) fn earliest_deadline(&self) -> Instant {
        self.state().window.earliest_deadline(Instant::now())
    }

    /// Runs a task that outlives the check that starts it.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime = Handle::try_current().ok().or_else(|| self.state().runtime.clone());
        if let Some(runtime) = runtime {
            runtime.spawn(task);
        }
    }

    pub(super) fn overloaded(&self) -> Error {
        Error::new(
            ErrorKind::Timeout,
            "too many checks are waiting for Redis: this one was not sent, because the reply would \
             have come too late",
        )
        .with_server(self.connections.server())
    }

    fn fail_all(&self, error: &Error) {
        let error = error.clone().with_server(self.connections.server());
        let mut state = self.state();
        let open = mem::take(&mut state.open);
        state.is_open_empty = true;
        let full = mem::take(&mut state.full);
        drop(state);
        full.iter().chain([&open]).for_each(|batch| batch.fail(&error));
    }

    fn unlock_and_set_alarm(self: &Arc<Self>, mut state: MutexGuard<'_, State>, at: Instant) {
        if state.alarm.is_some_and(|alarm| alarm <= at) {
            return;
        }
        state.alarm = Some(at);
        drop(state);
        let alarm: Arc<dyn Alarm> = self.clone();
        timer::set(at, Arc::downgrade(&alarm));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.is_open_empty && self.full.is_empty()
    }

    fn may_start(&self, now: Instant) -> bool {
        self.window.may_start(now, !self.full.is_empty())
    }

    /// When a batch may start without waiting for another to return, if one waits.
    fn next_start(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.window.next_start() }
    }

    fn pop(&mut self) -> Option<Arc<Batch>> {
        self.full.pop_front().or_else(|| {
            if mem::replace(&mut self.is_open_empty, true) {
                return None;
            }
            let empty = self.empty_batch();
            Some(mem::replace(&mut self.open, empty))
        })
    }

    fn empty_batch(&mut self) -> Arc<Batch> {
        self.used.pop_front().and_then(Batch::recycle).unwrap_or_default()
    }

    /// A batch that has a place in the window is about to be sent.
    fn start(&mut self, queue: &Arc<NodeQueue>, batch: Arc<Batch>, now: Instant) -> Flight {
        self.window.sent(now);
        self.sent.push(batch.clone());
        Flight::new(queue.clone(), batch, now)
    }
}

impl Alarm for NodeQueue {
    fn ring(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let (batches, runtime) = {
            let mut state = self.state();
            if state.alarm.is_none_or(|alarm| now < alarm) {
                // An earlier alarm has taken over.
                return None;
            }
            let runtime = (!state.is_empty() && state.may_start(now))
                .then(|| state.runtime.clone())
                .flatten();
            if runtime.is_some() {
                state.window.reserve(now);
            }
            let waiting = state.full.iter().chain([&state.open]);
            (state.sent.iter().chain(waiting).cloned().collect::<Vec<_>>(), runtime)
        };
        if let Some(runtime) = runtime {
            self.spawn_flusher(&runtime);
        }
        let timed_out = |slot| self.policy.timed_out(slot);
        let next = batches.iter().filter_map(|batch| batch.expire(now, timed_out)).min();
        let mut state = self.state();
        let is_idle = state.is_empty() && state.sent.is_empty();
        let next = next.unwrap_or(now + self.policy.spec.timeout);
        let next = state.next_start().map_or(next, |start| start.max(now).min(next));
        state.alarm = (!is_idle).then_some(next);
        state.alarm
    }
}

/// A place in the window, returned on drop.
struct InWindow(Arc<NodeQueue>);

impl Drop for InWindow {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A task that sends batches until nothing is pending. It has a place in the window.
struct Flusher {
    queue: Arc<NodeQueue>,
    is_done: bool,
}

impl Flusher {
    async fn run(mut self) {
        loop {
            match self.queue.connections.acquire().await {
                Ok(connection) => match self.take() {
                    Some(flight) => flight.run(connection).await,
                    None => return,
                },
                Err(error) => return self.give_up(&error),
            }
            // Tasks whose checks were just completed often check again, and then share the next
            // batch.
            yield_once().await;
            if !self.may_continue() {
                return;
            }
        }
    }

    /// Takes what is pending and fits in one batch.
    fn take(&mut self) -> Option<Flight> {
        let now = Instant::now();
        let mut state = self.queue.state();
        let batch = state.pop();
        if batch.is_none() {
            self.is_done = true;
            state.window.release();
        }
        Some(state.start(&self.queue, batch?, now))
    }

    /// Whether the next batch may start in the place of the last one.
    fn may_continue(&mut self) -> bool {
        let now = Instant::now();
        let mut state = self.queue.state();
        state.window.release();
        self.is_done = state.is_empty() || !state.may_start(now);
        if !self.is_done {
            state.window.reserve(now);
        }
        !self.is_done
    }

    fn give_up(&mut self, error: &Error) {
        self.is_done = true;
        self.queue.fail_all(error);
        self.queue.release();
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if !self.is_done {
            self.give_up(&shut_down());
        }
    }
}

pub(super) fn shut_down() -> Error {
    Error::new(ErrorKind::Unavailable, "the Tokio runtime that ran the check has shut down")
}

/// Goes to the end of the thread's run queue. Tokio's `yield_now` also waits until the worker polls
/// I/O, and so for ever if a handler blocks the worker.
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

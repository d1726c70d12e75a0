//! The task that sends the batches of a queue, and ends when nothing is pending.

use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use super::batch::Batch;
use super::breaker::Fault;
use super::flight::Flight;
use super::node_queue::NodeQueue;
use super::queue_state::Next;
use crate::store::redis::connection::Connection;
use crate::store::redis::no_reply::shut_down;
use crate::{Error, timer};

/// A task that sends batches until nothing is pending. It has a place in the window.
pub(super) struct Flusher {
    queue: Arc<NodeQueue>,
    is_done: bool,
}

impl Flusher {
    pub(super) fn new(queue: Arc<NodeQueue>) -> Self {
        Self { queue, is_done: false }
    }

    pub(super) async fn run(mut self) {
        loop {
            let (checks, wakers) = match self.acquire().await {
                Ok(connection) => match self.take() {
                    Some(flight) => flight.run(connection).await,
                    None => return,
                },
                Err(error) => return self.cannot_connect(&error),
            };
            wakers.wake();
            let pauses = self.queue.state().queue.pauses_after(checks);
            if pauses {
                yield_once().await;
            }
            if !self.may_continue() {
                return;
            }
        }
    }

    /// Acquires a connection. One that takes longer to make than a check may take is a fault.
    async fn acquire(&self) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.queue.own.established() {
            return Ok(connection);
        }
        let mut acquiring = pin!(self.queue.acquire());
        let deadline = Instant::now() + self.queue.timeout();
        if let Some(connection) = timer::timeout_at(deadline, acquiring.as_mut()).await {
            return connection;
        }
        let waiting = self.queue.state().queue.waiting();
        self.queue.report(Fault::Late, &waiting);
        acquiring.await
    }

    /// Takes what is pending and fits in one batch.
    fn take(&mut self) -> Option<Flight> {
        let mut state = self.queue.state();
        let taken = state.queue.take();
        let waiting = state.queue.waiting_checks();
        drop(state);
        self.is_done = taken.is_none();
        let batch = taken?;
        self.queue.connections.metrics.batch_starts(waiting);
        Some(Flight::new(self.queue.clone(), batch))
    }

    /// Returns true if the next batch may start in the place of the last one.
    fn may_continue(&mut self) -> bool {
        let now = Instant::now();
        let mut state = self.queue.state();
        state.queue.release();
        let next = state.queue.start_next(now);
        self.is_done = next != Next::Starts;
        if let Next::Waits(at) = next {
            self.queue.unlock_and_arm(state, at);
        }
        !self.is_done
    }

    fn cannot_connect(&mut self, error: &Error) {
        let batches = self.give_up(error);
        self.queue.topology.failed(&self.queue.connections);
        self.queue.report(Fault::Failed, &batches);
    }

    fn give_up(&mut self, error: &Error) -> Vec<Arc<Batch>> {
        self.is_done = true;
        let batches = self.queue.fail_all(error);
        self.queue.release();
        batches
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if !self.is_done {
            self.give_up(&shut_down());
        }
    }
}

/// Goes to the end of the thread's run queue. Tokio's `yield_now` also waits until the worker polls
/// I/O, and so forever if a handler blocks the worker.
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

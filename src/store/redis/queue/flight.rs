//! A batch in flight: from its calls to the verdicts of its checks.
//!
//! Calls that were redirected, or met a node without the script, are sent again by a task of their own, so
//! that the other checks do not wait for them. Nothing else is sent again: these replies prove that a call
//! did not run.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use smallvec::{SmallVec, smallvec};

use super::batch::{Batch, Group, Wakers};
use super::calls::calls_of;
use super::in_flight_window::SentBatch;
use super::node_queue::NodeQueue;
use crate::Error;
use crate::store::redis::cluster::{Call, Calls, Failure, Replies};
use crate::store::redis::connection::Connection;
use crate::store::redis::no_reply::{shut_down, too_late};
use crate::store::redis::script::{Found, reply};
use crate::store::redis::server_error;

/// A batch that is being sent. It stays in flight until its reply arrives or the connection is closed, even
/// if nobody waits for it any more.
pub(super) struct Flight {
    queue: Arc<NodeQueue>,
    batch: Arc<Batch>,
    /// The batch as it was sent. `None` until it is.
    sent: Option<SentBatch>,
    is_finished: bool,
}

/// The end of a flight.
pub(crate) enum FlightEnd {
    /// Its replies would have been too late, or nobody waits for them.
    GivenUp,
    /// Its runtime has shut down.
    Dropped(Option<SentBatch>),
    Lost(SentBatch),
    /// A good reply has decided a check, or named the server that does.
    Replied {
        sent: SentBatch,
        at: Instant,
        is_good: bool,
    },
}

impl Flight {
    pub(super) fn new(queue: Arc<NodeQueue>, batch: Arc<Batch>) -> Self {
        Self { queue, batch, sent: None, is_finished: false }
    }

    /// Returns the number of checks that were sent, and the tasks of those that are decided.
    pub(super) async fn run(mut self, connection: Arc<Connection>) -> (usize, Wakers) {
        let topology = self.queue.topology.clone();
        let (earliest_deadline, is_answering) = self.queue.earliest_deadline();
        let (mut keys, mut checks) = (0, 0);
        let mut calls = self.batch.freeze(
            |deadline| deadline < earliest_deadline,
            || too_late(self.queue.connections.server(), is_answering),
            |groups, spare| {
                keys = groups.len();
                checks = groups.iter().map(Group::checks).sum();
                calls_of(groups, topology.has_one_key_per_call(&self.queue.connections), spare)
            },
        );
        if calls.is_empty() {
            self.finish(FlightEnd::GivenUp);
            return (0, Wakers::default());
        }
        let sent = self.queue.sent(keys, connection.opened());
        self.sent = Some(sent);
        self.queue.connections.metrics.batch_sent(checks);
        let mut replies = topology.send(&mut calls, &self.queue.connections, &connection).await;
        let at = Instant::now();
        if replies.iter().any(|reply| matches!(reply, Err(Failure::SpansSlots(_)))) {
            // Boxed, because nearly all flights do without it.
            (calls, replies) = Box::pin(self.split(calls, replies, &connection)).await;
            if calls.is_empty() {
                // Nobody waits for the checks any more.
                self.finish(FlightEnd::Replied { sent, at, is_good: true });
                return (checks, Wakers::default());
            }
        }
        let wakers = self.read_all(calls, replies, sent, at);
        (checks, wakers)
    }

    /// Completes the checks whose calls have run, and sends the other calls again.
    fn read_all(mut self, calls: Calls, replies: Replies, sent: SentBatch, at: Instant) -> Wakers {
        let is_single = calls.len() == 1;
        let is_lost = replies.iter().all(|reply| matches!(reply, Err(Failure::Lost(_))));
        let (mut found, mut again) = (SmallVec::<[_; 1]>::new(), Vec::new());
        for (call, reply) in calls.into_iter().zip(replies) {
            match reply {
                Err(Failure::UnknownScript) => again.push(call.with_source()),
                Err(Failure::Redirected) => again.push(call),
                reply => {
                    self.read(reply, &call).for_each(|of_group| found.push(of_group));
                    if is_single {
                        self.batch.keep(call.command);
                    }
                }
            }
        }
        let is_good = !again.is_empty() || found.iter().any(|(_, found)| is_good(found));
        if !is_lost {
            self.queue.connections.metrics.batch_returned(sent.elapsed(at));
        }
        self.finish(match is_lost {
            true => FlightEnd::Lost(sent),
            false => FlightEnd::Replied { sent, at, is_good },
        });
        let wakers = self.complete(found);
        if !again.is_empty() {
            // In a task of its own: these may go to another server, and none waits for another.
            let queue = self.queue.clone();
            queue.spawn(self.send_again(again));
        }
        wakers
    }

    /// Sends the calls again whose keys are in several slots, with one key each. Returns all calls with their
    /// replies.
    async fn split(
        &self,
        calls: Calls,
        replies: Replies,
        connection: &Arc<Connection>,
    ) -> (Calls, Replies) {
        let spans_slots = |(_, reply): &(_, _)| matches!(reply, Err(Failure::SpansSlots(_)));
        let (split, mut all): (Vec<_>, Vec<_>) =
            calls.into_iter().zip(replies).partition(spans_slots);
        let groups: Vec<_> = split.into_iter().flat_map(|(call, _)| call.groups).collect();
        let mut calls = self.batch.freeze_again(&groups, |groups| calls_of(groups, true, None));
        if !calls.is_empty() {
            let topology = &self.queue.topology;
            let replies = topology.send(&mut calls, &self.queue.connections, connection).await;
            all.extend(calls.into_iter().zip(replies));
        }
        all.into_iter().unzip()
    }

    /// Sends calls that have not run yet, unless nobody waits for them any more.
    async fn send_again(self, calls: Vec<Call>) {
        let topology = &self.queue.topology;
        let calls = calls.into_iter().filter(|call| self.batch.any_pending(&call.groups));
        let mut replies: FuturesUnordered<_> = calls
            .map(|call| async {
                let reply = match topology.follow_redirects(call.slot, &call.command).await {
                    Err(Failure::UnknownScript) => {
                        let call = call.with_source();
                        topology.follow_redirects(call.slot, &call.command).await
                    }
                    reply => reply,
                };
                (reply, call)
            })
            .collect();
        while let Some((reply, call)) = replies.next().await {
            self.complete(self.read(reply, &call).collect::<SmallVec<[_; 1]>>()).wake();
        }
    }

    fn complete(&self, found: impl IntoIterator<Item = (usize, Result<Found, Error>)>) -> Wakers {
        let (wakers, abandoned) = self.batch.complete(found);
        // The newest first: nobody queues behind an older one if those behind it have left.
        for abandoned in abandoned.into_iter().rev() {
            self.queue.give_back(abandoned);
        }
        wakers
    }

    /// Returns the states that the checks of each group found.
    fn read(
        &self,
        reply: Result<Value, Failure>,
        call: &Call,
    ) -> impl Iterator<Item = (usize, Result<Found, Error>)> {
        let keys = call.groups.len();
        let results = reply.map_err(Error::from).and_then(|reply| reply::parse(reply, keys));
        let results = results.unwrap_or_else(|error| smallvec![Err(error); keys]);
        let of_server = |error: Error| error.with_server(&self.queue.topology.server(call.slot));
        let results = results.into_iter().map(move |result| result.map_err(of_server));
        call.groups.iter().copied().zip(results)
    }

    fn finish(&mut self, end: FlightEnd) {
        if !std::mem::replace(&mut self.is_finished, true) {
            self.queue.returned(end, &self.batch);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.finish(FlightEnd::Dropped(self.sent));
        // Checks are pending only if the runtime has shut down, maybe while calls were sent again.
        self.batch.fail(shut_down);
        self.queue.forget(&self.batch);
    }
}

/// An error of a single key is no fault of the server.
fn is_good(found: &Result<Found, Error>) -> bool {
    found.as_ref().err().is_none_or(server_error::is_of_key)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::super::bucket::BucketRef;
    use super::super::queue_state::QueueState;
    use super::*;
    use crate::store::Op;
    use crate::store::redis::cluster::Topology;
    use crate::store::redis::connection::Connector;
    use crate::store::redis::script::RedisPolicy;

    /// As when the runtime shuts down before the call is sent again.
    #[tokio::test]
    async fn checks_whose_call_is_never_sent_again_do_not_wait_forever() {
        let topology = Topology::new(Connector::url("redis://127.0.0.1:1").unwrap());
        let (timeout, waker) = (Duration::from_secs(9), Waker::noop());
        let (connections, runtime) = (topology.connections(0), tokio::runtime::Handle::current());
        let queue =
            NodeQueue::new(topology.clone(), connections, Arc::default(), timeout, &runtime);
        let (policy, op) = (RedisPolicy::for_tests(timeout), Op::acquire(1));
        let mut state = QueueState::new(timeout);
        let (batch, index) = state.start_alone(
            BucketRef { policy: &policy, key: &"key".into(), slot: 0 },
            &op,
            Instant::now(),
            waker,
        );
        let mut flight = Flight::new(queue.into(), batch.clone());
        let sent = state.sent(1, Instant::now(), Instant::now());
        flight.finish(FlightEnd::Replied { sent, at: Instant::now(), is_good: true });
        drop(flight);
        let verdict = batch.poll(index, &mut Context::from_waker(waker));
        assert!(matches!(verdict, Poll::Ready(Err(_))), "{verdict:?}");
    }
}

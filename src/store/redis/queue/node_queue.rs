//! The queue of one runtime, server and timeout. A batch is whatever has arrived while earlier ones were in
//! flight, so load makes batches larger, and a hot key costs one read and one write for all of its checks.
//!
//! A check that finds nothing in flight is sent at once, by its own future: a task would add a hop between
//! threads each way. Such a lone call takes no place in the window, and the next check starts a flusher, so
//! nobody depends on that future being polled. If it is dropped, a task takes over, because the reply shows
//! whether the connection works. The reply wakes the task of the check once. To wake it again for the
//! verdict, while it runs, would make the runtime wake another thread to poll it a second time.
//!
//! When more checks arrive, a task (the flusher) takes the open batch, sends it, and ends when nothing is
//! pending. A permanent task would have to be stopped. It ends while it holds the lock of the queue, so no
//! check is left without one, no check waits for a timer to fill its batch, and an idle queue holds nothing.
//! After a batch of several checks, or while others wait, it goes to the end of its thread's run queue before
//! it takes the next batch: tasks whose checks were just completed often check again, and then share that
//! batch.
//!
//! A check depends neither on the future of another check nor on a single flusher: the timer of the queue
//! fails what is late, on another thread, and starts another flusher if one is stuck on a blocked worker. →
//! `tests/it/queue.rs`, `tests/it/timing/transport.rs`

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::batch::{Abandoned, Batch, CheckIndex};
use super::breaker::{Breaker, Fault, Probed};
use super::breaker_log::BreakerLog;
use super::bucket::{BucketRef, OwnedBucket};
use super::flight::{Flight, FlightEnd};
use super::flusher::Flusher;
use super::in_flight_window::SentBatch;
use super::lone_call::LoneCall;
use super::overload::Overload;
use super::probe::Prober;
use super::queue_state::{Next, QueueState};
use crate::store::Op;
use crate::store::redis::cluster::Topology;
use crate::store::redis::connection::{Connection, ConnectionSet, RuntimeConnections};
use crate::store::redis::no_reply::too_late;
use crate::store::redis::runtime_end::EndWatch;
use crate::timer::{self, Timer};
use crate::{Error, ErrorKind, random};

/// The state of a server that its queues share, those of all runtimes and timeouts.
#[derive(Debug, Default)]
pub(super) struct ServerState {
    breaker_log: BreakerLog,
    overload: Overload,
}

/// A check that has joined a queue.
pub(super) struct Enqueued {
    pub(super) batch: Arc<Batch>,
    /// The index of the check in its batch.
    pub(super) index: CheckIndex,
    /// The call of a check that is sent alone.
    pub(super) call: Option<LoneCall>,
}

#[derive(Debug)]
pub(crate) struct NodeQueue {
    pub(super) topology: Topology,
    pub(super) connections: Arc<ConnectionSet>,
    server_state: Arc<ServerState>,
    /// The connections of the runtime.
    pub(super) own: Arc<RuntimeConnections>,
    /// The runtime of its tasks.
    runtime: Handle,
    /// Removes the queue when the runtime ends.
    pub(super) end: OnceLock<EndWatch>,
    state: Mutex<Guarded>,
}

#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) queue: QueueState,
    breaker: Breaker,
}

impl NodeQueue {
    /// The queue of the checks with this timeout in a runtime.
    pub(super) fn new(
        topology: Topology,
        connections: Arc<ConnectionSet>,
        server_state: Arc<ServerState>,
        timeout: Duration,
        runtime: &Handle,
    ) -> Self {
        let state = Guarded { queue: QueueState::new(timeout), breaker: Breaker::new(timeout) };
        let (own, runtime) = (connections.of(runtime), runtime.clone());
        let (end, state) = (OnceLock::new(), Mutex::new(state));
        Self { topology, connections, server_state, own, runtime, end, state }
    }

    /// Returns true if a batch is in flight, or anything but this many queues uses the connections: not if the
    /// node has left the cluster.
    pub(super) fn is_used(&self, queues: usize) -> bool {
        Arc::strong_count(&self.connections) > queues || !self.state().queue.is_idle()
    }

    /// Returns true if the breaker is closed. If it is open, and nobody probes or the prober is overdue, a probe
    /// starts.
    pub(super) fn is_available(self: &Arc<Self>, bucket: BucketRef<'_>) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        let is_available = state.breaker.open_error().is_none();
        if state.breaker.resume(now) || state.breaker.starts_trial(now) {
            self.unlock_and_probe(state, bucket, now);
        }
        is_available
    }

    /// Returns an error if a check must not be sent.
    ///
    /// # Errors
    ///
    /// Those of [`enqueue`](Self::enqueue) while the breaker is open.
    pub(super) fn admit(self: &Arc<Self>, bucket: BucketRef<'_>) -> Result<(), Error> {
        let now = Instant::now();
        let mut state = self.state();
        if state.breaker.refusal(now).is_some()
            && let Some(error) = state.breaker.refuse()
        {
            self.unlock_and_resume(state, bucket, now);
            return Err(error);
        }
        Ok(())
    }

    /// Adds a check that is sent with the next one, or by [`start`](Self::start).
    pub(super) fn add(
        self: &Arc<Self>,
        bucket: BucketRef<'_>,
        op: &Op,
        waker: &Waker,
    ) -> Result<Enqueued, Error> {
        let now = Instant::now();
        let mut state = self.state();
        if let Some(error) = state.breaker.refusal(now) {
            return Err(error.clone());
        }
        let joined = state.queue.join(bucket, op, now, waker);
        let (batch, index) = joined.ok_or_else(|| self.unsent(&state.queue, now))?;
        let at = state.queue.arm(now);
        self.unlock_and_arm(state, at);
        Ok(Enqueued { batch, index, call: None })
    }

    /// Sends the checks that wait, if a batch may start.
    pub(crate) fn start(self: &Arc<Self>) {
        self.unlock_and_start(self.state(), Instant::now());
    }

    pub(super) fn enqueue(
        self: &Arc<Self>,
        bucket: BucketRef<'_>,
        op: &Op,
        waker: &Waker,
    ) -> Result<Enqueued, Error> {
        let now = Instant::now();
        let mut state = self.state();
        // A peek is no trial: a server whose memory is full still replies to it.
        let is_trial = !matches!(op, Op::Peek) && state.breaker.starts_trial(now);
        if !is_trial && let Some(error) = state.breaker.refuse() {
            self.unlock_and_resume(state, bucket, now);
            return Err(error);
        }
        if state.queue.is_alone()
            && let Some(connection) = self.own.established()
        {
            let (batch, index) = state.queue.start_alone(bucket, op, now, waker);
            let flight = Flight::new(self.clone(), batch.clone());
            let at = state.queue.arm(now);
            self.unlock_and_arm(state, at);
            self.connections.metrics.batch_starts(0);
            let in_flight = AloneInFlight(self.clone());
            let call = async move {
                let _in_flight = in_flight;
                // The check that polls this call reads its verdict next. If its task were woken, it
                // would be polled again, maybe on another worker.
                let _ = flight.run(connection).await;
            };
            let call = LoneCall::new(self.clone(), call);
            return Ok(Enqueued { batch, index, call: Some(call) });
        }
        let Some((batch, index)) = state.queue.join(bucket, op, now, waker) else {
            return Err(self.unsent(&state.queue, now));
        };
        let starts = state.queue.may_start(now);
        if starts {
            state.queue.reserve(now);
        }
        let at = state.queue.arm(now);
        self.unlock_and_arm(state, at);
        if starts {
            self.spawn_flusher();
        }
        Ok(Enqueued { batch, index, call: None })
    }

    /// Gives the permits of a check back that would have waited.
    pub(super) fn give_back(self: &Arc<Self>, abandoned: Abandoned) {
        let Abandoned { bucket, place } = abandoned;
        // Others may proceed earlier than a cached denial says.
        bucket.policy.states.end_denials(&bucket.key);
        self.send(bucket.as_ref(), &Op::Leave(Box::new(place)));
    }

    /// Returns true if a full batch waits.
    pub(super) fn has_full(&self) -> bool {
        self.state().queue.has_full()
    }

    /// Sends an operation whose verdict nobody waits for.
    pub(super) fn send(self: &Arc<Self>, bucket: BucketRef<'_>, op: &Op) {
        if let Ok(Enqueued { call: Some(call), .. }) = self.enqueue(bucket, op, Waker::noop()) {
            call.spawn();
        }
    }

    /// Returns a place in the window.
    pub(super) fn release(self: &Arc<Self>) {
        self.start_next(QueueState::release);
    }

    /// A batch has ended, so that checks that wait may start.
    fn start_next(self: &Arc<Self>, end: impl FnOnce(&mut QueueState)) {
        let now = Instant::now();
        let mut state = self.state();
        end(&mut state.queue);
        self.unlock_and_start(state, now);
    }

    /// Starts the next batch if it may start.
    fn unlock_and_start(self: &Arc<Self>, mut state: MutexGuard<'_, Guarded>, now: Instant) {
        match state.queue.start_next(now) {
            Next::Starts => {
                drop(state);
                self.spawn_flusher();
            }
            Next::Waits(at) => self.unlock_and_arm(state, at),
        }
    }

    fn spawn_flusher(self: &Arc<Self>) {
        self.runtime.spawn(Flusher::new(self.clone()).run());
    }

    /// Notes that so many keys of a batch are sent on a connection that was made at `connected`.
    pub(crate) fn sent(self: &Arc<Self>, keys: usize, connected: Instant) -> SentBatch {
        let now = Instant::now();
        let mut state = self.state();
        let sent = state.queue.sent(keys, connected, now);
        if state.queue.has_waiting() {
            // It may be smaller than expected, so that the next one has room.
            self.unlock_and_start(state, now);
        }
        sent
    }

    /// Notes that a batch is not in flight any more.
    pub(crate) fn returned(self: &Arc<Self>, end: FlightEnd, batch: &Batch) {
        let mut state = self.state();
        let fault = match end {
            FlightEnd::GivenUp => return state.queue.given_up(),
            FlightEnd::Dropped(sent) => {
                return sent.into_iter().for_each(|sent| state.queue.abandoned(sent));
            }
            FlightEnd::Lost(sent) => {
                state.queue.abandoned(sent);
                Fault::Failed
            }
            FlightEnd::Replied { sent, at, is_good } => {
                let is_late = state.queue.replied(sent, at);
                if let Some(round_trip) = state.queue.busy_round_trip() {
                    self.server_state.overload.replied(round_trip, at);
                }
                match is_late {
                    true => Fault::Late,
                    false if is_good => {
                        let probed = state.breaker.succeeded(sent.at());
                        drop(state);
                        if probed != Probed::Works {
                            self.log(&probed, None);
                        }
                        return;
                    }
                    false => Fault::Failed,
                }
            }
        };
        self.unlock_and_report(state, fault, || batch.any_bucket());
    }

    /// Calls of these batches have failed.
    pub(super) fn report(self: &Arc<Self>, fault: Fault, batches: &[Arc<Batch>]) {
        let bucket = || batches.iter().find_map(|batch| batch.any_bucket());
        self.unlock_and_report(self.state(), fault, bucket);
    }

    /// A call has failed, so that the server may have to be probed.
    fn unlock_and_report(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, Guarded>,
        fault: Fault,
        bucket: impl FnOnce() -> Option<OwnedBucket>,
    ) {
        let now = Instant::now();
        if state.breaker.failed(fault, now) {
            match bucket() {
                Some(bucket) => {
                    self.unlock_and_probe(state, bucket.as_ref(), now);
                }
                None => state.breaker.abandoned(),
            }
        }
    }

    /// A check was refused. If nobody probes, a probe starts.
    fn unlock_and_resume(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, Guarded>,
        bucket: BucketRef<'_>,
        now: Instant,
    ) {
        if state.breaker.resume(now) {
            self.unlock_and_probe(state, bucket, now);
        }
    }

    fn unlock_and_probe(
        self: &Arc<Self>,
        state: MutexGuard<'_, Guarded>,
        bucket: BucketRef<'_>,
        now: Instant,
    ) {
        let patience = state.queue.probe_timeout(now);
        drop(state);
        self.runtime.spawn(Prober::new(self, bucket).run(patience));
    }

    /// A probe has ended. Returns when the next starts, unless the server works.
    pub(crate) fn probed(&self, result: Result<(), Error>) -> Option<Instant> {
        let (server, now) = (self.connections.server(), Instant::now());
        let (probed, unsent, error) = {
            let mut state = self.state();
            let result = result.map_err(|error| match error.kind() {
                ErrorKind::Timeout => too_late(server, self.is_overloaded(&state.queue, now)),
                _ => error.with_server(server),
            });
            let probe_error = result.as_ref().err().cloned();
            let probed = state.breaker.probed(result, now, random::unit());
            let opens = matches!(probed, Probed::Opens { .. });
            let error = state.breaker.open_error().filter(|_| opens).cloned();
            (probed, error.map(|error| (state.queue.take_all(), error)), probe_error)
        };
        if let Some((batches, error)) = unsent {
            batches.iter().for_each(|batch| batch.fail(|| error.clone()));
        }
        self.log(&probed, error.as_ref());
        match probed {
            Probed::Works | Probed::Closes { .. } => None,
            Probed::Opens { next, .. } | Probed::StaysOpen { next } => Some(next),
        }
    }

    fn log(&self, probed: &Probed, error: Option<&Error>) {
        let (breaker_log, metrics) = (&self.server_state.breaker_log, &self.connections.metrics);
        breaker_log.probed(self.connections.server(), probed, error, Instant::now());
        match probed {
            Probed::Opens { .. } => metrics.breaker_opened(),
            Probed::Closes { .. } => metrics.breaker_closed(),
            Probed::Works | Probed::StaysOpen { .. } => {}
        }
    }

    /// No check needs the server any more, as far as a prober knows.
    pub(super) fn end_breaker(&self) {
        if self.state().breaker.end() {
            self.server_state.breaker_log.ended(self.connections.server(), Instant::now());
            self.connections.metrics.breaker_closed();
        }
    }

    /// Returns true if the checks of a slot come here.
    pub(super) fn serves(&self, slot: u16) -> bool {
        self.topology.destination(slot) == self.topology.destination_of(&self.connections)
    }

    /// Notes that a probe has ended without a result.
    pub(super) fn probe_abandoned(&self) {
        self.state().breaker.abandoned();
    }

    pub(super) fn timeout(&self) -> Duration {
        self.state().queue.timeout()
    }

    /// Stops watching the deadlines of a batch.
    pub(super) fn forget(&self, batch: &Arc<Batch>) {
        let dropped = self.state().queue.forget(batch);
        // Outside the lock, because this may run code of another crate.
        drop(dropped);
    }

    /// A check with an earlier deadline would be answered too late if it were sent now. Also returns whether such
    /// checks are too many for a server that works.
    pub(super) fn earliest_deadline(&self) -> (Instant, bool) {
        let (now, state) = (Instant::now(), self.state());
        let is_overloaded = state.queue.is_answering(now) || self.is_overloaded(&state.queue, now);
        (state.queue.earliest_deadline(now), is_overloaded)
    }

    /// Returns true if calls are late because this process makes too many.
    fn is_overloaded(&self, queue: &QueueState, now: Instant) -> bool {
        self.server_state.overload.explains_delay(queue.timeout(), now)
    }

    /// Runs a task that outlives the check that starts it.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// A connection of the runtime for one call: see [`RuntimeConnections::acquire`].
    pub(super) async fn acquire(&self) -> Result<Arc<Connection>, Error> {
        self.own.acquire().await
    }

    fn unsent(&self, queue: &QueueState, now: Instant) -> Error {
        let is_overloaded = queue.is_answering(now) || self.is_overloaded(queue, now);
        too_late(self.connections.server(), is_overloaded)
    }

    /// Builds the calls of the checks that wait, as a flusher does before it sends them.
    #[cfg(test)]
    pub(crate) fn freeze_waiting(&self) {
        let batches = self.state().queue.waiting();
        batches.iter().for_each(|batch| {
            batch.freeze(|_| false, crate::store::redis::no_reply::shut_down, |_, _| ())
        });
    }

    pub(super) fn fail_all(&self, error: &Error) -> Vec<Arc<Batch>> {
        let error = error.clone().with_server(self.connections.server());
        let batches = self.state().queue.take_all();
        batches.iter().for_each(|batch| batch.fail(|| error.clone()));
        batches
    }

    pub(super) fn unlock_and_arm(
        self: &Arc<Self>,
        state: MutexGuard<'_, Guarded>,
        at: Option<Instant>,
    ) {
        drop(state);
        if let Some(at) = at {
            let timer: Arc<dyn Timer> = self.clone();
            timer::arm(at, Arc::downgrade(&timer));
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, Guarded> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NodeQueue {
    fn drop(&mut self) {
        self.end_breaker();
    }
}

impl Timer for NodeQueue {
    fn fire(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let (fired, is_overloaded) = {
            let mut state = self.state();
            (state.queue.fire(now)?, self.is_overloaded(&state.queue, now))
        };
        if fired.starts {
            self.spawn_flusher();
        }
        if fired.is_silent {
            self.report(Fault::Late, &fired.batches);
        }
        let error = |slot, was_sent| match (self.topology.server(slot), was_sent) {
            (server, true) => too_late(&server, is_overloaded),
            (server, false) => too_late(&server, is_overloaded || fired.is_answering),
        };
        let next = fired.batches.iter().filter_map(|batch| batch.expire(now, error)).min();
        self.state().queue.rearm(now, next)
    }
}

/// The call of a lone check, until it ends or is dropped.
struct AloneInFlight(Arc<NodeQueue>);

impl Drop for AloneInFlight {
    fn drop(&mut self) {
        self.0.start_next(QueueState::end_alone);
    }
}

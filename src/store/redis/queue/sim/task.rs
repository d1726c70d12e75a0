//! The tasks that carry batches: what `Flusher`, `Flight` and `Topology::follow_redirects` do, one
//! step at a time, with whatever happens between two steps.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::plan::{MS, Micros};
use super::server::{Call, Group, Reply, UNIT};
use super::world::{Event, QueueId, World, disconnected, too_late, unreachable};
pub(super) use crate::store::redis::connection::Step;
use crate::store::redis::queue::batch::Batch;
use crate::store::redis::queue::breaker::Fault;
use crate::store::redis::queue::in_flight_window::SentBatch;
use crate::store::redis::queue::queue_state::{Next, QueueState};
use crate::store::redis::script::Found;
use crate::{Error, ErrorKind};

const MAX_REDIRECTIONS: u32 = 8;

#[derive(Debug)]
pub(super) struct Task {
    pub(super) queue: QueueId,
    pub(super) work: Work,
    pub(super) reply: Option<Vec<Reply>>,
    /// A check sends it itself.
    pub(super) is_lone: bool,
}

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) queue: QueueId,
    pub(super) batch: Arc<Batch>,
    pub(super) sent: Cell<Option<SentBatch>>,
}

/// What a task does next.
#[derive(Debug)]
pub(super) enum Work {
    Acquire { has_tried: bool, late_at: Option<Micros> },
    Freeze { flight: Rc<Flight>, connection: Rc<Connection> },
    Send { flight: Rc<Flight>, connection: Rc<Connection>, calls: Vec<Call> },
    Wait { flight: Rc<Flight>, connection: Rc<Connection>, calls: Vec<Call> },
    Continue,
    AcquireAgain { redirected: Redirected, has_tried: bool },
    WaitAgain { redirected: Redirected, connection: Rc<Connection> },
    ProbeAcquire { has_tried: bool },
    ProbeWait { connection: Rc<Connection> },
}

/// A call that is sent again after a redirection.
#[derive(Debug)]
pub(super) struct Redirected {
    flight: Rc<Flight>,
    call: Call,
    node: usize,
    asking: bool,
    count: u32,
}

impl Work {
    pub(super) fn is_probe(&self) -> bool {
        matches!(self, Self::ProbeAcquire { .. } | Self::ProbeWait { .. })
    }

    pub(super) fn flight(&self) -> Option<&Rc<Flight>> {
        match self {
            Self::Acquire { .. }
            | Self::Continue
            | Self::ProbeAcquire { .. }
            | Self::ProbeWait { .. } => None,
            Self::Freeze { flight, .. } | Self::Send { flight, .. } | Self::Wait { flight, .. } => {
                Some(flight)
            }
            Self::AcquireAgain { redirected, .. } | Self::WaitAgain { redirected, .. } => {
                Some(&redirected.flight)
            }
        }
    }
}

impl World {
    /// A worker polls the task.
    pub(super) fn step(&mut self, number: u64) {
        let Some(Task { queue: id, work, reply, is_lone }) = self.tasks.remove(&number) else {
            return;
        };
        let again = |work| Task { queue: id, work, reply: None, is_lone };
        let now = self.instant();
        match work {
            Work::ProbeAcquire { has_tried } => self.acquire_for_probe(number, id, has_tried),
            Work::ProbeWait { connection } => self.wait_for_probe(number, id, connection, reply),
            Work::Acquire { has_tried, late_at } => match self.acquire(id.0, id.2, has_tried) {
                Step::Use(connection) => {
                    let Some(batch) = self.queue(id).take() else { return };
                    let flight = Rc::new(Flight { queue: id, batch, sent: Cell::default() });
                    self.tasks.insert(number, again(Work::Freeze { flight, connection }));
                    self.resume(number);
                }
                Step::Fail(error) => {
                    self.queue(id).take_all().iter().for_each(|batch| batch.fail(|| error.clone()));
                    self.start_next(id, QueueState::release);
                    self.report(id, Fault::Failed);
                }
                step => {
                    let has_tried = has_tried || matches!(step, Step::Connect(_));
                    let first = late_at.is_none().then(|| self.now + self.plan.timeouts[id.1]);
                    if let Some(at) = first {
                        self.push(at, Event::SlowAcquire(number));
                    }
                    let late_at = late_at.or(first);
                    self.tasks.insert(number, again(Work::Acquire { has_tried, late_at }));
                    self.await_connection(id.0, id.2, number, step);
                }
            },
            Work::Freeze { flight, connection } => {
                let calls = self.freeze(&flight);
                if calls.is_empty() {
                    self.queue(id).given_up();
                    self.forget(flight);
                    self.carried(number, again(Work::Continue), 0);
                } else {
                    let keys = calls.iter().map(|call| call.groups.len()).sum();
                    let connected = self.at(connection.since);
                    flight.sent.set(Some(self.queue(id).sent(keys, connected, now)));
                    if self.queue(id).has_waiting() {
                        self.start_next(id, |_| ());
                    }
                    self.tasks.insert(number, again(Work::Send { flight, connection, calls }));
                    self.resume(number);
                }
            }
            Work::Send { flight, connection, calls } => {
                if connection.closed.borrow().is_some() {
                    let replies = calls.iter().map(|_| Reply::Broken).collect();
                    let task = again(Work::Continue);
                    return self.finish(number, task, flight, calls, replies);
                }
                let sent = calls.clone();
                let connection_again = connection.clone();
                self.tasks.insert(number, again(Work::Wait { flight, connection, calls }));
                self.send(&connection_again, number, sent, false);
            }
            Work::Wait { flight, connection, calls } => {
                match self.received(&connection, number, reply) {
                    Some(mut replies) => {
                        replies.resize(calls.len(), Reply::Broken);
                        self.finish(number, again(Work::Continue), flight, calls, replies);
                    }
                    None => {
                        self.tasks.insert(number, again(Work::Wait { flight, connection, calls }));
                    }
                }
            }
            Work::Continue => {
                let queue = self.queue(id);
                queue.release();
                match queue.start_next(now) {
                    Next::Starts => {
                        let work = Work::Acquire { has_tried: false, late_at: None };
                        self.tasks.insert(number, again(work));
                        self.resume(number);
                    }
                    Next::Waits(at) => self.arm(id, at),
                }
            }
            Work::AcquireAgain { redirected, has_tried } => {
                match self.acquire(id.0, redirected.node, has_tried) {
                    Step::Use(connection) if connection.closed.borrow().is_none() => {
                        let (calls, asking) = (vec![redirected.call.clone()], redirected.asking);
                        let work = Work::WaitAgain { redirected, connection: connection.clone() };
                        self.tasks.insert(number, again(work));
                        self.send(&connection, number, calls, asking);
                    }
                    Step::Use(_) | Step::Fail(_) => {
                        self.finish_again(redirected, Reply::Broken);
                    }
                    step => {
                        let node = redirected.node;
                        let has_tried = has_tried || matches!(step, Step::Connect(_));
                        let work = Work::AcquireAgain { redirected, has_tried };
                        self.tasks.insert(number, again(work));
                        self.await_connection(id.0, node, number, step);
                    }
                }
            }
            Work::WaitAgain { mut redirected, connection } => {
                let Some(mut replies) = self.received(&connection, number, reply) else {
                    self.tasks.insert(number, again(Work::WaitAgain { redirected, connection }));
                    return;
                };
                let reply = replies.pop().unwrap_or(Reply::Broken);
                let (Reply::Moved(node) | Reply::Ask(node)) = reply else {
                    return self.finish_again(redirected, reply);
                };
                redirected.asking = matches!(reply, Reply::Ask(_));
                if !redirected.asking {
                    self.moved(id.0, redirected.call.slot, node);
                }
                redirected.node = node;
                redirected.count += 1;
                if redirected.count == MAX_REDIRECTIONS {
                    return self.finish_again(redirected, Reply::Broken);
                }
                let work = Work::AcquireAgain { redirected, has_tried: false };
                self.tasks.insert(number, again(work));
                self.resume(number);
            }
        }
    }

    pub(super) fn slow_acquire(&mut self, number: u64) {
        if let Some(Task { queue, work: Work::Acquire { late_at: Some(at), .. }, .. }) =
            self.tasks.get(&number)
            && *at <= self.now
        {
            let queue = *queue;
            self.report(queue, Fault::Late);
        }
    }

    pub(super) fn insert(&mut self, number: u64, queue: QueueId, work: Work) {
        self.tasks.insert(number, Task { queue, work, reply: None, is_lone: false });
    }

    pub(super) fn acquire(
        &mut self,
        process: usize,
        node: usize,
        has_tried: bool,
    ) -> Step<Rc<Connection>> {
        if let Some(connection) = self.processes[process].links[node].established() {
            return Step::Use(connection.clone());
        }
        self.note_stability(process, node);
        let (now, jitter) = (self.instant(), self.random.unit());
        self.processes[process].links[node].step(now, has_tried, jitter)
    }

    pub(super) fn await_connection(
        &mut self,
        process: usize,
        node: usize,
        task: u64,
        step: Step<Rc<Connection>>,
    ) {
        self.processes[process].waiters[node].push(task);
        if let Step::Connect(attempt) = step {
            self.begin_attempt(process, node, attempt);
        }
    }

    fn freeze(&mut self, flight: &Flight) -> Vec<Call> {
        // A little later than the checks were added.
        let now = self.instant() + Duration::from_micros(1);
        let is_overloaded = self.is_overloaded(flight.queue);
        let queue = self.queue(flight.queue);
        let earliest = queue.earliest_deadline(now);
        let is_overloaded = is_overloaded || queue.is_answering(now);
        let policies = &self.policies;
        let calls = flight.batch.freeze(
            |deadline| deadline < earliest,
            || too_late(is_overloaded),
            |groups, _| {
                let groups: Vec<_> = groups
                    .iter()
                    .map(|group| {
                        let is_its = |policy: &_| Arc::ptr_eq(policy, group.policy);
                        let limiter = policies.iter().position(is_its).unwrap();
                        let number = std::str::from_utf8(group.key.as_bytes()).unwrap();
                        let bucket = (limiter, number.parse().unwrap());
                        let costs = group.costs.iter().collect();
                        (group.slot, Group { index: group.index, bucket, costs })
                    })
                    .collect();
                groups
            },
        );
        for cost in calls.iter().flat_map(|(_, group)| &group.costs) {
            self.judge_encoded(*cost);
        }
        if self.plan.nodes > 1 {
            return calls
                .into_iter()
                .map(|(slot, group)| Call { slot, groups: vec![group] })
                .collect();
        }
        let groups: Vec<_> = calls.into_iter().map(|(_, group)| group).collect();
        if groups.is_empty() { Vec::new() } else { vec![Call { slot: 0, groups }] }
    }

    pub(super) fn send(
        &mut self,
        connection: &Rc<Connection>,
        task: u64,
        calls: Vec<Call>,
        asking: bool,
    ) {
        connection.health.borrow_mut().sent(self.instant());
        connection.waiting.borrow_mut().push(task);
        if !connection.is_nudging.replace(true) {
            self.push(self.now + 5 * MS, Event::Wake(connection.number));
        }
        if connection.is_disconnected.get() {
            return self.reply(task, vec![Reply::Broken]);
        }
        if !connection.is_cut.get() {
            connection.to_server.borrow_mut().push_back((task, calls, asking));
            let at = self.one_way();
            self.push(at, Event::ToServer(connection.number));
        }
    }

    /// The replies, if there are any, or the connection is closed.
    pub(super) fn received(
        &mut self,
        connection: &Rc<Connection>,
        task: u64,
        replies: Option<Vec<Reply>>,
    ) -> Option<Vec<Reply>> {
        let now = self.instant();
        let is_closed = connection.closed.borrow().is_some();
        if replies.is_none() && !is_closed {
            return None;
        }
        connection.waiting.borrow_mut().retain(|&waiting| waiting != task);
        let Some(replies) = replies else {
            connection.health.borrow_mut().abandoned();
            return Some(Vec::new());
        };
        let is_fault = |reply: &Reply| matches!(reply, Reply::ReadOnly | Reply::Broken);
        let is_good = !replies.iter().any(is_fault);
        connection.health.borrow_mut().received(now, is_good);
        if !is_good {
            self.close(connection, unreachable());
        }
        Some(replies)
    }

    /// The replies to a batch have arrived, or never will.
    fn finish(
        &mut self,
        number: u64,
        task: Task,
        flight: Rc<Flight>,
        calls: Vec<Call>,
        replies: Vec<Reply>,
    ) {
        let (id, now) = (task.queue, self.instant());
        let checks =
            calls.iter().flat_map(|call| &call.groups).map(|group| group.costs.len()).sum();
        let received = replies.iter().any(|reply| !matches!(reply, Reply::Broken));
        let sent = flight.sent.get().expect("only sent batches have replies");
        let is_late = received && self.queue(id).replied(sent, now);
        if !received {
            self.queue(id).abandoned(sent);
        } else if let Some(round_trip) = self.queue(id).busy_round_trip() {
            self.processes[id.0].overloads[id.2].replied(round_trip, now);
        }
        let is_good = |reply: &Reply| !matches!(reply, Reply::Broken | Reply::ReadOnly);
        if is_late {
            self.report(id, Fault::Late);
        } else if replies.iter().any(is_good) {
            self.breaker(id).succeeded(sent.at());
        } else {
            self.report(id, Fault::Failed);
        }
        let mut found = Vec::new();
        let mut again = Vec::new();
        for (call, reply) in calls.into_iter().zip(replies) {
            match reply {
                Reply::Moved(node) => {
                    self.moved(id.0, call.slot, node);
                    again.push(call);
                }
                Reply::Ask(_) => again.push(call),
                reply => found.extend(read(&call, reply)),
            }
        }
        flight.batch.complete(found).0.wake();
        for call in again {
            for &cost in call.groups.iter().flat_map(|group| &group.costs) {
                self.checks[(cost - UNIT) as usize].is_redirected = true;
            }
            let groups: Vec<_> = call.groups.iter().map(|group| group.index).collect();
            if flight.batch.any_pending(&groups) {
                self.stats.redirected += 1;
                let node = self.processes[id.0].routes[usize::from(call.slot)];
                let redirected =
                    Redirected { flight: flight.clone(), call, node, asking: false, count: 0 };
                let work = Work::AcquireAgain { redirected, has_tried: false };
                let again = self.spawn(id, work, false);
                self.resume(again);
            }
        }
        self.forget(flight);
        self.carried(number, task, checks);
    }

    fn finish_again(&mut self, redirected: Redirected, reply: Reply) {
        let Redirected { flight, call, .. } = redirected;
        flight.batch.complete(read(&call, reply)).0.wake();
        self.forget(flight);
    }

    /// The task has carried its batch.
    fn carried(&mut self, number: u64, task: Task, checks: usize) {
        let id = task.queue;
        if task.is_lone {
            self.start_next(id, QueueState::end_alone);
            return;
        }
        self.tasks.insert(number, task);
        if self.queue(id).pauses_after(checks) {
            self.resume(number);
        } else {
            self.step(number);
        }
    }

    fn forget(&mut self, flight: Rc<Flight>) {
        if let Some(flight) = Rc::into_inner(flight) {
            let dropped = self.queue(flight.queue).forget(&flight.batch);
            drop(dropped);
        }
    }

    fn start_next(&mut self, id: QueueId, end: impl FnOnce(&mut QueueState)) {
        let now = self.instant();
        let queue = self.queue(id);
        end(queue);
        match queue.start_next(now) {
            Next::Starts => self.spawn_flusher(id),
            Next::Waits(at) => self.arm(id, at),
        }
    }

    /// A redirection names another owner of a slot. Checks may have to wait for a connection to it.
    fn moved(&mut self, process: usize, slot: u16, node: usize) {
        let route = &mut self.processes[process].routes[usize::from(slot)];
        if std::mem::replace(route, node) != node {
            let until = self.now + 3 * self.plan.round_trip;
            self.disturb(Some(process), until);
        }
    }
}

fn read(call: &Call, reply: Reply) -> Vec<(usize, Result<Found, Error>)> {
    let error = match reply {
        Reply::Found(found) => {
            return found.into_iter().map(|(i, found)| (i, Ok(found))).collect();
        }
        Reply::ReadOnly => Error::new(ErrorKind::Server, "READONLY"),
        _ => disconnected(),
    };
    call.groups.iter().map(|group| (group.index, Err(error.clone()))).collect()
}

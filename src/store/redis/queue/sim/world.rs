//! The simulated world: its time, its events, and what they do.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::check::{Check, Progress, REPLACED_AFTER};
use super::connection::Connection;
use super::plan::{Fault, Kind, MS, Micros, Plan, SECOND, SLOTS};
use super::process::Process;
use super::server::{Ran, Reply, Request, Servers, UNIT};
use super::task::{Flight, Task, Work};
use crate::random::seeded::Random;
use crate::store::Op;
use crate::store::redis::connection::{Established, WAKE_INTERVAL};
use crate::store::redis::queue::breaker::Fault as BreakerFault;
use crate::store::redis::queue::bucket::BucketRef;
use crate::store::redis::script::RedisPolicy;
use crate::{Error, ErrorKind, Key};

/// How many events may happen at the same time.
const MOST_AT_ONCE: u64 = 10_000;

/// These share queues.
const LIMITERS_PER_TIMEOUT: usize = 2;

/// A queue: its process, timeout and node.
pub(super) type QueueId = (usize, usize, usize);

pub(super) struct World {
    pub(super) now: Micros,
    base: Instant,
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) servers: Servers,
    /// By limiter.
    pub(super) policies: Vec<Arc<RedisPolicy>>,
    pub(super) processes: Vec<Process>,
    pub(super) connections: Vec<Rc<Connection>>,
    pub(super) tasks: HashMap<u64, Task, RandomState>,
    next_task: u64,
    /// By time, and then by a random number, so that the order of events at the same time is
    /// random.
    events: BTreeMap<(Micros, u64), Event>,
    pub(super) checks: Vec<Check>,
    woken: Arc<Mutex<Vec<usize>>>,
    /// Until when the network between a process and a node is stalled.
    stalled_until: Vec<Vec<Micros>>,
    pub(super) violation: Option<String>,
    pub(super) stats: Stats,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stats {
    pub(super) events: u64,
    pub(super) checks: u64,
    pub(super) decided: u64,
    pub(super) failed: u64,
    /// Those that started when nothing was wrong, so that they had to be decided.
    pub(super) owed: u64,
    pub(super) attempts: u64,
    pub(super) redirected: u64,
    /// How often a breaker has opened.
    pub(super) opened: u64,
}

#[derive(Debug)]
pub(super) enum Event {
    Arrive(usize),
    Cancel(usize),
    Task(u64),
    Fire(QueueId),
    Rearm(QueueId, Option<Instant>),
    ToServer(usize),
    Run(usize),
    ToClient(usize),
    Connected {
        process: usize,
        node: usize,
        attempt: u64,
        is_good: bool,
    },
    Disconnected(usize),
    Wake(usize),
    Keep(usize),
    /// A task has been waiting for a connection for a timeout.
    SlowAcquire(u64),
    Probe(QueueId),
    ProbeLate {
        queue: QueueId,
        step: u64,
        is_last: bool,
    },
    Fault(Fault),
    Migrated(u16),
}

struct CheckWaker {
    check: usize,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(seed, &mut random);
        let servers = Servers::new(&plan);
        let policy = |limiter: usize| {
            let timeout = Duration::from_micros(plan.timeouts[limiter / LIMITERS_PER_TIMEOUT]);
            RedisPolicy::of_limits(&limiter.to_string(), servers.limits.clone(), timeout)
        };
        let policies = (0..LIMITERS_PER_TIMEOUT * plan.timeouts.len()).map(policy).collect();
        let mut world = Self {
            now: 0,
            base: Instant::now(),
            servers,
            policies,
            processes: (0..plan.processes).map(|_| Process::new(&plan)).collect(),
            connections: Vec::new(),
            tasks: HashMap::default(),
            next_task: 0,
            events: BTreeMap::new(),
            checks: Vec::new(),
            woken: Arc::default(),
            stalled_until: vec![vec![0; plan.nodes]; plan.processes],
            violation: None,
            stats: Stats::default(),
            plan,
            random,
        };
        for process in 0..world.plan.processes {
            world.push(0, Event::Arrive(process));
        }
        for fault in world.plan.faults.clone() {
            world.push(fault.at, Event::Fault(fault));
        }
        world
    }

    /// Runs until nothing is left to happen, or an invariant is violated.
    pub(super) fn run(mut self) -> Result<Stats, String> {
        let mut at_once = 0;
        while let Some(((at, _), event)) = self.events.pop_first() {
            at_once = if at == self.now { at_once + 1 } else { 0 };
            if at_once == MOST_AT_ONCE {
                self.violated(format!("something happens forever: {event:?}"));
            }
            self.now = at;
            self.stats.events += 1;
            self.handle(event);
            self.poll_woken();
            if let Some(violation) = self.violation {
                let now = self.now as f64 / MS as f64;
                return Err(format!("{violation}, at {now} ms\n{:#?}", self.plan));
            }
            if self.now > self.plan.end + 60 * SECOND {
                return Err(format!("it does not come to an end\n{:#?}", self.plan));
            }
        }
        self.judge_end();
        match self.violation {
            Some(violation) => Err(format!("{violation}, at the end\n{:#?}", self.plan)),
            None => Ok(self.stats),
        }
    }

    pub(super) fn violated(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    pub(super) fn push(&mut self, at: Micros, event: Event) {
        let at = at.max(self.now);
        self.events.insert((at, self.random.next()), event);
    }

    pub(super) fn instant(&self) -> Instant {
        self.at(self.now)
    }

    pub(super) fn at(&self, at: Micros) -> Instant {
        self.base + Duration::from_micros(at)
    }

    /// Rounded up, like a timer.
    pub(super) fn micros(&self, at: Instant) -> Micros {
        at.saturating_duration_since(self.base).as_nanos().div_ceil(1_000) as Micros
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(process) => self.arrive(process),
            Event::Cancel(check) => self.cancel(check),
            Event::Task(task) => self.step(task),
            Event::Fire(queue) => self.fire(queue),
            Event::Rearm(id, next) => {
                let now = self.instant();
                if let Some(at) = self.queue(id).rearm(now, next) {
                    let at = self.micros(at);
                    self.push(at, Event::Fire(id));
                }
            }
            Event::ToServer(connection) => self.arrive_at_server(connection),
            Event::Run(node) => self.run_request(node),
            Event::ToClient(connection) => self.arrive_at_client(connection),
            Event::Connected { process, node, attempt, is_good } => {
                self.connected(process, node, attempt, is_good);
            }
            Event::Disconnected(connection) => self.disconnected(connection),
            Event::Wake(connection) => self.wake_keeper(connection),
            Event::Keep(connection) => self.keep(connection),
            Event::SlowAcquire(task) => self.slow_acquire(task),
            Event::Probe(queue) => self.probe_again(queue),
            Event::ProbeLate { queue, step, is_last } => self.probe_late(queue, step, is_last),
            Event::Fault(fault) => self.start_fault(fault),
            Event::Migrated(slot) => {
                if let Some((next, ..)) = self.servers.migrations.remove(&slot) {
                    self.servers.owners[usize::from(slot)] = next;
                }
            }
        }
    }

    // The callers.

    fn arrive(&mut self, process: usize) {
        let paused_until = self.processes[process].paused_until;
        if paused_until > self.now {
            return self.push(paused_until, Event::Arrive(process));
        }
        if let Some(idle) = self.plan.idle
            && (idle.from..idle.until).contains(&self.now)
        {
            return self.push(idle.until, Event::Arrive(process));
        }
        let burst = self.plan.idle.filter(|idle| idle.until == self.now);
        for _ in 0..burst.map_or(1, |idle| idle.burst) {
            self.check(process);
        }
        let gap = self.plan.gap;
        let next = self.now + self.random.range(gap / 2..gap * 3 / 2 + 1);
        if next < self.plan.end {
            self.push(next, Event::Arrive(process));
        }
    }

    /// Starts a check, as `NodeQueue::enqueue` does.
    fn check(&mut self, process: usize) {
        let now = self.instant();
        let limiter = self.random.index(self.policies.len());
        let timeout = limiter / LIMITERS_PER_TIMEOUT;
        let number = self.random.range(0..self.plan.keys);
        let slot = (number % u64::from(SLOTS)) as u16;
        let slot = if self.plan.nodes == 1 { 0 } else { slot };
        let node = self.processes[process].routes[usize::from(slot)];
        let (id, policy) = ((process, timeout, node), self.policies[limiter].clone());
        let timeout = self.plan.timeouts[timeout];
        let check = self.checks.len();
        let deadline = self.now + timeout;
        let connection = self.processes[process].links[node].established().cloned();
        let is_owed = self.is_owed(process, timeout, connection.as_ref());
        let is_after_idle = self.plan.idle.is_some_and(|idle| idle.until == self.now);
        self.stats.checks += 1;
        self.processes[process].starts.push(self.now);
        self.checks.push(Check::new(id, self.now, deadline, is_owed, is_after_idle));
        let waker: Waker = Arc::new(CheckWaker { check, woken: self.woken.clone() }).into();
        let (key, op) = (Key::from(number), Op::acquire(UNIT + check as u64));
        let bucket = BucketRef { policy: &policy, key: &key, slot };
        let is_trial = self.breaker(id).starts_trial(now);
        if !is_trial && let Some(error) = self.breaker(id).refuse() {
            return self.judge(check, Err(error));
        }
        let queue = self.queue(id);
        if queue.is_alone()
            && let Some(connection) = connection
        {
            let (batch, index) = queue.start_alone(bucket, &op, now, &waker);
            let timer = queue.arm(now);
            self.checks[check].progress = Progress::Waiting(batch.clone(), index);
            self.arm(id, timer);
            let flight = Rc::new(Flight { queue: id, batch, sent: Cell::default() });
            let task = self.spawn(id, Work::Freeze { flight, connection }, true);
            self.step(task);
        } else {
            let Some((batch, index)) = queue.join(bucket, &op, now, &waker) else {
                let is_overloaded = queue.is_answering(now) || self.is_overloaded(id);
                return self.judge(check, Err(too_late(is_overloaded)));
            };
            let starts = queue.may_start(now);
            if starts {
                queue.reserve(now);
            }
            let timer = queue.arm(now);
            self.checks[check].progress = Progress::Waiting(batch, index);
            self.arm(id, timer);
            if starts {
                self.spawn_flusher(id);
            }
        }
        if self.random.chance(self.plan.cancelled_percent) {
            let at = self.now + self.random.range(0..self.plan.round_trip * 3 / 2);
            self.push(at, Event::Cancel(check));
        }
        self.judge_memory(id);
    }

    /// Whether calls are late because the process makes too many.
    pub(super) fn is_overloaded(&self, (process, timeout, node): QueueId) -> bool {
        let timeout = Duration::from_micros(self.plan.timeouts[timeout]);
        self.processes[process].overloads[node].explains_delay(timeout, self.instant())
    }

    fn cancel(&mut self, check: usize) {
        if let Progress::Waiting(batch, index) = &self.checks[check].progress {
            batch.cancel(*index);
            self.checks[check].progress = Progress::Cancelled;
        }
    }

    fn poll_woken(&mut self) {
        loop {
            let woken = std::mem::take(&mut *self.woken.lock().unwrap());
            if woken.is_empty() {
                return;
            }
            for check in woken {
                let Progress::Waiting(batch, index) = &self.checks[check].progress else {
                    continue;
                };
                let mut cx = std::task::Context::from_waker(Waker::noop());
                match batch.poll(*index, &mut cx) {
                    std::task::Poll::Ready(verdict) => self.judge(check, verdict),
                    std::task::Poll::Pending => self.violated("a check is woken without a verdict"),
                }
            }
        }
    }

    // The timers.

    pub(super) fn arm(&mut self, id: QueueId, at: Option<Instant>) {
        if let Some(at) = at {
            let at = self.micros(at);
            self.push(at, Event::Fire(id));
        }
    }

    fn fire(&mut self, id: QueueId) {
        let now = self.instant();
        let Some(fired) = self.queue(id).fire(now) else { return };
        if fired.starts {
            self.spawn_flusher(id);
        }
        let is_overloaded = self.is_overloaded(id);
        let error =
            |_, was_sent: bool| too_late(is_overloaded || (!was_sent && fired.is_answering));
        let expire = |batch: &Arc<_>| crate::store::redis::queue::Batch::expire(batch, now, error);
        let next = fired.batches.iter().filter_map(expire).min();
        if fired.is_silent {
            self.report(id, BreakerFault::Late);
        }
        drop(fired);
        if self.plan.idle.is_none() && self.random.chance(10) && self.now < self.plan.end {
            // Another thread adds a check while the timer holds no lock.
            self.check(id.0);
        }
        self.push(self.now, Event::Rearm(id, next));
    }

    // The tasks.

    pub(super) fn spawn(&mut self, queue: QueueId, work: Work, is_lone: bool) -> u64 {
        self.next_task += 1;
        let task = Task { queue, work, reply: None, is_lone };
        self.tasks.insert(self.next_task, task);
        self.next_task
    }

    pub(super) fn spawn_flusher(&mut self, queue: QueueId) {
        let task = self.spawn(queue, Work::Acquire { has_tried: false, late_at: None }, false);
        self.resume(task);
    }

    /// A worker runs the task as soon as it can.
    pub(super) fn resume(&mut self, number: u64) {
        let Some(task) = self.tasks.get(&number) else { return };
        let process = task.queue.0;
        if let Some(until) = self.processes[process].block_next.take() {
            if let Some(flight) = task.work.flight() {
                self.processes[process].stuck.push((Arc::as_ptr(&flight.batch), until));
            } else if task.work.is_probe() {
                // It is late, so the breaker opens.
                self.disturb(Some(process), until);
            }
            return self.push(until, Event::Task(number));
        }
        let at = self.when_polled(process);
        self.push(at, Event::Task(number));
    }

    /// When a worker of the process polls a task that is woken now.
    pub(super) fn when_polled(&mut self, process: usize) -> Micros {
        let delay = match self.random.index(50) {
            0 => self.random.range(0..2 * MS),
            1..10 => self.random.range(0..50),
            _ => 0,
        };
        (self.now + delay).max(self.processes[process].paused_until)
    }

    // The connections.

    pub(super) fn begin_attempt(&mut self, process: usize, node: usize, attempt: u64) {
        self.judge_attempt(process, node);
        self.stats.attempts += 1;
        let server = &self.servers.nodes[node];
        let resumed = self.stalled_until[process][node].max(server.frozen_until).max(self.now);
        let mut at = resumed + 2 * self.plan.round_trip;
        let is_refused = server.refuses_until > self.now;
        if server.is_slow_until > self.now {
            at += self.random.range(50 * MS..800 * MS);
        }
        let latest = self.now + 500 * MS;
        let is_good = !is_refused && at < latest;
        let at = if is_refused { self.now + self.plan.round_trip } else { at.min(latest) };
        let at = at.max(self.processes[process].paused_until);
        self.push(at, Event::Connected { process, node, attempt, is_good });
    }

    fn connected(&mut self, process: usize, node: usize, attempt: u64, is_good: bool) {
        let lifecycle = &mut self.processes[process].links[node];
        if is_good {
            let number = self.connections.len();
            let connection = Rc::new(Connection::new(number, process, node, self.now));
            self.connections.push(connection.clone());
            lifecycle.connected(attempt, connection);
            if self.servers.nodes[node].refuses_until > self.now {
                self.cut(number);
            }
        } else {
            lifecycle.failed(attempt, unreachable());
        }
        for task in std::mem::take(&mut self.processes[process].waiters[node]) {
            self.resume(task);
        }
    }

    /// The client closes the connection.
    pub(super) fn close(&mut self, connection: &Rc<Connection>, error: Error) {
        connection.closed.borrow_mut().get_or_insert(error);
        for task in std::mem::take(&mut *connection.waiting.borrow_mut()) {
            self.resume(task);
        }
        let at = self.when_polled(connection.process);
        self.push(at, Event::Keep(connection.number));
    }

    fn keep(&mut self, number: usize) {
        let now = self.instant();
        let connection = self.connections[number].clone();
        if !connection.is_kept.get() {
            return;
        }
        let is_silent = connection.health.borrow_mut().is_silent(now);
        let closed = connection.closed().or_else(|| is_silent.then(unreachable));
        let Some(error) = closed else { return };
        connection.is_kept.set(false);
        self.close(&connection, error);
        if connection.was_stable(now) {
            let (process, node) = (connection.process, connection.node);
            self.note_stability(process, node);
            let jitter = self.random.unit();
            let lifecycle = &mut self.processes[process].links[node];
            if let super::task::Step::Connect(attempt) = lifecycle.step(now, false, jitter) {
                self.begin_attempt(process, node, attempt);
            }
        }
    }

    fn wake_keeper(&mut self, number: usize) {
        let now = self.instant();
        let connection = self.connections[number].clone();
        let silence = connection.health.borrow().silence(now);
        connection.is_nudging.set(silence.is_some());
        let Some(silence) = silence else { return };
        if silence >= WAKE_INTERVAL {
            let at = self.when_polled(connection.process);
            self.push(at, Event::Keep(number));
        }
        self.push(self.now + WAKE_INTERVAL.as_micros() as Micros, Event::Wake(number));
    }

    // The network and the servers.

    pub(super) fn one_way(&mut self) -> Micros {
        let half = self.plan.round_trip(self.now) / 2;
        self.now + self.random.range(half - half / 20..half + half / 20 + 1)
    }

    /// When the network between the ends of this connection delivers again, if it does not now.
    fn stalled(&self, connection: &Connection) -> Option<Micros> {
        let until = self.stalled_until[connection.process][connection.node];
        (until > self.now).then_some(until)
    }

    fn arrive_at_server(&mut self, number: usize) {
        let connection = self.connections[number].clone();
        if let Some(until) = self.stalled(&connection) {
            return self.push(until, Event::ToServer(number));
        }
        let Some((task, calls, asking)) = connection.to_server.borrow_mut().pop_front() else {
            return;
        };
        if connection.swallows_calls.get() {
            return;
        }
        let keys = calls.iter().map(|call| call.groups.len() as u64).sum::<u64>();
        let taken = self.plan.service_per_call + keys * self.plan.service_per_key;
        let node = &mut self.servers.nodes[connection.node];
        node.busy_until = node.busy_until.max(self.now) + taken;
        node.pending.push_back(Request { connection: number, task, calls, asking });
        let at = node.busy_until;
        self.push(at, Event::Run(connection.node));
    }

    fn run_request(&mut self, node: usize) {
        let frozen_until = self.servers.nodes[node].frozen_until;
        if frozen_until > self.now {
            return self.push(frozen_until, Event::Run(node));
        }
        let Some(request) = self.servers.nodes[node].pending.pop_front() else { return };
        let mut ran = Vec::new();
        let run = |call| self.servers.run(node, call, request.asking, self.now, &mut ran);
        let replies = request.calls.iter().map(run).collect();
        for Ran { cost, verdict, is_too_much } in ran {
            self.judge_run(cost, verdict, is_too_much);
        }
        let connection = self.connections[request.connection].clone();
        if !connection.is_cut.get() {
            connection.to_client.borrow_mut().push_back((request.task, replies));
            let at = self.one_way();
            self.push(at, Event::ToClient(request.connection));
        }
    }

    fn arrive_at_client(&mut self, number: usize) {
        let connection = self.connections[number].clone();
        if let Some(until) = self.stalled(&connection) {
            return self.push(until, Event::ToClient(number));
        }
        let Some((task, replies)) = connection.to_client.borrow_mut().pop_front() else { return };
        if connection.swallows_replies.get() || connection.closed.borrow().is_some() {
            return;
        }
        self.reply(task, replies);
    }

    pub(super) fn reply(&mut self, number: u64, replies: Vec<Reply>) {
        if let Some(task) = self.tasks.get_mut(&number) {
            task.reply = Some(replies);
            self.resume(number);
        }
    }

    /// The connection is closed somewhere between its ends.
    fn cut(&mut self, number: usize) {
        let connection = self.connections[number].clone();
        connection.is_cut.set(true);
        if self.random.chance(50) {
            connection.to_server.borrow_mut().clear();
        }
        connection.to_client.borrow_mut().clear();
        let at = self.now + self.random.range(0..20 * MS);
        self.push(at, Event::Disconnected(number));
    }

    /// The client notices that the connection is closed.
    fn disconnected(&mut self, number: usize) {
        let connection = self.connections[number].clone();
        connection.is_disconnected.set(true);
        for task in connection.waiting.borrow().clone() {
            self.reply(task, vec![Reply::Broken]);
        }
        let at = self.when_polled(connection.process);
        self.push(at, Event::Keep(number));
    }

    // The faults.

    fn start_fault(&mut self, fault: Fault) {
        let Fault { until, kind, process, node, slot, .. } = fault;
        let open = self.connections.iter().rev().filter(|connection| {
            connection.node == node && !connection.is_cut.get() && connection.is_kept.get()
        });
        let all: Vec<_> = open.clone().map(|connection| connection.number).collect();
        let of_process = |number: &&usize| self.connections[**number].process == process;
        let one = all.iter().find(of_process).copied();
        let server = &mut self.servers.nodes[node];
        match kind {
            Kind::Stall => {
                self.stalled_until[process][node] = until;
                self.disturb(Some(process), until);
            }
            Kind::Freeze => {
                server.frozen_until = until;
                server.busy_until = server.busy_until.max(until);
                self.disturb(None, until);
            }
            Kind::Cut => {
                one.into_iter().for_each(|number| self.cut(number));
                self.disturb(Some(process), until + 20 * MS);
            }
            Kind::SwallowCalls | Kind::SwallowReplies => {
                if let Some(number) = one {
                    let connection = &self.connections[number];
                    match kind {
                        Kind::SwallowCalls => connection.swallows_calls.set(true),
                        _ => connection.swallows_replies.set(true),
                    }
                    // Half a second of silence after the next call, and a wake-up.
                    let noticed = until + self.plan.gap * self.plan.nodes as u64 * 4 + 510 * MS;
                    self.disturb(Some(process), noticed);
                }
            }
            Kind::Refuse => {
                server.refuses_until = until;
                all.into_iter().for_each(|number| self.cut(number));
                self.disturb(None, until.max(self.now + 20 * MS));
            }
            Kind::SlowHandshake => {
                server.is_slow_until = until;
                self.disturb(None, until);
            }
            Kind::ReadOnly => {
                server.read_only_until = until;
                self.disturb(None, until + self.plan.round_trip);
            }
            Kind::BlockOne => self.processes[process].block_next = Some(until),
            Kind::BlockAll => {
                let paused = &mut self.processes[process];
                if self.now > paused.paused_until + REPLACED_AFTER {
                    paused.paused_from = self.now;
                }
                paused.paused_until = until.max(paused.paused_until);
                self.disturb(Some(process), until);
            }
            Kind::Move | Kind::Migrate => {
                let owner = self.servers.owners[usize::from(slot)];
                let next = (owner + 1) % self.plan.nodes;
                let migration = (next, self.now, until.max(self.now + 1));
                if self.servers.migrations.insert(slot, migration).is_none() {
                    self.push(until, Event::Migrated(slot));
                }
            }
        }
    }

    /// Something is wrong until then, for this process or for all.
    pub(super) fn disturb(&mut self, process: Option<usize>, until: Micros) {
        for (number, state) in self.processes.iter_mut().enumerate() {
            if process.is_none_or(|process| process == number) {
                state.disturbed_until = state.disturbed_until.max(until);
            }
        }
    }
}

impl Wake for CheckWaker {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.check);
    }
}

pub(super) fn disconnected() -> Error {
    Error::new(ErrorKind::Unavailable, "disconnected")
}

pub(super) fn unreachable() -> Error {
    Error::new(ErrorKind::Unavailable, "unreachable")
}

pub(super) fn too_late(is_overloaded: bool) -> Error {
    match is_overloaded {
        true => Error::new(ErrorKind::Overloaded, "overloaded"),
        false => timed_out(),
    }
}

pub(super) fn timed_out() -> Error {
    Error::new(ErrorKind::Timeout, "timed out")
}

//! The circuit breakers and their probes: what `NodeQueue` (`queue/node_queue.rs`) and `Prober`
//! (`queue/probe.rs`) do.

use std::rc::Rc;
use std::time::Duration;

use super::connection::Connection;
use super::plan::{MS, Micros};
use super::server::{Call, Reply};
use super::task::{Step, Task, Work};
use super::world::{Event, QueueId, World, timed_out, too_late, unreachable};
use crate::store::redis::queue::breaker::{Breaker, Fault, Probed};
use crate::{Error, ErrorKind};

/// After its time a probe is polled once more.
const GRACE: Micros = 5 * MS / 2;

#[derive(Debug)]
pub(super) struct Breakers {
    pub(super) breaker: Breaker,
    /// The task of the current probe.
    task: Option<u64>,
    is_first: bool,
    /// How often a time for a step of a probe has begun.
    step: u64,
    /// When the next probe begins at the latest.
    next: Option<Micros>,
    /// The task of a probe that was late before it had a connection.
    connecting: Option<u64>,
}

impl Breakers {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            breaker: Breaker::new(timeout),
            task: None,
            is_first: false,
            step: 0,
            next: None,
            connecting: None,
        }
    }
}

impl World {
    pub(super) fn breaker(&mut self, id: QueueId) -> &mut Breaker {
        &mut self.breakers(id).breaker
    }

    fn breakers(&mut self, (process, timeout, node): QueueId) -> &mut Breakers {
        &mut self.processes[process].breakers[timeout][node]
    }

    pub(super) fn report(&mut self, id: QueueId, fault: Fault) {
        let now = self.instant();
        if self.breaker(id).failed(fault, now) {
            let patience = self.queue(id).probe_timeout(now);
            self.probe(id, patience, true);
        }
    }

    fn probe(&mut self, id: QueueId, patience: Duration, is_first: bool) {
        let pending = self.breakers(id).connecting.take();
        let task = pending
            .unwrap_or_else(|| self.spawn(id, Work::ProbeAcquire { has_tried: false }, false));
        let breakers = self.breakers(id);
        (breakers.task, breakers.is_first) = (Some(task), is_first);
        self.begin_step(id, patience);
        if pending.is_none() {
            self.resume(task);
        }
    }

    fn begin_step(&mut self, id: QueueId, patience: Duration) {
        self.breakers(id).step += 1;
        let step = self.breakers(id).step;
        let at = self.now + patience.as_micros() as Micros;
        self.push(at, Event::ProbeLate { queue: id, step, is_last: false });
    }

    pub(super) fn probe_again(&mut self, id: QueueId) {
        let now = self.now;
        if self.breakers(id).next.take_if(|next| *next == now).is_none() {
            // There was a connection before.
            return;
        }
        let timeout = self.plan.timeouts[id.1];
        // With a timeout that is too short, all probes are late.
        if self.now < self.plan.end || self.plan.is_sufficient(timeout) {
            self.probe(id, Duration::from_micros(timeout), false);
        }
    }

    pub(super) fn probe_late(&mut self, id: QueueId, step: u64, is_last: bool) {
        let at = self.when_polled(id.0);
        let Some(task) = self.breakers(id).task.filter(|_| self.breakers(id).step == step) else {
            return;
        };
        if at > self.now {
            self.push(at, Event::ProbeLate { queue: id, step, is_last });
        } else if is_last {
            if let Some(Task { work: Work::ProbeAcquire { .. }, .. }) = self.tasks.get(&task) {
                self.breakers(id).connecting = Some(task);
            }
            self.probed(id, task, Err(timed_out()));
        } else {
            self.push(self.now + GRACE, Event::ProbeLate { queue: id, step, is_last: true });
        }
    }

    pub(super) fn acquire_for_probe(&mut self, task: u64, id: QueueId, has_tried: bool) {
        match self.acquire(id.0, id.2, has_tried) {
            Step::Use(connection) if connection.closed.borrow().is_none() => {
                let timeout = Duration::from_micros(self.plan.timeouts[id.1]);
                let breakers = self.breakers(id);
                let is_late = breakers.task != Some(task);
                if is_late {
                    if breakers.connecting.take_if(|late| *late == task).is_none()
                        || breakers.next.take().is_none()
                    {
                        return;
                    }
                    breakers.task = Some(task);
                }
                if is_late || !breakers.is_first {
                    breakers.is_first = false;
                    self.begin_step(id, timeout);
                }
                let routes = &self.processes[id.0].routes;
                let slot = routes.iter().position(|&node| node == id.2).unwrap_or(0) as u16;
                let calls = vec![Call { slot, groups: Vec::new() }];
                self.insert(task, id, Work::ProbeWait { connection: connection.clone() });
                self.send(&connection, task, calls, false);
            }
            Step::Use(_) => self.probed(id, task, Err(unreachable())),
            Step::Fail(error) => self.probed(id, task, Err(error)),
            step => {
                let has_tried = has_tried || matches!(step, Step::Connect(_));
                self.insert(task, id, Work::ProbeAcquire { has_tried });
                self.await_connection(id.0, id.2, task, step);
            }
        }
    }

    pub(super) fn wait_for_probe(
        &mut self,
        task: u64,
        id: QueueId,
        connection: Rc<Connection>,
        reply: Option<Vec<Reply>>,
    ) {
        let Some(replies) = self.received(&connection, task, reply) else {
            return self.insert(task, id, Work::ProbeWait { connection });
        };
        let is_good = matches!(&*replies, [Reply::Found(_) | Reply::Moved(_) | Reply::Ask(_)]);
        self.probed(id, task, if is_good { Ok(()) } else { Err(unreachable()) });
    }

    /// The call has ended, or is late. If it is late, its reply changes nothing later.
    fn probed(&mut self, id: QueueId, task: u64, result: Result<(), Error>) {
        if self.breakers(id).task.take_if(|current| *current == task).is_none() {
            // It was late, and connecting has failed.
            self.breakers(id).connecting.take_if(|late| *late == task);
            return;
        }
        let (now, jitter) = (self.instant(), self.random.unit());
        let is_overloaded = self.is_overloaded(id);
        let result = result.map_err(|error| match error.kind() {
            ErrorKind::Timeout => too_late(is_overloaded),
            _ => error,
        });
        let next = match self.breaker(id).probed(result, now, jitter) {
            Probed::Works | Probed::Closes { .. } => return,
            Probed::Opens { next, .. } => {
                self.stats.opened += 1;
                let error = self.breaker(id).open_error().cloned().unwrap_or_else(unreachable);
                self.queue(id).take_all().iter().for_each(|batch| batch.fail(|| error.clone()));
                next
            }
            Probed::StaysOpen { next } => next,
        };
        let next = self.micros(next);
        self.breakers(id).next = Some(next);
        self.push(next, Event::Probe(id));
    }
}

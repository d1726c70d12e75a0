//! The circuit breakers and their probes: what `NodeQueue` and `Prober` do.

use std::rc::Rc;
use std::time::Duration;

use super::connection::Connection;
use super::plan::{MS, Micros};
use super::server::{Call, Reply};
use super::task::{Step, Work};
use super::world::{Event, QueueId, World, timed_out, unreachable};
use crate::Error;
use crate::store::redis::breaker::{Breaker, Fault, Probed};

/// After its time a probe is polled once more.
const GRACE: Micros = 5 * MS / 2;

#[derive(Debug)]
pub(super) struct Breakers {
    pub(super) breaker: Breaker,
    /// The call of the current probe.
    call: Option<u64>,
}

impl Breakers {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { breaker: Breaker::new(timeout), call: None }
    }
}

impl World {
    pub(super) fn breaker(&mut self, (process, timeout, node): QueueId) -> &mut Breaker {
        &mut self.processes[process].breakers[timeout][node].breaker
    }

    pub(super) fn report(&mut self, id: QueueId, fault: Fault) {
        let now = self.instant();
        if self.breaker(id).failed(fault, now) {
            let patience = self.queue(id).probe_patience(now);
            self.probe(id, patience);
        }
    }

    fn probe(&mut self, id: QueueId, patience: Duration) {
        let call = self.spawn(id, Work::ProbeAcquire { has_tried: false }, false);
        self.processes[id.0].breakers[id.1][id.2].call = Some(call);
        let at = self.now + patience.as_micros() as Micros;
        self.push(at, Event::ProbeLate { queue: id, call, is_last: false });
        self.resume(call);
    }

    pub(super) fn probe_again(&mut self, id: QueueId) {
        let timeout = self.plan.timeouts[id.1];
        // With a timeout that is too short, all probes are late.
        if self.now < self.plan.end || self.plan.is_sufficient(timeout) {
            self.probe(id, Duration::from_micros(timeout));
        }
    }

    pub(super) fn probe_late(&mut self, id: QueueId, call: u64, is_last: bool) {
        let at = self.when_polled(id.0);
        if at > self.now {
            self.push(at, Event::ProbeLate { queue: id, call, is_last });
        } else if is_last {
            self.probed(id, call, Err(timed_out()));
        } else {
            self.push(self.now + GRACE, Event::ProbeLate { queue: id, call, is_last: true });
        }
    }

    pub(super) fn acquire_for_probe(&mut self, number: u64, id: QueueId, has_tried: bool) {
        match self.acquire(id.0, id.2, has_tried) {
            Step::Use(connection) if connection.closed.borrow().is_none() => {
                let routes = &self.processes[id.0].routes;
                let slot = routes.iter().position(|&node| node == id.2).unwrap_or(0) as u16;
                let calls = vec![Call { slot, groups: Vec::new() }];
                self.insert(number, id, Work::ProbeWait { connection: connection.clone() });
                self.send(&connection, number, calls, false);
            }
            Step::Use(_) => self.probed(id, number, Err(unreachable())),
            Step::Fail(error) => self.probed(id, number, Err(error)),
            step => {
                let has_tried = has_tried || matches!(step, Step::Connect(_));
                self.insert(number, id, Work::ProbeAcquire { has_tried });
                self.await_connection(id.0, id.2, number, step);
            }
        }
    }

    pub(super) fn wait_for_probe(
        &mut self,
        number: u64,
        id: QueueId,
        connection: Rc<Connection>,
        reply: Option<Vec<Reply>>,
    ) {
        let Some(replies) = self.received(&connection, number, reply) else {
            return self.insert(number, id, Work::ProbeWait { connection });
        };
        let is_good = matches!(&*replies, [Reply::Found(_) | Reply::Moved(_) | Reply::Ask(_)]);
        self.probed(id, number, if is_good { Ok(()) } else { Err(unreachable()) });
    }

    /// The call has ended, or is late. If it is late, its reply changes nothing later.
    fn probed(&mut self, id: QueueId, call: u64, result: Result<(), Error>) {
        if self.processes[id.0].breakers[id.1][id.2]
            .call
            .take_if(|current| *current == call)
            .is_none()
        {
            return;
        }
        let (now, jitter) = (self.instant(), self.random.unit());
        match self.breaker(id).probed(result, now, jitter) {
            Probed::Works | Probed::Closes { .. } => {}
            Probed::Opens { next, .. } => {
                self.stats.opened += 1;
                let error = self.breaker(id).open_error().cloned().unwrap_or_else(unreachable);
                self.queue(id).take_all().iter().for_each(|batch| batch.fail(|| error.clone()));
                self.push(self.micros(next), Event::Probe(id));
            }
            Probed::StaysOpen { next } => self.push(self.micros(next), Event::Probe(id)),
        }
    }
}

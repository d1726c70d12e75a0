//! The checks of a simulation and their invariants: no check is late, runs twice, or is charged after it was
//! cancelled in time, and enough of them are decided.

use std::rc::Rc;
use std::sync::Arc;

use super::connection::Connection;
use super::plan::{Load, MS, Micros, SECOND};
use super::server::UNIT;
use super::world::{QueueId, World};
use crate::store::redis::connection::Established;
use crate::store::redis::queue::batch::{Batch, CheckIndex};
use crate::store::redis::queue::queue_state::QueueState;
use crate::verdict::Verdict;
use crate::{Error, ErrorKind};

/// The time after which a silent connection has been replaced: its longest silence, and the time to notice it
/// and to connect.
pub(super) const REPLACED_AFTER: Micros = 1_100 * MS;

/// The number of batches that may be in flight: those of the window, and a check sent alone.
const MOST_IN_FLIGHT: usize = 64 + 1;

/// The least percentage of the capacity that is decided at twice the capacity, after the first
/// second. The worst of 1,000 runs decides 92.
const LEAST_ANSWERED_PERCENT: u64 = 90;

/// The least percentage of the checks that are decided below the capacity, after the first second and
/// the second after a stall, or the two seconds after the round trip has changed.
const LEAST_DECIDED_PERCENT: u64 = 99;

/// The greatest percentage of the checks that fail as in an outage at twice the capacity, after the first
/// second.
const MOST_FAILED_OPEN_PERCENT: u64 = 1;

#[derive(Debug)]
pub(super) struct Check {
    queue: QueueId,
    start: Micros,
    deadline: Micros,
    pub(super) progress: Progress,
    is_encoded: bool,
    /// The server's verdict, if it ran.
    ran: Option<Verdict>,
    pub(super) is_redirected: bool,
    is_decided: bool,
    /// Whether it failed as in an outage, so that the failure mode `Open` allows it.
    has_failed_open: bool,
    /// Whether it must be decided, because nothing was wrong when it started.
    is_owed: bool,
    /// The same, because nothing has started since before a fault that is over.
    is_after_idle: bool,
}

#[derive(Debug)]
pub(super) enum Progress {
    Starting,
    Waiting(Arc<Batch>, CheckIndex),
    Cancelled,
    Done,
}

impl Check {
    pub(super) fn new(
        queue: QueueId,
        start: Micros,
        deadline: Micros,
        is_owed: bool,
        is_after_idle: bool,
    ) -> Self {
        Self {
            queue,
            start,
            deadline,
            progress: Progress::Starting,
            is_encoded: false,
            ran: None,
            is_redirected: false,
            is_decided: false,
            has_failed_open: false,
            is_owed,
            is_after_idle,
        }
    }
}

impl World {
    pub(super) fn queue(&mut self, (process, timeout, node): QueueId) -> &mut QueueState {
        &mut self.processes[process].queues[timeout][node]
    }

    /// Whether a check that starts now has to be decided, unless something goes wrong from now on:
    /// its connection is sound, and either has been so for a second or is used so often that any
    /// fault is over by now.
    pub(super) fn is_owed(
        &self,
        process: usize,
        timeout: Micros,
        connection: Option<&Rc<Connection>>,
    ) -> bool {
        let has_settled = self.processes[process].disturbed_until + SECOND <= self.now;
        let is_up = connection.is_some_and(|connection| {
            connection.is_sound() && connection.since + SECOND <= self.now
        });
        let has_recovered = self.plan.is_busy() && self.now >= SECOND + 200 * MS;
        has_settled
            && (is_up || has_recovered)
            && self.plan.load == Load::Light
            && self.plan.is_sufficient(timeout)
    }

    /// A check is part of a call that is about to be sent.
    pub(super) fn judge_encoded(&mut self, cost: u64) {
        let check = &mut self.checks[(cost - UNIT) as usize];
        check.is_encoded = true;
        if matches!(check.progress, Progress::Cancelled | Progress::Done) {
            self.violated("a check is sent that nobody waited for any more");
        }
    }

    /// A check ran on a server.
    pub(super) fn judge_run(&mut self, cost: u64, verdict: Verdict, is_too_much: bool) {
        let check = &mut self.checks[(cost - UNIT) as usize];
        let has_run = check.ran.replace(verdict).is_some();
        let is_encoded = check.is_encoded;
        if has_run {
            self.violated(format!("the check {} ran twice", cost - UNIT));
        }
        if !is_encoded {
            self.violated("a check ran that was not sent");
        }
        if is_too_much {
            self.violated("a key was admitted more than its burst and rate");
        }
    }

    /// A check has its result.
    pub(super) fn judge(&mut self, number: usize, result: Result<Verdict, Error>) {
        let check = &mut self.checks[number];
        let progress = std::mem::replace(&mut check.progress, Progress::Done);
        let (process, _, node) = check.queue;
        if self.now > check.deadline {
            let late = self.now - check.deadline;
            self.violated(format!("the check {number} was {late} us late"));
            return;
        }
        let process = &self.processes[process];
        let is_stuck = match &progress {
            Progress::Waiting(batch, _) => {
                let is_its = |&(stuck, _): &(_, Micros)| stuck == Arc::as_ptr(batch);
                process.stuck.iter().any(is_its)
            }
            _ => false,
        };
        let was_disturbed = process.disturbed_until + SECOND > check.start;
        let is_owed = check.is_after_idle
            || (check.is_owed && !was_disturbed && !is_stuck && !check.is_redirected);
        self.stats.owed += u64::from(is_owed);
        match result {
            Ok(verdict) => {
                self.stats.decided += 1;
                self.checks[number].is_decided = true;
                if self.checks[number].ran != Some(verdict) {
                    self.violated(format!("the check {number} has another verdict than it got"));
                }
            }
            Err(error) => {
                self.stats.failed += 1;
                check.has_failed_open = error.kind() != ErrorKind::Overloaded;
                if is_owed {
                    let start = check.start as f64 / MS as f64;
                    self.violated(format!(
                        "the check {number} of {start} ms on node {node} had to be decided: {error}"
                    ));
                }
            }
        }
    }

    /// A process is about to connect to a node.
    pub(super) fn judge_attempt(&mut self, process: usize, node: usize) {
        let now = self.now;
        let attempts = &mut self.processes[process].attempts[node];
        let (last, count) = attempts.unwrap_or((0, 0));
        let period = match count {
            0 | 1 => 0,
            _ => ((50 * MS) << (count - 2).min(4)).min(500 * MS),
        };
        let is_far_apart = now - last >= period / 2 + 500 * MS;
        let count = if is_far_apart { 0 } else { count };
        *attempts = Some((now, count + 1));
        if count > 0 && now - last < period / 2 {
            self.violated(format!(
                "attempt {count} to connect came {} us early",
                period / 2 + last - now
            ));
        }
    }

    /// A connection that worked for a while has ended, so the next attempt may come at once.
    pub(super) fn note_stability(&mut self, process: usize, node: usize) {
        let state = &mut self.processes[process];
        let now = self.now;
        let was_stable = state.links[node].current().is_some_and(|connection| {
            connection.closed().is_some() && connection.since + 500 * MS <= now
        });
        if was_stable {
            state.attempts[node] = None;
        }
    }

    pub(super) fn judge_memory(&mut self, id: QueueId) {
        let sizes = self.queue(id).sizes();
        if sizes.in_flight > MOST_IN_FLIGHT {
            self.violated(format!("{} batches are in flight", sizes.in_flight));
        }
        // What waits has arrived since the last batch could start: within a timeout, or the time
        // until a silent connection is replaced.
        let process = &self.processes[id.0];
        let span = self.plan.timeouts[id.1].max(REPLACED_AFTER);
        let mut since = self.now.saturating_sub(span);
        if process.paused_until >= since {
            since = since.min(process.paused_from.saturating_sub(span));
        }
        let recent = process.starts.len() - process.starts.partition_point(|&start| start < since);
        if sizes.waiting > recent {
            self.violated(format!("{} checks wait, {recent} have come", sizes.waiting));
        }
    }

    pub(super) fn judge_end(&mut self) {
        let waiting = |check: &Check| matches!(check.progress, Progress::Waiting(..));
        if let Some(number) = self.checks.iter().position(waiting) {
            self.violated(format!("the check {number} never had a result"));
        }
        if !self.tasks.is_empty() {
            self.violated(format!("{} tasks never ended", self.tasks.len()));
        }
        for queue in self.processes.iter().flat_map(|process| process.queues.iter().flatten()) {
            let sizes = queue.sizes();
            if sizes.in_flight + sizes.load + sizes.sent > 0 {
                return self.violated(format!("a queue is not idle: {sizes:?}"));
            }
        }
        let stall = self.plan.faults.first().map_or(0, |stall| stall.until);
        // The round trip is learned within two seconds.
        let reroute = self.plan.reroute.map_or(0, |reroute| reroute.at + SECOND);
        let from = SECOND + stall.max(reroute);
        let started: Vec<_> = self.checks.iter().filter(|check| check.start >= from).collect();
        let count = |is: fn(&&&Check) -> bool| started.iter().filter(is).count() as u64;
        let decided = count(|check| check.is_decided);
        let failed_open = count(|check| check.has_failed_open);
        let count = started.len() as u64;
        let (of, percent) = match self.plan.load {
            Load::Light => return,
            Load::BelowCapacity => (count, LEAST_DECIDED_PERCENT),
            Load::Overload => {
                if failed_open * 100 > count * MOST_FAILED_OPEN_PERCENT {
                    self.violated(format!("{failed_open} of {count} would pass without a limit"));
                }
                let capacity = self.plan.capacity() * (self.plan.end - from) / SECOND;
                (capacity, LEAST_ANSWERED_PERCENT)
            }
        };
        if decided * 100 < of * percent {
            let load = self.plan.load;
            self.violated(format!("{decided} of {of} were decided with the load {load:?}"));
        }
    }
}

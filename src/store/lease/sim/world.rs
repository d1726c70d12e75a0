//! The events of a run. The processes run the code of the leases, the server the specification.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::plan::{Kind, MS, Nanos, PERIOD, Plan, SECOND};
use super::spans::Spans;
use crate::Key;
use crate::algorithm::Limits;
use crate::charge::Charge;
use crate::metrics::PolicyMetrics;
use crate::random::seeded::{self, Random};
use crate::store::lease::{
    KeyLease, LeaseDecision, LeaseReport, LeaseTerms, Leased, Leases, Returned,
};
use crate::store::{CachedState, KeyState, Op, SentAt};
use crate::verdict::Verdict;

/// How far the clock of the server is ahead of simulated time, in microseconds: whole windows.
const CLOCK: u64 = 600_000 << 30;

/// A process collects leases that have ended at these intervals.
const SWEEP: Nanos = 20 * MS;

#[derive(Debug, Default)]
pub(super) struct Stats {
    checks: u64,
    allowed: u64,
    by_lease: u64,
    calls: u64,
    /// The checks that a bucket without leases would have allowed.
    exact: u64,
    leased: u64,
    used: u64,
    returned: u64,
    lost: u64,
}

impl seeded::Stats for Stats {
    fn add(&mut self, other: Self) {
        self.checks += other.checks;
        self.allowed += other.allowed;
        self.by_lease += other.by_lease;
        self.calls += other.calls;
        self.exact += other.exact;
        self.leased += other.leased;
        self.used += other.used;
        self.returned += other.returned;
        self.lost += other.lost;
    }
}

enum Event {
    Check(usize),
    Sweep(usize),
    Close(usize),
    Arrives(Box<Call>),
    Returns(Box<Call>, Box<Answer>),
}

/// A call of one operation.
struct Call {
    process: usize,
    revision: usize,
    op: Op,
    sent: Nanos,
    /// The cost of the check, if it is one.
    check: Option<u64>,
    /// What is given back by a call for that alone.
    returned: Option<Returned>,
}

struct Answer {
    verdict: Verdict,
    state: KeyState,
    decided: u64,
    free: crate::algorithm::Permits,
    leased: Option<Leased>,
}

struct Process {
    leases: Arc<Leases>,
    entry: Option<(usize, Arc<KeyLease>)>,
    terms: Arc<LeaseTerms>,
    /// The clock of the process, ahead of simulated time.
    clock: Nanos,
    is_killed: bool,
    /// The permits that leases have allowed.
    used: u64,
}

pub(super) struct World {
    plan: Plan,
    random: Random,
    limits: [(Limits, Limits); 2],
    processes: Vec<Process>,
    events: BinaryHeap<Reverse<(Nanos, u64)>>,
    bodies: Vec<Option<Event>>,
    stored: Option<KeyState>,
    /// The time of the server at which that was written.
    written: u64,
    /// The same demand on a bucket without leases.
    exact: Option<KeyState>,
    /// A bucket without leases, from which only what is used is taken.
    used: Option<KeyState>,
    /// The permits that the server has back. Others may have refilled, as far as their process knows.
    credited: u64,
    /// The permits of leases in replies that are on their way.
    granting: u64,
    spans: Spans,
    stats: Stats,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random);
        let process = |_| {
            let metrics = PolicyMetrics::new("test");
            let (longest, delay) = (plan.lease, plan.timeout);
            Process {
                leases: Arc::default(),
                entry: None,
                terms: Arc::new(LeaseTerms { longest, delay, metrics }),
                clock: random.range(0..10 * SECOND),
                is_killed: false,
                used: 0,
            }
        };
        let processes = (0..plan.processes.len()).map(process).collect();
        let mut world = Self {
            limits: plan.limits(),
            plan,
            random,
            processes,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            stored: None,
            written: 0,
            exact: None,
            used: None,
            credited: 0,
            granting: 0,
            spans: Spans::default(),
            stats: Stats::default(),
        };
        for process in 0..world.processes.len() {
            let first = world.random.range(0..10 * MS);
            world.push(first, Event::Check(process));
            world.push(first + SWEEP, Event::Sweep(process));
            if let Some(at) = world.plan.processes[process].closed {
                world.push(at, Event::Close(process));
            }
        }
        world
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.events.push(Reverse((at, self.bodies.len() as u64)));
        self.bodies.push(Some(event));
    }

    pub(super) fn run(mut self) -> Result<Stats, String> {
        while let Some(Reverse((now, index))) = self.events.pop() {
            let Some(event) = self.bodies[index as usize].take() else { continue };
            let process = match &event {
                Event::Check(process) | Event::Sweep(process) | Event::Close(process) => {
                    Some(*process)
                }
                Event::Returns(call, _) => Some(call.process),
                Event::Arrives(_) => None,
            };
            if let Some(process) = process {
                let plan = &self.plan.processes[process];
                if plan.killed.is_some_and(|at| now >= at) {
                    self.processes[process].is_killed = true;
                    continue;
                }
                if let Some((_, until)) =
                    plan.pause.filter(|(from, until)| (*from..*until).contains(&now))
                {
                    // It goes on with what has happened meanwhile.
                    self.push(until, event);
                    continue;
                }
            }
            match event {
                Event::Check(process) => self.check(process, now),
                Event::Sweep(process) => self.sweep(process, now),
                Event::Close(process) => {
                    for returned in self.processes[process].leases.close() {
                        self.give_back(process, returned, now);
                    }
                }
                Event::Arrives(call) => self.arrives(call, now)?,
                Event::Returns(call, answer) => self.returns(*call, *answer, now)?,
            }
        }
        self.finish()
    }

    /// Returns the clock of the server without its step, and with it.
    fn clock(&self, now: Nanos) -> (u64, u64) {
        let micros = CLOCK + now / 1_000;
        match self.plan.clock_step {
            Some((at, step)) if now >= at => (micros, micros.saturating_add_signed(step)),
            _ => (micros, micros),
        }
    }

    fn check(&mut self, process: usize, now: Nanos) {
        let plan = &self.plan.processes[process];
        let phase = now * plan.phases.len() as u64 / self.plan.end;
        let Some(&mean) = plan.phases.get(phase as usize) else { return };
        let revision = usize::from(plan.updated.is_some_and(|at| now >= at));
        if mean == 0 {
            self.push(now + 20 * MS, Event::Check(process));
            return;
        }
        let next = (-self.random.unit().max(1e-9).ln() * mean as f64) as u64;
        self.push(now + next.max(1), Event::Check(process));
        self.stats.checks += 1;
        let cost = self.random.range(1..self.plan.most_cost + 1);
        self.check_exactly(cost, now);
        let limits = self.limits[revision].1.clone();
        let (time, _) = self.clock(now);
        let Process { entry, clock, .. } = &self.processes[process];
        let own = now + clock;
        let lease =
            entry.as_ref().filter(|(of, _)| *of == revision).map(|(_, lease)| lease.clone());
        let mut op = Op::Acquire(Charge::Same(cost));
        let mut check = Some(cost);
        let instances = self.plan.processes.len() as u64;
        if let Some(lease) = lease {
            match lease.check(&cost, &limits, 0, own) {
                LeaseDecision::Leased { verdict, renews } => {
                    assert!(verdict.is_allowed());
                    self.processes[process].used += cost;
                    self.use_at(time, cost);
                    self.stats.allowed += cost;
                    self.stats.by_lease += 1;
                    if !renews {
                        return;
                    }
                    check = None;
                    match lease.request(None, &limits, || instances, own) {
                        Ok(request) => op = Op::Lease(request.into()),
                        Err(_) => return,
                    }
                }
                LeaseDecision::Denied(_) => return,
                LeaseDecision::Unknown => {
                    if let Ok(request) =
                        lease.request(Some(Charge::Same(cost)), &limits, || instances, own)
                    {
                        op = Op::Lease(request.into());
                    }
                }
            }
        }
        self.send(Call { process, revision, op, sent: now, check, returned: None }, now);
    }

    fn check_exactly(&mut self, cost: u64, now: Nanos) {
        let (time, _) = self.clock(now);
        let limits = &self.limits[0].0;
        let (verdict, state) = Op::acquire(cost).apply(limits, self.exact.as_ref(), time);
        self.exact = state.or(self.exact.take());
        self.stats.exact += u64::from(verdict.is_allowed()) * cost;
    }

    fn send(&mut self, call: Call, now: Nanos) {
        self.stats.calls += 1;
        if self.random.chance(self.plan.lost_percent) {
            return;
        }
        let arrives = now + self.way();
        self.push(arrives, Event::Arrives(call.into()));
    }

    /// The time of one way through the network. A few calls take longer than their timeout.
    fn way(&mut self) -> Nanos {
        let way = (self.plan.round_trip as f64 / 2.0 * (0.5 + self.random.unit())) as u64;
        let is_late = self.random.chance(self.plan.lost_percent);
        way + if is_late { self.random.range(0..2 * self.plan.timeout) } else { 0 }
    }

    fn arrives(&mut self, call: Box<Call>, now: Nanos) -> Result<(), String> {
        let (_, mut time) = self.clock(now);
        let limits = &self.limits[call.revision].1;
        let read_at = time.max(self.written);
        let mut standing = KeyState::standing(self.stored.as_ref(), limits, read_at);
        if time < self.written {
            // The clock has stepped back. What was in use then is in use now.
            time = self.written;
        }
        let verdict = call.op.decide(limits, &mut standing, time);
        let credit = match &call.op {
            Op::Return(timed) => Some(&**timed),
            Op::Lease(lease) => lease.credit.as_ref(),
            _ => None,
        };
        self.credited += credit.map_or(0, |timed| limits.returned(&timed.credit)[0]);
        let leased = match &call.op {
            Op::Lease(lease) => Some(lease.lease(limits, &mut standing, time)),
            _ => None,
        };
        let state = KeyState::after(&standing, self.stored.as_ref(), limits, time);
        (self.stored, self.written) = (Some(state.clone()), time);
        if let Some(cost) = call.check
            && verdict.is_allowed()
        {
            let (unstepped, _) = self.clock(now);
            self.use_at(unstepped, cost);
            self.stats.allowed += cost;
        }
        self.granting += leased.as_ref().map_or(0, |leased| leased.permits[0]);
        if let Some(cost) = call.check
            && !verdict.is_allowed()
        {
            self.check_denial(cost, now)?;
        }
        let free = self.limits[call.revision].1.free(&standing);
        let answer = Answer { verdict, state, decided: time, free, leased };
        if !self.random.chance(self.plan.lost_percent) {
            let returns = now + self.way();
            self.push(returns, Event::Returns(call, answer.into()));
        }
        Ok(())
    }

    fn use_at(&mut self, time: u64, cost: u64) {
        self.spans.use_at(time, cost);
        let limits = &self.limits[0].0;
        let charge = Op::Adjust(limits.debit(&cost));
        let (_, state) = charge.apply(limits, self.used.as_ref(), time);
        self.used = state.or(self.used.take());
    }

    /// A check is denied only while a bucket of what is used would deny it, apart from what is leased, from what the
    /// bucket of the server has less, and from what may have refilled before it was given back.
    fn check_denial(&self, cost: u64, now: Nanos) -> Result<(), String> {
        let Plan { kind, lease, processes, clock_step, lost_percent, quotas, .. } = &self.plan;
        let is_disturbed = clock_step.is_some()
            || *lost_percent > 0
            || quotas[0] != quotas[1]
            || processes.iter().any(|process| process.pause.is_some() || process.killed.is_some());
        if is_disturbed || *kind != Kind::TokenBucket {
            return Ok(());
        }
        let (time, _) = self.clock(now);
        let limits = &self.limits[0].0;
        let free = limits.free(&KeyState::standing(self.used.as_ref(), limits, time))[0];
        let less = (lease / 1_000 * quotas[0].permits()).div_ceil(1_000_000);
        let unused = self.unused();
        if free > cost + less + unused {
            return Err(format!(
                "a check of {cost} is denied, but {free} are free, {less} of them in no bucket, and {unused} \
                 leased: {:?}",
                self.plan
            ));
        }
        Ok(())
    }

    /// Returns the permits that are leased and neither used nor given back to the server.
    fn unused(&self) -> u64 {
        let of = |process: &Process| process.terms.metrics.lease_counts()[0] - process.used;
        let leased = self.granting + self.processes.iter().map(of).sum::<u64>();
        leased.saturating_sub(self.credited)
    }

    fn returns(&mut self, call: Call, answer: Answer, now: Nanos) -> Result<(), String> {
        self.granting -= answer.leased.as_ref().map_or(0, |leased| leased.permits[0]);
        let process = &mut self.processes[call.process];
        let (own, sent) = (now + process.clock, call.sent + process.clock);
        if let Some(returned) = call.returned {
            let (metrics, permits) = (&process.terms.metrics, returned.part.unused());
            match answer.verdict.is_allowed() {
                true => metrics.lease_returned(permits),
                false => metrics.lease_lost(permits),
            }
        }
        let lease = match &process.entry {
            Some((revision, lease)) if *revision == call.revision => lease.clone(),
            _ => {
                let key = Key::from("key");
                let quotas = answer.free.len();
                let owner = Arc::new(call.revision);
                let lease =
                    KeyLease::new(&process.leases, &key, &process.terms, owner, quotas, sent);
                let lease = Arc::new(lease);
                process.entry = Some((call.revision, lease.clone()));
                lease
            }
        };
        let known = CachedState {
            state: answer.state,
            decided: answer.decided,
            sent_at: SentAt::at(sent),
            received: own,
        };
        let is_denial = !answer.verdict.is_allowed();
        let report = LeaseReport { known, is_denial, free: answer.free, leased: answer.leased };
        lease.report(&Arc::new(call.revision), report);
        self.check_live(now)
    }

    /// The leases of all processes together have at most half of what the server holds.
    fn check_live(&self, now: Nanos) -> Result<(), String> {
        let live = |process: &Process| {
            let lease = process.entry.as_ref().filter(|_| !process.is_killed);
            lease.map_or(0, |(_, lease)| lease.unused(now + process.clock)[0])
        };
        let live: u64 = self.processes.iter().map(live).sum();
        let most =
            self.limits.iter().map(|(_, leased)| leased.free(&leased.standing(&[], 0))[0]).max();
        match most {
            Some(most) if live > most / 2 => {
                Err(format!("{live} of {most} are leased: {:?}", self.plan))
            }
            _ => Ok(()),
        }
    }

    fn sweep(&mut self, process: usize, now: Nanos) {
        if now > self.plan.end + SECOND {
            return;
        }
        self.push(now + SWEEP, Event::Sweep(process));
        let own = now + self.processes[process].clock;
        let (returned, _) = self.processes[process].leases.collect(own);
        for returned in returned {
            self.give_back(process, returned, now);
        }
    }

    fn give_back(&mut self, process: usize, returned: Returned, now: Nanos) {
        let Process { clock, terms, .. } = &self.processes[process];
        let revision = *returned.owner.downcast_ref::<usize>().unwrap();
        let Returned { part, delays, .. } = &returned;
        let credit = part.credit(&self.limits[revision].1, now + *clock, *delays);
        let Some(credit) = credit else { return terms.metrics.lease_returned(part.unused()) };
        let (op, returned) = (Op::Return(credit.into()), Some(returned));
        let call = Call { process, revision, op, sent: now, check: None, returned };
        self.send(call, now);
    }

    fn finish(mut self) -> Result<Stats, String> {
        let mut stats = std::mem::take(&mut self.stats);
        for process in &mut self.processes {
            process.entry = None;
            let (rest, _) = process.leases.collect(u64::MAX - 1);
            let rest: u64 = rest.iter().map(|returned| returned.part.unused()).sum();
            let [leased, used, returned, lost] = process.terms.metrics.lease_counts();
            // A call that gives back may have been lost.
            let accounted = used + returned + lost + rest;
            let may_be_lost = self.plan.lost_percent > 0 || process.is_killed;
            if accounted > leased
                || accounted < leased && !may_be_lost
                || used != process.used && self.plan.kind != Kind::Two
            {
                return Err(format!(
                    "{leased} leased, {used} ({}) used, {returned} returned, {lost} lost, {rest} at the end: {:?}",
                    process.used, self.plan
                ));
            }
            stats.leased += leased;
            stats.used += used;
            stats.returned += returned;
            stats.lost += lost;
        }
        self.check_spans()?;
        Ok(stats)
    }

    fn check_spans(&mut self) -> Result<(), String> {
        let Plan { kind, quotas, lease, clock_step, .. } = &self.plan;
        let (kind, lease) = (*kind, lease / 1_000);
        let largest = |of: fn(&crate::Quota) -> u64| quotas.iter().map(of).max().unwrap_or(0);
        let (permits, capacity) =
            (largest(|quota| quota.permits()), largest(|quota| quota.capacity()));
        let period = quotas[0].period().as_micros() as u64;
        let is_updated = quotas[0].permits() != quotas[1].permits();
        let window = PERIOD.as_micros() as u64;
        // The largest revision may not be the fastest.
        let mixed = if is_updated { lease * permits / period + 1 } else { 0 };
        let stepped = if clock_step.is_some() { 4 * capacity } else { 0 };
        let more = mixed + stepped;
        let (worst, most) = match kind {
            Kind::TokenBucket | Kind::Two => (self.spans.worst(permits, period), capacity),
            Kind::Borrowing => (self.spans.worst(permits, period), capacity + capacity / 2),
            // A span may begin just before a refill.
            Kind::IntervalRefill => (self.spans.worst(permits, period), capacity + permits),
            Kind::FixedWindow => (self.spans.worst_window(window) as f64, permits),
            // A span may begin just before the end of a window.
            Kind::FirstCheck => (self.spans.worst(permits, period), 2 * permits),
        };
        let in_window = self.spans.worst_window(window);
        let is_too_much_in_window = kind == Kind::Two && in_window > permits * 3 / 4 + more;
        if worst > (most + more) as f64 + 1e-6 || is_too_much_in_window {
            return Err(format!(
                "{worst} of {most} and {more} ({in_window} in a window) in a span: {:?}",
                self.plan
            ));
        }
        Ok(())
    }
}

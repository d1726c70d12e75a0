//! The plan of a run: the processes, the load and the faults. All of it follows from the seed.

use crate::random::seeded::Random;

/// Simulated time, in microseconds.
pub(super) type Micros = u64;

pub(super) const MS: Micros = 1_000;
pub(super) const SECOND: Micros = 1_000 * MS;

/// The slots of the simulated cluster.
pub(super) const SLOTS: u16 = 8;

/// How many seeds there are for each that uses most of the server's capacity, and for each that
/// overloads it.
const SEEDS_PER_LARGE_LOAD: u64 = 100;

#[derive(Debug)]
pub(super) struct Plan {
    /// When the last check starts.
    pub(super) end: Micros,
    pub(super) processes: usize,
    pub(super) nodes: usize,
    /// The timeouts of the limiters.
    pub(super) timeouts: Vec<Micros>,
    /// At first.
    pub(super) round_trip: Micros,
    pub(super) reroute: Option<Reroute>,
    pub(super) service_per_call: Micros,
    pub(super) service_per_key: Micros,
    pub(super) keys: u64,
    /// How many checks of each key the burst admits, and how many a second.
    pub(super) burst: u64,
    pub(super) rate: u64,
    /// The time between the checks of a process.
    pub(super) gap: Micros,
    pub(super) cancelled_percent: u64,
    pub(super) load: Load,
    /// The only fault of such a run is a restart of a node meanwhile.
    pub(super) idle: Option<Idle>,
    pub(super) faults: Vec<Fault>,
}

/// A time without checks, and how many checks each process starts when it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub(super) from: Micros,
    pub(super) until: Micros,
    pub(super) burst: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// A small part of the server's capacity.
    Light,
    /// Up to nearly all of it.
    BelowCapacity,
    /// Twice as much.
    Overload,
}

/// The network between the processes and the servers takes another route, as after a failover to another
/// zone. The connections stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reroute {
    pub(super) at: Micros,
    pub(super) round_trip: Micros,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) at: Micros,
    pub(super) until: Micros,
    pub(super) kind: Kind,
    pub(super) process: usize,
    pub(super) node: usize,
    pub(super) slot: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The network between a process and a node delivers nothing.
    Stall,
    /// A node decides nothing.
    Freeze,
    /// The connections of a process to a node are closed. What is in flight is lost.
    Cut,
    /// A connection stays open, but what is sent on it is lost.
    SwallowCalls,
    /// The same in the other direction: calls run, and their replies are lost.
    SwallowReplies,
    /// A node refuses connections, and closes those it has.
    Refuse,
    /// Connections to a node take long to be made.
    SlowHandshake,
    /// A node replies READONLY.
    ReadOnly,
    /// A worker of a process is blocked with the task that it was about to run.
    BlockOne,
    /// All workers of a process are blocked. The thread of the timer is not.
    BlockAll,
    /// A slot gets another owner.
    Move,
    /// The keys of a slot go to its next owner one after another.
    Migrate,
}

const ANYWHERE: [Kind; 10] = [
    Kind::Stall,
    Kind::Freeze,
    Kind::Cut,
    Kind::SwallowCalls,
    Kind::SwallowReplies,
    Kind::Refuse,
    Kind::SlowHandshake,
    Kind::ReadOnly,
    Kind::BlockOne,
    Kind::BlockAll,
];

impl Plan {
    pub(super) fn new(seed: u64, random: &mut Random) -> Self {
        match SEEDS_PER_LARGE_LOAD - seed % SEEDS_PER_LARGE_LOAD {
            1 => return Self::overload(random),
            26 => return Self::rerouted(random),
            51 => return Self::below_capacity(random),
            _ => {}
        }
        let round_trip = match random.index(3) {
            0 => random.range(100..MS),
            1 => random.range(MS..10 * MS),
            _ => random.range(10 * MS..45 * MS),
        };
        let (processes, nodes) = (random.range(1..4) as usize, random.range(1..4) as usize);
        let timeouts = (0..random.range(1..4))
            .map(|_| match random.index(5) {
                0 => random.range(2 * MS..30 * MS),
                1 => least_timeout(round_trip),
                _ => round_trip + random.range(30 * MS..250 * MS),
            })
            .collect();
        let gap = match random.index(3) {
            0 => random.range(MS..3 * MS),
            1 => random.range(3 * MS..10 * MS),
            _ => random.range(20 * MS..300 * MS),
        };
        let end = random.range(2 * SECOND..4 * SECOND);
        let mut plan = Self {
            end,
            processes,
            nodes,
            timeouts,
            round_trip,
            reroute: None,
            service_per_call: random.range(10..50),
            service_per_key: random.range(2..20),
            keys: random.pick(&[1, 3, 20, 1_000]),
            burst: random.range(1..100),
            rate: random.range(1..1_000),
            gap,
            cancelled_percent: random.pick(&[0, 5, 50]),
            load: Load::Light,
            idle: None,
            faults: Vec::new(),
        };
        if random.chance(10) {
            plan.restart_while_idle(random);
            return plan;
        }
        for _ in 0..random.range(0..5) {
            let fault = plan.fault(random);
            plan.faults.push(fault);
        }
        plan
    }

    /// Up to nine queues that check distinct keys, together twice as many as the server can.
    fn overload(random: &mut Random) -> Self {
        let round_trip = random.range(100..30 * MS);
        let (processes, timeouts) = (random.range(1..4), random.range(1..4));
        Self {
            end: 2 * SECOND,
            processes: processes as usize,
            nodes: 1,
            timeouts: (0..timeouts).map(|_| random.range(50 * MS..100 * MS)).collect(),
            round_trip,
            reroute: None,
            service_per_call: 30,
            service_per_key: 20,
            keys: 1 << 40,
            burst: 10,
            rate: 10,
            gap: 10 * processes,
            cancelled_percent: 0,
            load: Load::Overload,
            idle: None,
            faults: Vec::new(),
        }
    }

    /// The connections have worked for a while or not. The restart is noticed, and the node works again when
    /// the burst comes. No timeout is so short that a breaker was open before, because its probes would go on.
    fn restart_while_idle(&mut self, random: &mut Random) {
        let least = least_timeout(3 * self.round_trip);
        self.timeouts.iter_mut().for_each(|timeout| *timeout = least.max(*timeout));
        let from = random.range(100 * MS..SECOND);
        // What has started before has ended by then.
        let at = from + random.range(400 * MS..SECOND);
        let until = at + random.range(100 * MS..2 * SECOND);
        let pause = if random.chance(50) { 0 } else { random.range(0..2 * SECOND) };
        let burst = random.pick(&[1, 2, 10, 50]);
        self.idle = Some(Idle { from, until: until + pause, burst });
        self.end = until + pause + SECOND;
        let node = random.index(self.nodes);
        self.faults.push(Fault { at, until, kind: Kind::Refuse, process: 0, node, slot: 0 });
    }

    /// The same at half of the capacity and more, and up to the longest round trip that a timeout of
    /// 50 ms allows for. Some runs start with a stall.
    fn below_capacity(random: &mut Random) -> Self {
        let mut plan = Self::overload(random);
        plan.round_trip = random.range(100..41 * MS);
        plan.load_below_capacity(random.range(50..96));
        if random.chance(50) {
            let (kind, at) = (Kind::Stall, random.range(0..100 * MS));
            let until = at + random.range(20 * MS..500 * MS);
            plan.end += SECOND;
            plan.faults.push(Fault { at, until, kind, process: 0, node: 0, slot: 0 });
        }
        plan
    }

    /// Less than the capacity, and a round trip that becomes longer or shorter under this load.
    fn rerouted(random: &mut Random) -> Self {
        let mut plan = Self::overload(random);
        let round_trips = [0; 2].map(|_| match random.chance(50) {
            true => random.range(100..2 * MS),
            false => random.range(2 * MS..41 * MS),
        });
        let at = random.range(SECOND / 2..2 * SECOND);
        plan.round_trip = round_trips[0];
        plan.reroute = Some(Reroute { at, round_trip: round_trips[1] });
        plan.end = at + 3 * SECOND;
        plan.load_below_capacity(random.range(30..91));
        plan
    }

    fn load_below_capacity(&mut self, percent: u64) {
        self.load = Load::BelowCapacity;
        self.gap = (self.processes as u64 * SECOND * 100).div_ceil(self.capacity() * percent);
    }

    fn fault(&self, random: &mut Random) -> Fault {
        let kind = match random.index(if self.nodes > 1 { 6 } else { 5 }) {
            5 => random.pick(&[Kind::Move, Kind::Migrate]),
            _ => random.pick(&ANYWHERE),
        };
        // Also before the first reply.
        let at = if random.chance(20) { 0 } else { random.range(0..self.end - SECOND) };
        let longest = if kind == Kind::BlockOne { 400 } else { 700 };
        let until = match kind {
            Kind::Cut | Kind::SwallowCalls | Kind::SwallowReplies | Kind::Move => at,
            _ => at + random.range(5 * MS..longest * MS),
        };
        let (process, node) = (random.index(self.processes), random.index(self.nodes));
        Fault { at, until, kind, process, node, slot: random.range(0..SLOTS.into()) as u16 }
    }

    pub(super) fn round_trip(&self, now: Micros) -> Micros {
        let reroute = self.reroute.filter(|reroute| reroute.at <= now);
        reroute.map_or(self.round_trip, |reroute| reroute.round_trip)
    }

    /// Whether checks with this timeout are decided while nothing is wrong.
    pub(super) fn is_sufficient(&self, timeout: Micros) -> bool {
        timeout >= least_timeout(self.round_trip)
    }

    /// Whether a connection is used so often that its failure is noticed soon.
    pub(super) fn is_busy(&self) -> bool {
        self.idle.is_none() && self.gap * self.nodes as u64 <= 10 * MS
    }

    /// How many checks a second the server decides.
    pub(super) fn capacity(&self) -> u64 {
        SECOND * 128 / (self.service_per_call + 128 * self.service_per_key)
    }
}

/// The rest is for a worker that reads a reply late.
fn least_timeout(round_trip: Micros) -> Micros {
    round_trip * 5 / 4 + 20 * MS
}

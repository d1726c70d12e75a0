//! A run, drawn from a seed.

use std::time::Duration;

use crate::algorithm::Limits;
use crate::random::seeded::Random;
use crate::{Policy, Quota};

/// Times are in nanoseconds of the simulation.
pub(super) type Nanos = u64;

pub(super) const MS: Nanos = 1_000_000;
pub(super) const SECOND: Nanos = 1_000 * MS;

/// The checks that a run has, about.
const CHECKS: u64 = 400;

/// An algorithm, by which a run is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    TokenBucket,
    Borrowing,
    IntervalRefill,
    FixedWindow,
    FirstCheck,
    /// A token bucket and a fixed window.
    Two,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// The quota before and after an update.
    pub(super) quotas: [Quota; 2],
    pub(super) lease: Nanos,
    pub(super) timeout: Nanos,
    pub(super) round_trip: Nanos,
    pub(super) processes: Vec<ProcessPlan>,
    pub(super) end: Nanos,
    /// The time at which the clock of the server steps, and by how many microseconds.
    pub(super) clock_step: Option<(Nanos, i64)>,
    /// The largest cost of a check.
    pub(super) most_cost: u64,
    /// How many of 100 calls are lost, on the way there or back.
    pub(super) lost_percent: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ProcessPlan {
    /// The mean time between two checks in each phase. 0 for no checks.
    pub(super) phases: Vec<Nanos>,
    pub(super) pause: Option<(Nanos, Nanos)>,
    pub(super) killed: Option<Nanos>,
    /// The time at which the process gives its leases back and takes no more.
    pub(super) closed: Option<Nanos>,
    pub(super) updated: Option<Nanos>,
}

impl Plan {
    pub(super) fn new(random: &mut Random) -> Self {
        let kind = random.pick(&[
            Kind::TokenBucket,
            Kind::TokenBucket,
            Kind::TokenBucket,
            Kind::Borrowing,
            Kind::IntervalRefill,
            Kind::FixedWindow,
            Kind::FirstCheck,
            Kind::Two,
        ]);
        let end = SECOND;
        let load = 0.2 + 2.5 * random.unit();
        let limit = ((CHECKS as f64 / load) as u64).max(10);
        let limits = match random.chance(25) {
            true => [limit, (limit as f64 * (0.5 + random.unit())) as u64],
            false => [limit; 2],
        };
        let burst = (limit as f64 * (0.2 + 1.3 * random.unit())) as u64;
        let quotas = limits.map(|limit| quota(kind, limit, burst.max(10)));
        // At most a third of the burst.
        let most = (SECOND as f64 / 3.0 * burst as f64 / limits[0].max(limits[1]) as f64) as u64;
        let lease = random.range(5 * MS..300 * MS).min(most) / MS * MS;
        let round_trip = random.pick(&[0, MS / 10, MS, 10 * MS, 40 * MS]);
        let count = random.range(1..11);
        let is_updated = limits[0] != limits[1];
        let processes = (0..count).map(|_| {
            let phases = (0..random.range(1..5)).map(|_| {
                let part = 2.0 * random.unit() / count as f64;
                if random.chance(15) { 0 } else { (SECOND as f64 / (CHECKS as f64 * part)) as u64 }
            });
            let phases = phases.collect();
            let pause = random.chance(30).then(|| {
                let from = random.range(0..end);
                (from, from + random.range(0..3 * lease.max(MS)))
            });
            let killed = random.chance(15).then(|| random.range(0..end));
            let closed = random.chance(15).then(|| random.range(0..end));
            let updated = is_updated.then(|| random.range(end / 4..end));
            ProcessPlan { phases, pause, killed, closed, updated }
        });
        let processes: Vec<_> = processes.collect();
        let step = |random: &mut Random| random.range(0..4_000_000) as i64 - 2_000_000;
        Self {
            kind,
            quotas,
            lease: lease.max(MS),
            timeout: random.pick(&[20 * MS, 50 * MS, 200 * MS]).max(2 * round_trip),
            round_trip,
            processes,
            end,
            clock_step: random.chance(10).then(|| (random.range(0..end), step(random))),
            most_cost: random.pick(&[1, 1, 1, 3, 8]),
            lost_percent: random.pick(&[0, 0, 2]),
        }
    }

    pub(super) fn policies(&self) -> [Policy; 2] {
        self.quotas.map(|quota| {
            let policy = Policy::new("test").quota("a", quota);
            match self.kind {
                Kind::Two => {
                    policy.quota("b", Quota::new(quota.permits() * 3 / 4, PERIOD).calendar())
                }
                _ => policy,
            }
        })
    }

    /// Returns the limits of the policies, and those that the server enforces.
    pub(super) fn limits(&self) -> [(Limits, Limits); 2] {
        self.policies().map(|policy| {
            let whole = Limits::new(&policy, 0).unwrap();
            let leased = whole.leased(self.lease / 1_000).unwrap();
            (whole, leased)
        })
    }
}

/// The length of windows.
pub(super) const PERIOD: Duration = Duration::from_millis(600);

fn quota(kind: Kind, limit: u64, burst: u64) -> Quota {
    let in_period = (limit * 6 / 10).max(4);
    match kind {
        Kind::TokenBucket | Kind::Two => Quota::per_second(limit).burst(burst),
        Kind::Borrowing => Quota::per_second(limit).burst(burst).borrow_up_to(burst / 2),
        Kind::IntervalRefill => Quota::new((limit / 10).max(1), Duration::from_millis(100))
            .burst(burst)
            .interval_refill(),
        Kind::FixedWindow => Quota::new(in_period, PERIOD).calendar(),
        Kind::FirstCheck => Quota::new(in_period, PERIOD).fixed_window(),
    }
}

//! The figures that `table --check` requires.

use crate::bytes::BytesPerKey;
use crate::excess::Excess;
use crate::rows::{self, names};
use crate::runs::{Figure, Runs, client_cpu, median, p50, per_second, redis_cpu};
use crate::script_cost::ScriptCost;

pub(crate) struct Target {
    pub(crate) text: &'static str,
    pub(crate) bound: Bound,
    pub(crate) measured: f64,
}

#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    pub(crate) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(max) => self.measured <= max,
            Bound::AtLeast(min) => self.measured >= min,
        }
    }
}

use Bound::{AtLeast, AtMost};

/// Returns the targets whose figures were measured.
pub(crate) fn targets(
    all_runs: &[Runs],
    bytes: Option<&BytesPerKey>,
    excess: Option<&Excess>,
    script: Option<&ScriptCost>,
) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut target = |text, bound, measured: Option<f64>| {
        targets.extend(measured.map(|measured| Target { text, bound, measured }));
    };
    let row = |name: &str| all_runs.iter().find(|runs| runs.row == name);
    let ratio = |name: &str, reference: &str, figure: Figure| {
        row(name)?.ratio(names::REDIS, reference, figure)
    };
    let rate = |name: &str, reference: &str| ratio(name, reference, per_second);
    target(
        "1 task: p50 relative to EVALSHA `return 1`",
        AtMost(1.15),
        ratio(rows::ONE_TASK, names::BASELINE, p50),
    );
    target(
        "256 tasks, 10,000 keys: decisions/s relative to EVALSHA `return 1`",
        AtLeast(1.0),
        rate(rows::MANY_KEYS, names::BASELINE),
    );
    target(
        "256 tasks, 10,000 keys: decisions/s with 1,000 policies relative to one",
        AtLeast(0.6),
        row(rows::MANY_KEYS)
            .and_then(|runs| runs.ratio(names::REDIS_POLICIES, names::REDIS_NO_LAYER, per_second)),
    );
    target(
        "256 tasks, 10,000 keys: decisions/s relative to tower-rate-limit-redis",
        AtLeast(2.0),
        rate(rows::MANY_KEYS, names::TOWER_RATE_LIMIT_REDIS),
    );
    target(
        "256 tasks, 1 key: decisions/s relative to tower_governor in memory",
        AtLeast(0.65),
        rate(rows::ONE_KEY, names::GOVERNOR),
    );
    target(
        "256 tasks, 1 key, policy on denials only: decisions/s relative to tower_governor in memory",
        AtLeast(0.8),
        row(rows::ONE_KEY).and_then(|runs| {
            runs.ratio(names::REDIS_POLICY_ON_DENIAL, names::GOVERNOR, per_second)
        }),
    );
    target(
        "256 tasks, 1 key: decisions/s relative to EVALSHA `return 1`",
        AtLeast(4.0),
        rate(rows::ONE_KEY, names::BASELINE),
    );
    target(
        "256 tasks, 1 denied key: decisions/s relative to tower_governor in memory",
        AtLeast(1.0),
        rate(rows::DENIED, names::GOVERNOR),
    );
    target(
        "cluster of 3, 256 tasks, 1 key: decisions/s relative to EVALSHA `return 1`",
        AtLeast(3.0),
        rate(rows::CLUSTER_ONE_KEY, names::BASELINE),
    );
    target(
        "cluster of 3, 256 tasks, 10,000 keys: decisions/s relative to EVALSHA `return 1`",
        AtLeast(0.7),
        rate(rows::CLUSTER_MANY_KEYS, names::BASELINE),
    );
    target(
        "cluster of 3, 256 tasks, 10,000 keys: client CPU per decision in µs",
        AtMost(2.0),
        row(rows::CLUSTER_MANY_KEYS).and_then(|runs| runs.median(names::REDIS, client_cpu)),
    );
    let leased =
        |name: &str, reference: &str| row(name)?.ratio(names::LEASES, reference, per_second);
    target(
        "with leases, 256 tasks, 1 key: decisions/s relative to tower_governor in memory",
        AtLeast(0.85),
        leased(rows::ONE_KEY, names::GOVERNOR),
    );
    target(
        "with leases, 256 tasks, 10,000 keys: decisions/s relative to EVALSHA `return 1`",
        AtLeast(3.0),
        leased(rows::MANY_KEYS, names::BASELINE),
    );
    target(
        "with leases, 256 tasks, 10,000 keys: decisions/s relative to tower-rate-limit-redis",
        AtLeast(8.0),
        leased(rows::MANY_KEYS, names::TOWER_RATE_LIMIT_REDIS),
    );
    target(
        "with leases, 256 tasks, 10,000 keys: Redis CPU per decision in µs",
        AtMost(0.5),
        row(rows::MANY_KEYS).and_then(|runs| runs.median(names::LEASES, redis_cpu)),
    );
    target(
        "with leases, round trip of 30 ms, 1 task, 1 key: p50 in µs",
        AtMost(10.0),
        row(rows::DISTANT).and_then(|runs| Some(runs.median(names::LEASES, p50)? / 1e3)),
    );
    target(
        "with leases, cluster of 3, 256 tasks, 10,000 keys: decisions/s relative to EVALSHA `return 1`",
        AtLeast(3.0),
        leased(rows::CLUSTER_MANY_KEYS, names::BASELINE),
    );
    target(
        "without leases: permits above the limit",
        AtMost(0.0),
        excess.and_then(|excess| excess.get(names::REDIS)),
    );
    target(
        "with leases: permits above the limit",
        AtMost(0.0),
        excess.and_then(|excess| excess.get(names::LEASES)),
    );
    target(
        "1 task, in memory: p50 added by the layer, relative to tower_governor",
        AtMost(0.65),
        row(rows::ONE_TASK).and_then(overhead),
    );
    target(
        "256 tasks, 10,000 keys: Redis CPU per decision relative to the two-key script per check",
        AtMost(0.5),
        ratio(rows::MANY_KEYS, names::TWO_KEYS, redis_cpu),
    );
    target(
        "Redis CPU per call of TIME, GET and SET only, relative to fleetlimit's script",
        AtLeast(0.68),
        script.map(|script| script.fleetlimit().cpu_ratio),
    );
    target(
        "calls/s of fleetlimit's script relative to TIME, GET and SET only",
        AtLeast(0.68),
        script.map(|script| script.fleetlimit().rate_ratio),
    );
    target(
        "memory per key in Redis relative to two Redis keys of the same length",
        AtMost(0.6),
        bytes.and_then(|bytes| Some(bytes.get(names::REDIS)? / bytes.get(names::TWO_KEYS)?)),
    );
    targets
}

/// Returns the p50 that the layer adds to the bare service, relative to tower_governor.
fn overhead(runs: &Runs) -> Option<f64> {
    let rounds = runs.get(names::MEMORY).iter().zip(runs.get(names::GOVERNOR));
    let rounds = rounds.zip(runs.get(names::BARE)).map(|((fleetlimit, governor), bare)| {
        (p50(fleetlimit) - p50(bare)) / (p50(governor) - p50(bare))
    });
    median(rounds.collect())
}

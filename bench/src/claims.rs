//! The figures that a run must show, with their bounds.

use crate::bytes::BytesPerKey;
use crate::rows::{self, names};
use crate::run::{Figure, Turns, median, p50, per_second, redis_cpu};
use crate::script_cost::ScriptCost;

pub(crate) struct Claim {
    pub(crate) text: &'static str,
    pub(crate) bound: Bound,
    pub(crate) measured: f64,
}

#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Claim {
    pub(crate) fn holds(&self) -> bool {
        match self.bound {
            Bound::AtMost(most) => self.measured <= most,
            Bound::AtLeast(least) => self.measured >= least,
        }
    }
}

use Bound::{AtLeast, AtMost};

/// Of the rows that were run.
pub(crate) fn claims(
    turns: &[Turns],
    bytes: Option<&BytesPerKey>,
    script: Option<&ScriptCost>,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut claim = |text, bound, measured: Option<f64>| {
        claims.extend(measured.map(|measured| Claim { text, bound, measured }));
    };
    let ratio = |row: &str, to: &str, figure: Figure| {
        turns.iter().find(|turns| turns.row == row)?.ratio(names::REDIS, to, figure)
    };
    let rate = |row: &str, to: &str| ratio(row, to, per_second);
    claim(
        "one task, p50, against EVALSHA `return 1`",
        AtMost(1.10),
        ratio(rows::ONE_TASK, names::FLOOR, p50),
    );
    claim(
        "256 tasks, 10,000 keys, against EVALSHA `return 1`",
        AtLeast(0.85),
        rate(rows::KEYS, names::FLOOR),
    );
    claim(
        "256 tasks, 10,000 keys, against tower-rate-limit-redis",
        AtLeast(2.0),
        rate(rows::KEYS, names::TOWER_RATE_LIMIT_REDIS),
    );
    claim(
        "256 tasks, one key, against tower_governor in memory",
        AtLeast(0.8),
        rate(rows::ONE_KEY, names::GOVERNOR),
    );
    claim(
        "256 tasks, one key, against EVALSHA `return 1`",
        AtLeast(4.0),
        rate(rows::ONE_KEY, names::FLOOR),
    );
    claim(
        "256 tasks, one denied key, against tower_governor in memory",
        AtLeast(1.0),
        rate(rows::DENIED, names::GOVERNOR),
    );
    claim(
        "cluster of 3, 256 tasks, one key, against EVALSHA `return 1`",
        AtLeast(3.0),
        rate(rows::CLUSTER_ONE_KEY, names::FLOOR),
    );
    claim(
        "cluster of 3, 256 tasks, 10,000 keys, against EVALSHA `return 1`",
        AtLeast(0.7),
        rate(rows::CLUSTER_KEYS, names::FLOOR),
    );
    claim(
        "MemoryStore through the layer, p50 over the service alone, against tower_governor's",
        AtMost(0.7),
        turns.iter().find(|turns| turns.row == rows::ONE_TASK).and_then(overhead),
    );
    claim(
        "Redis CPU per decision, 10,000 keys, against the two-key script per check",
        AtMost(0.5),
        ratio(rows::KEYS, names::TWO_KEYS, redis_cpu),
    );
    claim(
        "script alone, single check, against TIME, GET and SET only, by the server's CPU time",
        AtLeast(0.68),
        script.map(|script| script.own().by_cpu),
    );
    claim("the same by calls per second", AtLeast(0.68), script.map(|script| script.own().by_rate));
    let memory = bytes.and_then(|bytes| Some(bytes.of(names::REDIS)? / bytes.of(names::TWO_KEYS)?));
    claim("memory per key in Redis, against two keys of the same text", AtMost(0.6), memory);
    claims
}

/// What the layer adds to the service, against what tower_governor's adds.
fn overhead(turns: &Turns) -> Option<f64> {
    let rounds = turns.of(names::MEMORY).iter().zip(turns.of(names::GOVERNOR));
    let rounds = rounds
        .zip(turns.of(names::BARE))
        .map(|((own, governor), bare)| (p50(own) - p50(bare)) / (p50(governor) - p50(bare)));
    median(rounds.collect())
}

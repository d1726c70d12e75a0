//! The turns of a row. A machine is never quiet for long, so that all subjects have a short turn
//! in every round, figures are medians of the rounds, and ratios are taken within a round.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::{Load, Slice, Until};
use crate::rows::{Contestant, KEYS, Row};
use crate::stage::Stage;
use crate::subjects::Fault;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
}

/// The turns of one row: of each subject one for each round.
pub(crate) struct Turns {
    pub(crate) row: &'static str,
    pub(crate) order: Vec<&'static str>,
    slices: BTreeMap<&'static str, Vec<Slice>>,
}

/// With the subjects whose name contains `subject`.
pub(crate) async fn row(
    row: &Row,
    subject: &str,
    stage: &Stage,
    pace: Pace,
) -> Result<Turns, Fault> {
    let mut contestants = row.contestants(stage).await?;
    contestants.retain(|contestant| contestant.name.contains(subject));
    turns(row, &contestants, stage, pace)
        .await
        .map_err(|fault| format!("{}: {fault}", row.name).into())
}

async fn turns(
    row: &Row,
    contestants: &[Contestant],
    stage: &Stage,
    pace: Pace,
) -> Result<Turns, Fault> {
    let mut turns = Turns {
        row: row.name,
        order: contestants.iter().map(|contestant| contestant.name).collect(),
        slices: BTreeMap::new(),
    };
    let load = |time| Load { tasks: row.tasks, keys: row.keys, until: Until::Over(time) };
    for contestant in contestants {
        // Connections, the script, the keys.
        contestant.run(load(pace.slice / 5)).await?;
    }
    for round in 0..pace.rounds {
        for n in 0..contestants.len() {
            let contestant = &contestants[(n + round) % contestants.len()];
            if row.is_open && !row.on_cluster && contestant.uses_redis {
                // As it would be alone: a server that holds the keys of all the others too has
                // them in the way of its caches.
                stage.server.query::<()>(&["FLUSHALL"]).await;
                contestant.run(load(pace.slice / 5)).await?;
            }
            let slice = turn(contestant, load(pace.slice), stage, row.on_cluster).await?;
            expect(contestant, &slice, row.is_open)?;
            turns.slices.entry(contestant.name).or_default().push(slice);
        }
    }
    if row.name == KEYS {
        // For the measure of what they take in Redis, which is of this row.
        let all = Load { tasks: row.tasks, keys: row.keys, until: Until::Filled };
        for contestant in contestants {
            contestant.run(all).await?;
        }
    }
    Ok(turns)
}

pub(crate) async fn turn(
    contestant: &Contestant,
    load: Load,
    stage: &Stage,
    on_cluster: bool,
) -> Result<Slice, Fault> {
    if !contestant.uses_redis {
        return contestant.run(load).await;
    }
    let before = stage.cpu(on_cluster).await;
    let mut slice = contestant.run(load).await?;
    slice.redis_cpu = stage.cpu(on_cluster).await.saturating_sub(before);
    Ok(slice)
}

/// A limiter that answered otherwise than its row says has not been measured.
fn expect(contestant: &Contestant, slice: &Slice, is_open: bool) -> Result<(), Fault> {
    let wrong = if is_open { slice.denied } else { slice.allowed };
    if slice.decisions() == 0 || contestant.limits && wrong > 0 {
        let Slice { allowed, denied, .. } = slice;
        let fault = format!("{} allowed {allowed} and denied {denied}", contestant.name);
        return Err(fault.into());
    }
    Ok(())
}

/// A figure of a turn.
pub(crate) type Figure = fn(&Slice) -> f64;

pub(crate) fn per_second(slice: &Slice) -> f64 {
    slice.decisions() as f64 / slice.elapsed.as_secs_f64()
}

pub(crate) fn p50(slice: &Slice) -> f64 {
    slice.p50.into()
}

pub(crate) fn p99(slice: &Slice) -> f64 {
    slice.p99.into()
}

/// Microseconds of this process for a decision.
pub(crate) fn own_cpu(slice: &Slice) -> f64 {
    slice.own_cpu.as_secs_f64() * 1e6 / slice.decisions() as f64
}

/// Microseconds of Redis for a decision.
pub(crate) fn redis_cpu(slice: &Slice) -> f64 {
    slice.redis_cpu.as_secs_f64() * 1e6 / slice.decisions() as f64
}

impl Turns {
    pub(crate) fn of(&self, name: &str) -> &[Slice] {
        self.slices.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn median(&self, name: &str, figure: Figure) -> Option<f64> {
        median(self.of(name).iter().map(figure).collect())
    }

    /// The median of the rounds' ratios.
    pub(crate) fn ratio(&self, name: &str, to: &str, figure: Figure) -> Option<f64> {
        let pairs = self.of(name).iter().zip(self.of(to));
        median(pairs.map(|(one, other)| figure(one) / figure(other)).collect())
    }
}

pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let upper = *figures.get(figures.len() / 2)?;
    let lower = figures[(figures.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

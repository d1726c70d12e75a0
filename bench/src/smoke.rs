//! Runs every row briefly, to check that the benchmarks work. The figures are not meaningful.

use std::process::ExitCode;
use std::time::Duration;

use crate::algorithms;
use crate::bytes::BytesPerKey;
use crate::delay;
use crate::excess::Excess;
use crate::holds;
use crate::load::Measurement;
use crate::rows::{self, Row};
use crate::runs::{self, RunConfig};
use crate::script_cost::ScriptCost;
use crate::setup::Setup;
use crate::subjects::BoxError;
use crate::targets::targets;

/// How many targets `table` checks.
const TARGETS: usize = 24;

pub(crate) async fn run() -> Result<ExitCode, BoxError> {
    let setup = Setup::start().await?;
    let config = RunConfig { rounds: 1, slice: Duration::from_millis(50) };
    let (mut all_runs, mut bytes) = (Vec::new(), None);
    for row in &Row::ALL {
        let runs = runs::measure_row(row, "", &setup, config).await?;
        if row.name == rows::MANY_KEYS {
            bytes = Some(BytesPerKey::measure(row, &setup).await?);
        }
        for name in &runs.order {
            let decisions: u64 = runs.get(name).iter().map(Measurement::decisions).sum();
            println!("{}: {name}: {decisions} decisions", row.name);
        }
        all_runs.push(runs);
    }
    let script = ScriptCost::measure(&setup, 1, 2_000).await?;
    let excess = Excess::measure(&setup, config.slice).await?;
    let targets = targets(&all_runs, bytes.as_ref(), Some(&excess), Some(&script));
    if targets.len() != TARGETS || targets.iter().any(|target| !target.measured.is_finite()) {
        let measured: Vec<_> = targets.iter().map(|target| target.measured).collect();
        return Err(format!("expected {TARGETS} finite figures, got {measured:?}").into());
    }
    println!("measured the figures of all {TARGETS} targets");
    smoke_delay().await?;
    algorithms::smoke().await?;
    holds::smoke().await?;
    Ok(ExitCode::SUCCESS)
}

async fn smoke_delay() -> Result<(), BoxError> {
    let server = delay::start().await?;
    let slice = Duration::from_millis(100);
    let distance = delay::measure(&server, 1, &[256], &[0.5, 2.0], 1, slice).await?;
    let rates: Vec<_> = distance.points.iter().map(|p| (p.offered, p.answered)).collect();
    if distance.capacity == 0.0 || rates.iter().any(|(offered, _)| *offered == 0.0) {
        return Err(format!("no load at a round trip of 1 ms: {rates:?}").into());
    }
    println!("delay: offered and answered per second: {rates:?}");
    Ok(())
}

//! Every row for a moment: it shows that the benchmarks run, not what they measure.

use std::process::ExitCode;
use std::time::Duration;

use crate::bytes::BytesPerKey;
use crate::claims::claims;
use crate::load::Slice;
use crate::rows::{self, Row};
use crate::run::{self, Pace};
use crate::script_cost::ScriptCost;
use crate::stage::Stage;
use crate::subjects::Fault;

/// How many figures a run of the table must show.
const CLAIMS: usize = 13;

pub(crate) async fn run() -> Result<ExitCode, Fault> {
    let stage = Stage::set().await?;
    let pace = Pace { rounds: 1, slice: Duration::from_millis(50) };
    let (mut turns, mut bytes) = (Vec::new(), None);
    for row in &Row::ALL {
        let these = run::row(row, "", &stage, pace).await?;
        if row.name == rows::KEYS {
            bytes = Some(BytesPerKey::measure(&stage).await?);
        }
        for name in &these.order {
            let decisions: u64 = these.of(name).iter().map(Slice::decisions).sum();
            println!("{}: {name}: {decisions} decisions", row.name);
        }
        turns.push(these);
    }
    let script = ScriptCost::measure(&stage, 1, 2_000).await?;
    let claims = claims(&turns, bytes.as_ref(), Some(&script));
    if claims.len() != CLAIMS || claims.iter().any(|claim| !claim.measured.is_finite()) {
        return Err(format!("{} of {CLAIMS} figures were measured", claims.len()).into());
    }
    println!("all {CLAIMS} figures can be measured");
    Ok(ExitCode::SUCCESS)
}

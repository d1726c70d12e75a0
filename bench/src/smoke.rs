//! Every row for a moment: it shows that the benchmarks run, not what they measure.

use std::process::ExitCode;
use std::time::Duration;

use crate::bytes::BytesPerKey;
use crate::rows::{Row, names};
use crate::run::{self, Pace};
use crate::script_cost::ScriptCost;
use crate::stage::Stage;
use crate::subjects::{Fault, tollgate};

pub(crate) async fn run() -> Result<ExitCode, Fault> {
    let stage = Stage::set().await?;
    let pace = Pace { rounds: 1, slice: Duration::from_millis(50) };
    for row in &Row::ALL {
        let turns = run::row(row, &stage, pace).await?;
        for name in turns.order.iter() {
            let decisions: u64 = turns.of(name).iter().map(|slice| slice.decisions()).sum();
            println!("{}: {name}: {decisions} decisions", row.name);
        }
    }
    ScriptCost::measure(&stage, 1, 2_000).await?;
    Ok(ExitCode::SUCCESS)
}

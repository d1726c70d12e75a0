//! What tollgate costs, against the floor and against its peers: see `USAGE`, or run `-- help`.

mod allocations;
mod bytes;
mod captured;
mod claims;
#[allow(unused_imports)]
#[path = "../../tests/it/common/mod.rs"]
mod common;
mod load;
mod plot;
mod rows;
mod run;
mod scale;
mod script_cost;
mod settings;
mod smoke;
mod stage;
mod subjects;
mod table;

use std::process::ExitCode;

use settings::Settings;
use subjects::Fault;

const USAGE: &str = "\
usage: cargo run --locked --release --manifest-path bench/Cargo.toml -- RUN [OPTION]...

  table         the table, and the figures that it must show; ends well even if one is short
  scale         as keys and tasks grow; draws docs/bench-keys.svg and docs/bench-tasks.svg
  allocations   heap allocations of a request
  smoke         a moment of every row of the table, without its figures

Options of table; scale takes the first two:
  --rounds N      how often each subject has its turn (table 5, scale 3)
  --slice S       how many seconds a turn takes (table 1, scale 0.5)
  --only TEXT     only the rows whose name begins with this, or `script`
  --subject TEXT  only the subjects whose name contains this, to profile one
  --check         end with 1 if a figure is short
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let run = args.next().unwrap_or_default();
    let settings = match Settings::parse(args) {
        Ok(settings) => settings,
        Err(fault) => {
            eprintln!("{fault}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match run.as_str() {
        "table" => on_two_workers(table::run(settings)),
        "scale" => on_two_workers(scale::run(settings)),
        "smoke" => on_two_workers(smoke::run()),
        "allocations" => allocations::run(),
        "help" | "--help" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        run => {
            eprintln!("there is no run {run:?}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    done.unwrap_or_else(|fault| {
        eprintln!("failed: {fault}");
        ExitCode::FAILURE
    })
}

/// Two threads for the tasks, as many as the figures are for.
fn on_two_workers(run: impl Future<Output = Result<ExitCode, Fault>>) -> Result<ExitCode, Fault> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(run)
}

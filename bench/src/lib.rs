//! Benchmarks of fleetlimit, against a baseline and other crates. `USAGE` lists the commands.
//!
//! The benchmarks: `rows` is the `table` of loads, each with its subjects (`subjects`), measured in rounds
//! (`runs`, with `load` as a closed loop), and compared with `targets`; `script_cost` has the rows of the
//! script alone (`captured`), `bytes` the memory of a key, and `excess` the permits above the limit. `scale`,
//! `delay`, `admission`, `leases`, `algorithms`, `holds`, `allocations`, `sizes`, `flood`, `soak`, `chaos` and `smoke` are
//! commands of their own. `setup` starts
//! servers, `distance` delays them, `paced` are loads that fall behind, and `settings` the options.

mod admission;
mod algorithms;
mod allocations;
mod bytes;
mod captured;
mod chaos;
#[allow(unused_imports)]
#[path = "../../tests/it/common/mod.rs"]
mod common;
mod delay;
mod distance;
mod excess;
mod flood;
mod holds;
mod leases;
mod load;
mod paced;
mod rows;
mod runs;
mod scale;
mod script_cost;
mod settings;
mod setup;
mod sizes;
mod smoke;
mod soak;
mod subjects;
mod table;
mod targets;

use std::process::ExitCode;

use settings::Settings;
use subjects::BoxError;

const USAGE: &str = "\
usage: cargo run --locked --release --manifest-path bench/Cargo.toml -- COMMAND [OPTION]...

Commands:
  table         measure all rows of the table, and compare the figures with the targets
  scale         measure with growing numbers of keys and of tasks;
                writes docs/bench-keys.svg and docs/bench-tasks.svg
  delay         measure at round trip times of 1 to 30 ms, below and above the capacity;
                writes docs/delay.svg
  admission     draw what each algorithm admits of the same requests; writes docs/algorithms.svg
  leases        draw what leases admit near the limit, and how many checks do not wait for Redis;
                writes docs/leases.svg
  algorithms    measure what each algorithm costs Redis, relative to the token bucket
  holds         measure permits that are held for a moment, with and without leases
  soak          10 minutes at a round trip of 10 ms, with a stall every few seconds;
                exits with status 1 if checks are not decided soon after each
  chaos         10 minutes of several processes with one fault after another; prints a scorecard, and
                exits with status 1 if the limit, the latency or the recovery are not as documented
  outage        draw what the processes of `chaos` admit while Redis is killed; writes docs/outage.svg
  flood         check a million keys in memory, on Redis, and while Redis is down; exits with status 1
                if the memory of the process grows, or a denied key is allowed
  allocations   count the heap allocations of a request
  sizes         measure the memory of a key in Redis and in the process, by its length
  smoke         run every row of the table and `delay` briefly, to check that the benchmarks work

Options of `table` (`scale` and `delay` use only the first two, `holds` these and --check, and `algorithms` --rounds and --check;
`chaos` has --slice, and --only for the name of a fault):
  --rounds N      number of rounds, each with one run of every subject (default 5, others 3)
  --slice S       duration of a run in seconds (default 1, scale 0.5, soak and chaos 600)
  --only TEXT     only the rows whose name starts with TEXT; `script` selects the script costs
  --subject TEXT  only the subjects whose name contains TEXT, for profiling
  --check         exit with status 1 if a target is missed
";

/// Runs a command.
pub fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let settings = match Settings::parse(args) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let result = match command.as_str() {
        "table" => block_on(table::run(settings)),
        "scale" => block_on(scale::run(settings)),
        "delay" => block_on(delay::run(settings)),
        "admission" => admission::run(),
        "leases" => block_on(leases::run()),
        "algorithms" => block_on(algorithms::run(&settings)),
        "holds" => block_on(holds::run(&settings)),
        "soak" => block_on(soak::run(settings)),
        "chaos" => block_on(chaos::run(settings)),
        // A process of `chaos`.
        "chaos-worker" => block_on(chaos::run_worker(settings)),
        "outage" => block_on(chaos::draw_outage()),
        "flood" => block_on(flood::run()),
        "smoke" => block_on(smoke::run()),
        "allocations" => allocations::run(),
        "sizes" => block_on(sizes::run()),
        "help" | "--help" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        command => {
            eprintln!("unknown command: {command:?}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

/// Uses two worker threads, as the targets assume.
fn block_on(
    command: impl Future<Output = Result<ExitCode, BoxError>>,
) -> Result<ExitCode, BoxError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(command)
}

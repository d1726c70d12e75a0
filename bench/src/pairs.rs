//! Compares two builds of the benchmarks, such as one with metrics and one without. Only one of them has
//! something to do at a time.
//!
//! Of two processes of the same program, one can be 10% faster all the time. So each pair starts many, and adds
//! their speeds up. The layout of the code can matter, too, so each pair has programs that are linked in another
//! order. The speed of a machine changes within a second, so the two builds take short turns. (For the effects of
//! layouts, see Curtsinger and Berger, "Stabilizer: Statistically Sound Performance Evaluation", 2013.)
//!
//! A single task makes two to three times as many decisions while the scheduler lets it share a core with
//! Redis, and that changes many times per second. So rows of one task run on one core: the faster case, in
//! which additional work takes a larger part of the time.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::runtime::Handle;

use crate::load::{Load, Until};
use crate::rows::{Row, Subject};
use crate::runs::{median, per_second, verify};
use crate::settings::Settings;
use crate::setup::Setup;
use crate::subjects::BoxError;
use crate::worker::Worker;

const PAIRS: usize = 10;
/// How many processes of each build a pair starts for a row.
const STARTS: u32 = 16;
/// How many turns each process has, in addition to the warm-up.
const TURNS: u32 = 12;
/// The length of the warm-up, in turns.
const WARM_UP: u32 = 5;
/// How long all turns of a build take in a pair, for one subject.
const SLICE: Duration = Duration::from_secs(2);
/// The least ratio that `--check` accepts.
const LEAST: f64 = 0.97;

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let (Some(of), Some(with)) = (&settings.of, &settings.with) else {
        return Err("`pairs` needs --of and --with, and directories of programs".into());
    };
    let (pairs, slice) = (settings.rounds.unwrap_or(PAIRS), settings.slice.unwrap_or(SLICE));
    println!(
        "Decisions per second of the build of --with relative to that of --of: medians of {pairs} pairs \
         of {slice:?}, and the quartiles.\n\n| load | subject | ratio | quartiles |\n|---|---|--:|--:|",
    );
    let programs: Vec<_> =
        (1..=pairs).map(|pair| [of, with].map(|build| build.join(pair.to_string()))).collect();
    let (mut is_empty, mut is_slower) = (true, false);
    for (number, row) in Row::ALL.iter().enumerate() {
        if !row.name.starts_with(&settings.only) {
            continue;
        }
        for (subject, mut ratios) in compare(&programs, number, &settings.subject, slice).await? {
            ratios.sort_by(f64::total_cmp);
            let [low, high] = [pairs / 4, pairs - 1 - pairs / 4].map(|index| ratios[index]);
            let ratio = median(ratios).ok_or("no pairs")?;
            println!("| {} | {subject} | {ratio:.3} | {low:.3} to {high:.3} |", row.name);
            is_slower |= ratio < LEAST;
            is_empty = false;
        }
    }
    if is_empty {
        return Err("no row matches --only, or no subject matches --subject".into());
    }
    Ok(if settings.check && is_slower { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A build with itself.
pub(crate) async fn smoke() -> Result<(), BoxError> {
    let this = env::current_exe()?;
    let programs = [[this.clone(), this]];
    let ratios = compare(&programs, 0, "memory", Duration::from_millis(400)).await?;
    if ratios.len() == 2 { Ok(()) } else { Err(format!("`pairs` compares {ratios:?}").into()) }
}

/// The ratios of the subjects of a row whose names contain `subject`: one of each pair of programs.
async fn compare(
    programs: &[[PathBuf; 2]],
    row: usize,
    subject: &str,
    slice: Duration,
) -> Result<BTreeMap<String, Vec<f64>>, BoxError> {
    let pairs = async || {
        let setups = [Setup::start().await?, Setup::start().await?];
        let comparison = Comparison { row, setups, subject, turn: slice / (STARTS * TURNS) };
        let mut ratios: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (number, pair) in programs.iter().enumerate() {
            eprintln!("{}: pair {} of {}", Row::ALL[row].name, number + 1, programs.len());
            for (subject, [of, with]) in comparison.rates(pair).await? {
                ratios.entry(subject).or_default().push(with / of);
            }
        }
        Ok(ratios)
    };
    if Row::ALL[row].tasks == 1 { on_one_core(pairs) } else { pairs().await }
}

/// Runs something on one core. The processes that it starts inherit the core of its thread.
fn on_one_core<T: Send>(
    run: impl AsyncFnOnce() -> Result<T, BoxError> + Send,
) -> Result<T, BoxError> {
    let runtime = Handle::current();
    let run_here = || {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        match cores.first() {
            Some(core) if core_affinity::set_for_current(*core) => runtime.block_on(run()),
            _ => Err("cannot choose a core".into()),
        }
    };
    thread::scope(|scope| scope.spawn(run_here).join()).map_err(|_| "the thread panicked")?
}

struct Comparison<'a> {
    row: usize,
    setups: [Setup; 2],
    /// A part of the names of the subjects.
    subject: &'a str,
    turn: Duration,
}

impl Comparison<'_> {
    /// The decisions per second of two programs, by subject: the sum of all turns.
    async fn rates(&self, programs: &[PathBuf; 2]) -> Result<BTreeMap<String, [f64; 2]>, BoxError> {
        let mut rates: BTreeMap<String, [f64; 2]> = BTreeMap::new();
        for start in 0..STARTS {
            // The first process may have an advantage, and so may one of the servers.
            let order = if start % 2 == 0 { [0, 1] } else { [1, 0] };
            let servers = if start / 2 % 2 == 0 { [0, 1] } else { [1, 0] };
            let (first, names) = self.start(&programs[order[0]], &self.setups[servers[0]]).await?;
            let (second, other_names) =
                self.start(&programs[order[1]], &self.setups[servers[1]]).await?;
            if names != other_names {
                return Err(format!(
                    "the programs have different subjects: {names}, {other_names}"
                )
                .into());
            }
            let mut workers = [first, second];
            for (number, name) in names.split('\t').enumerate() {
                if name.contains(self.subject) {
                    let sums = rates.entry(name.to_owned()).or_default();
                    let of_turns = self.take_turns(&mut workers, number).await?;
                    for (program, rate) in order.into_iter().zip(of_turns) {
                        sums[program] += rate;
                    }
                }
            }
            for worker in workers {
                worker.end().await?;
            }
        }
        Ok(rates)
    }

    /// Starts a program, and returns the names of its subjects, too.
    async fn start(&self, program: &Path, setup: &Setup) -> Result<(Worker, String), BoxError> {
        setup.flush().await;
        let mut worker = Worker::start(program, &["pairs-worker"])?;
        let (row, urls) = (self.row, Row::ALL[self.row].urls(setup).join(" "));
        let names = worker.ask(&format!("row {row} {urls}")).await?;
        Ok((worker, names))
    }

    /// The sums of the decisions per second of each program.
    async fn take_turns(
        &self,
        workers: &mut [Worker; 2],
        subject: usize,
    ) -> Result<[f64; 2], BoxError> {
        let ask = |command, time: Duration| format!("{command} {subject} {}", time.as_micros());
        for worker in &mut *workers {
            worker.ask(&ask("warm-up", self.turn * WARM_UP)).await?;
        }
        let mut sums = [0.0; 2];
        for number in 0..TURNS as usize {
            // A B B A.
            let first = number % 2;
            for index in [first, 1 - first] {
                let rate = workers[index].ask(&ask("run", self.turn)).await?;
                sums[index] += rate.parse::<f64>()?;
            }
        }
        Ok(sums)
    }
}

pub(crate) async fn run_worker() -> Result<ExitCode, BoxError> {
    let mut current: Option<(&Row, Vec<Subject>)> = None;
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["row", number, ref urls @ ..] => {
                let row = Row::ALL.get(number.parse::<usize>()?).ok_or("there is no such row")?;
                let subjects = row.fleetlimit(urls)?;
                let names: Vec<_> = subjects.iter().map(|subject| subject.name).collect();
                println!("{}", names.join("\t"));
                current = Some((row, subjects));
            }
            [command @ ("warm-up" | "run"), number, micros] => {
                let (row, subjects) = current.as_ref().ok_or("no row is chosen")?;
                let subject = subjects.get(number.parse::<usize>()?).ok_or("no such subject")?;
                let until = Until::Elapsed(Duration::from_micros(micros.parse()?));
                let run = subject.run(Load { tasks: row.tasks, keys: row.keys, until }).await?;
                if command == "run" {
                    verify(subject, &run, row.allow_all)?;
                }
                println!("{}", per_second(&run));
            }
            _ => return Err(format!("unknown command: {command:?}").into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

//! Compares two builds of the benchmarks, such as one with metrics and one without. Each has a process
//! and Redis servers of its own, and only one of them has something to do at a time.
//!
//! The layout of the code can make all runs of a row 10% faster or slower, and that of the memory of a
//! process 3%. So each row of a pair has new processes, and each pair has programs that are linked in
//! another order. The speed of a machine changes within a second, so the two of a pair take turns many
//! times. (For the effects of layouts, see Curtsinger and Berger, "Stabilizer: Statistically Sound
//! Performance Evaluation", 2013.)

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use crate::load::{Load, Until};
use crate::rows::{Row, Subject};
use crate::runs::{median, per_second, verify};
use crate::settings::Settings;
use crate::setup::Setup;
use crate::subjects::BoxError;
use crate::worker::Worker;

const PAIRS: usize = 10;
/// How long each build of a pair runs, in so many turns.
const SLICE: Duration = Duration::from_secs(1);
const TURNS: u32 = 20;
/// The least ratio that `--check` accepts.
const LEAST: f64 = 0.97;

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let (Some(of), Some(with)) = (&settings.of, &settings.with) else {
        return Err("`pairs` needs --of and --with, and directories of programs".into());
    };
    let (pairs, slice) = (settings.rounds.unwrap_or(PAIRS), settings.slice.unwrap_or(SLICE));
    let programs = |pair: usize| [of, with].map(|build| build.join((pair + 1).to_string()));
    let compared = compare(programs, (&settings.only, &settings.subject), (pairs, slice)).await?;
    if compared.is_empty() {
        return Err("no row matches --only, or no subject matches --subject".into());
    }
    println!(
        "Decisions per second of the build of --with relative to that of --of: medians of {pairs} pairs \
         of {slice:?}, and the quartiles.\n\n| load | subject | ratio | quartiles |\n|---|---|--:|--:|",
    );
    let mut is_slower = false;
    for Compared { row, subject, mut ratios } in compared {
        ratios.sort_by(f64::total_cmp);
        let [low, high] = [pairs / 4, pairs - 1 - pairs / 4].map(|index| ratios[index]);
        let ratio = median(ratios).ok_or("no pairs")?;
        println!("| {row} | {subject} | {ratio:.3} | {low:.3} to {high:.3} |");
        is_slower |= ratio < LEAST;
    }
    Ok(if settings.check && is_slower { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A build with itself.
pub(crate) async fn smoke() -> Result<(), BoxError> {
    let this = env::current_exe()?;
    let programs = |_| [this.clone(), this.clone()];
    let compared = compare(programs, ("1 task", "memory"), (1, Duration::from_millis(400))).await?;
    if compared.is_empty() { Err("`pairs` compares nothing".into()) } else { Ok(()) }
}

struct Compared {
    row: &'static str,
    subject: String,
    /// One of each pair.
    ratios: Vec<f64>,
}

/// The ratios of each row and subject whose names match. `programs` are those of a pair.
async fn compare(
    programs: impl Fn(usize) -> [PathBuf; 2],
    (row_name, subject): (&str, &str),
    (pairs, slice): (usize, Duration),
) -> Result<Vec<Compared>, BoxError> {
    let mut all: Vec<Compared> = Vec::new();
    for pair in 0..pairs {
        eprintln!("pair {} of {pairs}", pair + 1);
        let worker = |program: &Path| Worker::start(program, &["pairs-worker"]);
        let [of, with] = programs(pair);
        let mut next = 0;
        for (number, row) in Row::ALL.iter().enumerate() {
            if !row.name.starts_with(row_name) {
                continue;
            }
            let mut builds = [worker(&of)?, worker(&with)?];
            let names = builds[0].ask(&format!("row {number}")).await?;
            if builds[1].ask(&format!("row {number}")).await? != names {
                return Err(format!("{}: the builds have different subjects", row.name).into());
            }
            for (number, name) in names.split('\t').enumerate() {
                if !name.contains(subject) {
                    continue;
                }
                let ratio = take_turns(&mut builds, number, pair, slice / TURNS).await?;
                match all.get_mut(next) {
                    Some(compared) => compared.ratios.push(ratio),
                    None => {
                        let (row, subject) = (row.name, name.to_owned());
                        all.push(Compared { row, subject, ratios: vec![ratio] });
                    }
                }
                next += 1;
            }
        }
    }
    Ok(all)
}

/// How many decisions the second build makes for one of the first.
async fn take_turns(
    builds: &mut [Worker; 2],
    subject: usize,
    pair: usize,
    turn: Duration,
) -> Result<f64, BoxError> {
    for index in [pair % 2, 1 - pair % 2] {
        builds[index].ask(&format!("warm-up {subject} {}", turn.as_micros())).await?;
    }
    let mut rates = [0.0; 2];
    for number in 0..TURNS as usize {
        // A B B A, and the other way round in the next pair.
        let first = (number + pair) % 2;
        for index in [first, 1 - first] {
            let rate = builds[index].ask(&format!("run {subject} {}", turn.as_micros())).await?;
            rates[index] += rate.parse::<f64>()?;
        }
    }
    Ok(rates[1] / rates[0])
}

pub(crate) async fn run_worker() -> Result<ExitCode, BoxError> {
    let setup = Setup::start().await?;
    let mut current: Option<(&Row, Vec<Subject>)> = None;
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["row", number] => {
                let row = Row::ALL.get(number.parse::<usize>()?).ok_or("there is no such row")?;
                let mut subjects = row.subjects(&setup).await?;
                subjects.retain(|subject| subject.name.contains("tollgate"));
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

//! Compares two builds of the benchmarks, such as one with metrics and one without. Each has a process
//! and Redis servers of its own, and only one of them has something to do at a time.

use std::env;
use std::path::Path;
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
const SLICE: Duration = Duration::from_millis(500);
/// The least ratio that `--check` accepts.
const LEAST: f64 = 0.97;

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let other = settings.with.as_deref().ok_or("`pairs` needs --with and the path of a build")?;
    let config = (settings.rounds.unwrap_or(PAIRS), settings.slice.unwrap_or(SLICE));
    println!(
        "Decisions per second of the other build relative to this one: medians of {} pairs of {:?}, and \
         the quartiles.\n\n| load | subject | ratio | quartiles |\n|---|---|--:|--:|",
        config.0, config.1
    );
    let ratios = compare(other, (&settings.only, &settings.subject), config).await?;
    if ratios.is_empty() {
        return Err("no row matches --only, or no subject matches --subject".into());
    }
    let is_slower = ratios.iter().any(|ratio| *ratio < LEAST);
    Ok(if settings.check && is_slower { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A build with itself.
pub(crate) async fn smoke() -> Result<(), BoxError> {
    let this = env::current_exe()?;
    let ratios = compare(&this, ("1 task", "memory"), (1, Duration::from_millis(10))).await?;
    if ratios.is_empty() { Err("`pairs` compares nothing".into()) } else { Ok(()) }
}

/// Prints the median of each row and subject whose names match, and returns all of them.
async fn compare(
    other: &Path,
    (row_name, subject): (&str, &str),
    (pairs, slice): (usize, Duration),
) -> Result<Vec<f64>, BoxError> {
    let worker = |build: &Path| Worker::start(build, &["pairs-worker"]);
    let mut builds = [worker(&env::current_exe()?)?, worker(other)?];
    let mut all = Vec::new();
    for (number, row) in Row::ALL.iter().enumerate() {
        if !row.name.starts_with(row_name) {
            continue;
        }
        let names = builds[0].ask(&format!("row {number}")).await?;
        if builds[1].ask(&format!("row {number}")).await? != names {
            return Err(format!("{}: the builds have different subjects", row.name).into());
        }
        for (number, name) in names.split('\t').enumerate() {
            if !name.contains(subject) {
                continue;
            }
            let run = format!("run {number} {}", slice.as_micros());
            for build in &mut builds {
                build.ask(&format!("warm-up {number} {}", slice.as_micros())).await?;
            }
            let mut ratios = Vec::new();
            for pair in 0..pairs {
                let first = pair % 2;
                let mut rates = [0.0; 2];
                for index in [first, 1 - first] {
                    rates[index] = builds[index].ask(&run).await?.parse()?;
                }
                ratios.push(rates[1] / rates[0]);
            }
            ratios.sort_by(f64::total_cmp);
            let quartiles = [pairs / 4, pairs - 1 - pairs / 4].map(|index| ratios[index]);
            let ratio = median(ratios).ok_or("no pairs")?;
            let [low, high] = quartiles;
            println!("| {} | {name} | {ratio:.3} | {low:.3} to {high:.3} |", row.name);
            all.push(ratio);
        }
    }
    Ok(all)
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

//! Prints the table of all rows, in Markdown.

use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::bytes::BytesPerKey;
use crate::excess::{self, Excess};
use crate::rows::{self, Row, names};
use crate::runs::{self, RunConfig, Runs, client_cpu, p50, p99, per_second, redis_cpu};
use crate::script_cost::ScriptCost;
use crate::settings::Settings;
use crate::setup::Setup;
use crate::subjects::BoxError;
use crate::targets::{Bound, Target, targets};

/// Calls of each script in each round.
const SCRIPT_CALLS: u64 = 300_000;

/// The subjects to compare the decisions per second with, and their column headings.
const REFERENCES: [(&str, &str); 5] = [
    (names::BASELINE, "baseline"),
    (names::GOVERNOR, "governor"),
    (names::TOWER_RATE_LIMIT_REDIS, "t-r-l-redis"),
    (names::POOLED, "deadpool"),
    (names::TWO_KEYS, "two-key"),
];

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let setup = Setup::start().await?;
    let config = RunConfig {
        rounds: settings.rounds.unwrap_or(5),
        slice: settings.slice.unwrap_or(Duration::from_secs(1)),
    };
    print_header(&setup, config).await;
    let (mut all_runs, mut bytes, mut excess) = (Vec::new(), None, None);
    for row in Row::ALL.iter().filter(|row| row.name.starts_with(&settings.only)) {
        eprintln!("{} ...", row.name);
        let runs = runs::measure_row(row, &settings.subject, &setup, config).await?;
        if row.name == rows::MANY_KEYS && settings.subject.is_empty() {
            bytes = Some(BytesPerKey::measure(row, &setup).await?);
        }
        if row.name == rows::ONE_KEY && settings.subject.is_empty() {
            excess = Some(Excess::measure(&setup, excess::TIME).await?);
        }
        let bytes = bytes.as_ref().filter(|_| row.name == rows::MANY_KEYS);
        print_row(&runs, bytes, excess.as_ref().filter(|_| row.name == rows::ONE_KEY));
        all_runs.push(runs);
    }
    let script = match "script".starts_with(&settings.only) {
        true => Some(ScriptCost::measure(&setup, config.rounds, SCRIPT_CALLS).await?),
        false => None,
    };
    if script.is_none() && all_runs.iter().all(|runs| runs.order.is_empty()) {
        return Err("no row matches --only, or no subject matches --subject".into());
    }
    if let Some(script) = &script {
        print_script(script);
    }
    let targets = targets(&all_runs, bytes.as_ref(), excess.as_ref(), script.as_ref());
    print_targets(&targets);
    let is_failure = settings.check && !targets.iter().all(Target::is_met);
    Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn print_header(setup: &Setup, RunConfig { rounds, slice }: RunConfig) {
    let cores = available_parallelism().map_or(0, usize::from);
    let redis = setup.redis_version().await;
    println!(
        "{cores} cores, shared with Redis {redis}. Medians of {rounds} rounds of {slice:?} per \
         subject. The columns with × are ratios of decisions per second, computed within a round: \
         above 1 is faster than the reference. \
         \"Above the limit\" are permits of three instances that share a key.\n"
    );
    let columns = REFERENCES.map(|(_, heading)| format!("× {heading}")).join(" | ");
    println!(
        "| load | subject | p50 µs | p99 µs | decisions/s | client CPU µs | Redis CPU µs | bytes/key | above the limit | {columns} |"
    );
    println!("|---|---|{}", "--:|".repeat(7 + REFERENCES.len()));
}

fn print_row(runs: &Runs, bytes: Option<&BytesPerKey>, excess: Option<&Excess>) {
    let mut load = runs.row;
    for name in &runs.order {
        let figure = |figure| runs.median(name, figure).unwrap_or_default();
        let cpu = Some(figure(redis_cpu)).filter(|&cpu| cpu > 0.0);
        let bytes = bytes.and_then(|bytes| bytes.get(name));
        let excess = excess.and_then(|excess| excess.get(name));
        let mut cells = vec![
            micros(figure(p50)),
            micros(figure(p99)),
            thousands(figure(per_second)),
            format!("{:.2}", figure(client_cpu)),
            cpu.map_or(String::new(), |cpu| format!("{cpu:.2}")),
            bytes.map_or(String::new(), |bytes| format!("{bytes:.0}")),
            excess.map_or(String::new(), |permits| format!("{permits:.0}")),
        ];
        cells.extend(REFERENCES.map(|(other, _)| match runs.ratio(name, other, per_second) {
            Some(ratio) if other != *name => format!("{ratio:.2}"),
            _ => String::new(),
        }));
        println!("| {load} | {name} | {} |", cells.join(" | "));
        load = "";
    }
}

fn print_script(script: &ScriptCost) {
    println!(
        "\n| redis-benchmark, 50 connections, pipelines of 32 calls, 10,000 keys | calls/s | Redis CPU µs | ratio by calls/s | ratio by CPU |"
    );
    println!("|---|--:|--:|--:|--:|");
    for (name, rates) in &script.rows {
        let per_second = thousands(rates.per_second);
        println!(
            "| {name} | {per_second} | {:.2} | {:.2} | {:.2} |",
            rates.cpu, rates.rate_ratio, rates.cpu_ratio
        );
    }
}

fn print_targets(targets: &[Target]) {
    println!("\n| figure | target | measured | |\n|---|--:|--:|---|");
    for target in targets {
        let bound = match target.bound {
            Bound::AtMost(max) => format!("≤ {max:.2}"),
            Bound::AtLeast(min) => format!("≥ {min:.2}"),
        };
        let status = if target.is_met() { "met" } else { "**missed**" };
        println!("| {} | {bound} | {:.2} | {status} |", target.text, target.measured);
    }
}

fn micros(nanos: f64) -> String {
    match nanos / 1e3 {
        micros if micros < 10.0 => format!("{micros:.2}"),
        micros => format!("{micros:.0}"),
    }
}

/// Formats a number with three significant digits and thousands separators.
pub(crate) fn thousands(number: f64) -> String {
    let unit = 10f64.powf(number.max(1.0).log10().floor() - 2.0).max(1.0);
    let digits = ((number / unit).round() * unit).to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

//! The table, in Markdown.

use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::bytes::BytesPerKey;
use crate::claims::{Bound, Claim, claims};
use crate::rows::{self, Row, names};
use crate::run::{self, Pace, Turns, own_cpu, p50, p99, per_second, redis_cpu};
use crate::script_cost::ScriptCost;
use crate::settings::Settings;
use crate::stage::Stage;
use crate::subjects::Fault;

const CALLS: u64 = 300_000;

/// Whom the decisions per second are compared with, where they are in the row.
const REFERENCES: [(&str, &str); 5] = [
    (names::FLOOR, "floor"),
    (names::GOVERNOR, "governor"),
    (names::TOWER_RATE_LIMIT_REDIS, "t-r-l-redis"),
    (names::POOLED, "deadpool"),
    (names::TWO_KEYS, "two-key"),
];

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, Fault> {
    let stage = Stage::set().await?;
    let pace = Pace {
        rounds: settings.rounds.unwrap_or(5),
        slice: settings.slice.unwrap_or(Duration::from_secs(1)),
    };
    preamble(&stage, pace).await;
    let (mut turns, mut bytes) = (Vec::new(), None);
    for row in Row::ALL.iter().filter(|row| row.name.starts_with(&settings.only)) {
        eprintln!("{} ...", row.name);
        let these = run::row(row, &settings.subject, &stage, pace).await?;
        if row.name == rows::KEYS && settings.subject.is_empty() {
            bytes = Some(BytesPerKey::measure(&stage).await?);
        }
        print_row(&these, bytes.as_ref().filter(|_| row.name == rows::KEYS));
        turns.push(these);
    }
    let script = match "script".starts_with(&settings.only) {
        true => Some(ScriptCost::measure(&stage, pace.rounds, CALLS).await?),
        false => None,
    };
    if script.is_none() && turns.iter().all(|turns| turns.order.is_empty()) {
        return Err("no row, or no subject, is named like that".into());
    }
    if let Some(script) = &script {
        print_script(script);
    }
    let claims = claims(&turns, bytes.as_ref(), script.as_ref());
    print_claims(&claims);
    let is_short = settings.check && !claims.iter().all(Claim::holds);
    Ok(if is_short { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn preamble(stage: &Stage, Pace { rounds, slice }: Pace) {
    let cores = available_parallelism().map_or(0, usize::from);
    let redis = stage.redis_version().await;
    println!(
        "{cores} cores, with Redis {redis} on them; {rounds} rounds of {slice:?} for each subject, \
         medians. Ratios are of decisions per second, taken within a round: over 1 is faster.\n"
    );
    let columns = REFERENCES.map(|(_, heading)| format!("× {heading}")).join(" | ");
    println!(
        "| load | subject | p50 µs | p99 µs | decisions/s | own CPU µs | Redis CPU µs | bytes/key | {columns} |"
    );
    println!("|---|---|{}", "--:|".repeat(6 + REFERENCES.len()));
}

fn print_row(turns: &Turns, bytes: Option<&BytesPerKey>) {
    let mut load = turns.row;
    for name in &turns.order {
        let figure = |figure| turns.median(name, figure).unwrap_or_default();
        let cpu = Some(figure(redis_cpu)).filter(|&cpu| cpu > 0.0);
        let bytes = bytes.and_then(|bytes| bytes.of(name));
        let mut cells = vec![
            micros(figure(p50)),
            micros(figure(p99)),
            thousands(figure(per_second)),
            format!("{:.2}", figure(own_cpu)),
            cpu.map_or(String::new(), |cpu| format!("{cpu:.2}")),
            bytes.map_or(String::new(), |bytes| format!("{bytes:.0}")),
        ];
        cells.extend(REFERENCES.map(|(to, _)| match turns.ratio(name, to, per_second) {
            Some(ratio) if to != *name => format!("{ratio:.2}"),
            _ => String::new(),
        }));
        println!("| {load} | {name} | {} |", cells.join(" | "));
        load = "";
    }
}

fn print_script(script: &ScriptCost) {
    println!(
        "\n| redis-benchmark, 50 connections, 32 calls deep, 10,000 keys | calls/s | Redis CPU µs | by calls | by CPU |"
    );
    println!("|---|--:|--:|--:|--:|");
    for (name, rates) in &script.rows {
        let per_second = thousands(rates.per_second);
        println!(
            "| {name} | {per_second} | {:.2} | {:.2} | {:.2} |",
            rates.cpu, rates.by_rate, rates.by_cpu
        );
    }
}

fn print_claims(claims: &[Claim]) {
    println!("\n| figure | must be | is | |\n|---|--:|--:|---|");
    for claim in claims {
        let bound = match claim.bound {
            Bound::AtMost(most) => format!("≤ {most:.2}"),
            Bound::AtLeast(least) => format!("≥ {least:.2}"),
        };
        let verdict = if claim.holds() { "ok" } else { "**short**" };
        println!("| {} | {bound} | {:.2} | {verdict} |", claim.text, claim.measured);
    }
}

fn micros(nanos: f64) -> String {
    match nanos / 1e3 {
        micros if micros < 10.0 => format!("{micros:.2}"),
        micros => format!("{micros:.0}"),
    }
}

/// With commas, to three digits that mean something.
fn thousands(number: f64) -> String {
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

//! What each algorithm costs Redis: its CPU time per decision, in calls of 64 keys as a busy queue
//! sends them, on 10,000 keys. All checks are allowed.

use std::process::ExitCode;

use fleetlimit::Policy;

use crate::captured::CapturedCall;
use crate::common::Server;
use crate::runs::median;
use crate::settings::Settings;
use crate::setup::server_cpu;
use crate::subjects::{BoxError, address};

const KEYS: u32 = 10_000;
const KEYS_PER_CALL: u32 = 64;
const ROUNDS: usize = 9;
/// Of all keys, for each subject in each round.
const PASSES: u32 = 20;

/// Policies, their quotas, and the most that they may cost relative to the first.
const SUBJECTS: [(&str, &[&str], f64); 12] = [
    ("token bucket", &["1000/s"], 1.0),
    ("token bucket, another rate", &["999/s"], 1.3),
    ("three token buckets", &["1000/s", "60000/min", "86400000/day"], 1.4),
    ("borrowing", &["1000/s borrow 1000"], 1.3),
    ("queue", &["1000/s queue 1s"], 1.3),
    ("interval refill", &["60000/min interval"], 1.3),
    ("fixed window", &["60000/min fixed"], 1.3),
    ("calendar", &["60000/min calendar"], 1.3),
    ("calendar month", &["60000/month calendar"], 1.3),
    ("approximate sliding window", &["60000/min sliding approximate"], 1.3),
    ("sliding window, 12 segments", &["60000/min sliding 12"], 1.5),
    ("sliding window, 60 segments", &["60000/min sliding 60"], 2.0),
];

struct Subject {
    name: &'static str,
    most: f64,
    call: CapturedCall,
    /// Microseconds of CPU time per decision, of each round.
    runs: Vec<f64>,
    bytes: u64,
}

pub(crate) async fn run(settings: &Settings) -> Result<ExitCode, BoxError> {
    let subjects = measure(settings.rounds.unwrap_or(ROUNDS), PASSES).await?;
    println!("| algorithm | Redis CPU µs | relative | at most | bytes per key |");
    println!("|---|--:|--:|--:|--:|");
    let mut missed = Vec::new();
    for Subject { name, most, runs, bytes, .. } in &subjects {
        let ratios = runs.iter().zip(&subjects[0].runs).map(|(run, first)| run / first);
        let (cost, ratio) = (median(runs.clone()), median(ratios.collect()));
        let (cost, ratio) = (cost.unwrap_or(f64::NAN), ratio.unwrap_or(f64::NAN));
        let is_met = ratio <= *most;
        if !is_met {
            missed.push(*name);
        }
        println!("| {name} | {cost:.2} | {ratio:.2} | {most:.2} | {bytes} |");
    }
    if missed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("costs more than its target: {}", missed.join("; "));
    Ok(if settings.check { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Each subject once, to see that it works.
pub(crate) async fn smoke() -> Result<(), BoxError> {
    let subjects = measure(1, 1).await?;
    println!("algorithms: {} subjects", subjects.len());
    Ok(())
}

async fn measure(rounds: usize, passes: u32) -> Result<Vec<Subject>, BoxError> {
    let server = Server::start().await;
    let mut subjects = Vec::new();
    for (name, quotas, most) in SUBJECTS {
        let mut names = ["a", "b", "c"].into_iter().zip(quotas);
        let policy = names.try_fold(Policy::new("bench"), |policy, (name, quota)| {
            Ok::<_, BoxError>(policy.quota(name, quota.parse()?))
        });
        let call = CapturedCall::capture(policy?).await?;
        call.load(&server).await;
        subjects.push(Subject { name, most, call, runs: Vec::new(), bytes: 0 });
    }
    let client = redis::Client::open(server.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    for _ in 0..rounds {
        for subject in &mut subjects {
            server.command(&["FLUSHALL"]).await;
            check_all(&mut connection, &subject.call, 1).await?;
            let key = subject.call.redis_key(&address(0).to_string());
            // The key has expired if a window of the clock has just ended.
            let bytes: Option<_> = server.query(&["MEMORY", "USAGE", &key]).await;
            subject.bytes = bytes.unwrap_or(subject.bytes);
            let before = server_cpu(&server).await;
            check_all(&mut connection, &subject.call, passes).await?;
            let cpu = server_cpu(&server).await - before;
            subject.runs.push(cpu.as_secs_f64() * 1e6 / f64::from(passes * KEYS));
        }
    }
    Ok(subjects)
}

async fn check_all(
    connection: &mut redis::aio::MultiplexedConnection,
    call: &CapturedCall,
    passes: u32,
) -> Result<(), BoxError> {
    let keys: Vec<u32> = (0..KEYS).collect();
    for _ in 0..passes {
        for calls in keys.chunks(4 * KEYS_PER_CALL as usize) {
            let mut pipeline = redis::pipe();
            for keys in calls.chunks(KEYS_PER_CALL as usize) {
                pipeline.add_command(call.command_for(keys));
            }
            let replies: Vec<Vec<Vec<u8>>> = pipeline.query_async(connection).await?;
            let is_error = |found: &Vec<u8>| found.starts_with(b"!") || found == b"-";
            if let Some(error) = replies.iter().flatten().find(|found| is_error(found)) {
                return Err(String::from_utf8_lossy(error).into_owned().into());
            }
        }
    }
    Ok(())
}

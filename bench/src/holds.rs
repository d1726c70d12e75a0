//! Permits that are held for a moment, of one key by many tasks: fleetlimit with and without leases, a script call for
//! each take and each return, and a semaphore in memory.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleetlimit::{FailureMode, Limiter, Policy, Quota, RedisStore};
use redis::aio::MultiplexedConnection;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, yield_now};

use crate::captured::load_script;
use crate::common::Server;
use crate::runs::median;
use crate::settings::Settings;
use crate::setup::server_cpu;
use crate::subjects::BoxError;

const TASKS: usize = 256;
const LIMIT: usize = 1_000;
const ROUNDS: usize = 3;
const SLICE: Duration = Duration::from_secs(1);

/// How many times as many holds a lease has to make as a script call for each.
const TARGET: f64 = 5.0;

/// A count that expires, as it is written by hand.
const TAKE: &str = "\
    if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(ARGV[1]) then return 0 end \
    redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], 10000) return 1";
const GIVE_BACK: &str = "redis.call('DECR', KEYS[1]) return 1";

#[derive(Clone)]
enum Subject {
    Semaphore(Arc<Semaphore>),
    Limiter(Limiter),
    Scripts { connection: MultiplexedConnection, take: String, give_back: String },
}

impl Subject {
    /// Holds a permit for a moment.
    async fn hold(&mut self) -> Result<(), BoxError> {
        match self {
            Self::Semaphore(semaphore) => {
                let _permit = semaphore.acquire().await?;
                yield_now().await;
            }
            Self::Limiter(limiter) => {
                let _hold = limiter.hold("key", 1).await?.ensure_allowed()?;
                yield_now().await;
            }
            Self::Scripts { connection, take, give_back } => {
                let mut call = redis::cmd("EVALSHA");
                call.arg(&*take).arg(1).arg("bench:holds").arg(LIMIT);
                let is_allowed: bool = call.query_async(connection).await?;
                if !is_allowed {
                    return Err("denied".into());
                }
                yield_now().await;
                let mut call = redis::cmd("EVALSHA");
                call.arg(&*give_back).arg(1).arg("bench:holds");
                let () = call.query_async(connection).await?;
            }
        }
        Ok(())
    }
}

pub(crate) async fn run(settings: &Settings) -> Result<ExitCode, BoxError> {
    let (rounds, slice) = (settings.rounds.unwrap_or(ROUNDS), settings.slice.unwrap_or(SLICE));
    let server = Server::start().await;
    let subjects = subjects(&server).await?;
    let mut runs = vec![Vec::new(); subjects.len()];
    for _ in 0..rounds {
        for ((_, subject), runs) in subjects.iter().zip(&mut runs) {
            runs.push(measure(subject, &server, slice).await?);
        }
    }
    println!(
        "| {TASKS} tasks hold a permit of one key | holds/s | relative | Redis CPU µs per hold |"
    );
    println!("|---|--:|--:|--:|");
    let of = |runs: &[(f64, f64)]| {
        let rate = median(runs.iter().map(|(rate, _)| *rate).collect()).unwrap_or(f64::NAN);
        (rate, median(runs.iter().map(|(_, cpu)| *cpu).collect()).unwrap_or(f64::NAN))
    };
    let figures: Vec<_> = runs.iter().map(|runs| of(runs)).collect();
    let (scripts, leases) = (figures[0].0, figures[2].0);
    for ((name, _), (rate, cpu)) in subjects.iter().zip(&figures) {
        println!("| {name} | {rate:.0} | {:.2} | {cpu:.2} |", rate / scripts);
    }
    let is_met = leases / scripts >= TARGET;
    if !is_met {
        eprintln!(
            "with a lease {:.2} times as many as with scripts, of at least {TARGET}",
            leases / scripts
        );
    }
    Ok(if is_met || !settings.check { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Each subject briefly, to see that it works.
pub(crate) async fn smoke() -> Result<(), BoxError> {
    let server = Server::start().await;
    for (_, subject) in &subjects(&server).await? {
        measure(subject, &server, Duration::from_millis(20)).await?;
    }
    println!("holds: works");
    Ok(())
}

async fn subjects(server: &Server) -> Result<[(&'static str, Subject); 4], BoxError> {
    let policy = || Policy::new("bench").quota("held", Quota::concurrent(LIMIT as u64));
    let limiter = |lease| {
        // Another prefix, so another key.
        let store = RedisStore::open(server.url())?.key_prefix(format!("lease{}", u8::from(lease)));
        let builder = Limiter::builder(store, policy()).timeout(Duration::from_secs(1));
        let lease = if lease { Duration::from_millis(100) } else { Duration::ZERO };
        Ok::<_, BoxError>(builder.failure_mode(FailureMode::Closed).lease(lease).build()?)
    };
    let client = redis::Client::open(server.url())?;
    let scripts = Subject::Scripts {
        connection: client.get_multiplexed_async_connection().await?,
        take: load_script(server, TAKE).await,
        give_back: load_script(server, GIVE_BACK).await,
    };
    Ok([
        ("a script call for each take and each return", scripts),
        ("fleetlimit", Subject::Limiter(limiter(false)?)),
        ("fleetlimit, with a lease of 100 ms", Subject::Limiter(limiter(true)?)),
        ("`tokio::sync::Semaphore`, in memory", Subject::Semaphore(Semaphore::new(LIMIT).into())),
    ])
}

/// Returns the holds per second, and the CPU time of Redis for each, in microseconds.
async fn measure(
    subject: &Subject,
    server: &Server,
    slice: Duration,
) -> Result<(f64, f64), BoxError> {
    let (cpu, start) = (server_cpu(server).await, Instant::now());
    let end = start + slice;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let mut subject = subject.clone();
        tasks.spawn(async move {
            let mut holds = 0u64;
            while Instant::now() < end {
                subject.hold().await?;
                holds += 1;
            }
            Ok::<_, BoxError>(holds)
        });
    }
    let mut holds = 0;
    while let Some(task) = tasks.join_next().await {
        holds += task??;
    }
    let (time, cpu) = (start.elapsed(), server_cpu(server).await.saturating_sub(cpu));
    let holds = holds.max(1) as f64;
    Ok((holds / time.as_secs_f64(), cpu.as_secs_f64() * 1e6 / holds))
}

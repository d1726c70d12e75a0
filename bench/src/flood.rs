//! A flood of a million different keys: the memory of the process stays bounded, and a denied key stays
//! denied.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::fleetlimit::{Limiter, MemoryStore, Quota, RedisStore, Source};
use futures_util::StreamExt;
use futures_util::stream;

use crate::common::Server;
use crate::soak::resident_kib;
use crate::subjects::BoxError;

const KEYS: u64 = 1_000_000;
/// Of the memory store, and of the memory for outages.
const BOUND: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
const TASKS: usize = 256;
/// A flood of this size fills all bounded memory.
const FULL: u64 = KEYS / 4;

const LONGEST: Duration = Duration::from_secs(60);
/// How far the process may grow once all bounded memory is full.
const MAX_GROWTH: f64 = 1.05;

pub(crate) async fn run() -> Result<ExitCode, BoxError> {
    println!(
        "| {KEYS} keys, each checked twice | time | resident before | a quarter | at the end | a denied key was allowed |\n\
         |---|--:|--:|--:|--:|--:|"
    );
    let server = Server::start().await;
    let quota = Quota::per_day(10);
    let memory = Limiter::new(MemoryStore::with_max_keys(BOUND), quota)?;
    let store = RedisStore::open(server.url())?.local_keys(BOUND);
    let redis = Limiter::new(store, quota)?;
    let mut is_met = flood("in memory", &memory, 0).await?;
    is_met &= flood("on Redis", &redis, 0).await?;
    server.stop();
    while redis.check("outage").await?.source() != Source::Local {}
    is_met &= flood("while Redis is down", &redis, KEYS).await?;
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn flood(name: &str, limiter: &Limiter, first: u64) -> Result<bool, BoxError> {
    let denied = format!("denied {name}");
    let _ = limiter.check_cost(denied.as_str(), 10).await?;
    let (start, before) = (Instant::now(), resident_kib());
    let mut allowed = u64::from(check_all(limiter, first..first + FULL, &denied).await?);
    let full = resident_kib();
    allowed += u64::from(check_all(limiter, first + FULL..first + KEYS, &denied).await?);
    let (time, end) = (start.elapsed(), resident_kib());
    println!("| {name} | {time:.1?} | {before} KiB | {full} KiB | {end} KiB | {allowed} times |");
    Ok(allowed == 0 && time < LONGEST && end as f64 <= full as f64 * MAX_GROWTH)
}

/// Returns how often the denied key was allowed. It is checked after every thousandth other key.
async fn check_all(
    limiter: &Limiter,
    keys: std::ops::Range<u64>,
    denied: &str,
) -> Result<u32, BoxError> {
    let checks = stream::iter(keys).map(async |key| {
        // The second is denied, and may be cached.
        for cost in [1, 10] {
            let _ = limiter.check_cost(key, cost).await?;
        }
        let is_due = key.is_multiple_of(1_000);
        let allowed = is_due && limiter.check(denied).await?.is_allowed();
        Ok::<_, BoxError>(u32::from(allowed))
    });
    let mut checks = checks.buffer_unordered(TASKS);
    let mut allowed = 0;
    while let Some(check) = checks.next().await {
        allowed += check?;
    }
    Ok(allowed)
}

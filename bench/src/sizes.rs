//! The memory that a key takes, by its length: in Redis, in a `MemoryStore`, and as a cached state.

use std::process::ExitCode;

use ::fleetlimit::{Limiter, MemoryStore, Policy, Quota};
use redis::aio::MultiplexedConnection;

use crate::allocations;
use crate::common::{Server, connect};
use crate::subjects::{BoxError, fleetlimit};

const LENGTHS: [usize; 5] = [8, 16, 32, 64, 100];
/// As many as a `MemoryStore` holds by default.
const KEYS: usize = 1_000_000;
/// As many as a store caches by default.
const CACHED: usize = 100_000;
/// How many checks are in flight.
const TASKS: usize = 512;

pub(crate) async fn run() -> Result<ExitCode, BoxError> {
    println!(
        "| bytes of the key | `MEMORY USAGE` | Redis, in all | `MemoryStore` | cached state |\n\
         |--:|--:|--:|--:|--:|"
    );
    for length in LENGTHS {
        let (usage, total) = in_redis(length).await?;
        let (memory, denial) = (in_memory(length).await?, of_denial(length).await?);
        println!("| {length} | {usage} | {total:.0} | {memory:.0} | {denial:.0} |");
    }
    Ok(ExitCode::SUCCESS)
}

/// With the default name, which is part of the names in Redis.
fn one_per_day() -> Policy {
    Quota::per_day(1).into()
}

/// By `MEMORY USAGE` of a key, and by the memory of a server with nothing else.
async fn in_redis(length: usize) -> Result<(u64, f64), BoxError> {
    let server = Server::start().await;
    let mut connection = connect(&server.url()).await?;
    let limiter = fleetlimit::limiter(fleetlimit::redis_store(&server)?, one_per_day())?;
    check(&limiter, length, 0..1).await?;
    let before = used_memory(&server).await?;
    check(&limiter, length, 1..KEYS + 1).await?;
    let total = (used_memory(&server).await? - before) / KEYS as f64;
    let name: String = redis::cmd("RANDOMKEY").query_async(&mut connection).await?;
    Ok((usage(&mut connection, &name).await?, total))
}

async fn used_memory(server: &Server) -> Result<f64, BoxError> {
    Ok(server.info("memory").await["used_memory"].parse()?)
}

async fn usage(connection: &mut MultiplexedConnection, name: &str) -> Result<u64, BoxError> {
    Ok(redis::cmd("MEMORY").arg("USAGE").arg(name).query_async(connection).await?)
}

/// By the bytes that are allocated, of a store that is full.
async fn in_memory(length: usize) -> Result<f64, BoxError> {
    let store = MemoryStore::new();
    let limiter = fleetlimit::limiter(store.clone(), one_per_day())?;
    let before = allocations::live_bytes();
    check(&limiter, length, 0..KEYS).await?;
    Ok((allocations::live_bytes() - before) as f64 / store.len() as f64)
}

/// By the bytes that are allocated, after denials of many more keys than the store caches.
async fn of_denial(length: usize) -> Result<f64, BoxError> {
    let server = Server::start().await;
    let limiter = fleetlimit::limiter(fleetlimit::redis_store(&server)?, one_per_day())?;
    check(&limiter, length, 0..4 * CACHED).await?;
    let before = allocations::live_bytes();
    check(&limiter, length, 0..4 * CACHED).await?;
    Ok((allocations::live_bytes() - before) as f64 / CACHED as f64)
}

/// Checks each key once.
async fn check(
    limiter: &Limiter,
    length: usize,
    keys: std::ops::Range<usize>,
) -> Result<(), BoxError> {
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..TASKS {
        let (limiter, keys) = (limiter.clone(), keys.clone());
        tasks.spawn(async move {
            for key in keys.skip(first).step_by(TASKS) {
                let _ = limiter.check(format!("{key:0>length$}")).await?;
            }
            Ok::<(), ::fleetlimit::Error>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

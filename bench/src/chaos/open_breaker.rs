//! What a check costs while a circuit breaker is open and nothing else runs.

use std::time::{Duration, Instant};

use ::fleetlimit::{Limiter, Quota, RedisStore, Source};
use tokio::time::sleep;

use super::fault::Target;
use super::{BURST, RATE, TIMEOUT};
use crate::subjects::BoxError;

const CHECKS: usize = 5_000;

/// 99% of the checks take no longer.
pub(super) async fn measure(target: &Target) -> Result<Duration, BoxError> {
    let quota = Quota::per_second(RATE as u64).burst(BURST as u64);
    let store = RedisStore::open(target.url())?;
    let limiter = Limiter::builder(store, quota).timeout(TIMEOUT).build()?;
    while limiter.check("key").await?.source() != Source::Store {}
    target.suspend();
    loop {
        let start = Instant::now();
        let source = limiter.check("key").await?.source();
        if source == Source::Local && start.elapsed() < TIMEOUT / 10 {
            break;
        }
    }
    let mut took = Vec::with_capacity(CHECKS);
    for key in 0..CHECKS as u64 {
        let start = Instant::now();
        assert_eq!(limiter.check(key).await?.source(), Source::Local);
        took.push(start.elapsed());
        sleep(Duration::from_micros(500)).await;
    }
    target.resume();
    took.sort_unstable();
    Ok(took[CHECKS * 99 / 100])
}

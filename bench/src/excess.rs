//! The permits that a limiter admits above its limit, while several instances of it share one key and are asked for
//! more than there is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ::fleetlimit::Policy;
use tokio::task::{JoinSet, consume_budget};

use crate::common::Server;
use crate::rows::names;
use crate::setup::Setup;
use crate::subjects::{
    BoxError, Bucket, DirectCheck, Operation, RedisCell, Throttlecrab, Trypema, TrypemaHybrid,
    TwoKeys, fleetlimit, tower_rate_limit_redis_with,
};

/// As many as three processes: each has its own connections and memory.
const INSTANCES: usize = 3;
const TASKS_OF_EACH: usize = 32;

const BUCKET: Bucket = Bucket { per_second: 1_000, burst: 1_000 };
/// A tenth of the time in which the burst refills.
const LEASE: Duration = Duration::from_millis(100);

/// The time for which each subject is asked.
pub(crate) const TIME: Duration = Duration::from_secs(2);

/// Permits above the limit, by subject.
pub(crate) struct Excess(BTreeMap<&'static str, f64>);

impl Excess {
    /// Asks each subject for this time.
    pub(crate) async fn measure(setup: &Setup, time: Duration) -> Result<Self, BoxError> {
        let (server, url) = (&setup.server, &*setup.server.url());
        let policy = || Policy::new("excess").quota("rate", BUCKET.quota());
        let check = |lease| {
            let store = fleetlimit::redis_store(server)?;
            Ok(DirectCheck(fleetlimit::limiter_with_lease(store, policy(), lease)?))
        };
        let mut excess = BTreeMap::new();
        let mut add = |name, above| excess.insert(name, above);
        let of = Saturation { server, time };
        add(names::REDIS, of.excess(async || check(Duration::ZERO)).await?);
        add(names::LEASES, of.excess(async || check(LEASE)).await?);
        let layered = async || tower_rate_limit_redis_with(url.to_owned(), BUCKET).await;
        add(names::TOWER_RATE_LIMIT_REDIS, of.excess(layered).await?);
        add(names::TWO_KEYS, of.excess(async || TwoKeys::new(setup, BUCKET).await).await?);
        add(names::TRYPEMA, of.excess(async || Trypema::new(url, BUCKET).await).await?);
        add(
            names::TRYPEMA_HYBRID,
            of.excess(async || TrypemaHybrid::new(url, BUCKET).await).await?,
        );
        add(names::THROTTLECRAB, of.excess(async || Ok(Throttlecrab::new(BUCKET))).await?);
        if setup.has_redis_cell {
            add(names::REDIS_CELL, of.excess(async || RedisCell::new(url, BUCKET).await).await?);
        }
        Ok(Self(excess))
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

struct Saturation<'a> {
    server: &'a Server,
    time: Duration,
}

/// The times at which an admitted request was started and finished, since the start of all.
type Admitted = (Duration, Duration);

impl Saturation<'_> {
    async fn excess<O: Operation>(
        &self,
        new: impl AsyncFn() -> Result<O, BoxError>,
    ) -> Result<f64, BoxError> {
        self.server.query::<()>(&["FLUSHALL"]).await;
        let mut instances = Vec::new();
        for _ in 0..INSTANCES {
            instances.push(new().await?);
        }
        let (started, mut tasks) = (Instant::now(), JoinSet::new());
        for instance in instances.iter().flat_map(|instance| vec![instance; TASKS_OF_EACH]) {
            tasks.spawn(ask(instance.clone(), started, self.time));
        }
        let mut admitted = Vec::new();
        while let Some(result) = tasks.join_next().await {
            admitted.extend(result??);
        }
        Ok(above(admitted))
    }
}

async fn ask<O: Operation>(
    mut operation: O,
    started: Instant,
    time: Duration,
) -> Result<Vec<Admitted>, BoxError> {
    let mut admitted = Vec::new();
    loop {
        let sent = started.elapsed();
        if sent >= time {
            return Ok(admitted);
        }
        if operation.execute(0).await? {
            admitted.push((sent, started.elapsed()));
        }
        consume_budget().await;
    }
}

/// Returns the most permits of any span above its limit, which is the burst and what it gains in that time. A request
/// that was started and finished in a span was admitted in it.
fn above(mut admitted: Vec<Admitted>) -> f64 {
    admitted.sort_by_key(|(_, finished)| *finished);
    let from = |start: Duration| {
        let of_span = admitted.iter().filter(move |(started, _)| *started >= start);
        let above = of_span.enumerate().map(move |(before, (_, finished))| {
            let limit = BUCKET.per_second as f64 * (*finished - start).as_secs_f64();
            (before + 1) as f64 - limit - BUCKET.burst as f64
        });
        above.fold(0.0, f64::max)
    };
    admitted.iter().map(|(started, _)| from(*started)).fold(0.0, f64::max).floor()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(per_second: u32, seconds: u32) -> impl Iterator<Item = Admitted> {
        (0..per_second * seconds)
            .map(move |n| Duration::from_secs(1) * n / per_second)
            .map(|time| (time, time))
    }

    #[test]
    fn the_excess_is_that_of_the_worst_span() {
        let burst = || (0..1_000).map(|_| (Duration::from_secs(1), Duration::from_secs(1)));
        assert_eq!(above(admitted(1_000, 2).collect()), 0.0);
        assert_eq!(above(burst().chain(admitted(1, 2)).collect()), 1.0);
        assert_eq!(above(burst().chain(burst()).collect()), 1_000.0);
        assert_eq!(above(burst().chain(admitted(3_000, 2)).collect()), 4_000.0);
    }

    #[test]
    fn a_request_that_is_not_finished_in_a_span_is_not_counted() {
        let slow = (Duration::ZERO, Duration::from_secs(10));
        let burst = (0..1_000).map(|_| (Duration::ZERO, Duration::ZERO));
        assert_eq!(above(burst.chain([slow]).collect()), 0.0);
    }
}

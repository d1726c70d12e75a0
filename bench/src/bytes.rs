//! Memory per key in Redis, by `MEMORY USAGE`.

use std::collections::BTreeMap;

use crate::common::Server;
use crate::rows::{Row, names};
use crate::setup::Setup;
use crate::subjects::{
    BoxError, DirectCheck, Operation, TwoKeys, address, fleetlimit, tower_rate_limit_redis,
    tower_rate_limit_redis_key,
};

const SAMPLES: u32 = 200;

/// The average memory of a rate limit key, by subject. It includes all Redis keys of the rate limit
/// key.
pub(crate) struct BytesPerKey(BTreeMap<&'static str, f64>);

impl BytesPerKey {
    /// `row` is the one with 10,000 keys, and configures tower-rate-limit-redis.
    pub(crate) async fn measure(row: &Row, setup: &Setup) -> Result<Self, BoxError> {
        let (server, call) = (&setup.server, &setup.allow_call);
        let limiter =
            fleetlimit::limiter(fleetlimit::redis_store(server)?, fleetlimit::allow_all())?;
        let one_key = average(names::REDIS, server, DirectCheck(limiter), |key| {
            vec![call.redis_key(&address(key).to_string())]
        });
        let two_keys =
            average(names::TWO_KEYS, server, TwoKeys::new(setup, TwoKeys::BUCKET).await?, |key| {
                TwoKeys::redis_keys(call, &address(key).to_string()).into()
            });
        let other = tower_rate_limit_redis(setup, row).await?;
        let other = average(names::TOWER_RATE_LIMIT_REDIS, server, other, |key| {
            vec![tower_rate_limit_redis_key(address(key).into(), row.allow_all)]
        });
        Ok(Self(BTreeMap::from([one_key.await?, two_keys.await?, other.await?])))
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

/// Reads each key right after a decision, because keys expire soon.
async fn average(
    name: &'static str,
    server: &Server,
    mut operation: impl Operation,
    redis_keys: impl Fn(u32) -> Vec<String>,
) -> Result<(&'static str, f64), BoxError> {
    let (mut sum, mut count) = (0, 0);
    for key in (0..SAMPLES).map(|n| n * 47) {
        operation.execute(key).await?;
        if let Some(bytes) = memory_usage(server, &redis_keys(key)).await {
            sum += bytes;
            count += 1;
        }
    }
    match count {
        0 => Err(format!("found no Redis keys of {name} right after their decisions").into()),
        _ => Ok((name, sum as f64 / f64::from(count))),
    }
}

/// Returns `None` if a key does not exist.
async fn memory_usage(server: &Server, redis_keys: &[String]) -> Option<u64> {
    let mut sum = 0;
    for key in redis_keys {
        sum += server.query::<Option<u64>>(&["MEMORY", "USAGE", key]).await?;
    }
    Some(sum)
}

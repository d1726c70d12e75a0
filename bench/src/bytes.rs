//! Memory per key in Redis, by `MEMORY USAGE`.

use std::collections::BTreeMap;

use crate::common::Server;
use crate::rows::names;
use crate::setup::Setup;
use crate::subjects::{BoxError, TwoKeys, address, tower_rate_limit_redis_key};

const SAMPLES: u32 = 200;

/// The average memory of a rate limit key, by subject. It includes all Redis keys of the rate limit
/// key.
pub(crate) struct BytesPerKey(BTreeMap<&'static str, f64>);

impl BytesPerKey {
    /// Call this right after the row with 10,000 keys on one server, while its keys exist.
    pub(crate) async fn measure(setup: &Setup) -> Result<Self, BoxError> {
        let mut averages = BTreeMap::from([
            (names::REDIS, Average::default()),
            (names::TWO_KEYS, Average::default()),
            (names::TOWER_RATE_LIMIT_REDIS, Average::default()),
        ]);
        for key in (0..SAMPLES).map(|n| n * 47) {
            Self::add(&mut averages, setup, key).await;
        }
        // A short run on a slow machine does not get to all keys.
        if averages.values().any(|average| average.count == 0) {
            for key in 0..10_000 {
                Self::add(&mut averages, setup, key).await;
            }
        }
        averages
            .into_iter()
            .map(|(name, average)| Ok((name, average.get(name)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    async fn add(averages: &mut BTreeMap<&'static str, Average>, setup: &Setup, key: u32) {
        let address = address(key);
        let text = address.to_string();
        let redis_keys: [(&str, Vec<String>); 3] = [
            (names::REDIS, vec![setup.allow_call.redis_key(&text)]),
            (names::TWO_KEYS, TwoKeys::redis_keys(&setup.allow_call, &text).into()),
            (names::TOWER_RATE_LIMIT_REDIS, vec![tower_rate_limit_redis_key(address.into(), true)]),
        ];
        for (name, redis_keys) in redis_keys {
            if let Some(average) = averages.get_mut(name) {
                average.add(memory_usage(&setup.server, &redis_keys).await);
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
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

#[derive(Default)]
struct Average {
    sum: u64,
    count: u64,
}

impl Average {
    fn add(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.sum += bytes;
            self.count += 1;
        }
    }

    fn get(&self, name: &str) -> Result<f64, BoxError> {
        if self.count == 0 {
            return Err(format!("found no Redis keys of {name}").into());
        }
        Ok(self.sum as f64 / self.count as f64)
    }
}

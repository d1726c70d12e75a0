//! What a caller's state takes in Redis, by `MEMORY USAGE`.

use std::collections::BTreeMap;

use crate::common::Server;
use crate::rows::names;
use crate::stage::Stage;
use crate::subjects::{Fault, TwoKeys, address, peer_key};

const SAMPLE: u32 = 200;

/// Of each limiter, the average of a sample of callers, all of a caller's keys together.
pub(crate) struct BytesPerKey(BTreeMap<&'static str, f64>);

impl BytesPerKey {
    /// To be taken right after the row of 10,000 keys, while these are there.
    pub(crate) async fn measure(stage: &Stage) -> Result<Self, Fault> {
        let mut sums = BTreeMap::from([
            (names::REDIS, Average::default()),
            (names::TWO_KEYS, Average::default()),
            (names::TOWER_RATE_LIMIT_REDIS, Average::default()),
        ]);
        for caller in (0..SAMPLE).map(|n| n * 47) {
            let text = address(caller).to_string();
            let keys: [(&str, Vec<String>); 3] = [
                (names::REDIS, vec![stage.open.key_of(&text)]),
                (names::TWO_KEYS, TwoKeys::keys(&stage.open, &text).into()),
                (names::TOWER_RATE_LIMIT_REDIS, vec![peer_key(address(caller).into(), true)]),
            ];
            for (name, keys) in keys {
                if let Some(average) = sums.get_mut(name) {
                    average.add(usage(&stage.server, &keys).await);
                }
            }
        }
        sums.into_iter()
            .map(|(name, average)| Ok((name, average.of(name)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub(crate) fn of(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

/// `None` if a key is not there.
async fn usage(server: &Server, keys: &[String]) -> Option<u64> {
    let mut sum = 0;
    for key in keys {
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

    fn of(&self, name: &str) -> Result<f64, Fault> {
        if self.count == 0 {
            return Err(format!("{name} left no keys in Redis").into());
        }
        Ok(self.sum as f64 / self.count as f64)
    }
}

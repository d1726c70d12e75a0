//! A token bucket in two Redis keys, with one script call per check on a shared connection.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;

use super::{BURST, BoxError, Bucket, Operation, address};
use crate::captured::{CapturedCall, load_script};
use crate::setup::{Setup, connect};

#[derive(Clone)]
pub(crate) struct TwoKeys {
    connection: MultiplexedConnection,
    sha: Arc<str>,
    call: Arc<CapturedCall>,
    bucket: Bucket,
}

impl TwoKeys {
    /// No row exhausts it.
    pub(crate) const BUCKET: Bucket = Bucket { per_second: 1, burst: BURST };
    pub(crate) const SCRIPT: &str = include_str!("two_keys.lua");

    pub(crate) async fn new(setup: &Setup, bucket: Bucket) -> Result<Self, BoxError> {
        let sha = load_script(&setup.server, Self::SCRIPT).await.into();
        let connection = connect(&setup.server.url()).await?;
        Ok(Self { connection, sha, call: setup.allow_call.clone(), bucket })
    }

    /// The Redis keys of a rate limit key. Each is as long as fleetlimit's Redis key.
    pub(crate) fn redis_keys(call: &CapturedCall, key: &str) -> [String; 2] {
        let redis_key = call.redis_key(key);
        let prefix = &redis_key[..redis_key.len().saturating_sub(2)];
        [format!("{prefix}tk"), format!("{prefix}ts")]
    }
}

impl Operation for TwoKeys {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let mut command = redis::cmd("EVALSHA");
        let redis_keys = Self::redis_keys(&self.call, &address(key).to_string());
        command.arg(&*self.sha).arg(2).arg(&redis_keys);
        command.arg(self.bucket.per_second).arg(self.bucket.burst).arg("").arg(1);
        let (allowed, _remaining): (u8, i64) = command.query_async(&mut self.connection).await?;
        Ok(allowed == 1)
    }
}

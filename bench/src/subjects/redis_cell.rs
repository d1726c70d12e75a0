//! redis-cell: GCRA as a command of Redis, in a module. One command per check on a shared connection.

use redis::aio::MultiplexedConnection;

use super::{BoxError, Bucket, Operation, address};
use crate::setup::connect;

#[derive(Clone)]
pub(crate) struct RedisCell(MultiplexedConnection, Bucket);

impl RedisCell {
    pub(crate) async fn new(url: &str, bucket: Bucket) -> Result<Self, BoxError> {
        Ok(Self(connect(url).await?, bucket))
    }
}

impl Operation for RedisCell {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let Bucket { per_second, burst } = self.1;
        let mut command = redis::cmd("CL.THROTTLE");
        // A burst is in addition to the first request.
        command.arg(address(key).to_string()).arg(burst - 1).arg(per_second).arg(1);
        let (is_denied, _limit, _remaining, _retry_after, _reset_after): (u8, i64, i64, i64, i64) =
            command.query_async(&mut self.0).await?;
        Ok(is_denied == 0)
    }
}

//! fleetlimit's script without fleetlimit: one call per check, as in most Redis rate limiters. The
//! difference is the gain of fleetlimit's batches and connections. The decisions are ignored.

use std::sync::Arc;

use deadpool_redis::{Manager, Pool, Runtime};
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{RedisResult, Value};

use super::{BoxError, Operation};
use crate::captured::CapturedCall;
use crate::setup::{Place, Setup, connect, with_nodelay};

/// Calls the script on one connection that all tasks share.
#[derive(Clone)]
pub(crate) struct Shared(MultiplexedConnection, Arc<CapturedCall>);

impl Shared {
    pub(crate) async fn new(setup: &Setup) -> Result<Self, BoxError> {
        Ok(Self(connect(&setup.url(Place::Local)).await?, setup.allow_call.clone()))
    }
}

impl Operation for Shared {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        check_reply(self.1.command(key).query_async(&mut self.0).await)
    }
}

/// Calls the script on one cluster connection that all tasks share.
#[derive(Clone)]
pub(crate) struct SharedCluster(ClusterConnection, Arc<CapturedCall>);

impl SharedCluster {
    pub(crate) async fn new(setup: &Setup) -> Result<Self, BoxError> {
        Ok(Self(setup.connect_to_cluster().await?, setup.allow_call.clone()))
    }
}

impl Operation for SharedCluster {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        check_reply(self.1.command(key).query_async(&mut self.0).await)
    }
}

/// Takes a connection from a pool of the default size for every call.
#[derive(Clone)]
pub(crate) struct Pooled(Pool, Arc<CapturedCall>);

impl Pooled {
    pub(crate) fn new(setup: &Setup, call: &Arc<CapturedCall>) -> Result<Self, BoxError> {
        let manager = Manager::new(with_nodelay(&setup.server.url())?)?;
        let pool = Pool::builder(manager).runtime(Runtime::Tokio1).build()?;
        Ok(Self(pool, call.clone()))
    }
}

impl Operation for Pooled {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let mut connection = self.0.get().await?;
        check_reply(self.1.command(key).query_async(&mut connection).await)
    }
}

fn check_reply(reply: RedisResult<Value>) -> Result<bool, BoxError> {
    match reply? {
        // The level of the bucket. An error would be a string.
        Value::Int(_) => Ok(true),
        other => Err(format!("unexpected reply of the script: {other:?}").into()),
    }
}

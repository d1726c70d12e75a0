//! tollgate's script without tollgate: a call for each check, as limiters on Redis do it. It says
//! what the batches and the lanes are worth. Its verdicts are not looked at.

use std::sync::Arc;

use deadpool_redis::{Manager, Pool, Runtime};
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{RedisResult, Value};

use super::{Fault, Subject};
use crate::captured::Captured;
use crate::stage::{Stage, without_delay};

/// On one connection that all share.
#[derive(Clone)]
pub(crate) struct Shared(MultiplexedConnection, Arc<Captured>);

impl Shared {
    pub(crate) async fn new(stage: &Stage) -> Result<Self, Fault> {
        Ok(Self(stage.connect().await?, stage.open.clone()))
    }
}

impl Subject for Shared {
    async fn decide(&mut self, caller: u32) -> Result<bool, Fault> {
        ran(self.1.call(caller).query_async(&mut self.0).await)
    }
}

#[derive(Clone)]
pub(crate) struct OnCluster(ClusterConnection, Arc<Captured>);

impl OnCluster {
    pub(crate) async fn new(stage: &Stage) -> Result<Self, Fault> {
        Ok(Self(stage.connect_to_cluster().await?, stage.open.clone()))
    }
}

impl Subject for OnCluster {
    async fn decide(&mut self, caller: u32) -> Result<bool, Fault> {
        ran(self.1.call(caller).query_async(&mut self.0).await)
    }
}

/// On a connection from a pool of the default size, checked out for the one call.
#[derive(Clone)]
pub(crate) struct Pooled(Pool, Arc<Captured>);

impl Pooled {
    pub(crate) fn new(stage: &Stage, call: &Arc<Captured>) -> Result<Self, Fault> {
        let manager = Manager::new(without_delay(&stage.server.url())?)?;
        let pool = Pool::builder(manager).runtime(Runtime::Tokio1).build()?;
        Ok(Self(pool, call.clone()))
    }
}

impl Subject for Pooled {
    async fn decide(&mut self, caller: u32) -> Result<bool, Fault> {
        let mut connection = self.0.get().await?;
        ran(self.1.call(caller).query_async(&mut connection).await)
    }
}

fn ran(reply: RedisResult<Value>) -> Result<bool, Fault> {
    match reply? {
        Value::Int(_) => Ok(true),
        other => Err(format!("the script answered {other:?}").into()),
    }
}

//! The token bucket of two keys, called once for each request on a shared connection.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;

use super::{BURST, Fault, Subject, address};
use crate::captured::{Captured, load};
use crate::stage::Stage;

#[derive(Clone)]
pub(crate) struct TwoKeys {
    connection: MultiplexedConnection,
    sha: Arc<str>,
    captured: Arc<Captured>,
}

impl TwoKeys {
    pub(crate) const SCRIPT: &str = include_str!("two_keys.lua");

    pub(crate) async fn new(stage: &Stage) -> Result<Self, Fault> {
        let sha = load(&stage.server, Self::SCRIPT).await.into();
        let (connection, captured) = (stage.connect().await?, stage.open.clone());
        Ok(Self { connection, sha, captured })
    }

    /// The names of a caller's keys: each as long as tollgate's one.
    pub(crate) fn keys(captured: &Captured, caller: &str) -> [String; 2] {
        let name = captured.key_of(caller);
        let start = name.len().saturating_sub(2);
        [format!("{}tk", &name[..start]), format!("{}ts", &name[..start])]
    }
}

impl Subject for TwoKeys {
    async fn decide(&mut self, caller: u32) -> Result<bool, Fault> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*self.sha).arg(2).arg(&Self::keys(&self.captured, &address(caller).to_string()));
        call.arg(1).arg(BURST).arg("").arg(1);
        let (verdict, _left): (u8, i64) = call.query_async(&mut self.connection).await?;
        Ok(verdict == 1)
    }
}

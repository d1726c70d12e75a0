//! A connection of `redis` that pipelines the calls of many tasks, and the signal that it was closed.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisResult, Value};

/// A connection that pipelines the calls of everyone who holds a clone of it.
#[derive(Clone)]
pub(super) enum Multiplexed {
    Server(MultiplexedConnection),
    #[cfg(feature = "deadpool-cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

/// Notifies the connection's task that the server has closed the connection.
#[derive(Debug, Default)]
pub(super) struct Disconnection {
    has_happened: AtomicBool,
    keeper: AtomicWaker,
}

impl Disconnection {
    /// Called when the server has closed the connection.
    pub(super) fn happens(&self) {
        self.has_happened.store(true, Ordering::Release);
        self.keeper.wake();
    }

    pub(super) fn has_happened(&self) -> bool {
        self.has_happened.load(Ordering::Acquire)
    }

    /// Wakes this task when the server closes the connection, or at [`wake`](Self::wake).
    pub(super) fn notify(&self, keeper: &Waker) {
        self.keeper.register(keeper);
    }

    pub(super) fn wake(&self) {
        self.keeper.wake();
    }
}

impl Multiplexed {
    /// Whether all calls go to the same server.
    pub(super) fn is_one_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    pub(super) async fn call(self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(mut connection) => command.query_async(&mut connection).await,
            #[cfg(feature = "deadpool-cluster")]
            Self::Cluster(mut connection) => command.query_async(&mut connection).await,
        }
    }

    pub(super) async fn call_all(self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let count = commands.len();
        match self {
            Self::Server(mut connection) => {
                connection.req_packed_commands(commands, 0, count).await
            }
            #[cfg(feature = "deadpool-cluster")]
            Self::Cluster(mut connection) => {
                connection.req_packed_commands(commands, 0, count).await
            }
        }
    }

    /// Calls a node that is importing a slot. Both commands go out together: on a shared connection
    /// a command of another check could come between them.
    pub(super) async fn call_asking(self, command: &Cmd) -> RedisResult<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").ignore().add_command(command.clone());
        let (reply,) = match self {
            Self::Server(mut connection) => pipeline.query_async(&mut connection).await?,
            #[cfg(feature = "deadpool-cluster")]
            Self::Cluster(mut connection) => pipeline.query_async(&mut connection).await?,
        };
        Ok(reply)
    }
}

impl fmt::Debug for Multiplexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Multiplexed")
    }
}

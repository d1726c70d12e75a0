//! A connection of `redis` that pipelines the calls of many tasks, and the signal that it was closed.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

/// A connection that pipelines the calls of everyone who holds a clone of it.
#[derive(Clone)]
pub(super) struct Multiplexed(pub(super) MultiplexedConnection);

/// Notifies the connection's task that the server has closed the connection.
#[derive(Debug, Default)]
pub(super) struct Disconnection {
    has_happened: AtomicBool,
    keeper: AtomicWaker,
}

impl Disconnection {
    /// Notes that the server has closed the connection.
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
    /// Sends a command. Unlike `Cmd::query_async`, this does not box the future.
    pub(super) async fn call(mut self, command: &Cmd) -> RedisResult<Value> {
        self.0.send_packed_command(command).await?.extract_error()
    }

    pub(super) async fn call_all(mut self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        self.0.send_packed_commands(commands, 0, commands.len()).await
    }

    /// Calls a node that is importing a slot. Both commands go out together: on a shared connection
    /// a command of another check could come between them.
    pub(super) async fn call_asking(mut self, command: &Cmd) -> RedisResult<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut replies = self.0.send_packed_commands(&pipeline, 0, 2).await?.into_iter();
        let (asked, reply) = (replies.next(), replies.next());
        asked.unwrap_or(Value::Nil).extract_error()?;
        reply.unwrap_or(Value::Nil).extract_error()
    }
}

impl fmt::Debug for Multiplexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Multiplexed")
    }
}

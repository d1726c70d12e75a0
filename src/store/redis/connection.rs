//! A connection that is shared, and replaced when it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{
    Cmd, ErrorKind as RedisErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::connector::{Connection, Connector};
use crate::{Error, ErrorKind};

/// The pause after a failed attempt to connect. Meanwhile checks fail immediately.
const RETRY_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct SharedConnection {
    connector: Arc<Connector>,
    state: watch::Sender<State>,
}

/// Connections to one server, which take turns.
#[derive(Debug)]
pub(super) struct ConnectionSet {
    connections: Box<[Arc<SharedConnection>]>,
    server: Arc<str>,
    next: AtomicUsize,
}

impl ConnectionSet {
    pub(super) fn new(connector: Arc<Connector>, count: usize) -> Self {
        let server = connector.server().clone();
        let connections =
            (0..count).map(|_| Arc::new(SharedConnection::new(connector.clone()))).collect();
        Self { connections, server, next: AtomicUsize::new(0) }
    }

    pub(super) fn server(&self) -> &Arc<str> {
        &self.server
    }

    pub(super) fn next(&self) -> &Arc<SharedConnection> {
        &self.connections[self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len()]
    }

    /// Whether any connection is established.
    pub(super) fn any_connected(&self) -> bool {
        self.connections
            .iter()
            .any(|connection| matches!(connection.state.borrow().phase, Phase::Up(_)))
    }
}

#[derive(Debug)]
struct State {
    /// Counts the attempts to connect.
    generation: u64,
    phase: Phase,
    /// Why the last attempt failed, if it did.
    failure: Option<Error>,
}

#[derive(Debug)]
enum Phase {
    Down { until: Option<Instant> },
    Connecting,
    Up(Connection),
}

impl SharedConnection {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        let state = State { generation: 0, phase: Phase::Down { until: None }, failure: None };
        Self { connector, state: watch::Sender::new(state) }
    }

    /// The connection, for one call. It is made first if there is none. Fails immediately while the
    /// last attempt to make one has failed.
    async fn acquire(self: &Arc<Self>) -> Result<(Connection, InFlightGuard<'_>), Error> {
        let mut changes = self.state.subscribe();
        loop {
            let is_down = {
                let state = changes.borrow_and_update();
                let is_down = match &state.phase {
                    Phase::Up(connection) => {
                        let guard = InFlightGuard {
                            connection: self,
                            generation: state.generation,
                            broken: true,
                        };
                        return Ok((connection.clone(), guard));
                    }
                    Phase::Down { until } => until.is_none_or(|until| until <= Instant::now()),
                    Phase::Connecting => false,
                };
                if let Some(failure) = &state.failure
                    && !is_down
                {
                    return Err(failure.clone());
                }
                is_down
            };
            if is_down {
                self.connect();
            }
            if changes.changed().await.is_err() {
                return Err(interrupted());
            }
        }
    }

    /// Sends a command. The inner error is the server's, or says that no reply came. The outer error
    /// says that there is no connection. A connection that is broken, or silent until this future is
    /// dropped, is closed.
    pub(super) async fn call(
        self: &Arc<Self>,
        command: &Cmd,
        asking: bool,
    ) -> Result<RedisResult<Value>, Error> {
        let (connection, mut guard) = self.acquire().await?;
        let reply = if asking {
            connection.call_asking(command).await
        } else {
            connection.call(command).await
        };
        guard.broken = is_broken(reply.as_ref().map(std::slice::from_ref));
        Ok(reply)
    }

    /// Sends commands together. Like [`call`](Self::call), with a reply or an error in each value.
    pub(super) async fn call_all(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<RedisResult<Vec<Value>>, Error> {
        let (connection, mut guard) = self.acquire().await?;
        let replies = connection.call_all(commands).await;
        guard.broken = is_broken(replies.as_ref().map(Vec::as_slice));
        Ok(replies)
    }

    /// Starts an attempt to connect unless one is running. It is a task of the runtime: no check's
    /// timeout cuts it short.
    fn connect(self: &Arc<Self>) {
        let mut generation = None;
        self.state.send_if_modified(|state| {
            if matches!(state.phase, Phase::Down { .. }) {
                state.generation += 1;
                state.phase = Phase::Connecting;
                generation = Some(state.generation);
            }
            generation.is_some()
        });
        if let Some(generation) = generation {
            let guard = RuntimeGuard { connection: Arc::downgrade(self), generation };
            tokio::spawn(keep(self.connector.clone(), guard, self.state.subscribe()));
        }
    }

    fn connected(&self, generation: u64, result: Result<Connection, Error>) {
        self.state.send_if_modified(|state| {
            let current = state.generation == generation;
            if current {
                match result {
                    Ok(connection) => {
                        state.failure = None;
                        state.phase = Phase::Up(connection);
                    }
                    Err(error) => {
                        state.phase = Phase::Down { until: Some(Instant::now() + RETRY_AFTER) };
                        state.failure = Some(error);
                    }
                }
            }
            current
        });
    }

    /// Closes the connection if this attempt, or its connection, is the latest. An attempt that ends
    /// without a result, because its runtime ended or panicked, has failed.
    fn mark_broken(&self, generation: u64) {
        self.state.send_if_modified(|state| {
            let current = state.generation == generation;
            match state.phase {
                Phase::Up(_) if current => state.phase = Phase::Down { until: None },
                Phase::Connecting if current => {
                    state.phase = Phase::Down { until: Some(Instant::now() + RETRY_AFTER) };
                    state.failure = Some(Error::new(
                        ErrorKind::Unavailable,
                        "the attempt to connect was cut short: the Tokio runtime has shut down, or \
                         lacks its timer or I/O driver (build it with `enable_all`)",
                    ));
                }
                _ => return false,
            }
            true
        });
    }
}

/// Makes a connection, and lives as long as it: when the runtime that polls the connection shuts
/// down, this task ends with it and closes the connection.
async fn keep(connector: Arc<Connector>, guard: RuntimeGuard, mut changes: watch::Receiver<State>) {
    let result = connector.connect().await;
    drop(connector);
    if let Some(connection) = guard.connection.upgrade() {
        connection.connected(guard.generation, result);
    }
    let is_up =
        |state: &State| state.generation == guard.generation && matches!(state.phase, Phase::Up(_));
    // An error means that the store was dropped, which is as good.
    let _ = changes.wait_for(|state| !is_up(state)).await;
}

/// Closes the connection if no reply arrives.
struct InFlightGuard<'a> {
    connection: &'a SharedConnection,
    generation: u64,
    broken: bool,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        if self.broken {
            self.connection.mark_broken(self.generation);
        }
    }
}

/// Whether the connection is useless: closed, out of step, or connected to a replica, which would
/// answer a PING like any other server.
fn is_broken(replies: Result<&[Value], &RedisError>) -> bool {
    match replies {
        Err(error) => {
            error.is_unrecoverable_error() || error.is_timeout() || is_read_only(error.kind())
        }
        Ok(replies) => replies.iter().any(|reply| match reply {
            Value::ServerError(error) => {
                error.kind().is_some_and(|kind| is_read_only(RedisErrorKind::Server(kind)))
            }
            // The errors of single keys, as the script reports them.
            Value::Array(found) => found.iter().any(says_read_only),
            found => says_read_only(found),
        }),
    }
}

fn is_read_only(kind: RedisErrorKind) -> bool {
    kind == RedisErrorKind::Server(ServerErrorKind::ReadOnly)
}

fn says_read_only(found: &Value) -> bool {
    matches!(found, Value::BulkString(text) if text.starts_with(b"READONLY"))
}

struct RuntimeGuard {
    connection: Weak<SharedConnection>,
    generation: u64,
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.mark_broken(self.generation);
        }
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Unavailable, "the store has been dropped")
}

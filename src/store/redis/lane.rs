//! A lane keeps one connection and shares it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{
    Cmd, ErrorKind as RedisErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::connect::{Connector, Link};
use crate::{Error, ErrorKind};

/// The pause after a failed attempt to connect. Meanwhile, checks are told at once.
const RETRY_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Lane {
    connector: Arc<Connector>,
    state: watch::Sender<State>,
}

/// Lanes to one place, which take turns.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Box<[Arc<Lane>]>,
    next: AtomicUsize,
}

impl Lanes {
    pub(super) fn new(connector: Arc<Connector>, count: usize) -> Self {
        let lanes = (0..count).map(|_| Arc::new(Lane::new(connector.clone()))).collect();
        Self { lanes, next: AtomicUsize::new(0) }
    }

    pub(super) fn next(&self) -> &Arc<Lane> {
        &self.lanes[self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len()]
    }

    /// Whether a connection is there.
    pub(super) fn are_up(&self) -> bool {
        self.lanes.iter().any(|lane| matches!(lane.state.borrow().phase, Phase::Up(_)))
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
    Up(Link),
}

impl Lane {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        let state = State { generation: 0, phase: Phase::Down { until: None }, failure: None };
        Self { connector, state: watch::Sender::new(state) }
    }

    /// The connection, for one call, made first if there is none. Fails at once while the last attempt to make
    /// one has failed.
    async fn lease(self: &Arc<Self>) -> Result<(Link, Unanswered<'_>), Error> {
        let mut changes = self.state.subscribe();
        loop {
            let is_down = {
                let state = changes.borrow_and_update();
                let is_down = match &state.phase {
                    Phase::Up(link) => {
                        let unanswered =
                            Unanswered { lane: self, generation: state.generation, broken: true };
                        return Ok((link.clone(), unanswered));
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

    /// Sends a command. The inner error is the server's answer, or that it never came; the outer
    /// one, that there is no connection. A connection that is broken, or silent until this future
    /// is dropped, is given up.
    pub(super) async fn call(
        self: &Arc<Self>,
        command: &Cmd,
        asking: bool,
    ) -> Result<RedisResult<Value>, Error> {
        let (link, mut unanswered) = self.lease().await?;
        let reply = if asking { link.call_asking(command).await } else { link.call(command).await };
        unanswered.broken = is_broken(reply.as_ref().map(std::slice::from_ref));
        Ok(reply)
    }

    /// Sends commands in one piece. As [`call`](Self::call), with an answer or an error in each
    /// value.
    pub(super) async fn call_all(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<RedisResult<Vec<Value>>, Error> {
        let (link, mut unanswered) = self.lease().await?;
        let replies = link.call_all(commands).await;
        unanswered.broken = is_broken(replies.as_ref().map(Vec::as_slice));
        Ok(replies)
    }

    /// Starts an attempt, unless one is under way. It runs on its own: no caller's deadline cuts it
    /// short.
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
            let watched = Watched { lane: Arc::downgrade(self), generation };
            tokio::spawn(keep(self.connector.clone(), watched, self.state.subscribe()));
        }
    }

    fn connected(&self, generation: u64, result: Result<Link, Error>) {
        self.state.send_if_modified(|state| {
            let current = state.generation == generation;
            if current {
                match result {
                    Ok(link) => {
                        if state.failure.take().is_some() {
                            tracing::info!("Redis can be reached again");
                        }
                        state.phase = Phase::Up(link);
                    }
                    Err(error) => {
                        if state.failure.is_none() {
                            tracing::warn!(
                                error = &error as &dyn std::error::Error,
                                "Redis cannot be reached"
                            );
                        }
                        state.phase = Phase::Down { until: Some(Instant::now() + RETRY_AFTER) };
                        state.failure = Some(error);
                    }
                }
            }
            current
        });
    }

    /// Takes the lane down if this attempt, or its connection, is the latest. An attempt that ends
    /// without a result, by the end of its runtime, is one that failed.
    fn leave(&self, generation: u64) {
        self.state.send_if_modified(|state| {
            let current = state.generation == generation;
            match state.phase {
                Phase::Up(_) if current => state.phase = Phase::Down { until: None },
                Phase::Connecting if current => {
                    state.phase = Phase::Down { until: Some(Instant::now() + RETRY_AFTER) };
                    state.failure = Some(Error::new(
                        ErrorKind::Unavailable,
                        "the attempt to connect was cut short",
                    ));
                }
                _ => return false,
            }
            true
        });
    }
}

/// Makes a connection, and stays until it is given up: when the runtime that drives the connection
/// shuts down, this task ends with it and takes the lane down.
async fn keep(connector: Arc<Connector>, watched: Watched, mut changes: watch::Receiver<State>) {
    let result = connector.connect().await;
    drop(connector);
    if let Some(lane) = watched.lane.upgrade() {
        lane.connected(watched.generation, result);
    }
    let is_up = |state: &State| {
        state.generation == watched.generation && matches!(state.phase, Phase::Up(_))
    };
    // Ends with an error when the store is dropped, which is as good.
    let _ = changes.wait_for(|state| !is_up(state)).await;
}

/// A call whose connection is given up if nothing is heard of it.
struct Unanswered<'a> {
    lane: &'a Lane,
    generation: u64,
    broken: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.broken {
            self.lane.leave(self.generation);
        }
    }
}

/// Whether the connection is of no more use: it is closed or out of step, or leads to a replica,
/// which would answer a PING like any other.
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

struct Watched {
    lane: Weak<Lane>,
    generation: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.upgrade() {
            lane.leave(self.generation);
        }
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Unavailable, "the store has been dropped")
}

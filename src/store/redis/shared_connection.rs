//! A connection that is replaced when it fails, and sets of them.

use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use futures_util::future::select;
use tokio::sync::Notify;

use super::backoff::Backoff;
use super::connection::{Connection, Disconnection};
use super::connector::Connector;
use super::timer;
use crate::{Error, ErrorKind};

/// An attempt to connect that takes longer has failed, as far as checks are concerned.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct SharedConnection {
    connector: Arc<Connector>,
    state: Mutex<State>,
    changed: Notify,
}

/// Connections to one server, which take turns.
#[derive(Debug)]
pub(super) struct ConnectionSet {
    connections: Box<[Arc<SharedConnection>]>,
    server: Arc<str>,
    next: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Counts the attempts to connect.
    attempt: u64,
    backoff: Backoff,
    /// Why checks fail until a connection has proven itself.
    failure: Option<Error>,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Down,
    Connecting,
    Up(Arc<Connection>),
}

enum Step {
    Use(Arc<Connection>),
    Fail(Error),
    Wait,
    Connect(u64),
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

    /// A connection for one call. It is made first if there is none. Fails immediately while the
    /// server cannot be reached.
    pub(super) async fn acquire(&self) -> Result<Arc<Connection>, Error> {
        match self.established() {
            Some(connection) => Ok(connection),
            None => self.next().acquire().await,
        }
    }

    /// The next connection that has proven itself, if there is one.
    pub(super) fn established(&self) -> Option<Arc<Connection>> {
        let turn = self.turn();
        let (before, after) = self.connections.split_at(turn);
        after.iter().chain(before).find_map(|connection| connection.established())
    }

    /// Whether any connection is established.
    pub(super) fn any_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.established().is_some())
    }

    fn next(&self) -> &Arc<SharedConnection> {
        &self.connections[self.turn()]
    }

    fn turn(&self) -> usize {
        match self.connections.len() {
            1 => 0,
            count => self.next.fetch_add(1, Ordering::Relaxed) % count,
        }
    }
}

impl SharedConnection {
    fn new(connector: Arc<Connector>) -> Self {
        Self { connector, state: Mutex::default(), changed: Notify::new() }
    }

    fn established(&self) -> Option<Arc<Connection>> {
        match &self.state().phase {
            Phase::Up(connection) if connection.is_proven() && connection.closed().is_none() => {
                Some(connection.clone())
            }
            _ => None,
        }
    }

    fn close(&self, error: &Error) {
        let connection = match &self.state().phase {
            Phase::Up(connection) => connection.clone(),
            _ => return,
        };
        connection.close(error.clone());
    }

    /// The connection, made first if there is none. Only the caller that begins an attempt after a
    /// failure waits for it; the others fail immediately.
    async fn acquire(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        let mut has_tried = false;
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.step(has_tried) {
                Step::Use(connection) => return Ok(connection),
                Step::Fail(error) => return Err(error),
                Step::Wait => {}
                Step::Connect(attempt) => {
                    has_tried = true;
                    self.connect(attempt);
                }
            }
            changed.await;
        }
    }

    fn step(&self, has_tried: bool) -> Step {
        let now = Instant::now();
        let mut state = self.state();
        if let Phase::Up(connection) = &state.phase {
            let connection = connection.clone();
            match connection.closed() {
                None if connection.is_proven() => {
                    state.failure = None;
                    return Step::Use(connection);
                }
                // After a failure, one call at a time tries the new connection.
                None if !connection.has_calls_in_flight() => return Step::Use(connection),
                None => {
                    return match &state.failure {
                        Some(failure) => Step::Fail(failure.clone()),
                        None => Step::Use(connection),
                    };
                }
                Some(error) => {
                    state.phase = Phase::Down;
                    if connection.was_stable() {
                        state.backoff.reset();
                        state.failure = None;
                    } else {
                        state.failure = Some(error);
                    }
                }
            }
        }
        match (&state.phase, &state.failure) {
            (Phase::Connecting, None) => Step::Wait,
            (Phase::Connecting, Some(_)) if has_tried => Step::Wait,
            (Phase::Down, Some(failure)) if has_tried => Step::Fail(failure.clone()),
            (Phase::Down, failure) if state.backoff.may_try(now) => {
                let _ = failure;
                state.attempt += 1;
                state.phase = Phase::Connecting;
                state.backoff.tried(now, random());
                Step::Connect(state.attempt)
            }
            (_, Some(failure)) => Step::Fail(failure.clone()),
            (_, None) => Step::Fail(closed()),
        }
    }

    /// Starts an attempt as a task of the runtime: no check's timeout cuts it short.
    fn connect(self: &Arc<Self>, attempt: u64) {
        let guard = AttemptGuard { connection: Arc::downgrade(self), attempt, established: None };
        tokio::spawn(keep(self.connector.clone(), guard));
    }

    /// Sets what an attempt has led to, unless a later one has begun.
    fn set(&self, attempt: u64, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        if state.attempt == attempt {
            change(&mut state);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Connects again, without waiting for the next check.
    fn reconnect(self: &Arc<Self>) {
        if let Step::Connect(attempt) = self.step(false) {
            self.connect(attempt);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.close(&Error::new(ErrorKind::Unavailable, "the store has been dropped"));
    }
}

/// Makes a connection, and lives as long as it: when the runtime that polls the connection shuts
/// down, this task ends with it and closes the connection.
async fn keep(connector: Arc<Connector>, mut guard: AttemptGuard) {
    let start = Instant::now();
    let disconnection = Arc::new(Disconnection::default());
    let mut attempt = pin!(connector.connect(&disconnection));
    let mut result = timer::timeout_at(start + CONNECT_TIMEOUT, attempt.as_mut()).await;
    if result.is_none() {
        let error =
            Error::new(ErrorKind::Unavailable, "no connection to Redis within half a second");
        guard.set(|state| state.failure = Some(error.clone()));
        // A busy pool may take longer to hand out a connection, but not for ever.
        let patience = connector.patience().saturating_sub(CONNECT_TIMEOUT);
        result = timer::timeout_at(Instant::now() + patience, attempt.as_mut()).await;
        result.get_or_insert(Err(error));
    }
    match result {
        Some(Ok((multiplexed, origin))) => {
            let connection = Arc::new(Connection::new(multiplexed, disconnection.clone()));
            guard.established = Some(connection.clone());
            guard.set(|state| state.phase = Phase::Up(connection.clone()));
            let replaced = async {
                origin.replaced().await;
                connection.close(Error::new(
                    ErrorKind::Unavailable,
                    "another server has become the primary",
                ));
            };
            select(pin!(connection.keep()), pin!(replaced)).await;
            guard.established = None;
            let shared = guard.connection.upgrade();
            guard.connection = Weak::new();
            if let Some(shared) = shared
                && connection.was_stable()
            {
                shared.reconnect();
            }
        }
        Some(Err(error)) => {
            guard.set(|state| {
                state.phase = Phase::Down;
                state.failure = Some(error);
            });
            guard.connection = Weak::new();
        }
        None => {}
    }
}

/// Ends an attempt that is cut short, and closes its connection.
struct AttemptGuard {
    connection: Weak<SharedConnection>,
    attempt: u64,
    established: Option<Arc<Connection>>,
}

impl AttemptGuard {
    fn set(&self, change: impl FnOnce(&mut State)) {
        if let Some(connection) = self.connection.upgrade() {
            connection.set(self.attempt, change);
        }
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        match self.established.take() {
            Some(connection) => connection.close(interrupted()),
            None => self.set(|state| {
                state.phase = Phase::Down;
                state.failure = Some(interrupted());
            }),
        }
    }
}

/// From 0 to 1.
fn random() -> f64 {
    RandomState::default().hash_one(0) as f64 / u64::MAX as f64
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to Redis was closed")
}

fn interrupted() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection was cut short: the Tokio runtime has shut down, or lacks its I/O driver (build \
         it with `enable_all`)",
    )
}

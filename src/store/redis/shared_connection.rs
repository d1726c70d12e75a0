//! A connection that is replaced when it fails, and sets of them.

use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use futures_util::future::select;
use tokio::sync::Notify;

use super::connection::{Connection, Disconnection};
use super::connector::Connector;
use super::lifecycle::{Established, Lifecycle, Step};
use super::timer;
use crate::{Error, ErrorKind};

/// An attempt to connect that takes longer has failed, as far as checks are concerned.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct SharedConnection {
    connector: Arc<Connector>,
    lifecycle: Mutex<Lifecycle<Arc<Connection>>>,
    changed: Notify,
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
        Self { connector, lifecycle: Mutex::default(), changed: Notify::new() }
    }

    fn established(&self) -> Option<Arc<Connection>> {
        self.lifecycle().established().cloned()
    }

    fn close(&self, error: &Error) {
        let connection = self.lifecycle().current().cloned();
        if let Some(connection) = connection {
            connection.close(error.clone());
        }
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

    fn step(&self, has_tried: bool) -> Step<Arc<Connection>> {
        self.lifecycle().step(Instant::now(), has_tried, random())
    }

    /// Starts an attempt as a task of the runtime: no check's timeout cuts it short.
    fn connect(self: &Arc<Self>, attempt: u64) {
        let guard = AttemptGuard { connection: Arc::downgrade(self), attempt, established: None };
        tokio::spawn(keep(self.connector.clone(), guard));
    }

    /// Sets what an attempt has led to.
    fn set(&self, change: impl FnOnce(&mut Lifecycle<Arc<Connection>>)) {
        change(&mut self.lifecycle());
        self.changed.notify_waiters();
    }

    /// Connects again, without waiting for the next check.
    fn reconnect(self: &Arc<Self>) {
        if let Step::Connect(attempt) = self.step(false) {
            self.connect(attempt);
        }
    }

    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle<Arc<Connection>>> {
        // Nothing that panics runs under the lock.
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Established for Arc<Connection> {
    fn is_proven(&self) -> bool {
        Connection::is_proven(self)
    }

    fn was_stable(&self, now: Instant) -> bool {
        Connection::was_stable(self, now)
    }

    fn has_calls_in_flight(&self, now: Instant) -> bool {
        Connection::has_calls_in_flight(self, now)
    }

    fn closed(&self) -> Option<Error> {
        Connection::closed(self)
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
        guard.set(|lifecycle, attempt| lifecycle.is_slow(attempt, error.clone()));
        // A busy pool may take longer to hand out a connection, but not for ever.
        let patience = connector.patience().saturating_sub(CONNECT_TIMEOUT);
        result = timer::timeout_at(Instant::now() + patience, attempt.as_mut()).await;
        result.get_or_insert(Err(error));
    }
    match result {
        Some(Ok((multiplexed, origin))) => {
            let connection = Arc::new(Connection::new(multiplexed, disconnection.clone()));
            guard.established = Some(connection.clone());
            guard.set(|lifecycle, attempt| lifecycle.connected(attempt, connection.clone()));
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
                && connection.was_stable(Instant::now())
            {
                shared.reconnect();
            }
        }
        Some(Err(error)) => {
            guard.set(|lifecycle, attempt| lifecycle.failed(attempt, error));
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
    fn set(&self, change: impl FnOnce(&mut Lifecycle<Arc<Connection>>, u64)) {
        if let Some(connection) = self.connection.upgrade() {
            connection.set(|lifecycle| change(lifecycle, self.attempt));
        }
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        match self.established.take() {
            Some(connection) => connection.close(interrupted()),
            None => self.set(|lifecycle, attempt| lifecycle.failed(attempt, interrupted())),
        }
    }
}

/// From 0 to 1.
fn random() -> f64 {
    RandomState::default().hash_one(0) as f64 / u64::MAX as f64
}

fn interrupted() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection was cut short: the Tokio runtime has shut down, or lacks its I/O driver (build \
         it with `enable_all`)",
    )
}

//! Connections that are shared by many calls and replaced when they fail, in sets: one set for each server,
//! with connections for each runtime.
//!
//! A connection is not replaced in the way of a check. Connecting is a task, and no check's timeout cuts an
//! attempt short. When a connection that has worked is closed, the next one is made at once, without waiting
//! for a check.
//!
//! A connection has a maximum age, because a name is resolved and credentials are read only when a connection
//! is made: a server that is left by its name, but works, would be used forever. The task of an old
//! connection makes the next one, tries it (`Connection::try_out`), and puts it in the place of its own. It
//! then keeps the old one for as long as any call holds a reference to it, so nothing has to be sent again.
//! If the new one cannot be made, the old one stays. → `a_name_that_moves_is_followed_without_losing_a_check`
//! in `tests/it/connections.rs`

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use futures_util::future::select;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

use super::connector::{Connector, Origin};
use super::endpoint::CONNECT_TIMEOUT;
use super::established::Connection;
use super::lifecycle::{Established, Lifecycle, Step};
use super::multiplexed::Disconnection;
use super::settings::ConnectionSettings;
use crate::error::with_causes;
use crate::metrics::ServerMetrics;
use crate::store::redis::no_reply::no_runtime;
use crate::store::redis::runtime_end::{self, EndWatch};
use crate::{Error, ErrorKind, random, timer};

/// The references to a connection that has been replaced, if no call is in flight on it: of its task and of
/// what ends with that.
const REFERENCES: usize = 2;

/// The pause between two looks at the calls of a connection that has been replaced.
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct SharedConnection {
    connector: Arc<Connector>,
    settings: ConnectionSettings,
    metrics: Arc<ServerMetrics>,
    /// The runtime that polls the connection.
    runtime: Handle,
    lifecycle: Mutex<Lifecycle<Arc<Connection>>>,
    changed: Notify,
}

/// The connections to one server. A runtime that ends takes its tasks along, and one that stands still does not
/// run them. So each runtime has its own connections, and loses nothing with those of another.
#[derive(Debug)]
pub(crate) struct ConnectionSet {
    connector: Arc<Connector>,
    /// The settings of each connection. The number of connections is that of each runtime.
    settings: ConnectionSettings,
    runtimes: Arc<Mutex<Runtimes>>,
    one_key_per_call: AtomicBool,
    pub(crate) metrics: Arc<ServerMetrics>,
}

type Runtimes = HashMap<Id, Arc<RuntimeConnections>, RandomState>;

/// The connections of one runtime to a server, which take turns.
#[derive(Debug)]
pub(crate) struct RuntimeConnections {
    connections: Box<[Arc<SharedConnection>]>,
    next: AtomicUsize,
    end: OnceLock<EndWatch>,
}

impl ConnectionSet {
    pub(crate) fn new(connector: Arc<Connector>, settings: ConnectionSettings) -> Self {
        let metrics = Arc::new(ServerMetrics::new(connector.server()));
        let one_key_per_call = AtomicBool::new(settings.one_key_per_call);
        let runtimes = Arc::default();
        Self { connector, settings, runtimes, one_key_per_call, metrics }
    }

    /// True if each call has to have a single key: several keys may be on different servers.
    pub(crate) fn has_one_key_per_call(&self) -> bool {
        self.one_key_per_call.load(Ordering::Relaxed)
    }

    /// Limits all further calls to one key, because the server has refused one whose keys are in several slots.
    #[cold]
    pub(crate) fn spans_slots(&self) {
        if !self.one_key_per_call.swap(true, Ordering::Relaxed) {
            tracing::info!(
                target: "fleetlimit", event = "cluster_behind_one_address", server = &**self.server(),
                "this server is a cluster behind one address: from now on, each call to it has a single key \
                 (`RedisStore::one_key_per_call` sets this from the start)"
            );
        }
    }

    pub(crate) fn server(&self) -> &Arc<str> {
        self.connector.server()
    }

    /// Returns the connections of a runtime, until it ends.
    pub(crate) fn of(&self, runtime: &Handle) -> Arc<RuntimeConnections> {
        let id = runtime.id();
        let connections = match lock(&self.runtimes).entry(id) {
            Entry::Occupied(known) => return known.get().clone(),
            Entry::Vacant(unknown) => {
                let new = |_| SharedConnection::new(self, runtime).into();
                let connections = (0..self.settings.count.get()).map(new).collect();
                let (next, end) = Default::default();
                let connections = RuntimeConnections { connections, next, end };
                unknown.insert(Arc::new(connections)).clone()
            }
        };
        let (runtimes, ended) = (Arc::downgrade(&self.runtimes), Arc::downgrade(&connections));
        let watch = runtime_end::watch(runtime, move || {
            let Some(runtimes) = runtimes.upgrade() else { return };
            let is_ended = |known: &mut Arc<_>| Weak::as_ptr(&ended) == Arc::as_ptr(known);
            // Dropped without the lock.
            let _ended = lock(&runtimes).extract_if(|_, known| is_ended(known)).next();
        });
        let _ = connections.end.set(watch);
        connections
    }

    /// A connection of this runtime for one call: see [`RuntimeConnections::acquire`].
    ///
    /// # Errors
    ///
    /// While the server cannot be reached, and outside of a runtime.
    pub(crate) async fn acquire(&self) -> Result<Arc<Connection>, Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        self.of(&runtime).acquire().await
    }

    /// Returns true if this runtime has a connection that is established.
    pub(crate) fn any_connected(&self) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        let connections = lock(&self.runtimes).get(&runtime.id()).cloned();
        connections.is_some_and(|connections| connections.any_connected())
    }
}

impl RuntimeConnections {
    /// A connection for one call. It is made first if there is none. Fails immediately while the
    /// server cannot be reached.
    pub(crate) async fn acquire(&self) -> Result<Arc<Connection>, Error> {
        match self.established() {
            Some(connection) => Ok(connection),
            None => self.next().acquire().await,
        }
    }

    /// A connection, if any has proven itself. If the one whose turn it is has not, it gets this call to
    /// prove itself, or starts to connect if there is none, and another is returned.
    pub(crate) fn established(&self) -> Option<Arc<Connection>> {
        let turn = self.turn();
        let (before, after) = self.connections.split_at(turn);
        let mut connections = after.iter().chain(before);
        let next = connections.next()?;
        next.established().or_else(|| {
            let other = connections.find_map(|connection| connection.established())?;
            Some(next.prepare().unwrap_or(other))
        })
    }

    fn any_connected(&self) -> bool {
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
    fn new(set: &ConnectionSet, runtime: &Handle) -> Self {
        let (connector, metrics) = (set.connector.clone(), set.metrics.clone());
        let (lifecycle, changed) = (Mutex::default(), Notify::new());
        let (settings, runtime) = (set.settings, runtime.clone());
        Self { connector, settings, metrics, runtime, lifecycle, changed }
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

    /// The connection, made first if there is none. Fails immediately if it is not yet time for another
    /// attempt.
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
        self.lifecycle().step(Instant::now(), has_tried, random::unit())
    }

    /// Starts an attempt as a task of the runtime: no check's timeout cuts it short.
    fn connect(self: &Arc<Self>, attempt: u64) {
        let shared = Arc::downgrade(self);
        let end = End::Failed(interrupted());
        let (connector, metrics) = (self.connector.clone(), self.metrics.clone());
        let settings = self.settings;
        let attempt = Attempt { shared, connector, settings, number: attempt, end, metrics };
        self.runtime.spawn(keep(attempt));
    }

    /// Sets what an attempt has led to.
    fn set(&self, change: impl FnOnce(&mut Lifecycle<Arc<Connection>>)) {
        change(&mut self.lifecycle());
        self.changed.notify_waiters();
    }

    /// Returns the connection if it can be used. Otherwise starts to connect, if it is time to try.
    fn prepare(self: &Arc<Self>) -> Option<Arc<Connection>> {
        match self.step(false) {
            Step::Use(connection) => return Some(connection),
            Step::Connect(attempt) => self.connect(attempt),
            Step::Wait | Step::Fail(_) => {}
        }
        None
    }

    /// Connects again, without waiting for the next check.
    fn reconnect(self: &Arc<Self>) {
        if let Step::Connect(attempt) = self.step(false) {
            self.connect(attempt);
        }
    }

    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle<Arc<Connection>>> {
        lock(&self.lifecycle)
    }
}

impl Established for Arc<Connection> {
    fn is_proven(&self) -> bool {
        Connection::is_proven(self)
    }

    fn was_stable(&self, now: Instant) -> bool {
        Connection::was_stable(self, now)
    }

    fn closed(&self) -> Option<Error> {
        Connection::closed(self)
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.close(&Error::new(
            ErrorKind::Unavailable,
            "the connection was closed: the store has been dropped, or the Tokio runtime has shut down",
        ));
    }
}

/// Makes a connection, and lives as long as it: when the runtime that polls the connection shuts
/// down, this task ends with it and closes the connection.
async fn keep(mut attempt: Attempt) {
    let (connector, disconnection) = (attempt.connector.clone(), Arc::default());
    let mut connecting = pin!(connector.connect(&disconnection));
    let start = Instant::now();
    let mut result = timer::timeout_at(start + CONNECT_TIMEOUT, connecting.as_mut()).await;
    if result.is_none() {
        // A busy pool may take longer to hand out a connection, but not forever.
        attempt.set(|lifecycle, number| lifecycle.mark_slow(number, too_slow()));
        result = timer::timeout_at(start + connector.timeout(), connecting).await;
    }
    match result.unwrap_or_else(|| Err(too_slow())) {
        Ok((multiplexed, origin)) => {
            let connection = Arc::new(Connection::new(multiplexed, disconnection.clone()));
            attempt.end = End::Closed(connection.clone());
            attempt.metrics.connected();
            if attempt.set(|lifecycle, number| lifecycle.connected(number, connection.clone())) {
                hold(attempt, connection, origin).await;
            }
        }
        Err(error) => {
            attempt.metrics.could_not_connect();
            attempt.end = End::Failed(error);
        }
    }
}

/// Keeps a connection until it is closed, or until another has taken its place and nobody uses it any
/// more.
async fn hold(attempt: Attempt, connection: Arc<Connection>, origin: Origin) {
    let leave = async {
        origin.replaced().await;
        connection
            .close(Error::new(ErrorKind::Unavailable, "another server has become the primary"));
    };
    let (keep, renew) = (connection.keep(attempt.settings), attempt.renew(&connection));
    let (keep, leave, renew) = (pin!(keep), pin!(leave), pin!(renew));
    select(select(keep, leave), renew).await;
    if connection.was_stable(Instant::now())
        && let Some(shared) = attempt.shared.upgrade()
    {
        shared.reconnect();
    }
}

/// Spawns [`hold`]. This is not an `async fn`, because a connection's task starts that of the next one.
fn spawn_hold(attempt: Attempt, connection: Arc<Connection>, origin: Origin) {
    tokio::spawn(hold(attempt, connection, origin));
}

/// An attempt to connect, and the connection that it leads to.
struct Attempt {
    shared: Weak<SharedConnection>,
    connector: Arc<Connector>,
    settings: ConnectionSettings,
    number: u64,
    end: End,
    metrics: Arc<ServerMetrics>,
}

/// The consequence when the task of an attempt ends, also if it is cut short.
enum End {
    Failed(Error),
    Closed(Arc<Connection>),
}

impl Attempt {
    /// Returns whether the store is still used. If not, nobody would close the connection.
    fn set(&self, change: impl FnOnce(&mut Lifecycle<Arc<Connection>>, u64)) -> bool {
        let shared = self.shared.upgrade();
        if let Some(shared) = &shared {
            shared.set(|lifecycle| change(lifecycle, self.number));
        }
        shared.is_some()
    }

    /// Replaces the connection when it is old: the name of its server may lead elsewhere by now, and its
    /// credentials may have changed. Until then checks use the old one. Returns when nobody does any more.
    async fn renew(&self, connection: &Arc<Connection>) {
        let mut due = self.settings.replace_at(Instant::now(), random::unit());
        loop {
            let Some(at) = due else { return pending().await };
            timer::sleep_until(at).await;
            let limit = Instant::now() + self.connector.timeout();
            let replaced = timer::timeout_at(limit, self.replace()).await;
            let Err(error) = replaced.unwrap_or_else(|| Err(too_slow())) else { break };
            tracing::warn!(
                target: "fleetlimit", event = "connection_not_replaced",
                server = &**self.connector.server(), reason = with_causes(&error),
                "a connection to Redis is old and cannot be replaced: it is used for longer"
            );
            due = Some(self.settings.replace_again_at(Instant::now()));
        }
        while Arc::strong_count(connection) > REFERENCES {
            timer::sleep_until(Instant::now() + RELEASE_INTERVAL).await;
        }
    }

    /// Makes another connection, and puts it in the place of this one if it works.
    async fn replace(&self) -> Result<(), Error> {
        let disconnection = Arc::new(Disconnection::default());
        let (multiplexed, origin) = self.connector.connect(&disconnection).await?;
        let connection = Arc::new(Connection::new(multiplexed, disconnection));
        connection.try_out().await?;
        self.metrics.connected();
        let successor = Self {
            shared: self.shared.clone(),
            connector: self.connector.clone(),
            settings: self.settings,
            number: self.number,
            end: End::Closed(connection.clone()),
            metrics: self.metrics.clone(),
        };
        let mut is_used = false;
        successor.set(|lifecycle, number| is_used = lifecycle.replaced(number, connection.clone()));
        if is_used {
            spawn_hold(successor, connection, origin);
        }
        Ok(())
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        match &self.end {
            End::Closed(connection) => {
                self.metrics.disconnected();
                connection.close(interrupted());
            }
            End::Failed(error) => {
                self.set(|lifecycle, number| lifecycle.failed(number, error.clone()));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn too_slow() -> Error {
    Error::new(ErrorKind::Unavailable, "no connection to Redis within half a second")
}

fn interrupted() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection was cut short: the Tokio runtime has shut down, or lacks its I/O driver (build \
         it with `enable_all`)",
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Nobody else would ever close it.
    #[tokio::test]
    async fn a_connection_that_is_made_after_the_store_was_dropped_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let connector = Arc::new(Connector::url(url).unwrap());
        let set = ConnectionSet::new(connector, ConnectionSettings::default());
        let shared = Arc::new(SharedConnection::new(&set, &Handle::current()));
        assert!(shared.prepare().is_none());
        drop(shared);
        let (mut server, _) = listener.accept().await.unwrap();
        let replies = async {
            let mut bytes = [0; 1_024];
            loop {
                let len = server.read(&mut bytes).await.unwrap_or(0);
                let commands = bytes[..len].iter().filter(|byte| **byte == b'*').count();
                if len == 0 || server.write_all(&b"+OK\r\n".repeat(commands)).await.is_err() {
                    break;
                }
            }
        };
        let closed = tokio::time::timeout(Duration::from_secs(5), replies).await;
        assert!(closed.is_ok(), "it is not closed");
    }
}

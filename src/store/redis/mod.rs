//! Buckets in Redis. A check passes through queue, batch, script, topology, connection and
//! connector, and its reply comes back through reply and batch.

mod batch;
mod cluster;
mod connection;
mod connector;
mod deadline_timer;
mod key_encoder;
mod queue;
mod reply;
mod script;
mod topology;

use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;

use redis::IntoConnectionInfo;

use self::batch::Op;
use self::cluster::Cluster;
use self::connector::Connector;
use self::key_encoder::KeyEncoder;
use self::queue::Queue;
use self::topology::Topology;
use super::sealed::Open;
use super::{Answer, Backend, PolicySpec, Registry, Store};
use crate::{ConfigError, Error, Key};

/// Buckets in Redis or Valkey, shared by all processes that use the same server and
/// [`key_prefix`](Self::key_prefix).
///
/// Cloning is cheap, and clones share their connections. Nothing connects before the first check,
/// and Redis may start later. All checks of a store share a few
/// [`connections`](Self::connections), which are replaced when they fail.
///
/// A check costs at most one round trip, and none of its own while others are in flight: the checks
/// that arrive meanwhile go out together in one script call. A call is sent again only after a reply
/// which proves that it did not run.
///
/// # Runtimes
///
/// A store uses the Tokio runtime of the check that starts something: a connection, a call that
/// carries other checks too, the timer of their timeouts. The runtime needs its timer and I/O
/// drivers (`enable_all`). Without them Tokio panics in the store's task, and the check fails with
/// an [`Unavailable`](crate::ErrorKind::Unavailable) error. A limiter may outlive a runtime, and may
/// serve several at once. All of them must be polled: a `current_thread` runtime that exists outside
/// of `block_on` makes checks in other runtimes wait.
///
/// # Tests with a paused clock
///
/// Do not combine a `RedisStore` with a paused Tokio clock (`start_paused = true`). A runtime that
/// waits for a socket looks idle to the paused clock, which then jumps to the next timer. That is the
/// timeout of the check, so the failure mode answers at once, although Redis is up. Use a
/// [`MemoryStore`](crate::MemoryStore) in such tests: its decisions are the same, and it follows the
/// paused clock. In a test that needs Redis, call `tokio::time::resume()` before the first check.
///
/// # TLS
///
/// `rediss://` needs one of the `tls-*` features. With rustls, the first TLS connection uses the
/// process-wide `CryptoProvider` that the application installed. If there is none, it installs
/// *ring*, as rustls itself installs a default on the first use of a `ClientConfig` when exactly one
/// provider is compiled in. So an application that chooses its provider has to call
/// `install_default()` before the first check. A `redis://` store never installs a provider. A pool
/// makes its own connections: there rustls alone decides, and it panics if several providers are
/// compiled in and none is installed.
///
/// # Public dependencies
///
/// [`open`](Self::open) and its siblings take whatever `redis` 1.x (1.7.1 or later) can read as a
/// server's address, `from_client` takes its `Client`, and `from_pool` takes pools of
/// `deadpool-redis` 0.23. A new major version of one of them is a new major version of this crate.
///
/// # The server
///
/// Redis 6.2 or later, or Valkey. On a cluster each bucket is in one slot, and keys are spread over
/// all slots. The user needs these rights, for the default prefix:
///
/// ```text
/// ACL SETUSER tollgate on >secret resetkeys ~tollgate:* resetchannels
///     -@all +evalsha +eval +time +get +mget +set +pttl +del
/// ```
///
/// On a cluster it also needs `+cluster|slots +asking`, and a pool of `deadpool-redis` needs
/// `+ping +unwatch`. (Before Redis 7 grant all of `+cluster`. `+mget` is optional and saves the
/// server work.)
///
/// When Redis evicts a key, its bucket is full again. Use the eviction policy `volatile-ttl` or
/// `noeviction`, and provide enough memory.
#[derive(Clone)]
pub struct RedisStore {
    topology: Topology,
    key_prefix: Arc<str>,
    registry: Arc<Registry>,
}

/// A pool of `deadpool-redis`: of connections to one server, to a cluster, or through Sentinel.
#[cfg(feature = "deadpool")]
#[cfg_attr(docsrs, doc(cfg(feature = "deadpool")))]
#[derive(Debug)]
pub struct RedisPool(Connector);

#[cfg(feature = "deadpool")]
impl From<deadpool_redis::Pool> for RedisPool {
    fn from(pool: deadpool_redis::Pool) -> Self {
        Self(Connector::pool(pool))
    }
}

#[cfg(feature = "deadpool-cluster")]
#[cfg_attr(docsrs, doc(cfg(feature = "deadpool-cluster")))]
impl From<deadpool_redis::cluster::Pool> for RedisPool {
    fn from(pool: deadpool_redis::cluster::Pool) -> Self {
        Self(Connector::cluster_pool(pool))
    }
}

#[cfg(all(feature = "sentinel", feature = "deadpool"))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "sentinel", feature = "deadpool"))))]
impl From<deadpool_redis::sentinel::Pool> for RedisPool {
    fn from(pool: deadpool_redis::sentinel::Pool) -> Self {
        Self(Connector::sentinel_pool(pool))
    }
}

impl RedisStore {
    /// A store on one server, such as `redis://user:secret@host:6379/0`. `rediss://` needs one of
    /// the `tls-*` features. It does no I/O.
    ///
    /// # Errors
    ///
    /// If the URL is invalid. A server that is not there shows with the first check.
    pub fn open(url: impl IntoConnectionInfo) -> Result<Self, ConfigError> {
        Connector::url(url).map(Self::on)
    }

    /// A store on a cluster. It finds the other nodes through these. At least one of them has to be
    /// up when the first check arrives.
    ///
    /// # Errors
    ///
    /// If one of the URLs is invalid, or there is none.
    pub fn open_cluster(
        urls: impl IntoIterator<Item = impl IntoConnectionInfo>,
    ) -> Result<Self, ConfigError> {
        let cluster = Cluster::new(urls)?;
        Ok(Self::with_topology(Topology::Cluster(cluster.into())))
    }

    /// A store on the primary that these sentinels name for a service.
    ///
    /// The primary's user, password, database and TLS are those of the first URL. If they differ
    /// from the sentinels', use a pool and `from_pool`.
    ///
    /// # Errors
    ///
    /// If one of the URLs is invalid, or there is none.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn open_sentinel(
        urls: impl IntoIterator<Item = impl IntoConnectionInfo>,
        service: impl Into<String>,
    ) -> Result<Self, ConfigError> {
        Connector::sentinel(urls, service.into()).map(Self::on)
    }

    /// A store on the server of a client, for client certificates, a private certificate authority,
    /// credential providers and other settings that a URL cannot express.
    ///
    /// The client's settings are used as they are. `TCP_NODELAY` is off in `redis` 1.x: turn it on
    /// with `ConnectionInfo::set_tcp_settings`, or every lone check may wait for a delayed
    /// acknowledgement.
    ///
    /// ```
    /// use redis::{Client, IntoConnectionInfo};
    /// use tollgate::RedisStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = "redis://127.0.0.1:6379".into_connection_info()?;
    /// let tcp = server.tcp_settings().clone().set_nodelay(true);
    /// let store = RedisStore::from_client(Client::open(server.set_tcp_settings(tcp))?);
    /// # Ok(()) }
    /// ```
    pub fn from_client(client: redis::Client) -> Self {
        Self::on(Connector::client(client))
    }

    /// A store on connections of a pool, which the application may use too. The store detaches its
    /// few connections from the pool, which frees their slots.
    ///
    /// The connections are as the pool makes them:
    ///
    /// - `TCP_NODELAY` is off in `redis` 1.x, and the cluster and Sentinel pools of
    ///   `deadpool-redis` cannot turn it on.
    /// - A cluster pool resends a call after a timeout or a broken connection, up to 16 times,
    ///   whether or not it has run. It can be charged more than once.
    ///
    /// [`open`](Self::open), [`open_cluster`](Self::open_cluster) and `open_sentinel` have neither
    /// problem.
    ///
    /// ```
    /// use deadpool_redis::{Config, Runtime};
    /// use tollgate::{Limiter, Quota, RedisStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Config::from_url("redis://127.0.0.1:6379").create_pool(Some(Runtime::Tokio1))?;
    /// let limiter = Limiter::new(RedisStore::from_pool(pool), Quota::per_second(10))?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "deadpool")]
    #[cfg_attr(docsrs, doc(cfg(feature = "deadpool")))]
    pub fn from_pool(pool: impl Into<RedisPool>) -> Self {
        Self::on(pool.into().0)
    }

    /// Sets what the names of all keys in Redis begin with: `tollgate` by default. It must be
    /// visible ASCII without braces; anything else is a [`ConfigError`] from
    /// [`Limiter::new`](crate::Limiter::new).
    #[must_use]
    pub fn key_prefix(self, prefix: impl Into<Arc<str>>) -> Self {
        Self { key_prefix: prefix.into(), ..self }
    }

    /// Sets the number of connections to each server: 1 by default. Checks take turns on them. One
    /// connection pipelines what it is given. More can help where the connection itself is the
    /// bottleneck, as with TLS.
    #[must_use]
    pub fn connections(self, connections: NonZeroUsize) -> Self {
        Self { topology: self.topology.with_connections(connections.get()), ..self }
    }

    fn on(connector: Connector) -> Self {
        Self::with_topology(Topology::new(connector))
    }

    fn with_topology(topology: Topology) -> Self {
        Self { topology, key_prefix: "tollgate".into(), registry: Arc::default() }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("servers", &self.topology)
            .field("key_prefix", &self.key_prefix)
            .finish()
    }
}

impl Store for RedisStore {}

impl Open for RedisStore {
    fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError> {
        let encoder = KeyEncoder::new(&self.key_prefix, &spec.name)?;
        let queue = Queue::new(spec, encoder, self.topology.clone());
        Ok(Arc::new(RedisBackend(Arc::new(queue))))
    }

    fn registry(&self) -> (&Registry, &str) {
        (&self.registry, &self.key_prefix)
    }
}

#[derive(Debug)]
struct RedisBackend(Arc<Queue>);

impl Backend for RedisBackend {
    fn check(&self, key: &Key, cost: u64) -> Answer {
        self.0.enqueue(key, Op::Acquire(cost))
    }

    fn peek(&self, key: &Key) -> Answer {
        self.0.enqueue(key, Op::Peek)
    }

    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let (queue, key) = (self.0.clone(), key.clone());
        Box::pin(async move { queue.reset(&key).await })
    }

    fn is_remote(&self) -> bool {
        true
    }
}

//! Buckets in Redis: the way of a check is queue, batch, script, lane, connect, and back by reply.

mod alarm;
mod batch;
mod cluster;
mod connect;
mod lane;
mod name;
mod queue;
mod reply;
mod road;
mod script;

use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;

use redis::IntoConnectionInfo;

use self::batch::Ask;
use self::cluster::Cluster;
use self::connect::Connector;
use self::name::Namer;
use self::queue::Queue;
use self::road::Road;
use super::sealed::Open;
use super::{Answer, Buckets, Plan, Store};
use crate::{ConfigError, Error, Key};

/// Buckets in Redis or Valkey, which every process shares that uses the same server and
/// [`prefix`](Self::prefix).
///
/// Cloning is cheap, and clones share their connections. Nothing connects before the first check,
/// and Redis may come up later. All checks of a store share a few connections
/// ([`lanes`](Self::lanes)), which are made again when they fail.
///
/// A check costs one round trip at most, and none of its own while others are in flight: those that
/// arrive meanwhile go out together in one script call. A call is sent again only on a reply which
/// proves that it did not run.
///
/// # Runtimes
///
/// What a store does goes on in the Tokio runtime of the check that began it: a connection, a call
/// that carries the checks of others too, the watch on their deadlines. A limiter may outlive a
/// runtime and may serve several, but all of them have to run: one that is kept but not driven, as
/// a `current_thread` runtime is not outside its `block_on`, makes checks in the others wait.
///
/// # Public dependencies
///
/// [`new`](Self::new) takes pools of `deadpool-redis` 0.23, and `connect*` take what
/// `redis` 1.x (1.7.1 or later) can read as a server's address. A major version of either is a
/// major version of this crate.
///
/// # The server
///
/// Redis 6.2 or later, or Valkey. On a cluster each bucket is in one slot, and callers are spread
/// over all. The user needs these rights, for the default prefix:
///
/// ```text
/// ACL SETUSER tollgate on >secret resetkeys ~tollgate:* resetchannels
///     -@all +evalsha +eval +time +get +mget +set +pttl +del
/// ```
///
/// and on a cluster also `+cluster|slots +asking`; a pool of `deadpool-redis` also
/// `+ping +unwatch`. (Before Redis 7 it is `+cluster` as a whole. `+mget` only spares the server
/// work.)
///
/// The buckets of a Redis that evicts keys are full again; give it `volatile-ttl` or
/// `noeviction` and room enough.
#[derive(Clone)]
pub struct RedisStore {
    road: Road,
    prefix: Arc<str>,
}

/// A pool of `deadpool-redis`: of connections to one server, to a cluster, or by Sentinel.
#[derive(Debug)]
pub struct RedisPool(Connector);

impl From<deadpool_redis::Pool> for RedisPool {
    fn from(pool: deadpool_redis::Pool) -> Self {
        Self(Connector::Pool(pool))
    }
}

#[cfg(feature = "cluster")]
#[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
impl From<deadpool_redis::cluster::Pool> for RedisPool {
    fn from(pool: deadpool_redis::cluster::Pool) -> Self {
        Self(Connector::ClusterPool(pool))
    }
}

#[cfg(feature = "sentinel")]
#[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
impl From<deadpool_redis::sentinel::Pool> for RedisPool {
    fn from(pool: deadpool_redis::sentinel::Pool) -> Self {
        Self(Connector::SentinelPool(pool))
    }
}

impl RedisStore {
    /// A store on connections of a pool, which may serve the application too: the store takes
    /// its few connections out of the pool for good, so that their places are free again.
    ///
    /// The connections are as the pool makes them, so what its defaults leave open is open here:
    ///
    /// - `TCP_NODELAY` is off in `redis` 1.x, and a cluster pool or a Sentinel pool of
    ///   `deadpool-redis` cannot set it;
    /// - a cluster pool sends a call again after a time-out or a broken connection, up to 16 times,
    ///   whether or not it has run: it can be charged more than once.
    ///
    /// [`connect`](Self::connect), [`connect_cluster`](Self::connect_cluster) and
    /// [`connect_sentinel`](Self::connect_sentinel) set these right.
    ///
    /// ```
    /// use deadpool_redis::{Config, Runtime};
    /// use tollgate::{Limiter, Quota, RedisStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Config::from_url("redis://127.0.0.1:6379").create_pool(Some(Runtime::Tokio1))?;
    /// let limiter = Limiter::new(RedisStore::new(pool), Quota::per_second(10))?;
    /// # Ok(()) }
    /// ```
    pub fn new(pool: impl Into<RedisPool>) -> Self {
        Self::to(pool.into().0)
    }

    /// A store on one server, such as `redis://user:secret@host:6379/0`, or `rediss://` with one of
    /// the `tls-*` features.
    ///
    /// # Errors
    ///
    /// If this is no address of a server. Whether the server is there shows with the first check.
    pub fn connect(url: impl IntoConnectionInfo) -> Result<Self, ConfigError> {
        Connector::client(url).map(Self::to)
    }

    /// A store on a cluster, of which at least one of these nodes is up when a connection is made.
    ///
    /// # Errors
    ///
    /// If one of these is no address of a server, or there is none.
    pub fn connect_cluster(
        urls: impl IntoIterator<Item = impl IntoConnectionInfo>,
    ) -> Result<Self, ConfigError> {
        let cluster = Cluster::new(urls)?;
        Ok(Self::by(Road::Cluster(cluster.into())))
    }

    /// A store on the primary that these sentinels name for a service.
    ///
    /// The primary's user, password, database and TLS are those of the first address. Where they
    /// differ from the sentinels' own, bring a pool to [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// If one of these is no address of a sentinel, or there is none.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn connect_sentinel(
        urls: impl IntoIterator<Item = impl IntoConnectionInfo>,
        service: impl Into<String>,
    ) -> Result<Self, ConfigError> {
        Connector::sentinel(urls, service.into()).map(Self::to)
    }

    fn to(connector: Connector) -> Self {
        Self::by(Road::new(connector))
    }

    fn by(road: Road) -> Self {
        #[cfg(feature = "tls-rustls")]
        ensure_crypto_provider();
        Self { road, prefix: "tollgate".into() }
    }

    /// What the names of the buckets begin with: by default `tollgate`. Visible ASCII without
    /// braces; anything else is a [`ConfigError`] from [`Limiter::new`](crate::Limiter::new).
    #[must_use]
    pub fn prefix(self, prefix: impl Into<Arc<str>>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// How many connections to each server the checks take turns on: by default 1. One pipelines
    /// what it is given; more may help where a connection itself is the limit, as with TLS.
    #[must_use]
    pub fn lanes(self, lanes: NonZeroUsize) -> Self {
        Self { road: self.road.with_lanes(lanes.get()), ..self }
    }
}

/// `redis` leaves the choice to the application, and panics when a connection finds none made.
#[cfg(feature = "tls-rustls")]
fn ensure_crypto_provider() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        // An error means that somebody else was faster, which is as good.
        let _ = ring::default_provider().install_default();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("road", &self.road)
            .field("prefix", &self.prefix)
            .finish()
    }
}

impl Store for RedisStore {}

impl Open for RedisStore {
    fn open(&self, plan: Plan) -> Result<Arc<dyn Buckets>, ConfigError> {
        let namer = Namer::new(&self.prefix, &plan.policy)?;
        let queue = Queue::new(plan, namer, self.road.clone());
        Ok(Arc::new(RedisBuckets(Arc::new(queue))))
    }
}

#[derive(Debug)]
struct RedisBuckets(Arc<Queue>);

impl Buckets for RedisBuckets {
    fn check(&self, key: &Key, cost: u32) -> Answer {
        self.0.join(key, Ask::Take(cost))
    }

    fn peek(&self, key: &Key) -> Answer {
        self.0.join(key, Ask::Peek)
    }

    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let (queue, key) = (self.0.clone(), key.clone());
        Box::pin(async move { queue.reset(&key).await })
    }

    fn is_remote(&self) -> bool {
        true
    }
}

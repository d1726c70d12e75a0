//! The Redis store as applications see it: how it is opened, its settings, and its documentation.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{join, join3};

#[cfg(feature = "deadpool")]
use super::RedisPool;
use super::RedisServer;
#[cfg(feature = "sentinel")]
use super::SentinelService;
use super::backend::RedisBackend;
use super::cluster::{Cluster, Topology};
use super::connection::{ConnectionSettings, Connector, Endpoint, warn_if_insecure};
use super::fleet::{LeaseReturns, Membership, Opened, RedisBlocks, Repayment};
use super::holds::Holds;
use super::queue::Queues;
use super::script::RedisPolicy;
use crate::store::blocks::Blocks;
use crate::store::local::Local;
use crate::store::sealed::Open;
use crate::store::{Backend, PolicySpec, Registry, Store};
use crate::{ConfigError, timer};

/// The time for which the server counts permits that are held and not renewed.
const HOLD_FOR: Duration = Duration::from_secs(10);

const LOCAL_KEYS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// A [`Store`] that keeps buckets in Redis or Valkey, shared by all processes that use the same
/// server and [`key_prefix`](Self::key_prefix).
///
/// Cloning is cheap, and clones share their connections. Open one store per process and key prefix, and
/// clone it: a second one for the same server and prefix has its own connections and batches, and counts as
/// another instance in [`FailureMode::Local`](crate::FailureMode::Local), so the store logs a warning.
/// Nothing connects before the first check, and Redis may start later. The checks of a Tokio runtime share
/// one connection per server by default
/// ([`connections`](Self::connections)), which is replaced when it fails.
///
/// A check takes at most one round trip. There are three exceptions: redirections in a cluster, a server that has
/// forgotten the scripts, and the first calls to a cluster behind one address. A call is sent again only after a
/// reply that proves that it did not run.
///
/// Checks of a runtime that arrive while calls are in flight go out together. They may come from any limiters on
/// this store or its clones that have the same timeout. If there are more checks than Redis can decide, those of
/// all these limiters are rejected alike ([overload](crate::FailureMode#overload)). To isolate a policy, open a
/// second store for it, with another key prefix.
///
/// # Runtimes
///
/// Connections and calls run as tasks on the Tokio runtime of the check. The runtime needs its I/O driver
/// (`enable_all` or `enable_io`). Without it Tokio panics in the store's task, and the check fails with an
/// [`Unavailable`](crate::ErrorKind::Unavailable) error.
///
/// Each runtime that checks has its own connections to each server, which end with the runtime. So a store
/// may outlive runtimes, for example in a `static` that tests share. No check waits for a task of another
/// runtime or fails with it. A call that is in flight when its runtime ends is lost: if it ran, it is charged.
///
/// With a runtime per thread, as in actix-web, a process has a connection per thread, and each batch has the
/// checks of one thread. The first check in a runtime has to connect. So a program that makes a runtime for each
/// check connects each time, and needs a timeout that is long enough for it.
///
/// One of the runtimes registers this instance, reads the block list and the slots of a cluster, watches the
/// sentinels, and charges what was taken locally. When that runtime ends, another one takes over at its
/// next check. It also takes over after some seconds if that runtime stands still, as a `current_thread`
/// runtime does outside of `block_on`, except that nobody watches the sentinels then.
/// A pool may hand out a connection that the application has made in another runtime, and that ends with it.
///
/// The probes that notice when a failed server works again are tasks of the runtime, too. A program that calls
/// `block_on` of a `current_thread` runtime for each check gives them no time. So a check is sent to the
/// server instead, at most one in twice the timeout plus 250 ms, and can take its whole timeout. If connecting
/// takes longer than the timeout, the server may never be used again: in such a program, use a
/// multi-threaded runtime, or make all checks inside one `block_on`.
///
/// Timers fire on a separate thread, `fleetlimit-timer`, so a handler that blocks a worker does not
/// make a check exceed its timeout. (Password hashing, for example, belongs in `spawn_blocking`.) A
/// blocked worker does not delay other checks, with one exception: if a task polls a check and
/// another future together, as in `tokio::join!`, and that other future blocks, the check's call
/// and the connection can be held up.
///
/// # Tests with a paused clock
///
/// The store does not use Tokio's clock, so a test with `start_paused = true` can use Redis. Its
/// buckets follow the server's clock, not `tokio::time::advance`. Cached denials do follow Tokio's
/// clock: disable them with `cache_denials(Duration::ZERO)`, or use a
/// [`MemoryStore`](crate::MemoryStore), which makes the same decisions.
///
/// # Connections
///
/// A connection is replaced when it breaks, when a reply shows that the server is not a primary,
/// when nothing has arrived for half a second while a reply was outstanding, and after
/// [5 minutes](Self::max_connection_age). An idle one gets a `PING` [every 10 seconds](Self::keepalive). A
/// check that times out is no reason to replace it. After a failed attempt to connect, the store waits for up to
/// half a second, with jitter, before the next one. Meanwhile checks fail immediately.
///
/// [`open`](Self::open) and its siblings speak RESP3, unless the [server](RedisServer)'s URL names RESP2.
/// RESP3 tells them when a server or a load balancer closes an idle connection, so they connect again
/// before the next check. With RESP2 (as the connections of most pools) they notice it at the next `PING`,
/// or because a check fails.
///
/// # TLS
///
/// `rediss://` needs one of the `tls-*` features. Enable either rustls or `tls-native-tls`: with
/// both, `redis` uses rustls, and trusts no certificate unless `tls-rustls-webpki-roots` is enabled
/// too. Settings with which no connection could be made are a [`ConfigError`].
///
/// [`RedisServer`] takes the certificates of a private authority, client certificates, and the name that a
/// certificate has to have if servers are announced by IP address. Those of the first server apply to all
/// nodes of a cluster, and to the primary that sentinels report unless its
/// [service](SentinelService::primary) says otherwise.
///
/// `rediss://host:6379/#insecure` accepts every certificate, for tests. The store logs a warning
/// when it is built.
///
/// With rustls, the first TLS connection uses the process-wide `CryptoProvider` that the
/// application installed. If none is installed, the store installs *ring*, because rustls would
/// otherwise install a default itself, or panic if several providers are compiled in. An
/// application that wants another provider has to call `install_default()` before the first check.
/// A `redis://` store never installs a provider. A pool makes its own connections: there rustls
/// alone decides, and it panics if several providers are compiled in and none is installed.
///
/// # Public dependencies
///
/// A [`RedisServer`] accepts the `ConnectionInfo` of `redis` 1.x (1.7.1 or later), `from_client` accepts its
/// `Client`, and `from_pool` accepts pools of `deadpool-redis` 0.23. Upgrading to a breaking release of one of them
/// requires a breaking release of this crate.
///
/// # The server
///
/// Redis 6.2 or later, or Valkey. On a cluster each bucket is in one slot, and keys are spread over
/// all slots.
///
/// Some services put a cluster behind a single address: ElastiCache Serverless, Azure Managed Redis, Redis
/// Enterprise. Use [`open`](Self::open) for them. Such a server refuses a call whose keys are in several slots
/// (`CROSSSLOT`). The store then sends that call again with one key in each, within the timeout, and does so
/// from the start for all later calls to this server. It logs this once. A proxy that does not refuse such
/// calls needs [`one_key_per_call`](Self::one_key_per_call).
///
/// The user needs these permissions, for the default prefix:
///
/// ```text
/// ACL SETUSER fleetlimit on >secret resetkeys ~fleetlimit:* resetchannels
///     -@all +evalsha +eval +time +get +mget +set +incrby +setrange +pttl +del
///     +hmget +hset +hdel +hgetall +pexpire +ping
/// ```
///
/// (This is one command. `redis-cli` takes it on a single line.)
///
/// In addition grant `+cluster|slots +cluster|nodes +asking` on a cluster (before Redis 7 all of
/// `+cluster`), `+role` on a primary that is found through Sentinel, `+select` for a database other
/// than 0, and `+unwatch` for a pool of `deadpool-redis`. The sentinels' own user needs
/// `+sentinel +subscribe &+switch-master`. A [`BlockList`](crate::BlockList) needs `+zadd +zrem +zcard
/// +zscore +zrange +zremrangebyscore +pexpireat`.
///
/// Some of these are optional. `+mget`, `+incrby` and `+setrange` save the server work. Except for `+ping`, the line
/// that starts with `+hmget` is for the failure modes [`Local`](crate::FailureMode::Local) and
/// [`Open`](crate::FailureMode::Open), and for [leases](crate::LimiterBuilder::lease) in every failure mode. Without
/// it, the instances cannot register and do not know their shares, and the store logs a warning. The store also logs a
/// warning if an instance fails to register five times in a row for another reason, which takes about 10 seconds.
/// `+ping` keeps [idle connections](Self::keepalive) out of the
/// server's `ACL LOG`, except for a pool of `deadpool-redis`, which needs it. `+cluster|nodes` tells the store which
/// owner of a slot is the newest; without it the majority of the nodes decides. A store on a cluster reads the slots
/// from several nodes, because a node that is cut off from the others does not know what they decide.
///
/// Use the eviction policy `noeviction`. When memory is full, checks fail, and the failure mode applies. On a
/// server that is also a cache, use `volatile-ttl`. Then Redis evicts buckets, and their keys can use a full
/// burst again.
///
/// Provide enough memory: in total about 150 bytes per active key of up to 16 bytes (16 more on Valkey 9), or 200
/// if the rate is not short. A rate is short if the microseconds per permit are one or two digits followed by
/// zeros (5 per second: 200,000), or 864 followed by zeros. 7 per second is not.
#[derive(Clone)]
pub struct RedisStore {
    queues: Arc<Queues>,
    key_prefix: Arc<str>,
    connection_settings: ConnectionSettings,
    registry: Arc<Registry>,
    fleet: Arc<OnceLock<Fleet>>,
    /// The block list belongs to the key prefix, whatever the other settings of a clone are.
    blocks: Arc<OnceLock<Arc<RedisBlocks>>>,
    instances: u64,
    local_keys: NonZeroUsize,
    hold_for: Duration,
}

/// The parts of a store that decide while Redis fails.
#[derive(Debug)]
struct Fleet {
    local: Arc<Local>,
    membership: Arc<Membership>,
    repayment: Arc<Repayment>,
    lease_returns: Arc<LeaseReturns>,
    holds: Arc<Holds>,
    opened: Arc<Opened>,
}

impl RedisStore {
    /// A store on one server, such as `redis://user:secret@host:6379/0`. `rediss://` needs one of
    /// the `tls-*` features. Opening does no I/O.
    ///
    /// # Errors
    ///
    /// If the URL is invalid. If the server is unreachable, the first check finds out, and the
    /// failure mode applies.
    pub fn open(server: impl Into<RedisServer>) -> Result<Self, ConfigError> {
        Connector::url(server).map(Self::on)
    }

    /// A store on a cluster. The given nodes are used to find the others. All [settings](RedisServer) of
    /// the first one apply to the nodes that are found. At least one of the given nodes must be up when the
    /// first check arrives.
    ///
    /// There is no store on a cluster pool of `deadpool-redis`: its connections resend a call after a timeout
    /// or a broken connection, up to 16 times, whether or not it has run. So a check could be charged more
    /// than once. A store sends a call again only if Redis has said that it did not run.
    ///
    /// # Errors
    ///
    /// If one of the URLs is invalid, or there is none.
    pub fn open_cluster(
        nodes: impl IntoIterator<Item = impl Into<RedisServer>>,
    ) -> Result<Self, ConfigError> {
        let cluster = Cluster::new(nodes)?;
        Ok(Self::with_topology(Topology::Cluster(cluster.into())))
    }

    /// A store on the primary of a service that these sentinels monitor.
    ///
    /// The service is its name, if the primary has the user, password and TLS of the first sentinel.
    /// Otherwise it is a [`SentinelService`].
    ///
    /// # Failovers
    ///
    /// While the store has a connection, it watches all sentinels: it subscribes to
    /// `+switch-master`, if it speaks RESP3, and asks each once a second. It leaves a primary as soon as a sentinel
    /// reports a newer one.
    ///
    /// After a planned failover (`SENTINEL FAILOVER`) the old primary accepts writes for about ten
    /// more seconds. The new primary does not know what the old one admits after the promotion. The
    /// sentinels report a promotion about a second after it, so this is normally at most the burst
    /// plus the rate times two seconds, for each key. A process that reaches no sentinel stays on
    /// the old primary until the sentinels demote it. A primary that is cut off together with a
    /// process and a minority of the sentinels keeps accepting that process's writes. To prevent
    /// this, set `min-replicas-to-write` on the servers.
    ///
    /// # Errors
    ///
    /// If one of the URLs is invalid, or there is none.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn open_sentinel(
        sentinels: impl IntoIterator<Item = impl Into<RedisServer>>,
        service: impl Into<SentinelService>,
    ) -> Result<Self, ConfigError> {
        Connector::sentinel(sentinels, service.into()).map(Self::on)
    }

    /// A store on the server of a client, whose settings are used as they are. Passwords that rotate and
    /// certificates do not need it: see [`RedisServer`].
    /// `TCP_NODELAY` is off in `redis` 1.x: turn it on
    /// with `ConnectionInfo::set_tcp_settings`, or a check that is sent while an earlier call is
    /// unacknowledged may wait for a delayed acknowledgement.
    ///
    /// ```
    /// use redis::{Client, IntoConnectionInfo};
    /// use fleetlimit::RedisStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = "redis://127.0.0.1:6379".into_connection_info()?;
    /// let tcp = server.tcp_settings().clone().set_nodelay(true);
    /// let store = RedisStore::from_client(Client::open(server.set_tcp_settings(tcp))?);
    /// # Ok(()) }
    /// ```
    pub fn from_client(client: redis::Client) -> Self {
        warn_if_insecure(client.get_connection_info());
        Self::on(Connector::endpoint(Endpoint::new(client.get_connection_info().clone())))
    }

    /// A store on connections of a pool, which the application may use too. The store detaches its
    /// few connections from the pool, which frees their slots.
    ///
    /// The connections are as the pool makes them:
    ///
    /// - `TCP_NODELAY` is off in `redis` 1.x, and the Sentinel pools of `deadpool-redis` cannot turn it on.
    /// - A Sentinel pool does not watch the sentinels. After a planned failover the store stays on
    ///   the old primary until that rejects a write or closes the connection, about ten seconds
    ///   later.
    ///
    /// [`open`](Self::open) and `open_sentinel` have none of these problems. For a cluster use
    /// [`open_cluster`](Self::open_cluster), which says why there is no store on a cluster pool.
    ///
    /// ```
    /// use deadpool_redis::{Config, Runtime};
    /// use fleetlimit::{Limiter, Quota, RedisStore};
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

    /// Sets the prefix of all key names in Redis: `fleetlimit` by default. It must be visible ASCII
    /// without braces; anything else is a [`ConfigError`] from
    /// [`Limiter::new`](crate::Limiter::new).
    #[must_use]
    pub fn key_prefix(self, prefix: impl Into<Arc<str>>) -> Self {
        Self { key_prefix: prefix.into(), fleet: Arc::default(), blocks: Arc::default(), ..self }
    }

    /// Sets the number of connections of each runtime to each server: 1 by default. Calls are spread over the
    /// connections in turn, and each connection pipelines its calls. More can help where the connection itself is the
    /// bottleneck, as with TLS.
    #[must_use]
    pub fn connections(self, connections: NonZeroUsize) -> Self {
        let settings = self.connection_settings.with_count(connections);
        self.with_connection_settings(settings)
    }

    /// Sets how long a connection may be idle before the store sends a `PING`: 10 seconds by default.
    /// Load balancers, NAT and firewalls forget idle connections after a while, often without a word to
    /// either side. The `PING` keeps them from that. If there is no reply within half a second, the
    /// connection is replaced before a check needs it. A connection in use costs no `PING`.
    ///
    /// The time should be shorter than the idle timeout of all that is on the way. Less than 10 ms count as
    /// 10 ms. `Duration::MAX` means never.
    #[must_use]
    pub fn keepalive(self, idle: Duration) -> Self {
        let settings = self.connection_settings.with_keepalive(idle);
        self.with_connection_settings(settings)
    }

    /// Sets the maximum age of a connection: 5 minutes by default. Each connection is replaced in the
    /// last quarter of this time, at random. The new one is made first, so no check fails or waits. If it
    /// cannot be made, does not work, or leads to a replica, the old one is used for longer, and the log says so.
    /// The store recognizes a replica because it refuses a `DEL` of `fleetlimit:{none}`, a key that does not exist.
    /// Without the permission for that, it does not.
    ///
    /// A name that leads to another server (blue/green deployments, a failover by DNS) is followed within
    /// this time although the old server still works. Until all instances have followed, they use different
    /// buckets, and together can take up to twice their limits. A new [password](RedisServer::credentials)
    /// is used within this time, too.
    ///
    /// - Of a cluster, the nodes' own host names are resolved anew. Nodes that are announced by IP address
    ///   stay in use for as long as they serve their slots, whatever the names that were given lead to.
    /// - Of a Sentinel service, the sentinels' names are resolved anew, too.
    /// - A pool hands out the connections that it has, or makes new ones. So a pool that the application
    ///   shares with the store should limit the age of its connections itself.
    ///
    /// Less than 10 ms count as 10 ms. `Duration::MAX` means no maximum.
    #[must_use]
    pub fn max_connection_age(self, age: Duration) -> Self {
        let settings = self.connection_settings.with_max_age(age);
        self.with_connection_settings(settings)
    }

    fn with_connection_settings(self, connection_settings: ConnectionSettings) -> Self {
        let topology = self.queues.topology.with_settings(connection_settings);
        let queues = Queues::new(topology).into();
        Self { queues, connection_settings, fleet: Arc::default(), ..self }
    }

    /// Sends each key in a call of its own, for a proxy that routes a script by its first key. By default
    /// checks of many keys share a call.
    ///
    /// Set it for a proxy that divides the keys among several servers and does not check that all keys of a
    /// script are on the same one, such as twemproxy or the Redis proxy of Envoy. Without it, the server of
    /// the first key would decide about all keys of a call. So a key would have a bucket on several servers,
    /// and a limit could be exceeded without an error. A cluster needs no setting: see
    /// [the server](Self#the-server).
    ///
    /// The calls of a batch still go out together, but take the server longer than one call for all keys.
    ///
    /// ```
    /// use fleetlimit::RedisStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::open("redis://envoy.internal:6379")?.one_key_per_call();
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn one_key_per_call(self) -> Self {
        let settings = self.connection_settings.with_one_key_per_call();
        self.with_connection_settings(settings)
    }

    /// Sets how many instances this one assumes until it has registered in Redis: 1 by default. It
    /// registers at its first check, and about every two seconds from then on. (With more than 100 instances it
    /// does so less often, and until all have agreed on their shares more often.) So this matters only to an
    /// instance that starts while Redis is unreachable. With 1, each such instance enforces the whole limit, and
    /// together they admit a multiple of it for as long as the outage lasts. So set the usual number of instances,
    /// for example from the environment. A number that is too large denies more than necessary. The log has a
    /// warning with the number that an instance assumes.
    ///
    /// ```
    /// use fleetlimit::RedisStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let instances = std::env::var("INSTANCES").unwrap_or("3".into()).parse()?;
    /// let store = RedisStore::open("redis://127.0.0.1:6379")?.instances(instances);
    /// # Ok(()) }
    /// ```
    ///
    /// More than 10,000 count as 10,000. See [`FailureMode::Local`](crate::FailureMode::Local).
    #[must_use]
    pub fn instances(self, instances: NonZeroUsize) -> Self {
        Self { instances: instances.get() as u64, fleet: Arc::default(), ..self }
    }

    /// Sets the current number of instances, for example from a service registry. Call it in every
    /// instance when the number changes. It matters for the size of [leases](crate::LimiterBuilder::lease), and
    /// while Redis fails. Then an instance that could not register takes an equal share, and the registered
    /// instances reduce theirs to leave room for it. A number below the one that Redis reported last has no effect,
    /// because it does not say which instances have ended. More than 10,000 count as 10,000.
    ///
    /// Call it on the finished store: `key_prefix`, `connections`, `keepalive`, `max_connection_age`,
    /// `one_key_per_call`, `instances`, `local_keys` and `hold_for` return a store that does not have this number.
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    /// use tokio::sync::watch;
    /// use fleetlimit::RedisStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::open("redis://127.0.0.1:6379")?;
    /// // A client of the registry has the sender.
    /// let (registry, mut instances) = watch::channel(NonZeroUsize::new(3).unwrap());
    /// instances.mark_changed(); // the first number counts too
    /// tokio::spawn({
    ///     let store = store.clone();
    ///     async move {
    ///         while instances.changed().await.is_ok() {
    ///             store.set_instances(*instances.borrow_and_update());
    ///         }
    ///     }
    /// });
    /// # drop(registry);
    /// # Ok(()) }
    /// ```
    pub fn set_instances(&self, instances: NonZeroUsize) {
        self.fleet().local.set_instances(instances.get());
    }

    /// Sets the number of keys that this process knows something about: 100,000 by default.
    ///
    /// - While Redis works, the store caches the last known state of so many keys, but of at least 65,536:
    ///   those that were [denied](crate::LimiterBuilder::cache_denials), and those that would not start from
    ///   nothing if Redis failed. 100,000 states of a single token bucket take 21 MB, or 34 MB with the longest
    ///   keys. Several quotas and windows take more. The bound is for all clones of the store together.
    /// - While Redis fails, so many keys have a local bucket. 100,000 take as much again. With more
    ///   keys, some are evicted, as in a full [`MemoryStore`](crate::MemoryStore), and what further keys take
    ///   is not charged in Redis afterwards.
    ///
    /// See [`FailureMode::Local`](crate::FailureMode::Local).
    #[must_use]
    pub fn local_keys(self, keys: NonZeroUsize) -> Self {
        Self { local_keys: keys, fleet: Arc::default(), ..self }
    }

    /// Sets how long Redis counts permits of a [concurrent quota](crate::Quota::concurrent) that this process has not
    /// renewed: 10 seconds by default. The process renews what it holds about four times in that time, so a hold may last
    /// as long as it likes. If the process is killed, its permits are free after at most this time.
    ///
    /// A process that is suspended, or cut off from Redis, for longer than this still counts its permits as held, but
    /// Redis does not, so other processes can take them. When the process is back, its permits count again, even above the
    /// limit, and nothing is granted until enough are given back.
    ///
    /// The time is clamped to at least 1 second and at most an hour. Choose the same in all processes.
    #[must_use]
    pub fn hold_for(self, lifetime: Duration) -> Self {
        let hold_for = lifetime.clamp(Duration::from_secs(1), Duration::from_secs(3_600));
        Self { hold_for, fleet: Arc::default(), ..self }
    }

    /// Deregisters this instance, so that in a later outage the others divide the whole limits among
    /// themselves. Call it after the last check, before the process exits. Without it, the others count
    /// this instance for about ten more seconds (longer with more than 100 instances), or until the end
    /// of an outage that begins in that time.
    ///
    /// It also charges the permits that this instance took locally while Redis failed and has not charged
    /// yet. Without the call, or if Redis still fails, they are lost when the process exits. If any remain,
    /// `shutdown` logs a warning.
    ///
    /// It gives back what [leases](crate::LimiterBuilder::lease) have not used, and takes no more of them. Drop
    /// [holds](crate::Hold) before the call, so that their permits are given back. It also waits until the places in [queues](crate::Quota::queue) are given back that nobody needs any more: drop the
    /// checks that wait before the call.
    ///
    /// Finally the limiters on this store and its clones log what they have counted, and would log later or, if
    /// the process ends, never: the checks that Redis did not decide.
    ///
    /// The call takes at most a second. The store still works afterwards, but does not register again.
    /// In an outage it uses its last share.
    pub async fn shutdown(&self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        let given_back = timer::timeout_at(deadline, self.registry.all_left());
        let signed_off = async {
            if let Some(Fleet { membership, repayment, lease_returns, holds, .. }) =
                self.fleet.get()
            {
                let ended =
                    join(lease_returns.close(&self.queues, deadline), holds.settle(deadline));
                join3(membership.leave(), repayment.settle(&self.queues), ended).await;
            }
        };
        join(given_back, signed_off).await;
        self.registry.report();
    }

    fn fleet(&self) -> &Fleet {
        self.fleet.get_or_init(|| {
            self.registry.states().reserve(self.local_keys.get());
            let local = Arc::new(Local::new(self.local_keys, self.instances));
            let topology = self.queues.topology.clone();
            let membership = Membership::new(topology, &self.key_prefix, local.clone());
            let repayment = Repayment::new(local.max_keys());
            let topology = &self.queues.topology;
            let server = topology.first_server();
            let opened = Opened::new(topology.identity(), server, &self.key_prefix).into();
            let (membership, repayment) = (membership.into(), repayment.into());
            let lease_returns = LeaseReturns::new(self.registry.states()).into();
            let holds = Holds::new(&self.queues, self.hold_for).into();
            Fleet { local, membership, repayment, lease_returns, holds, opened }
        })
    }

    fn on(connector: Connector) -> Self {
        Self::with_topology(Topology::new(connector))
    }

    fn with_topology(topology: Topology) -> Self {
        let queues = Queues::new(topology).into();
        Self {
            queues,
            key_prefix: "fleetlimit".into(),
            connection_settings: ConnectionSettings::default(),
            registry: Arc::default(),
            fleet: Arc::default(),
            blocks: Arc::default(),
            instances: 1,
            local_keys: LOCAL_KEYS,
            hold_for: HOLD_FOR,
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("servers", &self.queues.topology)
            .field("key_prefix", &self.key_prefix)
            .field("connections", &self.connection_settings)
            .field("instances", &self.instances)
            .field("local_keys", &self.local_keys)
            .field("hold_for", &self.hold_for)
            .finish()
    }
}

impl Store for RedisStore {}

impl Open for RedisStore {
    fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError> {
        let Fleet { local, membership, repayment, lease_returns, holds, opened } = self.fleet();
        Ok(Arc::new(RedisBackend {
            policy: RedisPolicy::new(&spec, &self.key_prefix, local, self.hold_for)?.into(),
            queues: self.queues.clone(),
            membership: membership.clone(),
            repayment: repayment.clone(),
            lease_returns: lease_returns.clone(),
            holds: holds.clone(),
            _opened: opened.clone(),
        }))
    }

    fn clock(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since_1970.as_micros() as u64
    }

    fn registry(&self) -> (&Registry, &str) {
        (&self.registry, &self.key_prefix)
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn blocks(&self) -> Arc<dyn Blocks> {
        let new = || RedisBlocks::new(self.queues.topology.clone(), &self.key_prefix);
        self.blocks.get_or_init(new).clone()
    }
}

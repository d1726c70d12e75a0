//! A pool of connections that belongs to the application.

use super::connection::Connector;

/// A pool of `deadpool-redis`: of connections to one server, or through Sentinel.
///
/// A pool of connections to one server has the address of that server in logs, metrics and errors. Sentinel
/// pools do not reveal their addresses: [`named`](Self::named) sets a name for them. For a cluster use
/// [`RedisStore::open_cluster`](crate::RedisStore::open_cluster).
#[cfg_attr(docsrs, doc(cfg(feature = "deadpool")))]
#[derive(Debug)]
pub struct RedisPool(pub(super) Connector);

impl RedisPool {
    /// Sets the name of the pool's server in logs, metrics and errors.
    ///
    /// ```
    /// # #[cfg(feature = "sentinel")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use deadpool_redis::Runtime;
    /// use deadpool_redis::sentinel::{Config, SentinelServerType};
    /// use fleetlimit::{RedisPool, RedisStore};
    ///
    /// let sentinels = vec!["redis://sentinel.internal:26379".to_owned()];
    /// let config = Config::from_urls(sentinels, "main".to_owned(), SentinelServerType::Master);
    /// let pool = RedisPool::from(config.create_pool(Some(Runtime::Tokio1))?);
    /// let store = RedisStore::from_pool(pool.named("main"));
    /// # Ok(()) }
    /// # #[cfg(not(feature = "sentinel"))]
    /// # fn main() {}
    /// ```
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self(self.0.named(name))
    }
}

impl From<deadpool_redis::Pool> for RedisPool {
    fn from(pool: deadpool_redis::Pool) -> Self {
        Self(Connector::pool(pool))
    }
}

#[cfg(feature = "sentinel")]
#[cfg_attr(docsrs, doc(cfg(all(feature = "sentinel", feature = "deadpool"))))]
impl From<deadpool_redis::sentinel::Pool> for RedisPool {
    fn from(pool: deadpool_redis::sentinel::Pool) -> Self {
        Self(Connector::sentinel_pool(pool))
    }
}

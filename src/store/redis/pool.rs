//! A pool of connections that belongs to the application.

// The compiler shows the line of the conversion below for a pool of another version, whose types look the same.
use deadpool_redis as deadpool_redis_0_23;

use super::connection::Connector;

/// A pool of `deadpool-redis` 0.23, which has connections to one server, directly or through Sentinel.
///
/// Pools of other versions are other types ("the trait bound `RedisPool: From<..>` is not satisfied"). With these,
/// use [`RedisStore::open`](crate::RedisStore::open), which needs no pool.
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

impl From<deadpool_redis_0_23::Pool> for RedisPool {
    fn from(pool: deadpool_redis_0_23::Pool) -> Self {
        Self(Connector::pool(pool))
    }
}

#[cfg(feature = "sentinel")]
#[cfg_attr(docsrs, doc(cfg(all(feature = "sentinel", feature = "deadpool"))))]
impl From<deadpool_redis_0_23::sentinel::Pool> for RedisPool {
    fn from(pool: deadpool_redis_0_23::sentinel::Pool) -> Self {
        Self(Connector::sentinel_pool(pool))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_that_the_compiler_and_the_docs_name_is_that_of_the_dependency() {
        let manifest: toml::Table = toml::from_str(include_str!("../../../Cargo.toml")).unwrap();
        let version = manifest["dependencies"]["deadpool-redis"]["version"].as_str().unwrap();
        let minor = version.rsplit_once('.').unwrap().0;
        let (this_file, guide) = (include_str!("pool.rs"), include_str!("../../guide.rs"));
        let alias = format!("deadpool_redis_{}::Pool", minor.replace('.', "_"));
        assert!(this_file.contains(&format!("From<{alias}>")), "{alias}");
        assert!(this_file.contains(&format!("`deadpool-redis` {minor}")), "{minor}");
        assert!(guide.contains(&format!("version {minor}, or [`RedisStore::open`]")), "{minor}");
    }
}

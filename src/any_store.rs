use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

#[cfg(feature = "redis")]
use crate::RedisStore;
use crate::store::blocks::Blocks;
use crate::store::sealed::Open;
use crate::store::{Backend, PolicySpec, Registry};
use crate::{ConfigError, MemoryStore, Store};

/// A [`Store`] that configuration chooses: in the memory of the process, or in Redis.
///
/// | URL | store |
/// |---|---|
/// | `memory:` | [`MemoryStore::new`] |
/// | `redis://user:secret@host:6379/0`, `rediss://host` (with TLS) | [`RedisStore::open`](crate::RedisStore::open) |
/// | `unix:///run/redis.sock?db=0&user=...&pass=...`, `redis+unix:///run/redis.sock` | [`RedisStore::open`](crate::RedisStore::open) |
/// | `redis+cluster://user:secret@host1:6379,host2:6379`, `rediss+cluster://host` (with TLS) | [`RedisStore::open_cluster`](crate::RedisStore::open_cluster) |
/// | `redis+sentinel://user:secret@host1:26379,host2/service/0`, `rediss+sentinel://host/service` (with TLS) | `RedisStore::open_sentinel` |
///
/// `valkey` can stand for `redis` in all of these, and `valkeys` for `rediss`. The database at the end is optional, and so is the
/// port, which is 26379 for sentinels. What has a meaning in a URL, such as a comma or `@`, has to be
/// percent-encoded in a password.
///
/// ```
/// use fleetlimit::{AnyStore, Limiter, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = std::env::var("STORE_URL").unwrap_or("memory:".into());
/// let store = AnyStore::open(&url)?;
/// # #[cfg(feature = "redis")]
/// let store = store.map_redis(|redis| redis.key_prefix("search-api"));
/// let limiter = Limiter::new(store.clone(), Quota::per_second(10))?;
/// limiter.check("user:7").await?.ensure_allowed()?;
///
/// // Before the process exits.
/// store.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum AnyStore {
    /// Buckets in the memory of this process.
    Memory(MemoryStore),
    /// Buckets in Redis.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    Redis(RedisStore),
}

impl AnyStore {
    /// Opens the store of a URL. It does no I/O.
    ///
    /// # Errors
    ///
    /// If the URL is invalid, or needs a feature of this crate that is not enabled: the text names it. It does not
    /// contain the URL, which may have a password.
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        match url {
            "memory:" | "memory://" => Ok(Self::Memory(MemoryStore::new())),
            _ if url.starts_with("memory:") => Err(ConfigError::new(
                "invalid URL of a store: nothing may follow `memory:` (for another number of keys, use \
                 `AnyStore::from(MemoryStore::with_max_keys(..))`)",
            )),
            _ => open_redis(url),
        }
    }

    /// Changes the settings of a store on Redis. A store in memory stays as it is.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[must_use]
    pub fn map_redis(self, change: impl FnOnce(RedisStore) -> RedisStore) -> Self {
        match self {
            Self::Redis(store) => Self::Redis(change(store)),
            Self::Memory(_) => self,
        }
    }

    /// Shuts the store down, as [`RedisStore::shutdown`](crate::RedisStore::shutdown) does. In memory, the limiters only report
    /// what they have counted to the log.
    pub async fn shutdown(&self) {
        match self {
            Self::Memory(store) => store.registry().0.report(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.shutdown().await,
        }
    }

    fn store(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => store,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store,
        }
    }
}

#[cfg(feature = "redis")]
fn open_redis(url: &str) -> Result<AnyStore, ConfigError> {
    RedisStore::from_url(url).map(AnyStore::Redis)
}

#[cfg(not(feature = "redis"))]
fn open_redis(_: &str) -> Result<AnyStore, ConfigError> {
    Err(ConfigError::new(
        "invalid URL of a store: it is not `memory:`, and any other needs the feature `redis` of fleetlimit",
    ))
}

impl Store for AnyStore {}

impl Open for AnyStore {
    fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError> {
        self.store().open(spec)
    }

    fn clock(&self) -> u64 {
        self.store().clock()
    }

    fn registry(&self) -> (&Registry, &str) {
        self.store().registry()
    }

    fn blocks(&self) -> Arc<dyn Blocks> {
        self.store().blocks()
    }

    fn has_leases(&self) -> bool {
        self.store().has_leases()
    }
}

impl FromStr for AnyStore {
    type Err = ConfigError;

    /// Opens the store of a URL, as [`open`](Self::open) does.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        Self::open(url)
    }
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        Self::Memory(store)
    }
}

#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
impl From<RedisStore> for AnyStore {
    fn from(store: RedisStore) -> Self {
        Self::Redis(store)
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_for_memory_with_anything_else_is_an_error() {
        for url in ["memory:1000", "memory://host", "memory:?keys=7"] {
            let error = AnyStore::open(url).unwrap_err().to_string();
            assert!(error.contains("nothing may follow `memory:`"), "{url}: {error}");
        }
        assert!(matches!("memory:".parse(), Ok(AnyStore::Memory(_))));
    }
}

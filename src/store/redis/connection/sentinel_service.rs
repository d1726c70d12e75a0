//! The description by an application of the primary that sentinels monitor.

use super::endpoint::Endpoint;
use super::server::RedisServer;
use crate::ConfigError;

/// A service that sentinels monitor: its name, and how to log in to its primary.
///
/// A name alone means that the primary has the user, password, database, TLS and protocol of the first
/// sentinel. If they differ, give a [`primary`](Self::primary):
///
/// ```
/// use fleetlimit::{RedisStore, SentinelService};
///
/// # fn main() -> Result<(), fleetlimit::ConfigError> {
/// let sentinels = ["redis://:sentinel-secret@10.0.0.1:26379", "redis://:sentinel-secret@10.0.0.2:26379"];
/// let service = SentinelService::new("mymaster").primary("redis://app:secret@redis.internal/1");
/// let store = RedisStore::open_sentinel(sentinels, service)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
pub struct SentinelService {
    name: String,
    primary: Option<RedisServer>,
}

impl SentinelService {
    /// Creates a service with this name, such as `mymaster`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), primary: None }
    }

    /// Sets how to connect to the primary, whichever server that is: with the user, password, database,
    /// TLS and protocol of this one. Its host and port are not used, because the sentinels report them.
    /// Nothing of the sentinels applies to the primary then.
    #[must_use]
    pub fn primary(self, server: impl Into<RedisServer>) -> Self {
        Self { primary: Some(server.into()), ..self }
    }

    /// Returns the name, and how to connect to the primary if that was set.
    pub(super) fn into_parts(self) -> Result<(String, Option<Endpoint>), ConfigError> {
        Ok((self.name, self.primary.map(RedisServer::endpoint).transpose()?))
    }
}

impl From<&str> for SentinelService {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for SentinelService {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

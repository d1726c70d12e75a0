//! The ways to make a connection: from an endpoint, through sentinels, or from a pool of the application.
//!
//! Connections are shared, not checked out. Checking one out of a pool costs UNWATCH and PING, a second round
//! trip, and it then carries one request at a time. A multiplexed connection is made to be shared. So the
//! store detaches one from the pool, which frees its slot, and discards it when it fails: a pool would take
//! it back, because a demoted primary still answers PING. `RedisStore::open` and its siblings use no pool,
//! because one connection needs none.
//!
//! What an attempt waits for before it begins is up to the application: a pool with free slots, or a provider
//! of credentials. So it may take longer than connecting does.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{CONNECT_TIMEOUT, Endpoint, config};
use super::multiplexed::{Disconnection, Multiplexed};
#[cfg(feature = "sentinel")]
use super::primary_report::Report;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
#[cfg(feature = "sentinel")]
use super::sentinel_service::SentinelService;
use super::server::RedisServer;
#[cfg(feature = "deadpool")]
use crate::ErrorKind;
#[cfg(feature = "deadpool")]
use crate::store::redis::server_error::to_error;
use crate::{ConfigError, Error};

/// The longest wait for the application: for a pool, whose slots may be in use, or a provider of
/// credentials, which may have to fetch them.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(5);

/// The source of the connections to a server.
pub(crate) struct Connector {
    source: ConnectionSource,
    /// The name of the server in logs and errors.
    server: Arc<str>,
}

enum ConnectionSource {
    Server(Box<Endpoint>),
    #[cfg(feature = "deadpool")]
    Pool(deadpool_redis::Pool),
    #[cfg(feature = "sentinel")]
    Sentinels(Arc<Sentinels>),
    #[cfg(all(feature = "sentinel", feature = "deadpool"))]
    SentinelPool(deadpool_redis::sentinel::Pool),
}

/// The origin of a connection, which tells if it may lead to the wrong server after a while.
pub(super) enum Origin {
    Fixed,
    /// The primary that a sentinel reported.
    #[cfg(feature = "sentinel")]
    Primary(Arc<Sentinels>, Report),
}

impl Connector {
    pub(crate) fn endpoint(endpoint: Endpoint) -> Self {
        let server = endpoint.address().to_string().into();
        Self { source: ConnectionSource::Server(endpoint.into()), server }
    }

    pub(crate) fn url(server: impl Into<RedisServer>) -> Result<Self, ConfigError> {
        server.into().endpoint().map(Self::endpoint)
    }

    #[cfg(feature = "deadpool")]
    pub(crate) fn pool(pool: deadpool_redis::Pool) -> Self {
        let server = address_of(&pool).unwrap_or_else(|| "deadpool pool".into());
        Self { source: ConnectionSource::Pool(pool), server }
    }

    #[cfg(all(feature = "sentinel", feature = "deadpool"))]
    pub(crate) fn sentinel_pool(pool: deadpool_redis::sentinel::Pool) -> Self {
        Self {
            source: ConnectionSource::SentinelPool(pool),
            server: "deadpool sentinel pool".into(),
        }
    }

    #[cfg(feature = "sentinel")]
    pub(crate) fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<RedisServer>>,
        service: SentinelService,
    ) -> Result<Self, ConfigError> {
        let sentinels = Sentinels::new(sentinels, service)?;
        let server = format!("sentinel service {}", sentinels.service()).into();
        Ok(Self { source: ConnectionSource::Sentinels(sentinels.into()), server })
    }

    /// Sets the name of the server, for logs and errors.
    #[cfg(feature = "deadpool")]
    pub(crate) fn named(self, server: &str) -> Self {
        Self { server: server.into(), ..self }
    }

    pub(crate) fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// Returns a text that two connectors to the same servers have in common. Pools do not reveal theirs,
    /// so the same pool is recognized by its manager.
    pub(crate) fn identity(&self) -> String {
        match &self.source {
            ConnectionSource::Server(endpoint) => endpoint.identity(),
            #[cfg(feature = "deadpool")]
            ConnectionSource::Pool(pool) => format!("pool {:p}", pool.manager()),
            #[cfg(feature = "sentinel")]
            ConnectionSource::Sentinels(sentinels) => sentinels.identity(),
            #[cfg(all(feature = "sentinel", feature = "deadpool"))]
            ConnectionSource::SentinelPool(pool) => format!("pool {:p}", pool.manager()),
        }
    }

    /// The longest that [`connect`](Self::connect) may take.
    pub(super) fn timeout(&self) -> Duration {
        match &self.source {
            ConnectionSource::Server(endpoint) if endpoint.has_provider() => PROVIDER_TIMEOUT,
            ConnectionSource::Server(_) => CONNECT_TIMEOUT,
            #[cfg(feature = "sentinel")]
            ConnectionSource::Sentinels(sentinels) if sentinels.primary().has_provider() => {
                PROVIDER_TIMEOUT
            }
            // The sentinels are asked first.
            #[cfg(feature = "sentinel")]
            ConnectionSource::Sentinels(_) => 2 * CONNECT_TIMEOUT,
            #[cfg(feature = "deadpool")]
            _ => PROVIDER_TIMEOUT,
        }
    }

    /// Makes a connection. The origin tells when to replace it. `disconnection` learns when the
    /// server closes it, except for connections that speak RESP2 or come from a pool.
    pub(super) async fn connect(
        &self,
        disconnection: &Arc<Disconnection>,
    ) -> Result<(Multiplexed, Origin), Error> {
        let connection = match &self.source {
            ConnectionSource::Server(endpoint) => {
                let config = config(endpoint.protocol(), disconnection);
                endpoint.connect(&config).await.map(Multiplexed)
            }
            #[cfg(feature = "deadpool")]
            ConnectionSource::Pool(pool) => pool
                .get()
                .await
                .map(|connection| Multiplexed(deadpool_redis::Connection::take(connection)))
                .map_err(pool_to_error),
            #[cfg(feature = "sentinel")]
            ConnectionSource::Sentinels(sentinels) => {
                let config = config(sentinels.primary().protocol(), disconnection);
                let (connection, report) = sentinels.connect(&config).await?;
                let origin = Origin::Primary(sentinels.clone(), report);
                return Ok((Multiplexed(connection), origin));
            }
            #[cfg(all(feature = "sentinel", feature = "deadpool"))]
            ConnectionSource::SentinelPool(pool) => pool
                .get()
                .await
                .map(|connection| {
                    Multiplexed(deadpool_redis::sentinel::Connection::take(connection))
                })
                .map_err(pool_to_error),
        };
        connection.map(|connection| (connection, Origin::Fixed))
    }
}

impl Origin {
    /// Waits until another server takes the place of the one that the connection leads to.
    pub(super) async fn replaced(self) {
        match self {
            Self::Fixed => pending().await,
            #[cfg(feature = "sentinel")]
            Self::Primary(sentinels, report) => sentinels.replaced(&report).await,
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.server)
    }
}

/// The longest path of a Unix socket is shorter, and so is the longest name of a host.
#[cfg(feature = "deadpool")]
const LONGEST_ADDRESS: usize = 255;

/// The address of a pool's server. A pool shows it in its debug output alone, which hides the password.
#[cfg(feature = "deadpool")]
fn address_of(pool: &deadpool_redis::Pool) -> Option<Arc<str>> {
    address_in(&format!("{:?}", pool.manager()))
}

/// The address in the debug output of a pool's manager. `None` if that has another form, or the address has
/// characters that are escaped there or an address does not have.
#[cfg(feature = "deadpool")]
fn address_in(manager: &str) -> Option<Arc<str>> {
    fn quoted(text: &str) -> Option<(&str, &str)> {
        let (address, rest) = text.strip_prefix('"')?.split_once('"')?;
        let is_plain = |c: char| c.is_ascii_graphic() && c != '\\';
        let is_address =
            (1..=LONGEST_ADDRESS).contains(&address.len()) && address.chars().all(is_plain);
        is_address.then_some((address, rest))
    }
    let start = "Manager { client: Client { connection_info: ConnectionInfo { addr: ";
    let address = manager.strip_prefix(start)?;
    if let Some(path) = address.strip_prefix("Unix(") {
        return Some(quoted(path)?.0.into());
    }
    let is_tls = address.strip_prefix("TcpTls { host: ");
    let (host, rest) = quoted(is_tls.or_else(|| address.strip_prefix("Tcp("))?)?;
    let port = rest.strip_prefix(", ")?;
    let port = port.strip_prefix("port: ").unwrap_or(port);
    let digits = port.find(|c: char| !c.is_ascii_digit())?;
    let port: u16 = port[..digits].parse().ok()?;
    Some(format!("{host}:{port}").into())
}

#[cfg(feature = "deadpool")]
fn pool_to_error(error: deadpool_redis::PoolError) -> Error {
    match error {
        deadpool_redis::PoolError::Backend(error) => to_error(error),
        error => Error::caused_by(ErrorKind::Unavailable, "no connection from the pool", error),
    }
}

#[cfg(all(test, feature = "deadpool"))]
mod tests {
    use deadpool_redis::{Config, Manager, Runtime};
    use redis::{ConnectionAddr, IntoConnectionInfo};

    use super::*;

    fn pool(info: impl IntoConnectionInfo) -> Connector {
        let manager = Manager::new(info).unwrap();
        Connector::pool(deadpool_redis::Pool::builder(manager).build().unwrap())
    }

    /// Or all pools of a process would be one line of the dashboard.
    #[test]
    fn a_pool_has_the_address_of_its_server_and_not_its_password() {
        for (url, address) in [
            ("redis://127.0.0.1:6380", "127.0.0.1:6380"),
            ("redis://user:addr:%20secret@redis.internal/7", "redis.internal:6379"),
            ("redis://[::1]:6380", "::1:6380"),
        ] {
            let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1)).unwrap();
            assert_eq!(&**Connector::pool(pool).server(), address);
            assert_eq!(&**Connector::url(url).unwrap().server(), address, "as without a pool");
        }
        #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
        assert_eq!(
            &**pool("rediss://redis.internal:6390/#insecure").server(),
            "redis.internal:6390"
        );
        let socket = ConnectionAddr::Unix("/run/redis.sock".into());
        let socket = "redis://x".into_connection_info().unwrap().set_addr(socket);
        assert_eq!(&**pool(socket).server(), "/run/redis.sock");
    }

    #[test]
    fn a_pool_whose_debug_output_has_another_form_is_not_given_a_wrong_address() {
        let of = |text: &str| {
            address_in(&format!(
                "Manager {{ client: Client {{ connection_info: ConnectionInfo {{ {text}"
            ))
        };
        assert_eq!(of("addr: Tcp(\"redis\", 6379), tcp").as_deref(), Some("redis:6379"));
        let long = format!("addr: Tcp(\"{}\", 6379)", "x".repeat(256));
        for text in [
            "redis: RedisConnectionInfo { username: Some(\"addr: Tcp(\\\"redis\\\", 1)\") }, addr: Tcp(\"redis\", 2)",
            "addr: Tcp(\"a\\\"b\", 6379)",
            "addr: Tcp(\"a b\", 6379)",
            "addr: Tcp(\"\", 6379)",
            "addr: Tcp(\"redis\", 65536)",
            "addr: Tcp(\"redis\", -1)",
            "addr: Tcp(\"redis\", 6379",
            "addr: Tcp(\"redis\"",
            "addr: Unix(\"/tmp/a\\nb\")",
            &long,
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(address_in("Manager { other: 1, addr: Tcp(\"redis\", 6379) }"), None);
    }

    #[test]
    fn only_connectors_to_the_same_servers_have_the_same_identity() {
        let url = |url| Connector::url(url).unwrap().identity();
        assert_eq!(url("redis://redis:6379"), url("redis://user:secret@redis/0"));
        assert_ne!(url("redis://redis"), url("redis://redis/1"), "another database");
        assert_ne!(url("redis://redis"), url("redis://redis:6380"));
        let pool = Config::from_url("redis://redis").create_pool(None).unwrap();
        let identity = |pool: &deadpool_redis::Pool| Connector::pool(pool.clone()).identity();
        assert_eq!(identity(&pool), identity(&pool.clone()));
        assert_ne!(
            identity(&pool),
            identity(&Config::from_url("redis://redis").create_pool(None).unwrap())
        );
    }
}

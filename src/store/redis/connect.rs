//! How connections are made, and one that many callers share.

use std::fmt;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisError,
    RedisResult, Value,
};

use crate::{ConfigError, Error, ErrorKind};

/// How long a connection may take, short enough for an attempt that began in an outage to leave
/// time for the next within a second of its end.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The longest that making a connection may take in all, waiting for a pool's slot included.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where connections come from.
pub(super) enum Connector {
    Client(Box<Client>),
    Pool(deadpool_redis::Pool),
    #[cfg(feature = "cluster")]
    ClusterPool(deadpool_redis::cluster::Pool),
    #[cfg(feature = "sentinel")]
    SentinelClient(Box<tokio::sync::Mutex<redis::sentinel::SentinelClient>>),
    #[cfg(feature = "sentinel")]
    SentinelPool(deadpool_redis::sentinel::Pool),
}

/// A connection that pipelines the calls of all that hold a clone of it.
#[derive(Clone)]
pub(super) enum Link {
    Server(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Connector {
    pub(super) fn client(url: impl IntoConnectionInfo) -> Result<Self, ConfigError> {
        Ok(Self::Client(Client::open(server(url)?).map_err(refuse)?.into()))
    }

    #[cfg(feature = "sentinel")]
    pub(super) fn sentinel(
        urls: impl IntoIterator<Item = impl IntoConnectionInfo>,
        service: String,
    ) -> Result<Self, ConfigError> {
        use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
        use redis::{ConnectionAddr, TlsMode};

        let sentinels = urls.into_iter().map(server).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = sentinels.first() else {
            return Err(ConfigError::new("name at least one sentinel"));
        };
        let mut node = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(first.redis_settings().clone())
            .set_tcp_settings(first.tcp_settings().clone());
        if let ConnectionAddr::TcpTls { insecure, .. } = first.addr() {
            node = node.set_tls_mode(if *insecure { TlsMode::Insecure } else { TlsMode::Secure });
        }
        let sentinels = sentinels
            .into_iter()
            .map(|sentinel| {
                // A sentinel has no databases.
                let settings = sentinel.redis_settings().clone().set_db(0);
                sentinel.set_redis_settings(settings)
            })
            .collect();
        let client =
            SentinelClient::build(sentinels, service, Some(node), SentinelServerType::Master)
                .map_err(refuse)?;
        Ok(Self::SentinelClient(Box::new(client.into())))
    }

    /// Whether its connections reach a whole cluster.
    pub(super) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::ClusterPool(_) => true,
            _ => false,
        }
    }

    pub(super) async fn connect(&self) -> Result<Link, Error> {
        tokio::time::timeout(ATTEMPT_TIMEOUT, self.attempt()).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "no connection to Redis within 5 seconds"))
        })
    }

    async fn attempt(&self) -> Result<Link, Error> {
        match self {
            Self::Client(client) => client
                .get_multiplexed_async_connection_with_config(&config())
                .await
                .map(Link::Server)
                .map_err(fault),
            Self::Pool(pool) => pool
                .get()
                .await
                .map(|connection| Link::Server(deadpool_redis::Connection::take(connection)))
                .map_err(pool_fault),
            #[cfg(feature = "cluster")]
            Self::ClusterPool(pool) => pool
                .get()
                .await
                .map(|connection| {
                    Link::Cluster(deadpool_redis::cluster::Connection::take(connection))
                })
                .map_err(pool_fault),
            #[cfg(feature = "sentinel")]
            Self::SentinelClient(client) => client
                .lock()
                .await
                .get_async_connection_with_config(&config())
                .await
                .map(Link::Server)
                .map_err(fault),
            #[cfg(feature = "sentinel")]
            Self::SentinelPool(pool) => pool
                .get()
                .await
                .map(|connection| {
                    Link::Server(deadpool_redis::sentinel::Connection::take(connection))
                })
                .map_err(pool_fault),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_cluster() { "Connector(cluster)" } else { "Connector(server)" })
    }
}

impl Link {
    pub(super) async fn call(self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(mut connection) => command.query_async(&mut connection).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(mut connection) => command.query_async(&mut connection).await,
        }
    }

    pub(super) async fn call_all(self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let count = commands.len();
        match self {
            Self::Server(mut connection) => {
                connection.req_packed_commands(commands, 0, count).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(mut connection) => {
                connection.req_packed_commands(commands, 0, count).await
            }
        }
    }

    /// Calls a node that is taking over a slot. Both commands go in one piece: on a shared
    /// connection another caller's could come between.
    pub(super) async fn call_asking(self, command: &Cmd) -> RedisResult<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").ignore().add_command(command.clone());
        let (reply,) = match self {
            Self::Server(mut connection) => pipeline.query_async(&mut connection).await?,
            #[cfg(feature = "cluster")]
            Self::Cluster(mut connection) => pipeline.query_async(&mut connection).await?,
        };
        Ok(reply)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// What a failed call means for its caller.
pub(super) fn fault(error: RedisError) -> Error {
    let server = matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension);
    if server || error.kind() == redis::ErrorKind::AuthenticationFailed {
        Error::caused(ErrorKind::Store, "Redis refused the call", error)
    } else {
        Error::caused(ErrorKind::Unavailable, "Redis cannot be reached", error)
    }
}

fn pool_fault(error: deadpool_redis::PoolError) -> Error {
    match error {
        deadpool_redis::PoolError::Backend(error) => fault(error),
        error => Error::caused(ErrorKind::Unavailable, "the pool has no connection", error),
    }
}

pub(super) fn refuse(error: RedisError) -> ConfigError {
    let tls = if cfg!(any(feature = "tls-rustls", feature = "tls-native-tls")) {
        ""
    } else {
        " (rediss:// needs the feature `tls-rustls` or `tls-native-tls`)"
    };
    ConfigError::new(format!(
        "not the address of a Redis: {error}; write it like redis://user:secret@host:6379/0{tls}"
    ))
}

pub(super) fn server(url: impl IntoConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
    let info = url.into_connection_info().map_err(refuse)?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_tcp_settings(tcp))
}

/// Without a response time-out, which would be one more timer: whoever waits for an answer has a
/// deadline, and gives the connection up.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
}

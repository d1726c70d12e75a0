//! An endpoint: the address of a server, and what it takes to connect to it. It is all that makes connections
//! without a pool: to a server, to the nodes of a cluster (the first node's endpoint with another address),
//! and to sentinels and their primary.
//!
//! `redis` verifies a certificate for the host that it resolves. So for another TLS name, that name is the
//! host, and a resolver leads to the real one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind as RedisErrorKind,
    ProtocolVersion, PushInfo, PushKind, RedisError, RedisFuture,
};
use tokio::net::lookup_host;

use super::credentials::CredentialsProvider;
use super::multiplexed::Disconnection;
use super::node::Node;
use super::tls;
use crate::store::redis::server_error::to_error;
use crate::{Error, ErrorKind};

/// An attempt to connect that takes longer has failed, as far as checks are concerned. Short enough
/// that one which began during an outage leaves time for the next within a second of its end.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(super) info: ConnectionInfo,
    /// The source of user and password, if they are not in `info`.
    pub(super) credentials: Option<CredentialsProvider>,
    /// The name for which the server's certificate has to be valid, if it is not the host.
    pub(super) tls_name: Option<Arc<str>>,
}

impl Endpoint {
    pub(crate) fn new(info: ConnectionInfo) -> Self {
        Self { info, credentials: None, tls_name: None }
    }

    pub(super) fn address(&self) -> &ConnectionAddr {
        self.info.addr()
    }

    /// Returns a text that two endpoints for the same keys have in common.
    pub(super) fn identity(&self) -> String {
        format!("{}/{}", self.address(), self.info.redis_settings().db())
    }

    pub(super) fn protocol(&self) -> ProtocolVersion {
        self.info.redis_settings().protocol()
    }

    /// The host and port, unless it is a Unix socket.
    pub(crate) fn node(&self) -> Option<Node> {
        Node::of(&self.info)
    }

    /// True if a provider may take a while before an attempt to connect begins.
    pub(super) fn has_provider(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns the endpoint of another server with the same user, password, database, TLS and options.
    pub(crate) fn at(&self, node: &Node) -> Self {
        Self { info: node.like(&self.info), ..self.clone() }
    }

    /// Returns this endpoint with the default database. Sentinels have no others.
    #[cfg(feature = "sentinel")]
    pub(super) fn without_database(mut self) -> Self {
        let settings = self.info.redis_settings().clone().set_db(0);
        self.info = self.info.set_redis_settings(settings);
        self
    }

    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Error> {
        tls::ensure_crypto_provider(self.address());
        let mut info = self.info.clone();
        if let Some(provider) = &self.credentials {
            let settings = info.redis_settings().clone();
            info = info.set_redis_settings(provider.provide().await?.apply(settings));
        }
        // `redis` verifies the host of the address, so a resolver leads from the name to the server.
        let named = self.tls_name.as_ref().zip(self.node()).map(|(name, node)| {
            info = Node::new(name, node.port).like(&info);
            config.clone().set_dns_resolver(HostResolver(node.host))
        });
        let client = Client::open(info).map_err(to_error)?;
        let config = named.as_ref().unwrap_or(config);
        let connection = client.get_multiplexed_async_connection_with_config(config).await;
        connection.map_err(|error| self.connect_error(error))
    }

    /// Returns the error of a failed attempt to connect.
    fn connect_error(&self, error: RedisError) -> Error {
        let lacks_resp3 = self.protocol() != ProtocolVersion::RESP2 && refuses_hello(&error);
        let error = to_error(error);
        let is_tls = matches!(self.address(), ConnectionAddr::TcpTls { .. });
        if lacks_resp3 {
            error.with_message("the server does not speak RESP3: add `?protocol=resp2` to its URL")
        } else if is_tls && error.kind() == ErrorKind::Unavailable {
            error.with_message("no TLS connection to Redis")
        } else {
            error
        }
    }
}

/// Resolves every name to the addresses of this host.
struct HostResolver(Arc<str>);

impl AsyncDNSResolver for HostResolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let addresses: Vec<_> = lookup_host((&*self.0, port)).await?.collect();
            if addresses.is_empty() {
                // Without any address `redis` would panic.
                return Err((RedisErrorKind::Io, "the host has no address").into());
            }
            Ok(Box::new(addresses.into_iter()) as _)
        })
    }
}

/// True if the server knows neither RESP3 nor, perhaps, the command that asks for it.
fn refuses_hello(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

/// A configuration without timeouts: the store has its own, which need no timer of Tokio.
pub(super) fn plain_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// The configuration of a connection whose end `disconnection` learns, unless it speaks RESP2.
pub(super) fn config(
    protocol: ProtocolVersion,
    disconnection: &Arc<Disconnection>,
) -> AsyncConnectionConfig {
    let config = plain_config();
    if protocol == ProtocolVersion::RESP2 {
        return config;
    }
    let disconnection = disconnection.clone();
    config.set_push_sender(move |push: PushInfo| -> Result<(), redis::aio::SendError> {
        if push.kind == PushKind::Disconnection {
            disconnection.happens();
        }
        Ok(())
    })
}

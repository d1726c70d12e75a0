//! The description of a server by an application: its URL, and what a URL cannot express (certificates, the
//! TLS name, a provider of credentials). All of that is here, not on the store, because the servers of a
//! store may differ.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use redis::TlsCertificates;
use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::credentials::{CredentialsProvider, RedisCredentials};
use super::endpoint::Endpoint;
use super::tls;
use super::url::{check_encoding, to_config_error};
use crate::ConfigError;

/// A Redis server, as [`RedisStore::open`](crate::RedisStore::open) and its siblings accept it: a URL,
/// or the `ConnectionInfo` of `redis`.
///
/// A URL is `redis://user:secret@host:6379/0`, with the characters `@`, `/`, `?` and `#` of the user and the password
/// as `%40`, `%2F`, `%3F` and `%23`, or `unix:///run/redis.sock?db=0&user=...&pass=...` for a
/// Unix socket. `rediss://` is the same with TLS. A query may name the protocol:
/// `redis://host/?protocol=resp2`. Without it, the store speaks RESP3, which needs Redis 6 or a proxy
/// that knows `HELLO`. A `ConnectionInfo` is used with its own protocol, which is RESP2 unless it is set.
///
/// With RESP3 the store notices at once when a server closes an idle connection. With RESP2 it notices
/// that at the next check, which fails, or at the next [`keepalive`](crate::RedisStore::keepalive).
///
/// ```
/// use fleetlimit::RedisStore;
///
/// # fn main() -> Result<(), fleetlimit::ConfigError> {
/// let store = RedisStore::open("redis://twemproxy.internal:22121/?protocol=resp2")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisServer {
    address: Address,
    credentials: Option<CredentialsProvider>,
    tls_name: Option<Arc<str>>,
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    certificates: Option<TlsCertificates>,
}

#[derive(Clone)]
enum Address {
    Url(String),
    Info(Box<ConnectionInfo>),
}

impl RedisServer {
    /// Sets a provider of the user and password, for those that change: tokens of a cloud's IAM, Entra ID,
    /// or secrets that Vault rotates. They replace those of the URL.
    ///
    /// The provider is called for each attempt to connect, so a new password applies from the next
    /// connection on. That is at the latest when the [maximum age] of a connection ends, which has to be
    /// less than the time for which the server accepts a connection with an old token. The provider may be
    /// called several times per second while the server cannot be reached: it should keep what it fetches
    /// over the network. If it fails, or takes longer than five seconds, the attempt fails with its error,
    /// and the next one calls it again. Connections that work are not affected.
    ///
    /// [maximum age]: crate::RedisStore::max_connection_age
    ///
    /// ```
    /// use fleetlimit::{RedisCredentials, RedisServer, RedisStore};
    ///
    /// # fn main() -> Result<(), fleetlimit::ConfigError> {
    /// let server = RedisServer::from("redis://redis.internal:6379").credentials(async || {
    ///     let password = tokio::fs::read_to_string("/run/secrets/redis").await?;
    ///     Ok::<_, std::io::Error>(RedisCredentials::new("app", password.trim()))
    /// });
    /// let store = RedisStore::open(server)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn credentials<P, F, E>(self, provider: P) -> Self
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<RedisCredentials, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        Self { credentials: Some(CredentialsProvider::new(provider)), ..self }
    }

    /// Sets the name for which the server's certificate has to be valid: by default the host of the
    /// URL, and for other nodes of a cluster, and a primary that sentinels report, their host or IP
    /// address. It is sent to the server, too (SNI). All else is verified as usual.
    ///
    /// Use it for servers that are announced by IP address and have certificates for a name, and for a
    /// server behind a tunnel. For a cluster, name one that the certificates of all nodes include. With a
    /// wildcard certificate, any name that it covers will do.
    ///
    /// ```
    /// use fleetlimit::{RedisServer, RedisStore};
    ///
    /// # #[cfg(any(feature = "tls-rustls-webpki-roots", feature = "tls-native-tls"))]
    /// # fn main() -> Result<(), fleetlimit::ConfigError> {
    /// let seed = RedisServer::from("rediss://redis.internal:6379").tls_name("redis.internal");
    /// let store = RedisStore::open_cluster([seed])?;
    /// # Ok(()) }
    /// # #[cfg(not(any(feature = "tls-rustls-webpki-roots", feature = "tls-native-tls")))]
    /// # fn main() {}
    /// ```
    #[must_use]
    pub fn tls_name(self, name: impl Into<Arc<str>>) -> Self {
        Self { tls_name: Some(name.into()), ..self }
    }

    /// Sets the certificates of a private authority, which are trusted instead of the public ones, and
    /// those that are sent to the server.
    ///
    /// ```no_run
    /// use fleetlimit::{RedisServer, RedisStore};
    /// use redis::TlsCertificates;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let root_cert = Some(std::fs::read("authority.pem")?);
    /// let certificates = TlsCertificates { client_tls: None, root_cert };
    /// let server = RedisServer::from("rediss://redis.internal:6379").certificates(certificates);
    /// let store = RedisStore::open(server)?;
    /// # Ok(()) }
    /// ```
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))))]
    #[must_use]
    pub fn certificates(self, certificates: TlsCertificates) -> Self {
        Self { certificates: Some(certificates), ..self }
    }

    /// Returns how to connect to the server.
    pub(crate) fn endpoint(self) -> Result<Endpoint, ConfigError> {
        let info = match self.address {
            Address::Url(url) => parse(&url)?,
            Address::Info(info) => *info,
        };
        #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
        let info = match self.certificates {
            Some(certificates) => tls::with_certificates(info, certificates)?,
            None => info,
        };
        tls::check(&info)?;
        if let Some(name) = &self.tls_name {
            tls::check_name(&info, name)?;
        }
        tls::warn_if_insecure(&info);
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        Ok(Endpoint {
            info: info.set_tcp_settings(tcp),
            credentials: self.credentials,
            tls_name: self.tls_name,
        })
    }
}

/// Parses a URL. Without a protocol it means RESP3, because only that tells when the server closes a
/// connection.
fn parse(url: &str) -> Result<ConnectionInfo, ConfigError> {
    check_encoding(url)?;
    let info = url.into_connection_info().map_err(to_config_error)?;
    if names_protocol(url) {
        return Ok(info);
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings))
}

fn names_protocol(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, rest)| rest);
    let query = query.split('#').next().unwrap_or_default();
    query.split('&').any(|pair| pair.split('=').next() == Some("protocol"))
}

impl From<Address> for RedisServer {
    fn from(address: Address) -> Self {
        Self {
            address,
            credentials: None,
            tls_name: None,
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            certificates: None,
        }
    }
}

impl From<&str> for RedisServer {
    fn from(url: &str) -> Self {
        url.to_owned().into()
    }
}

impl From<String> for RedisServer {
    fn from(url: String) -> Self {
        Address::Url(url).into()
    }
}

impl From<ConnectionInfo> for RedisServer {
    fn from(info: ConnectionInfo) -> Self {
        Address::Info(info.into()).into()
    }
}

impl fmt::Debug for RedisServer {
    /// Shows no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = match &self.address {
            Address::Url(url) => parse(url).ok(),
            Address::Info(info) => Some((**info).clone()),
        };
        let address = address.map(|info| info.addr().to_string());
        f.debug_struct("RedisServer").field("address", &address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(server: impl Into<RedisServer>) -> ProtocolVersion {
        server.into().endpoint().unwrap().protocol()
    }

    #[test]
    fn the_protocol_of_the_url_is_used_and_without_one_resp3() {
        for (url, expected) in [
            ("redis://a", ProtocolVersion::RESP3),
            ("redis://a/1", ProtocolVersion::RESP3),
            ("redis://protocol=resp2@a", ProtocolVersion::RESP3),
            ("unix:///socket?db=1", ProtocolVersion::RESP3),
            ("redis://a?protocol=resp2", ProtocolVersion::RESP2),
            ("redis://a/?x=1&protocol=2", ProtocolVersion::RESP2),
            ("redis://a/?protocol=resp3", ProtocolVersion::RESP3),
            ("unix:///socket?db=1&protocol=resp2", ProtocolVersion::RESP2),
        ] {
            assert_eq!(protocol(url), expected, "{url}");
            assert_eq!(protocol(url.to_owned()), expected, "{url}");
        }
        let info = || "redis://a".into_connection_info().unwrap();
        assert_eq!(protocol(info()), ProtocolVersion::RESP2);
        let settings = info().redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        assert_eq!(protocol(info().set_redis_settings(settings)), ProtocolVersion::RESP3);
        assert!(RedisServer::from("redis://a/?protocol=resp4").endpoint().is_err());
    }

    #[test]
    fn the_password_is_not_shown() {
        for server in ["redis://user:s3cret@host/0", "unix:///s?pass=s3cret", "redis://:s3cret@"] {
            let text = format!("{:?}", RedisServer::from(server));
            assert!(!text.contains("s3cret"), "{text}");
        }
        let info = "redis://user:s3cret@host/0".into_connection_info().unwrap();
        let text = format!("{:?}", RedisServer::from(info));
        assert_eq!(text, "RedisServer { address: Some(\"host:6379\"), .. }");
    }
}

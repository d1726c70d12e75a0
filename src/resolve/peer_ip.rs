use std::net::IpAddr;

use http::request::Parts;

use super::peer::peer;
use super::prefix::Prefixes;
use super::{KeyResolver, Resolution};
use crate::Key;

/// Uses the peer's IP address as the key: that of the other end of the connection.
///
/// The key is text: `203.0.113.7` for an IPv4 address, `2001:db8:1:2::/64` for an IPv6 address. IPv6 is limited
/// per /64, the smallest network that a subscriber gets, because the owner of a /64 can use any of its 2^64
/// addresses. An IPv6 address that stands for an IPv4 address counts as the IPv4 address: an IPv4-mapped one
/// (`::ffff:203.0.113.7`), and one that NAT64 has made (`64:ff9b::203.0.113.7`).
///
/// The server must provide the peer address. It is the first of these in the request's extensions:
/// - axum's `ConnectInfo<SocketAddr>` (feature `axum`), which an app has when it is served with
///   `into_make_service_with_connect_info::<SocketAddr>()`, or its `MockConnectInfo` for tests;
/// - a `SocketAddr`, for servers built on hyper;
/// - tonic's `TcpConnectInfo` (feature `tonic`), which its server inserts.
///
/// Peers of a Unix socket have no address. With [`UnixSocket`](super::UnixSocket), or tonic's
/// `UdsConnectInfo`, they all share the key `unix`.
///
/// Without any of these there is no key. The layer responds with 500, and the log says what to change.
///
/// The types of axum are those of version 0.8, and the types of tonic those of 0.14. The connect info of another
/// version is another type, which is not found. With such a server, insert the `SocketAddr` into the request's
/// extensions in a middleware.
///
/// # Security
/// Behind a reverse proxy or a load balancer the peer is the proxy, and all clients share one
/// bucket. Use [`ClientIp`](super::ClientIp) there.
///
/// # Examples
/// ```no_run
/// use std::net::SocketAddr;
///
/// # async fn serve(app: axum::Router) -> std::io::Result<()> {
/// let listener = tokio::net::TcpListener::bind("0.0.0.0:3000").await?;
/// axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
/// # }
/// ```
/// ```
/// use std::net::SocketAddr;
/// use fleetlimit::resolve::PeerIp;
/// use fleetlimit::{KeyResolver, Resolution};
///
/// let (mut parts, ()) = http::Request::new(()).into_parts();
/// parts.extensions.insert("[2001:db8:1:2::3]:4711".parse::<SocketAddr>()?);
///
/// assert_eq!(PeerIp::new().resolve(&parts), Resolution::Key("2001:db8:1:2::/64".into()));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PeerIp {
    prefixes: Prefixes,
}

impl PeerIp {
    /// Uses IPv4 addresses as keys, and one key per /64 of IPv6 addresses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the prefix length of IPv6 networks that share a bucket: 64 by default, 0 to 128. Larger
    /// numbers are clamped. Use 56 or 48 against clients that own larger networks.
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.v6(bits) }
    }

    /// Sets the prefix length of IPv4 networks that share a bucket: 32 by default, 0 to 32. Larger
    /// numbers are clamped.
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.v4(bits) }
    }

    /// Returns the key of requests from this address, to check, peek or reset it.
    ///
    /// ```
    /// use fleetlimit::Key;
    /// use fleetlimit::resolve::PeerIp;
    ///
    /// let key = PeerIp::new().key("2001:db8:1:2::3".parse()?);
    /// assert_eq!(key, Key::from("2001:db8:1:2::/64"));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn key(&self, address: IpAddr) -> Key {
        self.prefixes.key(address)
    }
}

impl KeyResolver for PeerIp {
    fn resolve(&self, parts: &Parts) -> Resolution {
        match peer(parts) {
            Ok(peer) => Resolution::Key(self.prefixes.peer_key(peer)),
            Err(missing) => missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use std::net::SocketAddr;

    fn parts(peer: &str) -> Parts {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.extensions.insert(peer.parse::<SocketAddr>().unwrap());
        parts
    }

    fn key(text: &str) -> Resolution {
        Resolution::Key(text.into())
    }

    #[test]
    fn a_v6_client_cannot_rotate_within_its_prefix() {
        let one = parts("[2001:db8:1:2::1]:1");
        let other = parts("[2001:db8:1:2ff:ffff::9]:2");
        assert_eq!(PeerIp::new().resolve(&one), key("2001:db8:1:2::/64"));
        let wide = PeerIp::new().ipv6_prefix(48);
        assert_eq!(wide.resolve(&one), key("2001:db8:1::/48"));
        assert_eq!(wide.resolve(&other), key("2001:db8:1::/48"));
    }

    #[test]
    fn a_v4_client_counts_the_same_on_a_dual_stack_socket() {
        assert_eq!(PeerIp::new().resolve(&parts("203.0.113.7:1")), key("203.0.113.7"));
        assert_eq!(PeerIp::new().resolve(&parts("[::ffff:203.0.113.7]:1")), key("203.0.113.7"));
        let wide = PeerIp::new().ipv4_prefix(24);
        assert_eq!(wide.resolve(&parts("[::ffff:203.0.113.7]:1")), key("203.0.113.0/24"));
    }

    #[test]
    fn forged_headers_are_ignored() {
        let mut parts = parts("203.0.113.7:1");
        for name in ["forwarded", "x-forwarded-for", "x-real-ip"] {
            parts.headers.insert(name, HeaderValue::from_static("for=192.0.2.1"));
        }
        assert_eq!(PeerIp::new().resolve(&parts), key("203.0.113.7"));
    }
}

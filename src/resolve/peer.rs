//! The other end of a connection: an address, or a Unix socket.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::Extensions;
use http::request::Parts;

use super::{Rejection, Resolution};
use crate::canonical::canonical;

/// Marks the requests of a server on a Unix socket, which have no peer address.
///
/// [`PeerIp`](super::PeerIp) and [`ClientIp`](super::ClientIp) look for it in the request's
/// extensions.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use fleetlimit::resolve::{ClientIp, UnixSocket};
/// # use fleetlimit::{Limiter, RateLimitLayer};
///
/// # fn app(limiter: Limiter) -> Result<Router, fleetlimit::ConfigError> {
/// // The only peer is the proxy that connects to the socket.
/// let client_ip = ClientIp::new(["unix:"])?;
/// let app = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(RateLimitLayer::new(limiter, client_ip))
///     .layer(Extension(UnixSocket));
/// # Ok(app) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnixSocket;

/// The other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A canonical address: not an IPv6 address that stands for an IPv4 one.
    Ip(IpAddr),
    Unix,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix => f.write_str("unix:"),
        }
    }
}

/// Returns the peer, or the resolution if the server does not provide it.
pub(super) fn peer(parts: &Parts) -> Result<Peer, Resolution> {
    let extensions = &parts.extensions;
    if let Some(address) = socket_address(extensions) {
        return Ok(Peer::Ip(canonical(address.ip())));
    }
    if is_unix(extensions) {
        return Ok(Peer::Unix);
    }
    Err(Resolution::Missing(Rejection::misconfigured(
        "the server does not provide the peer address: serve an axum app with \
         `into_make_service_with_connect_info::<SocketAddr>()`, and use axum 0.8, because \
         fleetlimit does not see the connect info of other versions; for tonic 0.14's server enable \
         the feature `tonic` of fleetlimit; for other servers and versions insert a `SocketAddr`, or for a Unix socket \
         `fleetlimit::resolve::UnixSocket`, into the request's extensions",
    )))
}

fn socket_address(extensions: &Extensions) -> Option<SocketAddr> {
    axum(extensions).or_else(|| extensions.get().copied()).or_else(|| tonic(extensions))
}

#[cfg(feature = "axum")]
fn axum(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    match extensions.get() {
        Some(&ConnectInfo(address)) => Some(address),
        None => extensions.get().map(|&MockConnectInfo(address)| address),
    }
}

#[cfg(not(feature = "axum"))]
fn axum(_: &Extensions) -> Option<SocketAddr> {
    None
}

#[cfg(feature = "tonic")]
fn tonic(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<tonic::transport::server::TcpConnectInfo>()?.remote_addr()
}

#[cfg(not(feature = "tonic"))]
fn tonic(_: &Extensions) -> Option<SocketAddr> {
    None
}

fn is_unix(extensions: &Extensions) -> bool {
    #[cfg(all(unix, feature = "tonic"))]
    if extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return true;
    }
    extensions.get::<UnixSocket>().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_with<T: Clone + Send + Sync + 'static>(extension: T) -> Peer {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.extensions.insert(extension);
        peer(&parts).unwrap()
    }

    #[test]
    fn a_server_without_connect_info_tells_the_operator_and_not_the_client() {
        let parts = http::Request::new(()).into_parts().0;
        let Err(Resolution::Missing(rejection)) = peer(&parts) else { panic!("there is no peer") };
        assert_eq!((rejection.status().as_u16(), rejection.message()), (500, ""));
        let advice = rejection.advice().unwrap();
        assert!(advice.contains("into_make_service_with_connect_info::<SocketAddr>()"));
        // With another version the app does that already.
        assert!(advice.contains("axum 0.8") && advice.contains("tonic 0.14"), "{advice}");
    }

    #[test]
    fn the_peer_comes_from_any_supported_server() {
        let address = SocketAddr::from(([203, 0, 113, 7], 4711));
        let expected = Peer::Ip(address.ip());
        assert_eq!(peer_with(address), expected);
        assert_eq!(peer_with(UnixSocket), Peer::Unix);
        #[cfg(feature = "axum")]
        {
            use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

            assert_eq!(peer_with(ConnectInfo(address)), expected);
            assert_eq!(peer_with(MockConnectInfo(address)), expected);
        }
        #[cfg(feature = "tonic")]
        {
            use tonic::transport::server::TcpConnectInfo;

            let info = TcpConnectInfo { local_addr: None, remote_addr: Some(address) };
            assert_eq!(peer_with(info), expected);
        }
        #[cfg(all(unix, feature = "tonic"))]
        {
            use tonic::transport::server::UdsConnectInfo;

            let info = UdsConnectInfo { peer_addr: None, peer_cred: None };
            assert_eq!(peer_with(info), Peer::Unix);
        }
    }

    #[test]
    fn a_v4_mapped_peer_is_a_v4_peer() {
        let mapped: SocketAddr = "[::ffff:203.0.113.7]:4711".parse().unwrap();
        assert_eq!(peer_with(mapped), Peer::Ip(IpAddr::from([203, 0, 113, 7])));
    }
}

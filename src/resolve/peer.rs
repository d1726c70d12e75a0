use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use http::{Extensions, StatusCode};

use super::{Refusal, Resolution};

/// The address at the other end of the connection, or what to answer where the server left none.
pub(super) fn peer(parts: &Parts) -> Result<IpAddr, Resolution> {
    match socket_address(&parts.extensions) {
        Some(address) => Ok(address.ip().to_canonical()),
        None => Err(Resolution::Missing(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server was not told the address of its client: serve the app with \
             `into_make_service_with_connect_info::<SocketAddr>()`, or put a `SocketAddr` into the \
             request's extensions",
        ))),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_with<T: Clone + Send + Sync + 'static>(extension: T) -> IpAddr {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.extensions.insert(extension);
        peer(&parts).unwrap()
    }

    #[test]
    fn a_server_without_connect_info_says_what_to_change() {
        let parts = http::Request::new(()).into_parts().0;
        let Err(Resolution::Missing(refusal)) = peer(&parts) else { panic!("there is no peer") };
        assert_eq!(refusal.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(refusal.reason().contains("into_make_service_with_connect_info::<SocketAddr>()"));
    }

    #[test]
    fn the_peer_comes_from_whichever_server_runs() {
        let address = SocketAddr::from(([203, 0, 113, 7], 4711));
        assert_eq!(peer_with(address), address.ip());
        #[cfg(feature = "axum")]
        {
            use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

            assert_eq!(peer_with(ConnectInfo(address)), address.ip());
            assert_eq!(peer_with(MockConnectInfo(address)), address.ip());
        }
        #[cfg(feature = "tonic")]
        {
            use tonic::transport::server::TcpConnectInfo;

            let info = TcpConnectInfo { local_addr: None, remote_addr: Some(address) };
            assert_eq!(peer_with(info), address.ip());
        }
    }

    #[test]
    fn a_v4_mapped_peer_is_a_v4_peer() {
        let mapped: SocketAddr = "[::ffff:203.0.113.7]:4711".parse().unwrap();
        assert_eq!(peer_with(mapped), IpAddr::from([203, 0, 113, 7]));
    }
}

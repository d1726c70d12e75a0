//! The addresses of clients, as logs write them.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use fleetlimit::resolve::PeerIp;

/// Returns true if this is an address, alone or with a port.
pub(crate) fn is_address(text: &str) -> bool {
    parse(text).is_some()
}

/// Returns true if this is what [`client`] returns for an address, and not just text.
pub(crate) fn is_client(text: &str) -> bool {
    is_address(text.strip_suffix("/64").unwrap_or(text))
}

/// The client of an address, as `/auth` of the server counts it. Some servers write the address with its port.
pub(crate) fn client(address: &str) -> Cow<'_, str> {
    if !address.contains(':') {
        return address.into();
    }
    let Some(ip) = parse(address) else { return address.into() };
    let key = PeerIp::new().key(ip);
    String::from_utf8_lossy(key.as_bytes()).into_owned().into()
}

fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_as_for_gateways() {
        for (address, key) in [
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("host.example", "host.example"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
            ("host.example:4711", "host.example:4711"),
        ] {
            assert_eq!(client(address), key);
            assert_eq!(is_client(key), !key.starts_with("host"), "{key}");
        }
    }
}

//! The proxies whose forwarding headers are used.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use super::peer::Peer;
use crate::ConfigError;
use crate::canonical;

/// The proxies whose forwarding headers are used.
#[derive(Clone, Debug)]
pub(super) struct Trusted {
    networks: Arc<[IpNet]>,
    unix_sockets: bool,
}

impl Trusted {
    pub(super) fn parse<T: Display>(
        proxies: impl IntoIterator<Item = T>,
    ) -> Result<Self, ConfigError> {
        let (mut networks, mut unix_sockets) = (Vec::new(), false);
        for proxy in proxies {
            match proxy.to_string().trim() {
                "unix:" => unix_sockets = true,
                text => networks.push(parse_network(text)?),
            }
        }
        Ok(Self { networks: networks.into(), unix_sockets })
    }

    pub(super) fn contains(&self, peer: Peer) -> bool {
        match peer {
            Peer::Ip(address) => self.networks.iter().any(|network| network.contains(&address)),
            Peer::Unix => self.unix_sockets,
        }
    }
}

fn parse_network(text: &str) -> Result<IpNet, ConfigError> {
    let parsed = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let Ok(network) = parsed else {
        return Err(ConfigError::new(format!(
            "invalid trusted proxy `{text}` (expected an address or a network such as 192.0.2.1, \
             10.0.8.0/28 or 2001:db8::/64, or `unix:`)"
        )));
    };
    let network = canonical(network);
    if network.prefix_len() == 0 {
        return Err(ConfigError::new(format!(
            "`{text}` lets every client spoof its address: list only the networks of the proxies"
        )));
    }
    Ok(network)
}

// Peers and entries are compared in canonical form.
fn canonical(network: IpNet) -> IpNet {
    match (canonical::canonical(network.addr()), network.prefix_len()) {
        (IpAddr::V4(address), bits @ 96..) => {
            Ipv4Net::new(address, bits - 96).map_or(network, IpNet::V4)
        }
        _ => network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_proxy_is_named_in_the_error() {
        for text in ["", "10.0.0/8", "10.0.0.0/33", "proxy.internal", "10.0.0.1:80"] {
            let error = Trusted::parse(["10.0.0.0/8", text]).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        assert!(Trusted::parse([IpAddr::from([10, 0, 0, 1])]).is_ok());
        assert!(Trusted::parse(" 10.0.0.0/8 , 10.0.0.2".split(',')).is_ok());
    }

    #[test]
    fn the_whole_internet_cannot_be_trusted() {
        for text in ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96", "64:ff9b::/96"] {
            assert!(Trusted::parse([text]).unwrap_err().to_string().contains(text));
        }
    }
}

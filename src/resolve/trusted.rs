use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use crate::ConfigError;

/// The networks whose word about their clients is taken.
#[derive(Clone, Debug)]
pub(super) struct Trusted(Arc<[IpNet]>);

impl Trusted {
    pub(super) fn parse<T: Display>(
        proxies: impl IntoIterator<Item = T>,
    ) -> Result<Self, ConfigError> {
        let networks = proxies.into_iter().map(|proxy| network(&proxy.to_string()));
        Ok(Self(networks.collect::<Result<_, _>>()?))
    }

    /// Of an address that is canonical: no mapped one.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

fn network(text: &str) -> Result<IpNet, ConfigError> {
    let parsed = match text.trim().parse::<IpNet>() {
        Ok(network) => Ok(network),
        Err(_) => text.trim().parse::<IpAddr>().map(IpNet::from),
    };
    let Ok(network) = parsed else {
        return Err(ConfigError::new(format!(
            "the trusted proxy `{text}` is neither an address nor a network: write it like \
             192.0.2.1, 10.0.0.0/8 or 2001:db8::/32"
        )));
    };
    let network = canonical(network);
    if network.prefix_len() == 0 {
        return Err(ConfigError::new(format!(
            "the trusted proxy `{text}` is everyone, so that every client could name its own \
             address: list the networks of the proxies alone"
        )));
    }
    Ok(network)
}

// Peers and hops are compared as IPv4 addresses where they are mapped ones.
fn canonical(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len()) {
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
    fn what_is_no_proxy_is_named_in_the_error() {
        for text in ["", "10.0.0/8", "10.0.0.0/33", "proxy.internal", "10.0.0.1:80"] {
            let error = Trusted::parse(["10.0.0.0/8", text]).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        assert!(Trusted::parse([IpAddr::from([10, 0, 0, 1])]).is_ok());
        assert!(Trusted::parse(" 10.0.0.0/8 , 10.0.0.2".split(',')).is_ok());
    }

    #[test]
    fn the_whole_internet_is_no_proxy() {
        for text in ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"] {
            assert!(Trusted::parse([text]).unwrap_err().to_string().contains(text));
        }
    }
}

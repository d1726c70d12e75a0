//! Ranges of IP addresses in configuration files.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use fleetlimit::resolve::canonical;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::secret::excerpt;

/// A network such as `10.0.0.0/8`, or a single address.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Range(IpNet);

impl Range {
    pub(crate) fn contains(self, network: IpNet) -> bool {
        self.0.contains(&network)
    }

    pub(crate) fn is_part_of(self, network: IpNet) -> bool {
        network.contains(&self.0)
    }

    pub(crate) fn contains_address(self, address: IpAddr) -> bool {
        self.contains(canonical(address).into())
    }

    /// Returns true if the network has more addresses than that of a site, which is a /16 of IPv4, and a /48 of IPv6.
    pub(crate) fn is_large(self) -> bool {
        match self.0 {
            IpNet::V4(network) => network.prefix_len() < 16,
            IpNet::V6(network) => network.prefix_len() < 48,
        }
    }

    /// Reads an address or a network. IPv4 in IPv6 notation counts as IPv4, as it does in keys. `None` if it is
    /// neither, or all of NAT64, whose addresses are those of the whole IPv4 internet.
    pub(crate) fn network(text: &str) -> Option<IpNet> {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let network = network.ok()?;
        match (network, canonical(network.addr())) {
            (IpNet::V6(network), address @ IpAddr::V4(_)) if network.prefix_len() >= 96 => {
                let is_nat64 = network.addr().to_ipv4_mapped().is_none();
                let bits = network.prefix_len() - 96;
                if is_nat64 && bits == 0 { None } else { IpNet::new(address, bits).ok() }
            }
            _ => Some(network),
        }
    }
}

/// Returns true if this is an address, alone or with a port, which `ClientIp` reads. CloudFront writes IPv6
/// addresses with a port without brackets.
pub(crate) fn is_address(text: &str) -> bool {
    let is_unbracketed = || {
        let parts = text.rsplit_once(':');
        parts.is_some_and(|(address, port)| {
            address.parse::<Ipv6Addr>().is_ok() && port.parse::<u16>().is_ok()
        })
    };
    // `SocketAddr` has zones (`[fe80::1%1]:80`), and numbers can have a sign. `ClientIp` has neither.
    !text.contains(['%', '+'])
        && (text.parse::<IpAddr>().is_ok()
            || text.parse::<SocketAddr>().is_ok()
            || is_unbracketed())
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::network(text).map(Self).ok_or_else(|| {
            let text = excerpt(text);
            format!("`{text}` is neither an IP address nor a range such as 10.0.0.0/8")
        })
    }
}

impl TryFrom<String> for Range {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Range> for String {
    fn from(range: Range) -> Self {
        range.to_string()
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use fleetlimit::resolve::ClientIp;
    use fleetlimit::{KeyResolver, Resolution};

    use super::*;

    /// `/auth` accepts what counts as an address. If `ClientIp` did not, the client would be the gateway, and share a
    /// limit with all others.
    #[test]
    fn what_counts_as_an_address_is_one_for_the_resolver() {
        let gateway: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let client_ip = ClientIp::new(Vec::<String>::new()).unwrap().peers(["192.0.2.1"]).unwrap();
        let addresses = [
            "203.0.113.7",
            "203.0.113.07",
            "2001:db8::7",
            "::",
            "fe80::1",
            "fe80::1%1",
            "fe80::1%eth0",
            "fe80::1%0",
            "::ffff:203.0.113.7",
            "64:ff9b::cb00:7107",
            "2001:db8:1:2:3:4:5:6",
            "+1.2.3.4",
            "unknown",
            "",
        ];
        let ports = [
            "", ":", ":80", ":+80", ":-80", ":0", ":65535", ":65536", ":00080", "%1:80", ": 80",
            ":8\t",
        ];
        let mut accepted = 0;
        for address in addresses {
            for host in [
                address.to_owned(),
                format!("[{address}]"),
                format!("[{address}"),
                format!("{address}]"),
            ] {
                for text in ports.map(|port| format!("{host}{port}")) {
                    let (mut parts, ()) = http::Request::new(()).into_parts();
                    parts.extensions.insert(gateway);
                    parts.headers.insert("x-forwarded-for", text.parse().unwrap());
                    let is_gateway =
                        client_ip.resolve(&parts) == Resolution::Key("192.0.2.1".into());
                    assert!(!is_address(&text) || !is_gateway, "{text}");
                    accepted += usize::from(is_address(&text));
                }
            }
        }
        assert!(accepted > 40, "{accepted}");
    }
}

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

    /// An address or a network. IPv4 in IPv6 notation counts as IPv4, as it does in keys. `None` if it is neither,
    /// or all of NAT64, whose addresses are those of the whole IPv4 internet.
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

/// Whether this is an address, alone or with a port, which `ClientIp` reads. CloudFront writes IPv6
/// addresses with a port without brackets.
pub(crate) fn is_address(text: &str) -> bool {
    let is_unbracketed = || {
        let parts = text.rsplit_once(':');
        parts.is_some_and(|(address, port)| {
            address.parse::<Ipv6Addr>().is_ok() && port.parse::<u16>().is_ok()
        })
    };
    text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok() || is_unbracketed()
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

//! IPv6 addresses that stand for IPv4 addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The /96 of IPv4-mapped addresses.
const MAPPED: u128 = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0).to_bits() >> 32;
/// The /96 of the addresses that a NAT64 gateway makes of IPv4 addresses (RFC 6052). Other prefixes are
/// up to the operator of a gateway, and do not say where the IPv4 address is.
const NAT64: u128 = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0).to_bits() >> 32;

/// Returns the IPv4 address that an IPv6 address stands for: an IPv4-mapped one (`::ffff:0:0/96`), or one that
/// was translated by NAT64 (`64:ff9b::/96`). Any other address stays as it is.
///
/// Keys are made of the address that this returns. Otherwise the whole IPv4 internet would be a single /64
/// behind NAT64, and its clients would share a bucket.
///
/// ```
/// use std::net::IpAddr;
/// use fleetlimit::resolve::canonical;
///
/// let translated: IpAddr = "64:ff9b::203.0.113.7".parse()?;
/// assert_eq!(canonical(translated), IpAddr::from([203, 0, 113, 7]));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[inline]
pub fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    match v6.to_bits() >> 32 {
        MAPPED | NAT64 => IpAddr::V4(Ipv4Addr::from_bits(v6.to_bits() as u32)),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_or_translated_address_is_its_ipv4_address() {
        for (text, expected) in [
            ("203.0.113.7", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("64:ff9b::", "0.0.0.0"),
            // Their gateways decide where the IPv4 address is.
            ("64:ff9b:1::203.0.113.7", "64:ff9b:1::cb00:7107"),
            ("64:ff9b::1:203.0.113.7", "64:ff9b::1:cb00:7107"),
            ("64:ff9a::203.0.113.7", "64:ff9a::cb00:7107"),
            ("::203.0.113.7", "::cb00:7107"),
        ] {
            assert_eq!(canonical(text.parse().unwrap()).to_string(), expected, "{text}");
        }
    }
}

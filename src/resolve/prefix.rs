//! An address as a key: cut to the prefix of the network that shares a bucket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::peer::Peer;
use crate::Key;
use crate::address::AddressText;
use crate::canonical::canonical;

/// The prefix lengths of networks that share a bucket. The only place that turns an address into a
/// key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes {
    v4: u8,
    v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

impl Prefixes {
    pub(super) fn v4(self, bits: u8) -> Self {
        Self { v4: bits.min(32), ..self }
    }

    pub(super) fn v6(self, bits: u8) -> Self {
        Self { v6: bits.min(128), ..self }
    }

    pub(super) fn peer_key(self, peer: Peer) -> Key {
        match peer {
            Peer::Ip(address) => self.key_of_canonical(address),
            Peer::Unix => Key::from("unix"),
        }
    }

    pub(super) fn key(self, address: IpAddr) -> Key {
        self.key_of_canonical(canonical(address))
    }

    fn key_of_canonical(self, address: IpAddr) -> Key {
        let text = match address {
            IpAddr::V4(address) if self.v4 == 32 => return Key::from(address),
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.v4)).unwrap_or(0);
                AddressText::v4(Ipv4Addr::from_bits(address.to_bits() & mask), self.v4)
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.v6)).unwrap_or(0);
                AddressText::v6(Ipv6Addr::from_bits(address.to_bits() & mask), self.v6)
            }
        };
        Key::from(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipnet::IpNet;
    use proptest::prelude::*;

    fn key(address: &str, v6: u8) -> Key {
        Prefixes::default().v6(v6).key(address.parse().unwrap())
    }

    #[test]
    fn a_v6_client_cannot_rotate_within_its_64() {
        let expected = Key::from("2001:db8:1:2::/64");
        assert_eq!(key("2001:db8:1:2::1", 64), expected);
        assert_eq!(key("2001:db8:1:2:ffff:ffff:ffff:ffff", 64), expected);
        assert_ne!(key("2001:db8:1:3::1", 64), expected);
    }

    #[test]
    fn a_v4_mapped_address_is_the_v4_address() {
        assert_eq!(key("::ffff:203.0.113.7", 64), Key::from("203.0.113.7"));
        assert_eq!(key("::ffff:203.0.113.7", 128), Key::from("203.0.113.7"));
    }

    #[test]
    fn the_ipv4_internet_behind_nat64_is_not_a_single_client() {
        assert_eq!(key("64:ff9b::203.0.113.7", 64), Key::from("203.0.113.7"));
        assert_eq!(key("64:ff9b::203.0.113.8", 64), Key::from("203.0.113.8"));
        let wide = Prefixes::default().v4(24).key("64:ff9b::cb00:7107".parse().unwrap());
        assert_eq!(wide, Key::from("203.0.113.0/24"));
    }

    #[test]
    fn prefixes_beyond_the_address_are_clamped() {
        assert_eq!(key("2001:db8::1", 255), Key::from("2001:db8::1"));
        let address = IpAddr::from([203, 0, 113, 7]);
        assert_eq!(Prefixes::default().v4(255).key(address), Key::from("203.0.113.7"));
        assert_eq!(Prefixes::default().v4(0).key(address), Key::from("0.0.0.0/0"));
        assert_eq!(key("2001:db8::1", 0), Key::from("::/0"));
    }

    fn addresses() -> impl Strategy<Value = IpAddr> {
        let sparse = prop::array::uniform8(prop_oneof![Just(0u16), any::<u16>(), 0u16..20]);
        prop_oneof![any::<IpAddr>(), sparse.prop_map(IpAddr::from)]
    }

    proptest! {
        #[test]
        fn the_text_is_that_of_the_standard_library(address in addresses(), v4 in 0u8..=32, v6 in 0u8..=128) {
            let address = address.to_canonical();
            let (bits, full) = if address.is_ipv4() { (v4, 32) } else { (v6, 128) };
            let network = IpNet::new(address, bits).unwrap().trunc();
            let expected =
                if bits == full { network.addr().to_string() } else { network.to_string() };
            prop_assert_eq!(Prefixes::default().v4(v4).v6(v6).key(address), Key::from(expected));
        }

        #[test]
        fn an_address_has_the_same_key_as_its_text(address in addresses()) {
            let by_text = Key::from(address.to_canonical().to_string());
            prop_assert_eq!(Prefixes::default().v6(128).key(address), by_text.clone());
            prop_assert_eq!(Key::from(address), by_text);
        }
    }
}

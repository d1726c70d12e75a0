//! The allow list and the deny list.

use std::collections::HashSet;

use fleetlimit::Key;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::range::{Range, is_address};

/// Descriptors with these keys have the client's address as value.
const ADDRESS_KEYS: [&str; 2] = ["remote_address", "masked_remote_address"];

/// The list that an entry is on. The greater one takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listed {
    Allowed,
    Denied,
}

impl Listed {
    /// The name of the list.
    pub(crate) fn list(self) -> &'static str {
        match self {
            Self::Allowed => "allow",
            Self::Denied => "deny",
        }
    }
}

/// A key, or an address or range.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct Entry(String);

impl TryFrom<String> for Entry {
    type Error = String;

    /// One that looks like an address but is none would never match.
    fn try_from(entry: String) -> Result<Self, String> {
        let is_around = |c: char| c.is_whitespace() || "[]".contains(c);
        let start = entry.split('/').next().unwrap_or_default().trim_matches(is_around);
        let has_only = |others: &[u8]| {
            entry.bytes().all(|byte| byte.is_ascii_digit() || others.contains(&byte))
        };
        let dots = entry.matches('.').count();
        let is_like_ipv4 = dots > 0 && has_only(b"./") || dots == 3 && has_only(b"./:* ");
        let is_like_address = is_like_ipv4 || is_address(start) || is_address(entry.trim());
        match entry.parse::<Range>() {
            Err(error) if is_like_address => Err(error),
            _ => Ok(Self(entry)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Lists {
    allow: List,
    deny: List,
    /// The prefix lengths of the networks that are one client.
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

/// Addresses match only what is known to be an address. Otherwise a client that chooses its key could
/// choose an address that is allowed.
#[derive(Clone, Debug, Default)]
struct List {
    keys: HashSet<Key>,
    ranges: Vec<Range>,
}

impl Lists {
    pub(crate) fn new(allow: &[Entry], deny: &[Entry], ipv4_prefix: u8, ipv6_prefix: u8) -> Self {
        Self { allow: List::new(allow), deny: List::new(deny), ipv4_prefix, ipv6_prefix }
    }

    /// Looks up a key that is not an address.
    pub(crate) fn of_key(&self, key: &Key) -> Option<Listed> {
        let allowed = self.allow.keys.contains(key).then_some(Listed::Allowed);
        allowed.max(self.deny.keys.contains(key).then_some(Listed::Denied))
    }

    /// Looks up the key of a client's address: the address itself, or its network. If a part of a client's network
    /// is denied, all of it is, because the key does not say which address the client has.
    pub(crate) fn of_address(&self, key: &Key) -> Option<Listed> {
        let network = str::from_utf8(key.as_bytes()).ok().and_then(Range::network)?;
        let is_of_a_client = match network {
            IpNet::V4(network) => network.prefix_len() >= self.ipv4_prefix,
            // Also the /64 of a descriptor, if `/auth` tells smaller networks apart.
            IpNet::V6(network) => network.prefix_len() >= self.ipv6_prefix.min(64),
        };
        if self.deny.has(network) || is_of_a_client && self.deny.has_part_of(network) {
            return Some(Listed::Denied);
        }
        self.allow.has(network).then_some(Listed::Allowed)
    }

    /// Looks up the parts of a key as an operator names it, by all that they can be: one value, the values of
    /// several levels, or names with their values.
    pub(crate) fn of_parts(&self, parts: &[Key]) -> Option<Listed> {
        let of_part = |(index, part): (usize, &Key)| {
            let is_address = match index.checked_sub(1) {
                None => parts.len() == 1,
                Some(before) => ADDRESS_KEYS.iter().any(|key| parts[before] == Key::from(*key)),
            };
            let of_address = is_address.then(|| self.of_address(part)).flatten();
            self.of_key(part).max(of_address)
        };
        parts.iter().enumerate().filter_map(of_part).max()
    }

    /// Looks up an entry of a descriptor.
    pub(crate) fn of_entry(&self, key: &str, value: &str) -> Option<Listed> {
        if self.allow.is_empty() && self.deny.is_empty() {
            return None;
        }
        let value = Key::from(value);
        if ADDRESS_KEYS.contains(&key) { self.of_address(&value) } else { self.of_key(&value) }
    }
}

impl List {
    fn new(entries: &[Entry]) -> Self {
        let mut list = Self::default();
        for Entry(entry) in entries {
            match entry.parse() {
                Ok(range) => list.ranges.push(range),
                Err(_) => {
                    list.keys.insert(Key::from(entry));
                }
            }
        }
        list
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    fn has(&self, network: IpNet) -> bool {
        self.ranges.iter().any(|range| range.contains(network))
    }

    fn has_part_of(&self, network: IpNet) -> bool {
        self.ranges.iter().any(|range| range.is_part_of(network))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_match_only_addresses_and_keys_only_keys() {
        let owned =
            |entries: &[&str]| entries.iter().map(|&entry| Entry(entry.into())).collect::<Vec<_>>();
        let lists = Lists::new(
            &owned(&["10.0.0.0/8", "friend", "2001:db8:1::/48"]),
            &owned(&[
                "10.0.0.66",
                "2001:db8:1:2::/64",
                "2001:db8:1:9::7",
                "::ffff:192.0.2.0/120",
                "foe",
            ]),
            32,
            64,
        );
        use Listed::{Allowed, Denied};
        for (address, expected) in [
            ("10.1.2.3", Some(Allowed)),
            ("10.0.0.66", Some(Denied)),
            ("11.0.0.1", None),
            ("2001:db8:1:2::/64", Some(Denied)),
            ("2001:db8:1:3::/64", Some(Allowed)),
            ("2001:db8:1:9::/64", Some(Denied)),
            ("2001:db8::/32", None),
            ("::ffff:10.1.2.3", Some(Allowed)),
            ("192.0.2.7", Some(Denied)),
            ("friend", None),
        ] {
            assert_eq!(lists.of_address(&address.into()), expected, "{address}");
        }
        for (key, expected) in
            [("friend", Some(Allowed)), ("foe", Some(Denied)), ("10.1.2.3", None), ("fo", None)]
        {
            assert_eq!(lists.of_key(&key.into()), expected, "{key}");
        }
        assert_eq!(lists.of_entry("remote_address", "10.1.2.3"), Some(Allowed));
        assert_eq!(lists.of_entry("api_key", "10.1.2.3"), None);
        assert_eq!(lists.of_entry("api_key", "foe"), Some(Denied));
        for (parts, expected) in [
            (&["10.1.2.3"][..], Some(Allowed)),
            (&["foe"], Some(Denied)),
            (&["x-api-key", "foe"], Some(Denied)),
            (&["x-api-key", "10.1.2.3"], None),
            (&["remote_address", "10.0.0.66"], Some(Denied)),
            (&["friend", "foe"], Some(Denied)),
            (&["a", "b"], None),
        ] {
            let parts: Vec<_> = parts.iter().map(|&part| Key::from(part)).collect();
            assert_eq!(lists.of_parts(&parts), expected, "{parts:?}");
        }
    }

    /// Otherwise the entry of a single address would not match the key of its network, and deny nobody.
    #[test]
    fn an_entry_in_the_network_of_a_client_denies_it() {
        let deny = ["2001:db8:1:2::7", "203.0.113.66", "64:ff9b::192.0.2.7"];
        let deny = deny.map(|entry| Entry(entry.into()));
        for (ipv4_prefix, ipv6_prefix, key, is_denied) in [
            (32, 64, "2001:db8:1:2::/64", true),
            (32, 64, "2001:db8:1::/56", false),
            (32, 56, "2001:db8:1::/56", true),
            (32, 128, "2001:db8:1:2::7", true),
            (32, 128, "2001:db8:1:2::/64", true),
            (32, 128, "2001:db8:1::/56", false),
            (32, 128, "2001:db8:1:2::8", false),
            (32, 64, "203.0.113.66", true),
            (32, 64, "203.0.113.0/24", false),
            (24, 64, "203.0.113.0/24", true),
            (24, 64, "192.0.2.0/24", true),
            (24, 64, "198.51.100.0/24", false),
        ] {
            let lists = Lists::new(&[], &deny, ipv4_prefix, ipv6_prefix);
            let listed = lists.of_address(&key.into());
            assert_eq!(listed.is_some(), is_denied, "{ipv4_prefix} {ipv6_prefix} {key}");
        }
    }

    #[test]
    fn an_entry_that_looks_like_an_address_but_is_none_is_an_error() {
        for entry in ["203.0.113.0/33", "10.0.0/8", "10.0.0.256", "10.0.0", "2001:db8::/129"]
            .into_iter()
            .chain(["10.0.0.1:443", "[2001:db8::1]:443", "[2001:db8::1]", "10.0.0.*", " 10.0.0.1"])
        {
            assert!(Entry::try_from(entry.to_owned()).is_err(), "{entry}");
        }
        for entry in
            ["10.0.0.0/8", "2001:db8::/32", "::1", "friend", "user/7", "v1.2", "1.2:3", "7", ""]
        {
            assert!(Entry::try_from(entry.to_owned()).is_ok(), "{entry}");
        }
    }
}

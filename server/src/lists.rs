//! The allow list and the deny list.

use std::collections::HashSet;
use std::net::IpAddr;

use tollgate::Key;

use crate::checker::Answer;
use crate::range::Range;

/// Keys as they are, and ranges of IP addresses.
#[derive(Clone, Debug, Default)]
struct KeyList {
    keys: HashSet<Key>,
    ranges: Vec<Range>,
}

impl KeyList {
    fn new(entries: &[String]) -> Self {
        let mut list = Self::default();
        for entry in entries {
            match entry.parse() {
                Ok(range) => list.ranges.push(range),
                Err(_) => {
                    list.keys.insert(Key::from(entry.as_str()));
                }
            }
        }
        list
    }

    fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key) || (!self.ranges.is_empty() && self.has_address(key))
    }

    fn has_address(&self, key: &Key) -> bool {
        let text = std::str::from_utf8(key.as_bytes()).ok();
        let address: Option<IpAddr> = text.and_then(|text| text.parse().ok());
        address.is_some_and(|address| self.ranges.iter().any(|range| range.contains(address)))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    allow: KeyList,
    deny: KeyList,
}

impl Lists {
    pub(crate) fn new(allow: &[String], deny: &[String]) -> Self {
        Self { allow: KeyList::new(allow), deny: KeyList::new(deny) }
    }

    /// The answer for a key on a list. The deny list wins.
    pub(crate) fn answer(&self, key: &Key) -> Option<Answer> {
        if self.deny.contains(key) {
            Some(Answer::Blocked(None))
        } else if self.allow.contains(key) {
            Some(Answer::Exempt)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(allow: &[&str], deny: &[&str]) -> Lists {
        let owned =
            |entries: &[&str]| entries.iter().map(|&entry| entry.into()).collect::<Vec<_>>();
        Lists::new(&owned(allow), &owned(deny))
    }

    #[test]
    fn a_list_has_keys_and_ranges_of_addresses() {
        let lists = lists(&["10.0.0.0/8", "user:7"], &["10.0.0.66/32", "2001:db8::/32"]);
        for (key, allowed) in [
            ("10.1.2.3", Some(true)),
            ("user:7", Some(true)),
            ("10.0.0.66", Some(false)),
            ("2001:db8::1", Some(false)),
            ("user:70", None),
            ("11.0.0.1", None),
        ] {
            let answer = lists.answer(&key.into()).map(|answer| answer.is_allowed());
            assert_eq!(answer, allowed, "{key}");
        }
    }
}

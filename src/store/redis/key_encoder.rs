//! The name of a caller's bucket in Redis: `prefix:{caller}:policy`, with the format of its value.

use std::fmt::Write;
use std::sync::Arc;

use crate::{ConfigError, Key};

/// The format of the value: a token bucket, version 1. Another algorithm or version is another
/// key, so that one never reads the other's value.
const FORMAT: &str = "t1";

/// Turns a caller's key into the name of its bucket.
///
/// The caller stands in a hash tag, so that Redis Cluster puts all that belongs to it in one slot,
/// and different callers in different ones.
#[derive(Clone, Debug)]
pub(super) struct KeyEncoder {
    before: Arc<str>,
    after: Arc<str>,
}

impl KeyEncoder {
    pub(super) fn new(prefix: &str, policy: &str) -> Result<Self, ConfigError> {
        if prefix.is_empty()
            || !prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}".contains(&byte))
        {
            return Err(ConfigError::new(format!(
                "the prefix {prefix:?} must be 1 or more visible ASCII characters other than `{{` and `}}`, \
                 which would change the hash tag"
            )));
        }
        Ok(Self {
            before: format!("{prefix}:{{").into(),
            after: format!("}}:{policy}:{FORMAT}").into(),
        })
    }

    /// The slot of the bucket on a cluster: that of its tag.
    pub(super) fn slot(&self, key: &Key) -> u16 {
        let mut tag = String::new();
        encode_key(&mut tag, key);
        crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % 16_384
    }

    pub(super) fn name(&self, key: &Key) -> String {
        let mut name =
            String::with_capacity(self.before.len() + key.as_bytes().len() + self.after.len());
        name.push_str(&self.before);
        encode_key(&mut name, key);
        name.push_str(&self.after);
        name
    }
}

/// Writes any key as visible ASCII without braces, different for different keys, and never as
/// nothing: Redis ignores an empty tag.
///
/// `%` only ever precedes two hexadecimal digits, and `#` is never written as it is; so a lone `%`
/// is the empty key, and `#` precedes a digest.
fn encode_key(name: &mut String, key: &Key) {
    if key.is_digest() {
        name.push('#');
        key.as_bytes().iter().for_each(|&byte| push_hex(name, byte));
    } else if key.as_bytes().is_empty() {
        name.push('%');
    } else {
        for &byte in key.as_bytes() {
            if byte.is_ascii_graphic() && !b"{}%#".contains(&byte) {
                name.push(byte.into());
            } else {
                name.push('%');
                push_hex(name, byte);
            }
        }
    }
}

fn push_hex(name: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(name, "{byte:02x}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn name(caller: &[u8]) -> String {
        KeyEncoder::new("tollgate", "default").unwrap().name(&caller.into())
    }

    fn tag(name: &str) -> &str {
        let (_, rest) = name.split_once('{').unwrap();
        rest.split_once('}').unwrap().0
    }

    #[test]
    fn plain_callers_stay_readable() {
        assert_eq!(name(b"203.0.113.7"), "tollgate:{203.0.113.7}:default:t1");
        assert_eq!(name(b"user:7|/search"), "tollgate:{user:7|/search}:default:t1");
    }

    #[test]
    fn nasty_callers_have_distinct_tags_that_are_not_empty() {
        let long = [b'a'; 128];
        let longer = [b'a'; 129];
        let huge = vec![0xff; 8192];
        let hashed = tag(&name(&longer)).to_owned();
        let callers: [&[u8]; 20] = [
            b"",
            b"%",
            b"%%",
            b"#",
            b"{}",
            b"}{",
            b"{a}",
            b"a",
            b"}",
            b"\0",
            b"\n",
            b"\xff",
            b"%00",
            b"00",
            b"7b7d",
            b" ",
            &long,
            &longer,
            &huge,
            hashed.as_bytes(),
        ];
        let tags: HashSet<String> =
            callers.iter().map(|caller| tag(&name(caller)).to_owned()).collect();
        assert_eq!(tags.len(), callers.len());
        assert!(!tags.contains(""));
    }

    #[test]
    fn a_prefix_that_breaks_the_tag_is_an_error() {
        for prefix in ["", "{", "a}b", "a b", "a\n", "ä"] {
            assert!(KeyEncoder::new(prefix, "default").is_err(), "{prefix:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_tag(caller: Vec<u8>) {
            let name = name(&caller);
            prop_assert!(name.is_ascii() && !name.bytes().any(|byte| byte.is_ascii_control() || byte == b' '));
            prop_assert!(!tag(&name).is_empty());
            prop_assert_eq!(name.matches(['{', '}']).count(), 2);
            prop_assert_eq!(&name, &format!("tollgate:{{{}}}:default:t1", tag(&name)));
            prop_assert!(name.len() < 3 * 128 + 30);
        }

        #[test]
        fn different_callers_never_meet(
            left in prop::collection::vec(prop::sample::select(b"{}%#0a\0\xff".to_vec()), 0..140),
            right in prop::collection::vec(prop::sample::select(b"{}%#0a\0\xff".to_vec()), 0..140),
        ) {
            prop_assert_eq!(left == right, name(&left) == name(&right));
        }
    }
}

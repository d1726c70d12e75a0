//! The name of a bucket in Redis: `prefix:{key}:policy:format`.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use super::slot_map::SLOTS;
use crate::{ConfigError, Key};

/// The format of the value: token bucket, version 2. Another algorithm or version has another name,
/// so that none reads a value of another.
const FORMAT: &str = "t2";

/// Encodes keys as the names of their buckets under one policy.
///
/// The key is the hash tag of the name. So on a cluster all buckets of a key are in one slot, and
/// keys are spread over the slots. Encoders that are equal name the same buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyEncoder {
    /// Makes comparisons short, because the names of policies are alike.
    hash: u64,
    prefix: Arc<str>,
    suffix: Arc<str>,
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
            hash: BuildHasherDefault::<DefaultHasher>::default().hash_one((prefix, policy)),
            prefix: format!("{prefix}:{{").into(),
            suffix: format!("}}:{policy}:{FORMAT}").into(),
        })
    }

    /// Names the keys of probes, which are in the same slots.
    pub(super) fn probe(&self) -> Self {
        Self { hash: 0, prefix: self.prefix.clone(), suffix: "}:probe".into() }
    }

    /// The slot of the bucket on a cluster, which is the slot of its hash tag.
    pub(super) fn slot(&self, key: &Key) -> u16 {
        let mut crc = crc16::State::<crc16::XMODEM>::new();
        encode_key(key, |part| crc.update(part.as_bytes()));
        crc.get() % SLOTS
    }

    pub(super) fn name(&self, key: &Key) -> String {
        let mut name =
            String::with_capacity(self.prefix.len() + key.as_bytes().len() + self.suffix.len());
        name.push_str(&self.prefix);
        encode_key(key, |part| name.push_str(part));
        name.push_str(&self.suffix);
        name
    }
}

/// Encodes a key as visible ASCII without braces, part by part. Different keys have different
/// encodings, and none is empty, because Redis ignores an empty hash tag.
///
/// `%` and `#` in a key are encoded like other special bytes, as `%` and two hexadecimal digits. So
/// a single `%` can stand for the empty key, and a leading `#` for a digest.
fn encode_key(key: &Key, mut push: impl FnMut(&str)) {
    if key.is_digest() {
        push("#");
        key.as_bytes().iter().for_each(|&byte| push(ascii(&hex(byte))));
    } else if key.as_bytes().is_empty() {
        push("%");
    } else {
        for run in key.as_bytes().chunk_by(|&left, &right| is_plain(left) && is_plain(right)) {
            match run {
                &[byte] if !is_plain(byte) => {
                    let [high, low] = hex(byte);
                    push(ascii(&[b'%', high, low]));
                }
                plain => push(ascii(plain)),
            }
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"{}%#".contains(&byte)
}

fn hex(byte: u8) -> [u8; 2] {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + (value - 10) };
    [digit(byte >> 4), digit(byte & 15)]
}

/// All parts are ASCII, so nothing is lost.
fn ascii(part: &[u8]) -> &str {
    std::str::from_utf8(part).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn name(key: &[u8]) -> String {
        KeyEncoder::new("tollgate", "default").unwrap().name(&key.into())
    }

    fn tag(name: &str) -> &str {
        let (_, rest) = name.split_once('{').unwrap();
        rest.split_once('}').unwrap().0
    }

    #[test]
    fn ordinary_keys_stay_readable() {
        assert_eq!(name(b"203.0.113.7"), "tollgate:{203.0.113.7}:default:t2");
        assert_eq!(name(b"user:7|/search"), "tollgate:{user:7|/search}:default:t2");
    }

    #[test]
    fn the_slot_is_the_one_that_redis_computes() {
        let encoder = KeyEncoder::new("tollgate", "default").unwrap();
        // As CLUSTER KEYSLOT says.
        assert_eq!(encoder.slot(&"foo".into()), 12_182);
        assert_eq!(encoder.slot(&"user:7|/search".into()), 7_411);
    }

    #[test]
    fn unusual_keys_have_distinct_tags_that_are_not_empty() {
        let long = [b'a'; 128];
        let longer = [b'a'; 129];
        let huge = vec![0xff; 8192];
        let hashed = tag(&name(&longer)).to_owned();
        let keys: [&[u8]; 20] = [
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
        let tags: HashSet<String> = keys.iter().map(|key| tag(&name(key)).to_owned()).collect();
        assert_eq!(tags.len(), keys.len());
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
        fn no_bytes_break_the_tag(key: Vec<u8>) {
            let name = name(&key);
            prop_assert!(name.is_ascii() && !name.bytes().any(|byte| byte.is_ascii_control() || byte == b' '));
            prop_assert!(!tag(&name).is_empty());
            prop_assert_eq!(name.matches(['{', '}']).count(), 2);
            prop_assert_eq!(&name, &format!("tollgate:{{{}}}:default:t2", tag(&name)));
            prop_assert!(name.len() < 3 * 128 + 30);
        }

        #[test]
        fn the_slot_is_that_of_the_tag(key: Vec<u8>) {
            let encoder = KeyEncoder::new("tollgate", "default").unwrap();
            let crc = crc16::State::<crc16::XMODEM>::calculate(tag(&name(&key)).as_bytes());
            prop_assert_eq!(encoder.slot(&key.as_slice().into()), crc % 16_384);
        }

        #[test]
        fn different_keys_never_share_a_name(
            left in prop::collection::vec(prop::sample::select(b"{}%#0a\0\xff".to_vec()), 0..140),
            right in prop::collection::vec(prop::sample::select(b"{}%#0a\0\xff".to_vec()), 0..140),
        ) {
            prop_assert_eq!(left == right, name(&left) == name(&right));
        }
    }
}

//! The name of a bucket in Redis, `prefix:{key}:policy:format`, and the slot of a hash tag on a cluster.
//!
//! Two keys belong to no policy and are named elsewhere: `prefix:{fleet}` in `fleet/membership.rs`, and
//! `prefix:{blocked}` in `fleet/blocks.rs`. A third one, `fleetlimit:{none}` in `connection/established.rs`,
//! never exists.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::Write;
use std::sync::Arc;

use redis::{RedisWrite, ToRedisArgs};

use crate::{ConfigError, Key};

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The version of the names, so that an incompatible value gets another name. All algorithms have the same one:
/// the value says which one wrote it (`fragment`).
const FORMAT: &str = "t2";

/// Returns the slot of a hash tag on a cluster.
pub(crate) fn slot_of(tag: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// Encodes keys as the names of their buckets under one policy.
///
/// The key is the hash tag of the name. So on a cluster all buckets of a key are in one slot, and
/// keys are spread over the slots. Encoders that are equal name the same buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyEncoder {
    /// Makes comparisons short, because the names of policies are alike.
    hash: u64,
    prefix: Arc<str>,
    suffix: Arc<str>,
}

/// The name of a bucket. It is written straight into a command, without a buffer of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketName<'a> {
    encoder: &'a KeyEncoder,
    key: &'a Key,
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

    /// Returns the slot of a bucket on a cluster, as [`slot_of`] its hash tag, without a buffer for that.
    pub(crate) fn slot(&self, key: &Key) -> u16 {
        let mut crc = crc16::State::<crc16::XMODEM>::new();
        encode_key(key, |part| crc.update(part));
        crc.get() % SLOTS
    }

    pub(crate) fn name<'a>(&'a self, key: &'a Key) -> BucketName<'a> {
        BucketName { encoder: self, key }
    }
}

impl BucketName<'_> {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut name = Vec::new();
        self.write(|part| name.extend_from_slice(part));
        name
    }

    fn write(&self, mut push: impl FnMut(&[u8])) {
        push(self.encoder.prefix.as_bytes());
        encode_key(self.key, &mut push);
        push(self.encoder.suffix.as_bytes());
    }
}

impl ToRedisArgs for BucketName<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        let mut argument = out.writer_for_next_arg();
        // The buffer of a command takes everything.
        self.write(|part| {
            let _ = argument.write_all(part);
        });
    }
}

/// Encodes a key as visible ASCII without braces, part by part. Different keys have different
/// encodings, and none is empty, because Redis ignores an empty hash tag.
///
/// `%` and `#` in a key are encoded like other special bytes, as `%` and two hexadecimal digits. So
/// a single `%` can stand for the empty key, and a leading `#` for a digest.
fn encode_key(key: &Key, mut push: impl FnMut(&[u8])) {
    let bytes = key.as_bytes();
    if key.is_digest() {
        push(b"#");
        bytes.iter().for_each(|&byte| push(&hex(byte)));
    } else if bytes.is_empty() {
        push(b"%");
    } else if bytes.iter().all(|&byte| is_plain(byte)) {
        push(bytes);
    } else {
        for &byte in bytes {
            let [high, low] = hex(byte);
            if is_plain(byte) { push(&[byte]) } else { push(&[b'%', high, low]) }
        }
    }
}

fn is_plain(byte: u8) -> bool {
    const PLAIN: [bool; 256] = {
        let (mut plain, mut byte) = ([false; 256], b'!');
        while byte <= b'~' {
            plain[byte as usize] = !matches!(byte, b'{' | b'}' | b'%' | b'#');
            byte += 1;
        }
        plain
    };
    PLAIN[usize::from(byte)]
}

fn hex(byte: u8) -> [u8; 2] {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + (value - 10) };
    [digit(byte >> 4), digit(byte & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn name(key: &[u8]) -> String {
        let (encoder, key) = (KeyEncoder::new("fleetlimit", "default").unwrap(), Key::from(key));
        let name = encoder.name(&key);
        assert_eq!(name.to_redis_args(), [name.to_bytes()]);
        String::from_utf8(name.to_bytes()).unwrap()
    }

    fn tag(name: &str) -> &str {
        let (_, rest) = name.split_once('{').unwrap();
        rest.split_once('}').unwrap().0
    }

    #[test]
    fn ordinary_keys_stay_readable() {
        assert_eq!(name(b"203.0.113.7"), "fleetlimit:{203.0.113.7}:default:t2");
        assert_eq!(name(b"user:7|/search"), "fleetlimit:{user:7|/search}:default:t2");
    }

    /// Processes of different versions share buckets.
    #[test]
    fn special_bytes_are_encoded_as_they_always_were() {
        assert_eq!(name(b""), "fleetlimit:{%}:default:t2");
        assert_eq!(name(b"a b{c}%#\xff"), "fleetlimit:{a%20b%7bc%7d%25%23%ff}:default:t2");
    }

    #[test]
    fn the_slot_is_the_one_that_redis_computes() {
        let encoder = KeyEncoder::new("fleetlimit", "default").unwrap();
        // As CLUSTER KEYSLOT says.
        assert_eq!(encoder.slot(&"foo".into()), 12_182);
        assert_eq!(slot_of("foo"), 12_182);
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
            prop_assert_eq!(&name, &format!("fleetlimit:{{{}}}:default:t2", tag(&name)));
            prop_assert!(name.len() < 3 * 128 + 30);
        }

        #[test]
        fn the_slot_is_that_of_the_tag(key: Vec<u8>) {
            let encoder = KeyEncoder::new("fleetlimit", "default").unwrap();
            prop_assert_eq!(encoder.slot(&key.as_slice().into()), slot_of(tag(&name(&key))));
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

use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::address::{AddressText, short_v4};
use crate::canonical::canonical;

/// The length of the longest key that is not replaced by its digest.
const MAX_LEN: usize = 128;

/// The user, address or anything else to which a limit applies. A key is any sequence of bytes, and short
/// ones need no allocation.
///
/// Text, numbers and addresses are represented by their usual text, so that a key of a layer can
/// also be written by hand: `limiter.reset("203.0.113.7")`. An IPv4-mapped IPv6 address is its IPv4
/// address.
///
/// Bytes from a client need no escaping. A key longer than 128 bytes is replaced by its SHA-256, so
/// that a bound on the number of keys is also a bound on memory. The digest never equals a shorter
/// key.
///
/// ```
/// use std::net::IpAddr;
/// use fleetlimit::Key;
///
/// assert_eq!(Key::from("user:7").as_bytes(), b"user:7");
/// assert_eq!(Key::from(7u64), Key::from("7"));
/// assert_eq!(Key::from("::ffff:192.0.2.1".parse::<IpAddr>()?), Key::from("192.0.2.1"));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    bytes: SmallVec<[u8; 32]>,
    is_digest: bool,
}

impl Key {
    /// Returns the bytes of the key, or the 32 bytes of its digest.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if the bytes are the SHA-256 of a key longer than 128 bytes.
    pub fn is_digest(&self) -> bool {
        self.is_digest
    }

    /// Returns the first 16 hexadecimal digits of the SHA-256 of the key, for logs that must not contain
    /// addresses or names. It can be computed for a known key: `printf %s 203.0.113.7 | sha256sum | cut -c 1-16`.
    ///
    /// Anyone who has the digests can find keys that are easy to guess, such as IPv4 addresses, by hashing
    /// all of them.
    ///
    /// ```
    /// use fleetlimit::Key;
    ///
    /// assert_eq!(Key::from("203.0.113.7").digest(), "fec52565aa0cf18f");
    /// ```
    pub fn digest(&self) -> String {
        // The bytes of a long key are its digest already.
        let hash = match self.is_digest {
            true => self.bytes.to_vec(),
            false => Sha256::digest(&self.bytes).to_vec(),
        };
        hash.iter().take(8).fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Returns the key of a digest.
    pub(crate) fn of_digest(digest: &[u8]) -> Self {
        Self { bytes: SmallVec::from_slice(digest), is_digest: true }
    }

    /// Returns the 64-bit FNV-1a hash of the key, the same in all processes, whatever they were built with.
    pub(crate) fn stable_hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        for byte in self.as_bytes() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    }

    /// Joins parts into one key, separated by `|`.
    ///
    /// Different parts give different keys: inside a part, `|` and `\` are escaped with `\`, and a
    /// digest is preceded by `\#`.
    ///
    /// ```
    /// use fleetlimit::Key;
    ///
    /// let key = Key::join(&[Key::from("203.0.113.7"), Key::from("/search")]);
    /// assert_eq!(key, Key::from("203.0.113.7|/search"));
    /// ```
    pub fn join(parts: &[Key]) -> Self {
        let mut bytes = SmallVec::<[u8; MAX_LEN]>::new();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                bytes.push(b'|');
            }
            if part.is_digest {
                bytes.extend_from_slice(b"\\#");
            }
            for &byte in part.as_bytes() {
                if matches!(byte, b'|' | b'\\') {
                    bytes.push(b'\\');
                }
                bytes.push(byte);
            }
        }
        Self::from(bytes.as_slice())
    }
}

/// Copies the bytes as a block. The `Clone` of `SmallVec` copies them one by one.
impl Clone for Key {
    fn clone(&self) -> Self {
        Self { bytes: SmallVec::from_slice(&self.bytes), is_digest: self.is_digest }
    }
}

/// Hashes only the bytes, with one write, which takes half the time. A digest and a key of the same
/// bytes have the same hash, but no client can make more than these two collide.
impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.bytes);
    }
}

/// Writes the text of the key. If that is not UTF-8, or has control characters, its bytes are escaped as by
/// [`escape_ascii`](slice::escape_ascii).
///
/// ```
/// use fleetlimit::Key;
///
/// assert_eq!(Key::from("o'brien").to_string(), "o'brien");
/// assert_eq!(Key::from(b"a\n\xff").to_string(), r"a\n\xff");
/// ```
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match str::from_utf8(&self.bytes) {
            Ok(text) if !text.contains(char::is_control) => f.write_str(text),
            _ => self.bytes.escape_ascii().fmt(f),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_digest { "Digest" } else { "Key" };
        write!(f, "{kind}(\"{}\")", self.bytes.escape_ascii())
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        if bytes.len() > MAX_LEN {
            return Self { bytes: SmallVec::from_slice(&Sha256::digest(bytes)), is_digest: true };
        }
        Self { bytes: SmallVec::from_slice(bytes), is_digest: false }
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl<const N: usize> From<[u8; N]> for Key {
    fn from(bytes: [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<&String> for Key {
    fn from(text: &String) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

impl From<IpAddr> for Key {
    fn from(address: IpAddr) -> Self {
        match canonical(address) {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Self::from(AddressText::v6(address, 128).as_bytes()),
        }
    }
}

impl From<Ipv4Addr> for Key {
    #[inline]
    fn from(address: Ipv4Addr) -> Self {
        let (text, len) = short_v4(address);
        let mut bytes = [0; 32];
        bytes[..text.len()].copy_from_slice(&text);
        Self { bytes: SmallVec::from_buf_and_len(bytes, len), is_digest: false }
    }
}

impl From<Ipv6Addr> for Key {
    fn from(address: Ipv6Addr) -> Self {
        Self::from(IpAddr::V6(address))
    }
}

macro_rules! from_integers {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Key {
            fn from(number: $integer) -> Self {
                Self::from(itoa::Buffer::new().format(number))
            }
        }
    )*};
}

from_integers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(parts: &[Vec<u8>]) -> Key {
        let parts: Vec<Key> = parts.iter().cloned().map(Key::from).collect();
        Key::join(&parts)
    }

    #[test]
    fn a_digest_equals_no_key_that_a_client_can_send() {
        let long = Key::from(vec![b'a'; MAX_LEN + 1]);
        assert!(long.is_digest());
        assert_ne!(long, Key::from(long.as_bytes()));
        assert_eq!(long, Key::from(vec![b'a'; MAX_LEN + 1]));
        assert_ne!(long, Key::from(vec![b'a'; MAX_LEN + 2]));
        let forged = [b"\\#", long.as_bytes()].concat();
        assert_ne!(Key::join(&[long]), Key::join(&[Key::from(forged)]));
    }

    #[test]
    fn a_long_key_has_the_digest_of_all_its_bytes() {
        // printf %s ... | sha256sum | cut -c 1-16
        assert_eq!(Key::from("k".repeat(1_000)).digest(), "27fed049cf80e0ef");
        assert_eq!(Key::from("").digest(), "e3b0c44298fc1c14");
    }

    proptest! {
        #[test]
        fn different_parts_never_join_to_the_same_key(
            left in prop::collection::vec(prop::collection::vec(prop::sample::select(b"ab|\\".to_vec()), 0..4), 2),
            right in prop::collection::vec(prop::collection::vec(prop::sample::select(b"ab|\\".to_vec()), 0..4), 2),
        ) {
            prop_assert_eq!(left == right, joined(&left) == joined(&right));
        }
    }
}

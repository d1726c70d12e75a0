use std::fmt;

use hmac::{Hmac, Mac};
use http::HeaderValue;
use http::header::HeaderName;
use http::request::Parts;
use sha2::{Digest, Sha256};

use super::{KeyResolver, Rejection, Resolution};
use crate::{ConfigError, Key};

/// Uses a hash of a header's value as the key, for example of an API key.
///
/// The value may be a secret, so only a hash of it leaves the process: the key is the first 128 bits
/// of its SHA-256 in hexadecimal, or with [`with_secret`](Self::with_secret) of its HMAC-SHA256
/// (RFC 2104). [`key`](Self::key) computes the same key for a known value. Whitespace around the
/// value is ignored.
///
/// | the request has | resolution |
/// |---|---|
/// | the header once | its key |
/// | no such header, or an empty one | missing: 400, unless `or` or `or_skip` applies |
/// | the header more than once | reject with 400, because it is ambiguous which one counts |
///
/// # Security
///
/// - A client can send any value, and every value that it invents has a full bucket. A header that
///   nobody has verified does not limit anyone. Verify it in a middleware outside of this layer,
///   and add an outer limit by address: see the [guide](crate::guide#by-api-key).
/// - Only the exact value counts. If the application accepts several spellings for the same client
///   (`Bearer x` and `bearer x`), each has its own bucket. Use what the application parsed, with
///   [`Extension`](super::Extension).
/// - Without a secret, anyone who can read the Redis keys can brute-force low-entropy values: phone
///   numbers, short numbers, e-mail addresses. Use [`with_secret`](Self::with_secret) for these. An
///   API key with 128 random bits cannot be brute-forced.
///
/// # Examples
///
/// ```
/// use http::HeaderName;
/// use fleetlimit::resolve::Header;
/// use fleetlimit::{KeyResolver, Resolution};
///
/// const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
///
/// let (parts, ()) = http::Request::get("/").header(API_KEY, "secret").body(())?.into_parts();
/// let by_key = Header::new(API_KEY);
/// assert_eq!(by_key.resolve(&parts), Resolution::Key(by_key.key("secret")));
/// assert_eq!(by_key.key("secret").as_bytes(), b"2bb80d537b1da3e38bd30361aa855686");
/// # Ok::<(), http::Error>(())
/// ```
///
/// Parse a name from your configuration with `HeaderName::try_from`, which returns an error if it is
/// invalid. An invalid constant does not compile:
///
/// ```
/// # use http::HeaderName;
/// assert!(HeaderName::try_from("x api key").is_err());
/// ```
///
/// ```compile_fail
/// # use http::HeaderName;
/// const API_KEY: HeaderName = HeaderName::from_static("x api key");
/// # let _ = API_KEY;
/// ```
#[derive(Clone)]
#[must_use]
pub struct Header {
    name: HeaderName,
    mac: Option<Hmac<Sha256>>,
}

impl Header {
    /// Uses the header of this name.
    pub fn new(name: HeaderName) -> Self {
        Self { name, mac: None }
    }

    /// Hashes values with a secret, so that low-entropy values cannot be brute-forced from the keys
    /// in Redis. Use the same secret in all processes, and at least 16 random bytes. Changing the
    /// secret gives every client a new, full bucket, and two buckets during a rolling deployment.
    ///
    /// ```
    /// use http::HeaderName;
    /// use fleetlimit::resolve::Header;
    ///
    /// # let secret_from_the_environment = "a long random string";
    /// let by_phone = Header::new(HeaderName::from_static("x-phone-number"))
    ///     .with_secret(secret_from_the_environment)?;
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the secret is shorter than 16 bytes.
    pub fn with_secret(self, secret: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let secret = secret.as_ref();
        let mac = Hmac::new_from_slice(secret).ok().filter(|_| secret.len() >= 16);
        let Some(mac) = mac else {
            return Err(ConfigError::new(format!(
                "the secret for the header {} has {} bytes: use at least 16 random bytes",
                self.name,
                secret.len()
            )));
        };
        Ok(Self { mac: Some(mac), ..self })
    }

    /// Returns the key of requests with this value, to check, peek or reset it.
    pub fn key(&self, value: impl AsRef<[u8]>) -> Key {
        let value = value.as_ref().trim_ascii();
        let hash = match &self.mac {
            None => Sha256::digest(value),
            Some(mac) => mac.clone().chain_update(value).finalize().into_bytes(),
        };
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(hash) {
            pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            pair[1] = b"0123456789abcdef"[usize::from(byte & 0xf)];
        }
        Key::from(hex)
    }
}

impl KeyResolver for Header {
    fn resolve(&self, parts: &Parts) -> Resolution {
        let name = &self.name;
        let mut values = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        match (values.next(), values.next()) {
            (Some(_), Some(_)) => {
                Rejection::bad_request(format!("header sent more than once: {name}")).into()
            }
            (Some(value), None) if !value.trim_ascii().is_empty() => {
                Resolution::Key(self.key(value))
            }
            _ => Resolution::Missing(Rejection::bad_request(format!("missing header: {name}"))),
        }
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("name", &self.name)
            .field("has_secret", &self.mac.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use proptest::prelude::*;

    const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

    fn resolve(values: &[&[u8]]) -> Resolution {
        let mut parts = http::Request::new(()).into_parts().0;
        for value in values {
            parts.headers.append(API_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        Header::new(API_KEY).resolve(&parts)
    }

    #[test]
    fn an_absent_or_empty_value_is_missing_and_names_the_header() {
        for values in [vec![], vec![&b""[..]], vec![b" \t"]] {
            let missing = Rejection::bad_request("missing header: x-api-key");
            assert_eq!(resolve(&values), Resolution::Missing(missing));
        }
    }

    #[test]
    fn a_second_line_does_not_let_the_client_choose() {
        for values in [[&b"a"[..], b"b"], [b"a", b"a"], [b"", b"a"], [b"a", b""]] {
            let Resolution::Reject(rejection) = resolve(&values) else { panic!("{values:?}") };
            assert_eq!(rejection.status(), StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn padding_does_not_change_the_key() {
        let key = Header::new(API_KEY).key("secret");
        assert_eq!(resolve(&[b" \tsecret "]), Resolution::Key(key));
    }

    /// RFC 4231, test case 2, with the key padded to the minimum by zeros, as HMAC itself does.
    #[test]
    fn a_keyed_hash_is_hmac_sha256() {
        let keyed = Header::new(API_KEY).with_secret(*b"Jefe\0\0\0\0\0\0\0\0\0\0\0\0").unwrap();
        let key = keyed.key("what do ya want for nothing?");
        assert_eq!(key.as_bytes(), b"5bdcc146bf60754e6a042426089575c7");
        assert!(!format!("{keyed:?}").contains("Jefe"));
    }

    #[test]
    fn a_short_secret_is_an_error() {
        for secret in ["", "fifteen bytes.."] {
            let error = Header::new(API_KEY).with_secret(secret).unwrap_err().to_string();
            assert!(error.contains("at least 16"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_secret_is_never_in_its_key(secret in "[ -~]{33,64}|[g-zG-Z]{1,32}") {
            let key = Header::new(API_KEY).key(&secret);
            let text = std::str::from_utf8(key.as_bytes()).unwrap();
            prop_assert!(text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()));
            prop_assert!(!text.contains(&secret));
            prop_assert_eq!(resolve(&[secret.as_bytes()]), Resolution::Key(key));
        }

        #[test]
        fn no_bytes_panic_and_different_values_have_different_keys(
            one in prop::collection::vec(0x80u8.., 1..20), other in prop::collection::vec(0x21u8..0x7f, 1..20),
        ) {
            prop_assert_ne!(resolve(&[&one]), resolve(&[&other]));
        }
    }
}

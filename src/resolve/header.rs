use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use super::{KeyResolver, Resolution};
use crate::Key;

/// Counts by the value of a header, such as an API key.
///
/// The value is a secret, so that only a hash of it leaves the process: the key is the first 128
/// bits of its SHA-256, in hexadecimal. [`Header::key`] makes the same key from a value at hand.
/// White space around the value does not count.
///
/// | the request has | answer |
/// |---|---|
/// | the header once | its key |
/// | no such header, or an empty one | no key: 400, unless `or` or `or_exempt` say otherwise |
/// | the header more than once | refused with 400: which of them counts is open to dispute |
///
/// A name that cannot be the name of a header, such as `x api key`, refuses every request with
/// 500. That is seen on the first request, and `or_exempt` does not turn it into no limit at all.
///
/// # Security
/// - A client may send what it likes. Every value that it invents is a bucket of its own, full at
///   first: limit by this what was authenticated outside of this layer, or put a limit by address
///   outside of it.
/// - Only the value as it is written counts. Where the application takes several spellings for the
///   same caller (`Bearer x` and `bearer x`), each of them is a bucket; count there what the
///   application understood, with [`Extension`](super::Extension).
/// - The hash has no secret of its own. Who reads the keys in Redis can find a value by trying, if
///   there are few that it can be: a phone number, a short number, an e-mail address. An API key of
///   128 random bits cannot be found.
///
/// # Examples
/// ```
/// use tollgate::resolve::Header;
/// use tollgate::{KeyResolver, Resolution};
///
/// let (parts, ()) = http::Request::get("/").header("x-api-key", "secret").body(())?.into_parts();
///
/// assert_eq!(Header::new("x-api-key").resolve(&parts), Resolution::Key(Header::key("secret")));
/// assert_eq!(Header::key("secret").as_bytes(), b"2bb80d537b1da3e38bd30361aa855686");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Header {
    name: Result<HeaderName, Box<str>>,
}

impl Header {
    /// Counts by the header of this name, which is text or an [`http::HeaderName`].
    pub fn new(name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        Self { name: HeaderName::from_bytes(name.as_bytes()).map_err(|_| name.into()) }
    }

    /// The key under which requests with this value are counted, to ask about it or to reset it.
    pub fn key(value: impl AsRef<[u8]>) -> Key {
        let hash = Sha256::digest(value.as_ref().trim_ascii());
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
        let name = match &self.name {
            Ok(name) => name,
            Err(text) => {
                let reason = format!("the rate limit's `{text}` is not the name of a header");
                return Resolution::refused(StatusCode::INTERNAL_SERVER_ERROR, reason);
            }
        };
        let mut values = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        match (values.next(), values.next()) {
            (Some(_), Some(_)) => {
                let reason = format!("the header {name} was sent more than once");
                Resolution::refused(StatusCode::BAD_REQUEST, reason)
            }
            (Some(value), None) if !value.trim_ascii().is_empty() => {
                Resolution::Key(Self::key(value))
            }
            _ => Resolution::missing(format!("send the header {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolve(name: &str, values: &[&[u8]]) -> Resolution {
        let mut parts = http::Request::new(()).into_parts().0;
        for value in values {
            parts.headers.append("x-api-key", HeaderValue::from_bytes(value).unwrap());
        }
        Header::new(name).resolve(&parts)
    }

    fn refused(resolution: Resolution) -> StatusCode {
        let Resolution::Refused(refusal) = resolution else { panic!("{resolution:?}") };
        refusal.status()
    }

    #[test]
    fn an_absent_or_empty_value_is_missing_and_names_the_header() {
        for values in [vec![], vec![&b""[..]], vec![b" \t"]] {
            assert_eq!(
                resolve("X-Api-Key", &values),
                Resolution::missing("send the header x-api-key")
            );
        }
    }

    #[test]
    fn a_second_line_does_not_let_the_client_choose() {
        for values in [[&b"a"[..], b"b"], [b"a", b"a"], [b"", b"a"], [b"a", b""]] {
            assert_eq!(refused(resolve("x-api-key", &values)), StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn a_bad_name_refuses_everything_and_exempts_nobody() {
        for name in ["x api key", "", "x-api-key\n", "\u{e9}"] {
            let resolution = resolve(name, &[b"secret"]);
            assert_eq!(refused(resolution), StatusCode::INTERNAL_SERVER_ERROR);
            let parts = http::Request::new(()).into_parts().0;
            refused(Header::new(name).or_exempt().resolve(&parts));
        }
    }

    #[test]
    fn padding_makes_no_new_bucket() {
        assert_eq!(resolve("x-api-key", &[b" \tsecret "]), Resolution::Key(Header::key("secret")));
    }

    proptest! {
        #[test]
        fn a_secret_is_never_in_its_key(secret in "[ -~]{33,64}|[g-zG-Z]{1,32}") {
            let key = Header::key(&secret);
            let text = std::str::from_utf8(key.as_bytes()).unwrap();
            prop_assert!(text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()));
            prop_assert!(!text.contains(&secret));
            prop_assert_eq!(resolve("x-api-key", &[secret.as_bytes()]), Resolution::Key(key));
        }

        #[test]
        fn no_bytes_panic_and_different_values_have_different_keys(
            one in prop::collection::vec(0x80u8.., 1..20), other in prop::collection::vec(0x21u8..0x7f, 1..20),
        ) {
            prop_assert_ne!(resolve("x-api-key", &[&one]), resolve("x-api-key", &[&other]));
        }
    }
}

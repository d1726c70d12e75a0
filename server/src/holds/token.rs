//! The tokens of holds: `base64url(HMAC-SHA256 of the rest, then JSON)`.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::unix_millis;

/// The bytes of a signature.
const SIGNATURE: usize = 32;

/// A hold, as its client knows it. The client sends it back with the next request.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct HoldToken {
    pub(crate) policy: String,
    pub(crate) key: String,
    /// The seconds for which the hold lasts, unless it is extended.
    pub(crate) seconds: u64,
    /// The time at which it ends, in milliseconds since 1970.
    pub(crate) ends: u64,
    /// What the limiter needs to continue the hold.
    pub(crate) record: Vec<u64>,
}

/// The reason for rejecting a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// No instance with this secret has issued it.
    Forged,
    Expired,
}

/// The key that signs tokens. All instances have the same one.
#[derive(Clone)]
pub(crate) struct TokenKey(Hmac<Sha256>);

impl TokenKey {
    pub(crate) fn new(secret: &[u8]) -> Self {
        // HMAC takes keys of any length, so this is never an error.
        Self(Hmac::new_from_slice(secret).unwrap_or_else(|_| Hmac::new(&Default::default())))
    }

    /// Returns a key that no other process has. `None` if the operating system has no random numbers.
    pub(crate) fn random() -> Option<Self> {
        let mut secret = [0; SIGNATURE];
        let provider = rustls::crypto::ring::default_provider();
        provider.secure_random.fill(&mut secret).ok()?;
        Some(Self::new(&secret))
    }

    pub(crate) fn sign(&self, token: &HoldToken) -> String {
        // Text and numbers are always JSON.
        let text = serde_json::to_vec(token).unwrap_or_default();
        let signature = self.0.clone().chain_update(&text).finalize().into_bytes();
        BASE64_URL_SAFE_NO_PAD.encode([&signature[..], &text].concat())
    }

    /// # Errors
    ///
    /// If the token has expired, or was not signed with this key.
    pub(crate) fn verify(&self, token: &str) -> Result<HoldToken, Invalid> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|_| Invalid::Forged)?;
        let (signature, text) = bytes.split_at_checked(SIGNATURE).ok_or(Invalid::Forged)?;
        let mac = self.0.clone().chain_update(text);
        mac.verify_slice(signature).map_err(|_| Invalid::Forged)?;
        let token: HoldToken = serde_json::from_slice(text).map_err(|_| Invalid::Forged)?;
        if token.ends <= unix_millis() { Err(Invalid::Expired) } else { Ok(token) }
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(ends: u64) -> HoldToken {
        let (policy, key) = ("exports".to_owned(), "user:7".to_owned());
        HoldToken { policy, key, seconds: 60, ends, record: vec![u64::MAX, 0, 7] }
    }

    #[test]
    fn a_token_that_was_changed_or_cut_or_signed_by_another_is_forged() {
        let key = TokenKey::new(b"secret");
        let valid = token(u64::MAX);
        let text = key.sign(&valid);
        assert_eq!(key.verify(&text), Ok(valid));
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&text).unwrap();
        for n in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[n] ^= 1;
            let changed = BASE64_URL_SAFE_NO_PAD.encode(&changed);
            assert_eq!(key.verify(&changed), Err(Invalid::Forged), "byte {n}");
            let cut = BASE64_URL_SAFE_NO_PAD.encode(&bytes[..n]);
            assert_eq!(key.verify(&cut), Err(Invalid::Forged), "{n} bytes");
        }
        for other in [TokenKey::new(b"other"), TokenKey::new(b""), TokenKey::random().unwrap()] {
            assert_eq!(other.verify(&text), Err(Invalid::Forged));
        }
        let [one, two] = [(); 2].map(|()| TokenKey::random().unwrap().sign(&token(1)));
        assert_ne!(one, two);
        for garbage in ["", "=", "AAAA", "é", &"A".repeat(100)] {
            assert_eq!(key.verify(garbage), Err(Invalid::Forged), "{garbage}");
        }
    }

    #[test]
    fn a_token_expires_with_its_hold() {
        let (key, now) = (TokenKey::new(b"secret"), unix_millis());
        assert_eq!(key.verify(&key.sign(&token(now))), Err(Invalid::Expired));
        assert!(key.verify(&key.sign(&token(now + 60_000))).is_ok());
    }
}

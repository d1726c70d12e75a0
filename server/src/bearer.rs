//! Bearer tokens (RFC 6750).

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

use crate::secret::Secret;

/// The hash of a token that clients have to send.
#[derive(Clone)]
pub(crate) struct BearerToken(Arc<[u8]>);

impl BearerToken {
    pub(crate) fn new(token: &Secret) -> Self {
        Self(Sha256::digest(token.expose()).as_slice().into())
    }

    /// Compares hashes, so timing reveals nothing about the token.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        // Of two headers, others may read the other one.
        let (Some(only), None) = (all.next(), all.next()) else { return false };
        let parts = only.to_str().ok().and_then(|value| value.split_once(' '));
        parts.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("Bearer") && Sha256::digest(given).as_slice() == &*self.0
        })
    }
}

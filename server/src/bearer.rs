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
        let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = header.and_then(|value| value.strip_prefix("Bearer "));
        given.is_some_and(|given| Sha256::digest(given).as_slice() == &*self.0)
    }
}

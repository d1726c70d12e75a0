use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderValue;

use super::{headers, problem};
use crate::decision::QuotaInfo;
use crate::limiter::Revision;

/// The parts of responses that are the same for every request of a policy.
#[derive(Clone, Debug)]
pub(super) struct Precomputed {
    pub(super) policy_field: HeaderValue,
    /// The `RateLimit` field up to the number of remaining permits.
    pub(super) field_prefix: Box<[u8]>,
    pub(super) denied: Bytes,
    pub(super) exceeds_capacity: Bytes,
}

impl Precomputed {
    pub(super) fn of(revision: &Revision) -> Cow<'_, Self> {
        match revision.precomputed(Self::new) {
            Some(precomputed) => Cow::Borrowed(precomputed),
            None => Cow::Owned(Self::new(revision.quota())),
        }
    }

    pub(super) fn new(quota: &QuotaInfo) -> Self {
        Self {
            policy_field: headers::policy_field(quota),
            field_prefix: headers::field_prefix(quota),
            denied: problem::denied_body(quota.name(), false).into(),
            exceeds_capacity: problem::denied_body(quota.name(), true).into(),
        }
    }
}

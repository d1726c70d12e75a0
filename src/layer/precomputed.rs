use std::borrow::Cow;

use bytes::Bytes;

use super::headers::QuotaFields;
use super::problem;
use crate::decision::QuotaInfo;
use crate::limiter::Revision;

/// The parts of responses that are the same for every request of a policy.
#[derive(Clone, Debug)]
pub(super) struct Precomputed {
    pub(super) fields: QuotaFields,
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

    fn new(quota: &QuotaInfo) -> Self {
        Self {
            fields: QuotaFields::interned(quota),
            denied: problem::denied_body(quota.name(), false).into(),
            exceeds_capacity: problem::denied_body(quota.name(), true).into(),
        }
    }
}

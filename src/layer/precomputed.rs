//! The parts of responses that are the same for every request of a policy, computed once per revision: names
//! and limits do not change between requests. The revision keeps them type-erased (`dyn Any`), so that the
//! limiter does not name HTTP.

use std::borrow::Cow;

use bytes::Bytes;

use super::headers::QuotaFields;
use super::interned::interned;
use super::problem;
use crate::limiter::Revision;
use crate::verdict::QuotaInfo;
use crate::{Decision, Source};

/// The parts of responses that are the same for every request of a policy.
#[derive(Clone, Debug)]
pub(super) struct Precomputed {
    pub(super) fields: QuotaFields,
    /// The bodies of denials, unless they depend on which quotas denied.
    denied: Option<[Bytes; 2]>,
}

impl Precomputed {
    #[inline]
    pub(super) fn of(revision: &Revision) -> Cow<'_, Self> {
        match revision.precomputed(Self::new) {
            Some(precomputed) => Cow::Borrowed(precomputed),
            None => Cow::Owned(Self::new(revision.quotas())),
        }
    }

    pub(super) fn denied_body(&self, decision: &Decision) -> Bytes {
        match &self.denied {
            Some(bodies) if decision.source != Source::Blocked => {
                bodies[usize::from(decision.exceeds_capacity())].clone()
            }
            _ => problem::denied_body(decision).into(),
        }
    }

    fn new(quotas: &[QuotaInfo]) -> Self {
        let denied = match quotas {
            [quota] => Some([false, true].map(|exceeds_capacity| {
                interned(problem::body_of_quota(quota, exceeds_capacity).into())
            })),
            _ => None,
        };
        Self { fields: QuotaFields::interned(quotas), denied }
    }
}

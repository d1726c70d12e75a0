//! The keys that an operator has blocked, as a limiter looks at them: before its caches, its quotas and its
//! store, so that a block holds in an outage, and a blocked key never waits or takes a permit.

use std::sync::Arc;
use std::time::Duration;

use super::{CheckState, Inner, Limiter, Revision};
use crate::metrics::OutcomeLabel;
use crate::store::Store;
use crate::store::blocks::KnownBlocks;
use crate::verdict::{self, Numbers, Verdict};
use crate::{BlockList, Decision, Key, Source, trace};

/// The block list of the limiter's store.
#[derive(Debug)]
pub(super) struct BlockedKeys {
    list: BlockList,
    /// Part of the list, without a virtual call for each check.
    known: Arc<KnownBlocks>,
}

impl BlockedKeys {
    pub(super) fn new(store: &impl Store) -> Self {
        let (list, known) = BlockList::of_limiter(store);
        Self { list, known }
    }

    /// The time for which a key is still blocked for a policy.
    #[inline(always)]
    fn remaining(&self, policy: &str, key: &Key) -> Option<Duration> {
        if self.known.may_have_any() { self.find(policy, key) } else { None }
    }

    #[cold]
    fn find(&self, policy: &str, key: &Key) -> Option<Duration> {
        self.list.get(policy, key)
    }
}

impl CheckState {
    /// The denial of a key that an operator has blocked.
    #[inline(always)]
    pub(crate) fn blocked(limiter: &Limiter, revision: &Revision, key: &Key) -> Option<Decision> {
        let Inner { settings, .. } = &*limiter.inner;
        let remaining = settings.blocked.remaining(revision.policy().name(), key)?;
        Some(limiter.inner.deny_blocked(revision, remaining))
    }
}

impl Inner {
    /// A decision that denies a blocked key, even if the limit is not enforced for that key: an operator has
    /// chosen the key, not a limit that is tried out.
    #[cold]
    fn deny_blocked(&self, revision: &Revision, remaining: Duration) -> Decision {
        let micros = remaining.as_nanos().div_ceil(1_000);
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        let (retry_after, refill_after, reset_after) = (micros, micros, micros);
        let numbers = Numbers { retry_after, refill_after, reset_after, ..Numbers::default() };
        let verdict = Verdict::new(verdict::Outcome::Denied, numbers);
        let quota = revision.tightest(&verdict);
        self.settings.metrics.decided(Source::Blocked, OutcomeLabel::Denied);
        trace::decided(revision.policy(), quota, OutcomeLabel::Denied, Source::Blocked, numbers);
        Decision::new(verdict, Source::Blocked, true, quota.clone())
    }
}

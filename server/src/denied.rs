//! The keys that are denied most.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tollgate::{Decision, DeniedKeys, Key};

use crate::live::Live;

/// How many keys are listed.
const MOST: NonZeroU16 = NonZeroU16::new(50).unwrap();
/// How long denials are counted for.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Keys denied in the last complete period.
#[derive(Default)]
pub(crate) struct Denied {
    last: RwLock<Vec<DeniedKey>>,
}

#[derive(Clone)]
pub(crate) struct DeniedKey {
    pub(crate) policy: String,
    pub(crate) key: String,
    /// Approximate.
    pub(crate) count: u64,
}

impl Denied {
    pub(crate) fn last(&self) -> Vec<DeniedKey> {
        self.last.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs until the process exits.
    pub(crate) async fn count(live: Arc<Live>) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let mut denied: Vec<_> = live
                .active()
                .policies()
                .flat_map(|(policy, active)| {
                    let keys = active.counts().denied_keys.take().into_iter();
                    keys.map(|(key, count)| DeniedKey { policy: policy.to_owned(), key, count })
                })
                .collect();
            denied.sort_by(|a, b| {
                b.count.cmp(&a.count).then_with(|| (&a.policy, &a.key).cmp(&(&b.policy, &b.key)))
            });
            denied.truncate(MOST.get().into());
            *live.denied.last.write().unwrap_or_else(PoisonError::into_inner) = denied;
        }
    }
}

/// The keys of one policy. It uses no memory in a period without denials.
#[derive(Debug, Default)]
pub(crate) struct DeniedOfPolicy(Mutex<Option<DeniedKeys>>);

impl DeniedOfPolicy {
    pub(crate) fn observe(&self, key: &Key, decision: &Decision) {
        if decision.would_be_denied() {
            let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            keys.get_or_insert_with(|| DeniedKeys::plain(MOST)).observe(key, decision);
        }
    }

    /// The keys since the last call, with approximate counts.
    fn take(&self) -> Vec<(String, u64)> {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        keys.map(|keys| keys.take()).unwrap_or_default()
    }
}

//! The keys that are denied most.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use fleetlimit::{Decision, DeniedKeys, Key};

/// The number of keys that are listed.
const MOST: NonZeroU16 = NonZeroU16::new(50).unwrap();
/// The time for which denials are counted.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Counts denials by policy and key, in periods.
#[derive(Default)]
pub(crate) struct Denied {
    /// The counts of the policies that have denied a key in this period.
    policies: Mutex<HashMap<String, DeniedKeys>>,
    last: RwLock<Vec<DeniedKey>>,
}

#[derive(Clone)]
pub(crate) struct DeniedKey {
    pub(crate) policy: String,
    pub(crate) key: String,
    /// The approximate number of denials.
    pub(crate) count: u64,
}

impl Denied {
    pub(crate) fn observe(&self, policy: &str, key: &Key, decision: &Decision) {
        if decision.would_be_denied() {
            let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
            match policies.get(policy) {
                Some(keys) => keys.observe(key, decision),
                None => {
                    let keys = DeniedKeys::plain(MOST);
                    keys.observe(key, decision);
                    policies.insert(policy.to_owned(), keys);
                }
            }
        }
    }

    /// Returns the keys that were denied in the last complete period.
    pub(crate) fn last(&self) -> Vec<DeniedKey> {
        self.last.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs until the process exits.
    pub(crate) async fn count(this: Arc<Self>) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let denied = this.take();
            *this.last.write().unwrap_or_else(PoisonError::into_inner) = denied;
        }
    }

    /// Ends the period, and returns its keys.
    fn take(&self) -> Vec<DeniedKey> {
        let policies = {
            let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *policies)
        };
        let mut denied: Vec<_> = policies
            .into_iter()
            .flat_map(|(policy, keys)| {
                let of_policy =
                    move |(key, count)| DeniedKey { policy: policy.clone(), key, count };
                keys.take().into_iter().map(of_policy)
            })
            .collect();
        denied.sort_by(|a, b| {
            b.count.cmp(&a.count).then_with(|| (&a.policy, &a.key).cmp(&(&b.policy, &b.key)))
        });
        denied.truncate(MOST.get().into());
        denied
    }
}

//! The keys that are denied most.

use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tollgate::{Decision, DeniedKeys, Key};

/// How many keys are listed.
const MOST: NonZeroU16 = NonZeroU16::new(50).unwrap();
/// How long denials are counted for.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Counts denials by key, in periods.
pub(crate) struct Denied {
    counter: DeniedKeys,
    last: RwLock<Vec<(String, u64)>>,
}

impl Denied {
    pub(crate) fn new() -> Self {
        Self { counter: DeniedKeys::plain(MOST), last: RwLock::default() }
    }

    pub(crate) fn observe(&self, key: &Key, decision: &Decision) {
        self.counter.observe(key, decision);
    }

    /// Keys denied in the last complete period, with approximate counts.
    pub(crate) fn last(&self) -> Vec<(String, u64)> {
        self.last.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs until the process exits.
    pub(crate) async fn count(this: Arc<Self>) {
        loop {
            tokio::time::sleep(PERIOD).await;
            *this.last.write().unwrap_or_else(PoisonError::into_inner) = this.counter.take();
        }
    }
}

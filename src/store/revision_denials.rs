//! The denials of one revision of a policy: the store reports them, and limiters look them up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Denial, Denials, RevisionId, SentAt};
use crate::Key;
use crate::algorithm::State;

/// Shared by the limiters that enforce a revision of a policy on a store, and the store.
#[derive(Debug)]
pub(crate) struct RevisionDenials {
    denials: Arc<Denials>,
    revision: RevisionId,
    /// The longest time for which one of the limiters caches a denial, in nanoseconds. 0 if none
    /// does.
    max_ttl: AtomicU64,
    /// The latest expiry of any cached denial. 0 if there is none, or if a check has found that all
    /// have expired: then checks neither look up their keys nor read the clock.
    latest_expiry: AtomicU64,
}

impl RevisionDenials {
    pub(crate) fn new(denials: Arc<Denials>, revision: RevisionId) -> Self {
        Self { denials, revision, max_ttl: AtomicU64::new(0), latest_expiry: AtomicU64::new(0) }
    }

    /// From now on a limiter caches denials for this time, in nanoseconds.
    pub(crate) fn keep_for(&self, ttl: u64) {
        self.max_ttl.fetch_max(ttl, Ordering::Relaxed);
    }

    /// The time, for a call that is sent after this. `None` if no limiter caches denials.
    pub(crate) fn sent_now(&self) -> Option<SentAt> {
        (self.max_ttl.load(Ordering::Relaxed) > 0).then(|| self.denials.sent_now())
    }

    /// The store has denied a check of this key, and left it in this state. It decided at `decided`
    /// (microseconds of the clock to which the state refers).
    pub(crate) fn report(&self, key: &Key, state: State, decided: u64, sent_at: SentAt) {
        let max_ttl = self.max_ttl.load(Ordering::Relaxed);
        if max_ttl > 0 {
            let denial = Denial { sent_at, received: self.now(), state, decided };
            self.denials.insert(self.revision, key, denial);
            self.latest_expiry.fetch_max(sent_at.time.saturating_add(max_ttl), Ordering::Relaxed);
        }
    }

    /// Returns true if a denial of the key is cached.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.latest_expiry.load(Ordering::Relaxed) > 0
            && self.denials.get(self.revision, key).is_some()
    }

    /// Discards the denial of a key, unless it is of a later call than one that was sent at this time.
    pub(crate) fn discard(&self, key: &Key, sent_at: SentAt) {
        self.denials.remove(self.revision, key, sent_at);
    }

    /// The last denial of a key, and the current time.
    #[inline]
    pub(crate) fn get(&self, key: &Key) -> Option<(Denial, u64)> {
        match self.latest_expiry.load(Ordering::Relaxed) {
            0 => None,
            latest_expiry => self.look_up(key, latest_expiry),
        }
    }

    fn look_up(&self, key: &Key, latest_expiry: u64) -> Option<(Denial, u64)> {
        let now = self.now();
        if now >= latest_expiry {
            // If this fails, another check has reset it, or a new denial has raised it.
            let _ = self.latest_expiry.compare_exchange(
                latest_expiry,
                0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            return None;
        }
        Some((self.denials.get(self.revision, key)?, now))
    }

    /// In nanoseconds of this process.
    fn now(&self) -> u64 {
        self.denials.now()
    }

    /// Discards the denial of a key, and those of calls that are in flight.
    pub(crate) fn reset(&self, key: &Key) {
        self.denials.reset(self.revision, key);
    }
}

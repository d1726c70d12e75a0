//! The denials of the store that this process caches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tokio::time::Instant;

use crate::Key;
use crate::algorithm::TokenBucket;
use crate::decision::Verdict;

/// The number of cached keys, at about 150 bytes each. The cache prefers keys that are looked up
/// again, so a flood of fresh keys does not evict one that keeps retrying.
const MAX_KEYS: usize = 65_536;

/// The keys that were denied last.
///
/// Only time reduces a bucket's debt, apart from a reset. So a denial bounds what the
/// store would decide later: denied, for as long as the debt is too large.
#[derive(Debug)]
pub(super) struct DenialCache {
    denials: Cache<Key, Denial, UnitWeighter, RandomState>,
    max_ttl: Duration,
    start: Instant,
    /// The latest expiry of any denial, in microseconds since `start`. While nobody is denied, no
    /// key is looked up.
    latest_expiry: AtomicU64,
    /// Counts invalidations, so that a verdict from before one is not cached after it.
    epoch: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Denial {
    expires: Instant,
    /// The bucket is not full before this time. Counted from before the check was sent.
    full_from: Instant,
    /// The bucket is full by this time if nothing else is taken. Counted from after the reply, so
    /// that a client that honors `Retry-After` is never early.
    full_by: Instant,
}

/// When a check was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentAt {
    time: Instant,
    epoch: u64,
}

impl DenialCache {
    pub(super) fn new(max_ttl: Duration) -> Self {
        Self {
            denials: Cache::with(
                MAX_KEYS,
                MAX_KEYS as u64,
                UnitWeighter,
                RandomState::default(),
                DefaultLifecycle::default(),
            ),
            max_ttl,
            start: Instant::now(),
            latest_expiry: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    /// The denial that the store would return. Otherwise the time at which the check is sent.
    pub(super) fn get(
        &self,
        key: &Key,
        cost: u64,
        bucket: &TokenBucket,
    ) -> Result<Verdict, SentAt> {
        let now = Instant::now();
        let sent_at = SentAt { time: now, epoch: self.epoch.load(Ordering::Acquire) };
        if self.micros(now) >= self.latest_expiry.load(Ordering::Relaxed) {
            return Err(sent_at);
        }
        let denial = self.denials.get(key).filter(|denial| now < denial.expires).ok_or(sent_at)?;
        let check = |full: Instant| {
            let left = full.saturating_duration_since(now).as_micros() as u64;
            bucket.check(&mut bucket.debt_of(left), cost)
        };
        if check(denial.full_from).is_allowed() {
            return Err(sent_at);
        }
        Ok(check(denial.full_by))
    }

    /// Caches a verdict if it is a denial.
    pub(super) fn insert(&self, key: &Key, verdict: &Verdict, sent_at: SentAt) {
        if verdict.is_allowed() || sent_at.epoch != self.epoch.load(Ordering::Acquire) {
            return;
        }
        let full_after = Duration::from_micros(verdict.reset_after);
        // The store rounded up to the next microsecond.
        let at_least = full_after.saturating_sub(Duration::from_micros(1));
        let denial = Denial {
            expires: sent_at.time + self.max_ttl,
            full_from: sent_at.time + at_least,
            full_by: Instant::now() + full_after,
        };
        self.denials.insert(key.clone(), denial);
        self.latest_expiry.fetch_max(self.micros(denial.expires), Ordering::Relaxed);
        // An invalidation between the first look and the insertion.
        if sent_at.epoch != self.epoch.load(Ordering::Acquire) {
            self.denials.remove(key);
        }
    }

    pub(super) fn invalidate(&self, key: &Key) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.denials.remove(key);
    }

    pub(super) fn clear(&self) {
        self.denials.clear();
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;
    use std::time::Duration;
    use tokio::time::advance;

    fn bucket() -> TokenBucket {
        TokenBucket::new("", &Quota::per_second(10)).unwrap()
    }

    fn denial(bucket: &TokenBucket) -> Verdict {
        bucket.check(&mut bucket.capacity(), 1)
    }

    fn sent_at(cache: &DenialCache) -> SentAt {
        cache.get(&"nobody".into(), 1, &bucket()).unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_cached_denial_ends_no_later_and_reports_no_less_than_the_store() {
        let (cache, bucket, key) =
            (DenialCache::new(Duration::from_secs(9)), bucket(), Key::from("a"));
        let sent_at = sent_at(&cache);
        advance(Duration::from_millis(7)).await;
        cache.insert(&key, &denial(&bucket), sent_at);

        assert_eq!(cache.get(&key, 1, &bucket).unwrap().retry_after, 100_000);
        // Ten permits are the whole bucket: the wait is for them, not for the one denied.
        assert_eq!(cache.get(&key, 10, &bucket).unwrap().retry_after, 1_000_000);

        // The store may have decided as early as the check was sent.
        advance(Duration::from_millis(93)).await;
        assert!(cache.get(&key, 1, &bucket).is_err());
        assert!(!cache.get(&key, 2, &bucket).unwrap().is_allowed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_is_cached_no_longer_than_configured() {
        let (cache, key) = (DenialCache::new(Duration::from_millis(30)), Key::from("a"));
        cache.insert(&key, &denial(&bucket()), sent_at(&cache));
        advance(Duration::from_millis(29)).await;
        assert!(cache.get(&key, 1, &bucket()).is_ok());
        advance(Duration::from_millis(1)).await;
        assert!(cache.get(&key, 1, &bucket()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_from_before_a_reset_is_not_cached_after_it() {
        let (cache, key) = (DenialCache::new(Duration::from_secs(1)), Key::from("a"));
        let sent_at = sent_at(&cache);
        cache.invalidate(&key);
        cache.insert(&key, &denial(&bucket()), sent_at);
        assert!(cache.get(&key, 1, &bucket()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_other_keys_does_not_evict_one_that_keeps_retrying() {
        let (cache, bucket, key) =
            (DenialCache::new(Duration::from_secs(1)), bucket(), Key::from("retrying"));
        let sent_at = sent_at(&cache);
        cache.insert(&key, &denial(&bucket), sent_at);
        for other in 0..20 * MAX_KEYS {
            cache.insert(&Key::from(other), &denial(&bucket), sent_at);
            if other % 64 == 0 {
                assert!(cache.get(&key, 1, &bucket).is_ok(), "after {other} others");
            }
        }
        assert!(cache.denials.len() <= MAX_KEYS);
    }
}

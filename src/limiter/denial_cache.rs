//! The denials of the store that a limiter caches, under one revision of its policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Key;
use crate::algorithm::{Rate, TokenBucket};
use crate::decision::Verdict;
use crate::store::{Denial, Denials, RevisionId, SentAt};

/// The keys that were denied last. The memory is that of the store, which bounds it.
///
/// Only time reduces a bucket's debt, apart from a reset. So a denial bounds what the
/// store would decide later: denied, for as long as the debt is too large.
#[derive(Debug)]
pub(super) struct DenialCache {
    denials: Arc<Denials>,
    revision: RevisionId,
    max_ttl: u64,
    /// The latest expiry of any denial of this limiter. While nobody is denied, no key is looked up.
    latest_expiry: AtomicU64,
}

impl DenialCache {
    pub(super) fn new(denials: Arc<Denials>, revision: RevisionId, max_ttl: Duration) -> Self {
        let max_ttl = nanos(max_ttl);
        Self { denials, revision, max_ttl, latest_expiry: AtomicU64::new(0) }
    }

    /// The denial that the store would return. Otherwise the time at which the check is sent.
    pub(super) fn get(
        &self,
        key: &Key,
        cost: u64,
        bucket: &TokenBucket,
    ) -> Result<Verdict, SentAt> {
        let sent_at = self.denials.sent_now();
        let now = sent_at.time;
        if now >= self.latest_expiry.load(Ordering::Relaxed) {
            return Err(sent_at);
        }
        let denial = self.denials.get(self.revision, key);
        let denial =
            denial.filter(|denial| now < self.expiry(denial.sent_at.time)).ok_or(sent_at)?;
        let rate = denial.other_rate.unwrap_or(bucket.rate());
        let check = |full: u64, cost: u64| {
            let left = full.saturating_sub(now) / 1_000;
            bucket.check(&mut rate.debt(left), cost)
        };
        // A smaller check that is allowed sets the bucket to this revision's rate, which may be
        // faster. Until there is a permit, none is.
        let needed = if denial.other_rate.is_some() { cost.min(1) } else { cost };
        if check(denial.full_from, needed).is_allowed() {
            return Err(sent_at);
        }
        Ok(check(denial.full_by, cost))
    }

    /// Caches a verdict if it is a denial. `limit` is the capacity in permits.
    pub(super) fn insert(&self, key: &Key, verdict: &Verdict, sent_at: SentAt, limit: u64) {
        if verdict.is_allowed() {
            return;
        }
        let mut other_rate = None;
        if verdict.is_other_rate {
            // See `get`.
            if verdict.remaining > 0 {
                return;
            }
            // All permits but the first refill between these times.
            let micros = verdict.reset_after.saturating_sub(verdict.refill_after);
            other_rate = Rate::new(micros, limit.saturating_sub(1));
        }
        let sent = sent_at.time;
        // The store rounded up to the next microsecond.
        let at_least = nanos(Duration::from_micros(verdict.reset_after.saturating_sub(1)));
        let at_most = nanos(Duration::from_micros(verdict.reset_after));
        let denial = Denial {
            sent_at,
            // Counted from before the check was sent.
            full_from: sent.saturating_add(at_least),
            // Counted from after the reply, so that a client that honors `Retry-After` is never
            // early.
            full_by: self.denials.now().saturating_add(at_most),
            other_rate,
        };
        self.denials.insert(self.revision, key, denial);
        self.latest_expiry.fetch_max(self.expiry(sent), Ordering::Relaxed);
    }

    fn expiry(&self, sent: u64) -> u64 {
        sent.saturating_add(self.max_ttl)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;
    use tokio::time::advance;

    fn cache(max_ttl: Duration) -> DenialCache {
        DenialCache::new(Arc::default(), RevisionId(1), max_ttl)
    }

    fn bucket() -> TokenBucket {
        TokenBucket::new("", &Quota::per_second(10)).unwrap()
    }

    fn denial(bucket: &TokenBucket) -> Verdict {
        bucket.check(&mut bucket.empty(), 1)
    }

    fn sent_at(cache: &DenialCache) -> SentAt {
        cache.get(&"nobody".into(), 1, &bucket()).unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_cached_denial_ends_no_later_and_reports_no_less_than_the_store() {
        let (cache, bucket, key) = (cache(Duration::from_secs(9)), bucket(), Key::from("a"));
        let sent_at = sent_at(&cache);
        advance(Duration::from_millis(7)).await;
        cache.insert(&key, &denial(&bucket), sent_at, 10);

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
        let (cache, key) = (cache(Duration::from_millis(30)), Key::from("a"));
        cache.insert(&key, &denial(&bucket()), sent_at(&cache), 10);
        advance(Duration::from_millis(29)).await;
        assert!(cache.get(&key, 1, &bucket()).is_ok());
        advance(Duration::from_millis(1)).await;
        assert!(cache.get(&key, 1, &bucket()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn each_limiter_of_a_policy_keeps_denials_no_longer_than_itself_allows() {
        let (denials, key) = (Arc::<Denials>::default(), Key::from("a"));
        let of_ttl = |millis| {
            DenialCache::new(denials.clone(), RevisionId(1), Duration::from_millis(millis))
        };
        let (short, long) = (of_ttl(10), of_ttl(30));
        let sent_at = sent_at(&short);
        for cache in [&short, &long] {
            cache.insert(&key, &denial(&bucket()), sent_at, 10);
        }
        advance(Duration::from_millis(9)).await;
        assert!(short.get(&key, 1, &bucket()).is_ok());
        advance(Duration::from_millis(5)).await;
        assert!(short.get(&key, 1, &bucket()).is_err());
        assert!(long.get(&key, 1, &bucket()).is_ok());
        advance(Duration::from_millis(16)).await;
        assert!(long.get(&key, 1, &bucket()).is_err());
    }

    /// A permit takes a second at the rate of the other revision, and 100 ms at the own one.
    fn of_another_revision(seconds: u64) -> (TokenBucket, Verdict) {
        let other = TokenBucket::new("", &Quota::per_second(1)).unwrap();
        let verdict = bucket().check(&mut other.rate().debt(seconds * 1_000_000), 10);
        (bucket(), verdict)
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_by_another_revision_is_cached_at_its_rate_and_until_there_is_a_permit() {
        let (cache, key) = (cache(Duration::from_secs(99)), Key::from("a"));
        // Used by a revision with a larger capacity.
        let (bucket, verdict) = of_another_revision(12);
        cache.insert(&key, &verdict, sent_at(&cache), 10);
        advance(Duration::from_millis(2_990)).await;
        assert_eq!(cache.get(&key, 1, &bucket).unwrap().retry_after, 10_000);
        assert_eq!(cache.get(&key, 3, &bucket).unwrap().retry_after, 2_010_000);
        // If a check takes the permit, the others refill at the own rate.
        advance(Duration::from_millis(10)).await;
        assert!(cache.get(&key, 3, &bucket).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_by_another_revision_is_not_cached_while_a_smaller_check_is_allowed() {
        let (cache, key) = (cache(Duration::from_secs(99)), Key::from("a"));
        let (bucket, verdict) = of_another_revision(9);
        assert!(verdict.remaining == 1 && !verdict.is_allowed());
        cache.insert(&key, &verdict, sent_at(&cache), 10);
        assert!(cache.get(&key, 10, &bucket).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_other_keys_does_not_evict_one_that_keeps_retrying() {
        let (cache, bucket, key) = (cache(Duration::from_secs(1)), bucket(), Key::from("retrying"));
        let sent_at = sent_at(&cache);
        cache.insert(&key, &denial(&bucket), sent_at, 10);
        for other in 0..20 * Denials::MAX_KEYS {
            cache.insert(&Key::from(other), &denial(&bucket), sent_at, 10);
            if other % 64 == 0 {
                assert!(cache.get(&key, 1, &bucket).is_ok(), "after {other} others");
            }
        }
        assert!(cache.denials.len() <= Denials::MAX_KEYS);
    }
}

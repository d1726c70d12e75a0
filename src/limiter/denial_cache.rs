//! The denials of the store that a limiter caches, under one revision of its policy.

use std::sync::Arc;
use std::time::Duration;

use crate::Key;
use crate::algorithm::{Cost, Limits};
use crate::store::RevisionDenials;
use crate::verdict::Verdict;

/// The keys that were denied last. The store reports and bounds them.
///
/// Only time lowers a level, apart from a reset, a credit, and a place in a queue that is given
/// back. So a denial bounds what the store would decide later: denied, for as long as a level is
/// too high.
#[derive(Debug)]
pub(super) struct DenialCache {
    denials: Arc<RevisionDenials>,
    /// In nanoseconds.
    max_ttl: u64,
}

impl DenialCache {
    pub(super) fn new(denials: Arc<RevisionDenials>, max_ttl: Duration) -> Self {
        let max_ttl = u64::try_from(max_ttl.as_nanos()).unwrap_or(u64::MAX);
        denials.keep_for(max_ttl);
        Self { denials, max_ttl }
    }

    /// The denial that the store would return, if it is known.
    #[inline]
    pub(super) fn get(&self, key: &Key, cost: &impl Cost, limits: &Limits) -> Option<Verdict> {
        let (denial, now) = self.denials.get(key)?;
        let sent = denial.sent_at.time;
        if now >= sent.saturating_add(self.max_ttl) {
            return None;
        }
        // The store may have decided as early as the check was sent, or as late as the reply was
        // received. So a client that honors `Retry-After` is never early.
        let latest = denial.decided.saturating_add(now.saturating_sub(sent).div_ceil(1_000));
        let earliest = denial.decided.saturating_add(now.saturating_sub(denial.received) / 1_000);
        limits.denial(&denial.state, cost, earliest..=latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{State, TokenBucket};
    use crate::store::{Denials, RevisionId, SentAt};
    use crate::{Key, Quota};
    use tokio::time::advance;

    const DECIDED: u64 = 7_000_000;

    fn revision(denials: &Arc<Denials>) -> Arc<RevisionDenials> {
        RevisionDenials::new(denials.clone(), RevisionId(1)).into()
    }

    fn cache(max_ttl: Duration) -> DenialCache {
        DenialCache::new(revision(&Arc::default()), max_ttl)
    }

    fn limits() -> Limits {
        Limits::new(&Quota::per_second(10).into(), 0).unwrap()
    }

    /// The state of a bucket that is full this long after the decision.
    fn full_after(quota: Quota, time: Duration) -> State {
        let bucket = TokenBucket::new(&quota).unwrap();
        State::Lone(bucket.rate().debt(time.as_micros() as u64).state(DECIDED))
    }

    fn empty() -> State {
        full_after(Quota::per_second(10), Duration::from_secs(1))
    }

    fn report(cache: &DenialCache, key: &Key, state: State, sent_at: SentAt) {
        cache.denials.report(key, state, DECIDED, sent_at);
    }

    fn sent_at(cache: &DenialCache) -> SentAt {
        cache.denials.sent_now().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_is_found_after_all_earlier_ones_have_expired() {
        let (cache, limits, key) = (cache(Duration::from_secs(1)), limits(), Key::from("a"));
        for _ in 0..2 {
            report(&cache, &key, empty(), sent_at(&cache));
            assert!(cache.get(&key, &1, &limits).is_some());
            advance(Duration::from_secs(1)).await;
            assert_eq!(cache.get(&key, &1, &limits), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cached_denial_ends_no_later_and_reports_no_less_than_the_store() {
        let (cache, limits, key) = (cache(Duration::from_secs(9)), limits(), Key::from("a"));
        let sent_at = sent_at(&cache);
        advance(Duration::from_millis(7)).await;
        report(&cache, &key, empty(), sent_at);

        assert_eq!(cache.get(&key, &1, &limits).unwrap().numbers.retry_after, 100_000);
        // Ten permits are the whole bucket: the wait is for them, not for the one denied.
        assert_eq!(cache.get(&key, &10, &limits).unwrap().numbers.retry_after, 1_000_000);

        // The store may have decided as early as the check was sent.
        advance(Duration::from_millis(93)).await;
        assert_eq!(cache.get(&key, &1, &limits), None);
        assert!(!cache.get(&key, &2, &limits).unwrap().is_allowed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_smaller_check_is_sent_after_a_larger_one_was_denied() {
        let (cache, limits, key) = (cache(Duration::from_secs(9)), limits(), Key::from("a"));
        let half = full_after(Quota::per_second(10), Duration::from_millis(500));
        report(&cache, &key, half, sent_at(&cache));
        assert_eq!(cache.get(&key, &5, &limits), None);
        assert_eq!(cache.get(&key, &6, &limits).unwrap().numbers.retry_after, 100_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_is_cached_no_longer_than_configured() {
        let (cache, key) = (cache(Duration::from_millis(30)), Key::from("a"));
        report(&cache, &key, empty(), sent_at(&cache));
        advance(Duration::from_millis(29)).await;
        assert!(cache.get(&key, &1, &limits()).is_some());
        advance(Duration::from_millis(1)).await;
        assert_eq!(cache.get(&key, &1, &limits()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn each_limiter_of_a_policy_keeps_denials_no_longer_than_itself_allows() {
        let (revision, key) = (revision(&Arc::default()), Key::from("a"));
        let of_ttl = |millis| DenialCache::new(revision.clone(), Duration::from_millis(millis));
        let (short, long) = (of_ttl(10), of_ttl(30));
        report(&short, &key, empty(), sent_at(&short));
        advance(Duration::from_millis(9)).await;
        assert!(short.get(&key, &1, &limits()).is_some());
        advance(Duration::from_millis(5)).await;
        assert_eq!(short.get(&key, &1, &limits()), None);
        assert!(long.get(&key, &1, &limits()).is_some());
        advance(Duration::from_millis(16)).await;
        assert_eq!(long.get(&key, &1, &limits()), None);
    }

    /// A permit takes a second at the rate of the other revision, and 100 ms at the own one.
    fn of_another_revision(seconds: u64) -> State {
        full_after(Quota::per_second(1), Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_by_another_revision_is_cached_at_its_rate_and_until_there_is_a_permit() {
        let (cache, limits, key) = (cache(Duration::from_secs(99)), limits(), Key::from("a"));
        // Used by a revision with a larger capacity.
        report(&cache, &key, of_another_revision(12), sent_at(&cache));
        advance(Duration::from_millis(2_990)).await;
        assert_eq!(cache.get(&key, &1, &limits).unwrap().numbers.retry_after, 10_000);
        assert_eq!(cache.get(&key, &3, &limits).unwrap().numbers.retry_after, 2_010_000);
        // If a check takes the permit, the others refill at the own rate.
        advance(Duration::from_millis(10)).await;
        assert_eq!(cache.get(&key, &3, &limits), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_by_another_revision_is_not_cached_while_a_smaller_check_is_allowed() {
        let (cache, key) = (cache(Duration::from_secs(99)), Key::from("a"));
        report(&cache, &key, of_another_revision(9), sent_at(&cache));
        assert_eq!(cache.get(&key, &10, &limits()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_if_no_limiter_caches_denials() {
        let cache = cache(Duration::ZERO);
        assert_eq!(cache.denials.sent_now(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_other_keys_does_not_evict_one_that_keeps_retrying() {
        let (denials, key) = (Arc::default(), Key::from("retrying"));
        let cache = DenialCache::new(revision(&denials), Duration::from_secs(1));
        let (limits, sent_at) = (limits(), sent_at(&cache));
        report(&cache, &key, empty(), sent_at);
        for other in 0..20 * Denials::MAX_KEYS {
            report(&cache, &Key::from(other), empty(), sent_at);
            if other % 64 == 0 {
                assert!(cache.get(&key, &1, &limits).is_some(), "after {other} others");
            }
        }
        assert!(denials.len() <= Denials::MAX_KEYS);
    }
}

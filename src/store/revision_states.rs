//! The cached states of keys, as one revision of a policy reports and reads them: the cache of denials.
//!
//! A cached denial is a lower bound on the level: checks only raise a level, and only time lowers it. A check
//! that the cache does not deny may take permits that the cached state still has. So the state in which its
//! batch leaves the key replaces the cached one, or discards the denial if there are permits left. A reset or
//! another quota in another process makes a cached denial wrong, so it is used for at most the time of
//! `LimiterBuilder::cache_denials` (default and maximum: `limiter/builder.rs`). A bucket that another revision
//! charged last refills at that revision's rate until the next charge, which may change the rate. So such a
//! denial is used only while the bucket has no permits, when nothing can be charged. → `tests/it/denials.rs`

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lease::{KeyLease, LeaseReport, LeaseTerms};
use super::{CachedState, KeyState, RevisionId, SentAt, StateCache};
use crate::Key;
use crate::algorithm::Limits;
use crate::charge::Cost;
use crate::verdict::Verdict;

/// The states that a store reports for a revision of a policy. All limiters that enforce the revision
/// share it.
#[derive(Debug)]
pub(crate) struct RevisionStates {
    cache: Arc<StateCache>,
    revision: RevisionId,
    /// The longest time for which one of the limiters caches a denial, in nanoseconds. 0 if none
    /// does.
    max_ttl: AtomicU64,
    /// The latest expiry of any cached denial. 0 if there is none, or if a check has found that all
    /// have expired: then checks neither look up their keys nor read the clock.
    latest_expiry: AtomicU64,
}

impl RevisionStates {
    pub(crate) fn new(cache: Arc<StateCache>, revision: RevisionId) -> Self {
        Self { cache, revision, max_ttl: AtomicU64::new(0), latest_expiry: AtomicU64::new(0) }
    }

    /// Returns the identity of the policy, which all its revisions have.
    #[cfg(feature = "redis")]
    pub(crate) fn policy(&self) -> u64 {
        self.revision.policy
    }

    /// Registers a limiter that caches denials for this time, in nanoseconds.
    pub(crate) fn cache_denials_for(&self, ttl: u64) {
        self.max_ttl.fetch_max(ttl, Ordering::Relaxed);
    }

    /// Returns true if a limiter caches denials.
    pub(crate) fn has_denial_cache(&self) -> bool {
        self.max_ttl.load(Ordering::Relaxed) > 0
    }

    /// Returns the time, for a call that is sent afterwards.
    pub(crate) fn sent_now(&self) -> SentAt {
        self.cache.sent_now()
    }

    /// Stores the state in which a call has left a key, as decided at `decided` (microseconds of the clock
    /// to which the state refers).
    pub(crate) fn insert(
        &self,
        key: &Key,
        state: KeyState,
        decided: u64,
        sent_at: SentAt,
        is_denial: bool,
    ) {
        let state = self.received(state, decided, sent_at);
        self.cache.insert(self.revision, key, state, is_denial);
        if is_denial {
            let max_ttl = self.max_ttl.load(Ordering::Relaxed);
            self.latest_expiry.fetch_max(sent_at.time.saturating_add(max_ttl), Ordering::Relaxed);
        }
    }

    /// Returns the time of the call that has denied a key, if its denial is cached.
    pub(crate) fn denied_by(&self, key: &Key) -> Option<SentAt> {
        match self.latest_expiry.load(Ordering::Relaxed) {
            0 => None,
            _ => Some(self.cache.denial(self.revision, key)?.sent_at),
        }
    }

    /// Removes the state of a key, unless it is of a later call than one that was sent at this time.
    pub(crate) fn remove(&self, key: &Key, sent_at: SentAt) {
        self.cache.remove(self.revision, key, sent_at);
    }

    /// Ends the denials of a key under all revisions, also those of calls that are in flight. A key needs
    /// this when it gets permits back.
    pub(crate) fn end_denials(&self, key: &Key) {
        self.cache.end_denials(self.revision, key);
    }

    /// Returns the state in which a call has last left a key under any revision, and the earliest time that
    /// the clock of the server may show now.
    pub(crate) fn last(&self, key: &Key) -> Option<(KeyState, u64)> {
        let known = self.cache.get(self.revision, key)?;
        let earliest = *known.server_times(self.cache.now()).start();
        Some((known.state, earliest))
    }

    /// Returns the leases of a key under this revision, if it was checked before.
    #[inline]
    pub(crate) fn lease(&self, key: &Key) -> Option<Arc<KeyLease>> {
        self.cache.lease(self.revision, key)
    }

    /// Records what a call has found and leased, of a key of a policy with leases. `owner` is the policy in the form
    /// of the store. Returns the number of checks that leases have allowed since the last call.
    pub(crate) fn report(
        &self,
        terms: &Arc<LeaseTerms>,
        owner: &Arc<impl Any + Send + Sync>,
        key: &Key,
        report: LeaseReport,
    ) -> usize {
        let sent_at = report.known.sent_at;
        let lease = self.lease(key).unwrap_or_else(|| {
            let (leases, quotas) = (self.cache.leases(), report.free.len());
            let lease = KeyLease::new(leases, key, terms, owner.clone(), quotas, sent_at.time);
            let lease = Arc::new(lease);
            self.cache.insert_lease(self.revision, key, lease.clone());
            lease
        });
        let is_denial = report.is_denial && !self.cache.is_reset(self.revision, key, sent_at);
        let allowed = lease.report(owner, LeaseReport { is_denial, ..report });
        // The denials may have been ended meanwhile.
        if is_denial && self.cache.is_reset(self.revision, key, sent_at) {
            lease.end_denial();
        }
        allowed
    }

    /// Returns the state in which a call has left a key, whose reply was just received.
    pub(crate) fn received(&self, state: KeyState, decided: u64, sent_at: SentAt) -> CachedState {
        CachedState { state, decided, sent_at, received: self.cache.now() }
    }

    /// Ends the leases of a key that was reset.
    pub(crate) fn void_leases(&self, key: &Key) {
        self.cache.void_leases(self.revision, key);
    }

    /// Returns the time of this process, in nanoseconds.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.cache.now()
    }

    /// Returns the denial with which the server would decide a check, if it is known. `max_ttl` is the
    /// longest time for which it is used, in nanoseconds.
    #[inline]
    pub(crate) fn denial(
        &self,
        key: &Key,
        cost: &impl Cost,
        limits: &Limits,
        max_ttl: u64,
    ) -> Option<Verdict> {
        match self.latest_expiry.load(Ordering::Relaxed) {
            0 => None,
            latest_expiry => {
                let now = self.now_before(latest_expiry)?;
                self.cache.denial(self.revision, key)?.denial(cost, limits, now, max_ttl)
            }
        }
    }

    /// Returns the current time, unless all denials have expired.
    fn now_before(&self, latest_expiry: u64) -> Option<u64> {
        let now = self.cache.now();
        if now < latest_expiry {
            return Some(now);
        }
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        // If this fails, another check has reset it, or a new denial has raised it.
        let _ = self.latest_expiry.compare_exchange(latest_expiry, 0, success, failure);
        None
    }
}

impl CachedState {
    /// Returns the verdict on a check if it is a denial, whatever other checks have taken since.
    ///
    /// Only time lowers a level, apart from a reset, a credit, and a place in a queue that is given back.
    /// So a state bounds what the server would decide later: it denies while a level is too high even at
    /// the latest time that its clock may show. The wait is counted from the earliest, so that a client
    /// that honors `Retry-After` is never early.
    pub(super) fn denial(
        &self,
        cost: &impl Cost,
        limits: &Limits,
        now: u64,
        max_ttl: u64,
    ) -> Option<Verdict> {
        if now >= self.sent_at.time.saturating_add(max_ttl) {
            return None;
        }
        self.state.denial(limits, cost, self.server_times(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::{Policy, Quota};

    const REVISION: RevisionId = RevisionId { policy: 1, number: 1 };
    const DECIDED: u64 = 7_000_000;

    /// A limiter that caches denials.
    struct Cache {
        states: Arc<RevisionStates>,
        max_ttl: u64,
    }

    impl Cache {
        fn new(states: &Arc<RevisionStates>, max_ttl: Duration) -> Self {
            let max_ttl = max_ttl.as_nanos() as u64;
            states.cache_denials_for(max_ttl);
            Self { states: states.clone(), max_ttl }
        }

        fn get(&self, key: &Key, cost: &impl Cost, limits: &Limits) -> Option<Verdict> {
            self.states.denial(key, cost, limits, self.max_ttl)
        }
    }

    fn states(cache: &Arc<StateCache>) -> Arc<RevisionStates> {
        RevisionStates::new(cache.clone(), REVISION).into()
    }

    fn cache(max_ttl: Duration) -> Cache {
        Cache::new(&states(&StateCache::for_tests().into()), max_ttl)
    }

    fn limits() -> Limits {
        Limits::new(&Quota::per_second(10).into(), 0).unwrap()
    }

    /// The state of a bucket that is full this long after the decision.
    fn full_after(quota: Quota, time: Duration) -> KeyState {
        let bucket = TokenBucket::new(&quota).unwrap();
        KeyState::Unnamed(bucket.rate().debt(time.as_micros() as u64).state(DECIDED))
    }

    fn empty() -> KeyState {
        full_after(Quota::per_second(10), Duration::from_secs(1))
    }

    fn report(cache: &Cache, key: &Key, state: KeyState, sent_at: SentAt) {
        cache.states.insert(key, state, DECIDED, sent_at, true);
    }

    fn sent_at(cache: &Cache) -> SentAt {
        cache.states.sent_now()
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
        let (states, key) = (states(&StateCache::for_tests().into()), Key::from("a"));
        let of_ttl = |millis| Cache::new(&states, Duration::from_millis(millis));
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
    fn of_another_revision(seconds: u64) -> KeyState {
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
    async fn a_limiter_without_a_cache_looks_for_no_denial() {
        let cache = cache(Duration::ZERO);
        assert!(!cache.states.has_denial_cache());
        report(&cache, &Key::from("a"), empty(), sent_at(&cache));
        assert_eq!(cache.get(&Key::from("a"), &1, &limits()), None);
    }

    /// Fresh keys that are denied, and fresh ones of which a state is known.
    #[tokio::test(start_paused = true)]
    async fn a_flood_of_other_keys_does_not_evict_one_that_keeps_retrying() {
        let (all, key) = (Arc::new(StateCache::for_tests()), Key::from("retrying"));
        let cache = Cache::new(&states(&all), Duration::from_secs(1));
        let (limits, sent_at) = (limits(), sent_at(&cache));
        report(&cache, &key, empty(), sent_at);
        for other in 0..20 * StateCache::LEAST_KEYS {
            let is_denial = other % 2 == 0;
            cache.states.insert(&Key::from(other), empty(), DECIDED, sent_at, is_denial);
            if other % 64 == 0 {
                assert!(cache.get(&key, &1, &limits).is_some(), "after {other} others");
            }
        }
        assert!(all.len() <= StateCache::LEAST_KEYS);
    }

    fn quota() -> impl Strategy<Value = Quota> {
        (0..6u8, 1..=20u64, 1..=3_600u64, 1..=40u64).prop_map(|(kind, permits, seconds, burst)| {
            let quota = Quota::new(permits, Duration::from_secs(seconds));
            match kind {
                0 => quota.burst(burst),
                1 => quota.burst(burst).borrow_up_to(burst),
                2 => quota.burst(burst).interval_refill(),
                3 => quota.fixed_window(),
                4 => quota.approximate_sliding_window(),
                _ => quota.sliding_window(4),
            }
        })
    }

    proptest! {
        /// The server may decide at any time between the call and its reply, by a clock that has nothing
        /// in common with the one of the process. The state is read at a later time.
        #[test]
        fn a_cached_state_denies_exactly_what_the_server_denies_whenever_it_decided(
            quotas in prop::collection::vec(quota(), 1..=3),
            taken in prop::collection::vec((0..=5_000_000u64, 1..=10u64), 1..20),
            (sent, to_server, to_process) in (0..u64::MAX / 4, 0..50_000_000u64, 0..50_000_000u64),
            passed in 0..=4_000_000_000_000u64,
            near_the_end in prop::option::weighted(0.8, -60_000_000..=60_000_000i64),
            clock in 1_000_000_000_000_000..2_000_000_000_000_000u64,
            cost in 1..=20u64,
        ) {
            let named = quotas.iter().zip('a'..);
            let policy = named.fold(Policy::new("test"), |policy, (quota, name)| {
                policy.quota(name.to_string(), *quota)
            });
            let limits = Limits::new(&policy, 0).unwrap();
            let (mut state, mut decided) = (KeyState::unused(), clock);
            for (pause, cost) in taken {
                decided += pause;
                let mut levels = KeyState::standing(Some(&state), &limits, decided);
                if limits.check(&mut levels, &cost).is_allowed() {
                    state = KeyState::after(&levels, Some(&state), &limits, decided);
                }
            }
            let server = |at: u64| {
                limits.check(&mut KeyState::standing(Some(&state), &limits, at), &cost)
            };
            let received = sent + to_server + to_process;
            let now = match near_the_end {
                None => received + passed,
                Some(after) => {
                    let wait = server(decided).numbers.retry_after.min(u64::MAX >> 12) * 1_000;
                    (sent + to_server + wait).saturating_add_signed(after).max(received)
                }
            };
            let mut sent_at = StateCache::default().sent_now();
            sent_at.time = sent;
            let cached = CachedState { state: state.clone(), decided, sent_at, received };
            let denial = cached.denial(&cost, &limits, now, u64::MAX);

            // The clock of the server may have ticked just before it decided, or just after.
            let since_decided = now - sent - to_server;
            for at in [since_decided / 1_000, since_decided.div_ceil(1_000)] {
                let real = server(decided + at);
                if let Some(denial) = &denial {
                    prop_assert!(!real.is_allowed(), "{real:?}");
                    prop_assert!(denial.numbers.retry_after >= real.numbers.retry_after);
                    let unknown = (to_server + to_process) / 1_000 + 2;
                    let most = real.numbers.retry_after.saturating_add(unknown);
                    prop_assert!(denial.numbers.retry_after <= most);
                }
            }
            let latest = server(decided + (now - sent).div_ceil(1_000));
            prop_assert_eq!(denial.is_some(), !latest.is_allowed());
            prop_assert!(cached.denial(&cost, &limits, now, now - sent).is_none());
        }
    }
}

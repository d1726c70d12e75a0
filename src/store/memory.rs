//! The store in memory, its clock, and its blocked keys. `shards` holds the buckets.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::blocks::KnownBlocks;
use super::manual_clock::ManualClock;
use super::shards::{Bucket, PolicyIndex, Shards};
use super::{KeyState, Op, Registry, Store};
use crate::Key;
use crate::algorithm::Limits;
use crate::metrics::MemoryMetrics;
use crate::verdict::Verdict;

/// A [`Store`] that keeps buckets in the memory of this process. The decisions are the same as on
/// Redis, for one process.
///
/// Clones share their buckets. Memory is bounded: full buckets are dropped lazily as new keys
/// arrive. At the [maximum number of keys](Self::with_max_keys) the bucket nearest to full is evicted.
/// One that was denied, and is still used up, is evicted only when there are no others. So a flood of
/// fresh keys does not evict the keys that are being denied. Policies that share a store compete for
/// it, and the keys of short windows lose, also to a flood of denied keys. If clients choose the keys
/// of a policy with long windows, give it a store of its own. There is no background task.
///
/// The clock is [`tokio::time::Instant`]: the monotonic clock, or the paused clock of a test. No
/// Tokio runtime is needed. [`with_manual_clock`](Self::with_manual_clock) uses a [`ManualClock`].
///
/// ```
/// use fleetlimit::{Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(1))?;
/// assert!(limiter.check("user:7").await?.is_allowed());
/// assert!(limiter.check("user:7").await?.is_denied());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    pub(super) shared: Arc<MemoryInner>,
}

pub(super) struct MemoryInner {
    clock: Clock,
    shards: Shards,
    max_keys: usize,
    policies: Mutex<Vec<Arc<str>>>,
    pub(super) registry: Registry,
    pub(super) blocks: Arc<KnownBlocks>,
    evictions: AtomicU64,
    metrics: MemoryMetrics,
}

enum Clock {
    /// Tokio's, and what the system's clock said at the start, in microseconds since 1970.
    Tokio {
        start: Instant,
        started_at: u64,
    },
    Manual(ManualClock),
}

impl MemoryStore {
    const DEFAULT_KEYS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

    /// A store for at most a million keys, counting all policies that share it. That is about 205 MB
    /// when full of keys of up to 32 bytes, and 335 MB with the longest keys.
    pub fn new() -> Self {
        Self::with_max_keys(Self::DEFAULT_KEYS)
    }

    /// A store for at most `keys` keys, counting all policies that share it. A key takes about 205
    /// bytes, and up to 32 more if most keys are denied. One longer than 32 bytes takes its length in
    /// addition.
    ///
    /// Keys are spread over up to 64 shards by a random hash. Each shard evicts when it is full, so
    /// eviction can begin a few percent below the maximum. Below 4,096 keys there is one shard, and
    /// the maximum is exact.
    pub fn with_max_keys(keys: NonZeroUsize) -> Self {
        Self::build(keys, Clock::tokio(SystemTime::now()))
    }

    /// Like [`new`](Self::new), but the store's clock starts at `time` instead of the system time,
    /// for tests of [`calendar`](crate::Quota::calendar) quotas. From there it follows Tokio's
    /// clock, which a test can pause and advance. A time before 1970 counts as 1970-01-01 00:00
    /// UTC.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A minute before midnight.
    /// let store = MemoryStore::starting_at(UNIX_EPOCH + Duration::from_secs(86_400 - 60));
    /// let limiter = Limiter::new(store, Quota::per_day(1_000).calendar())?;
    /// let decision = limiter.check("user:7").await?;
    /// assert!(decision.reset_after() <= Duration::from_secs(60));
    /// # Ok(()) }
    /// ```
    pub fn starting_at(time: SystemTime) -> Self {
        Self::build(Self::DEFAULT_KEYS, Clock::tokio(time))
    }

    /// Like [`with_max_keys`](Self::with_max_keys), with a manually advanced clock.
    pub fn with_manual_clock(keys: NonZeroUsize, clock: ManualClock) -> Self {
        Self::build(keys, Clock::Manual(clock))
    }

    fn build(keys: NonZeroUsize, clock: Clock) -> Self {
        Self {
            shared: Arc::new(MemoryInner {
                clock,
                shards: Shards::new(keys.get()),
                max_keys: keys.get(),
                policies: Mutex::default(),
                registry: Registry::default(),
                blocks: Arc::default(),
                evictions: AtomicU64::new(0),
                metrics: MemoryMetrics::default(),
            }),
        }
    }

    /// The number of buckets in the store, including full ones that are not dropped yet.
    pub fn len(&self) -> usize {
        self.shared.shards.len()
    }

    /// Returns true if the store has no buckets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of buckets that have been evicted before they were full.
    pub fn evictions(&self) -> u64 {
        self.shared.evictions.load(Ordering::Relaxed)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("max_keys", &self.shared.max_keys).finish()
    }
}

impl Store for MemoryStore {}

/// The methods for this crate only.
impl MemoryStore {
    /// The buckets of the policy with this name.
    pub(super) fn buckets(&self, name: &Arc<str>) -> PolicyIndex {
        // Nothing that panics runs under the lock.
        let mut policies = self.shared.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let index = policies.iter().position(|other| other == name).unwrap_or_else(|| {
            policies.push(name.clone());
            policies.len() - 1
        });
        index as u32
    }

    /// Decides on a bucket's state, and stores it if it has changed. `unknown` is the state of a key
    /// whose bucket is full or missing, by the time of the store.
    #[inline]
    pub(super) fn verdict(
        &self,
        policy: PolicyIndex,
        limits: &Limits,
        key: &Key,
        op: &Op,
        unknown: Option<impl FnOnce(u64) -> Option<KeyState>>,
    ) -> Verdict {
        let shards = &self.shared.shards;
        let hash = shards.hash(policy, key);
        let mut shard = shards.lock(hash);
        // Read under the lock, so that time does not go back between two checks of a key.
        let now = self.shared.now();
        let stored = shard.find(hash, policy, key);
        let is_used = |bucket: &&mut Bucket| bucket.state.until() > now;
        let initial = match unknown {
            Some(unknown) if !stored.as_ref().is_some_and(is_used) => unknown(now),
            _ => None,
        };
        let Some(bucket) = stored else {
            let (verdict, changed) = op.apply(limits, initial.as_ref(), now);
            if let Some(state) = changed {
                let bucket = Bucket::new(policy, key.clone(), state);
                let evicted = shard.insert(hash, bucket, now, shards);
                self.shared.evictions.fetch_add(evicted, Ordering::Relaxed);
                self.shared.metrics.evicted(evicted);
            }
            return verdict;
        };
        let was_full_at = bucket.state.until();
        let verdict = match initial {
            None => op.apply_to(limits, &mut bucket.state, now),
            Some(initial) => {
                let (verdict, changed) = op.apply(limits, Some(&initial), now);
                if let Some(state) = changed {
                    bucket.state = state;
                }
                verdict
            }
        };
        if let Some(full_at) = bucket.decided(&verdict, was_full_at) {
            shard.add_earlier(full_at, hash, shards);
        }
        verdict
    }

    /// The state of a key and the time, if it has a bucket.
    #[cfg(feature = "redis")]
    pub(super) fn state(&self, policy: PolicyIndex, key: &Key) -> Option<(KeyState, u64)> {
        let hash = self.shared.shards.hash(policy, key);
        let mut shard = self.shared.shards.lock(hash);
        let bucket = shard.find(hash, policy, key)?;
        Some((bucket.state.clone(), self.shared.now()))
    }

    /// Fills the bucket of a key.
    pub(super) fn fill(&self, policy: PolicyIndex, key: &Key) {
        let shards = &self.shared.shards;
        let hash = shards.hash(policy, key);
        let mut shard = shards.lock(hash);
        if let Some(bucket) = shard.find(hash, policy, key)
            && let Some(full_at) = bucket.fill()
        {
            shard.add_earlier(full_at, hash, shards);
        }
    }
}

impl Clock {
    fn tokio(time: SystemTime) -> Self {
        let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::Tokio { start: Instant::now(), started_at: since_1970.as_micros() as u64 }
    }
}

impl MemoryInner {
    /// Returns the time in microseconds since 1970.
    pub(super) fn now(&self) -> u64 {
        match &self.clock {
            Clock::Tokio { start, started_at } => {
                started_at.saturating_add(start.elapsed().as_micros() as u64)
            }
            Clock::Manual(clock) => clock.micros(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hashbrown::HashTable;
    use tokio::time::advance;

    use super::*;
    use crate::{Limiter, Policy, Quota};

    fn limiter(max_keys: usize) -> (MemoryStore, Limiter) {
        let store = MemoryStore::with_max_keys(NonZeroUsize::new(max_keys).unwrap());
        // One permit per second, ten at most.
        let limiter = Limiter::new(store.clone(), Quota::per_second(1).burst(10)).unwrap();
        (store, limiter)
    }

    async fn take(limiter: &Limiter, key: impl Into<Key>, cost: u64) -> bool {
        limiter.check_cost(key, cost).await.unwrap().is_allowed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_store_evicts_the_bucket_nearest_to_full() {
        let (store, limiter) = limiter(3);
        for (key, cost) in [("most", 10), ("least", 1), ("middle", 5)] {
            assert!(take(&limiter, key, cost).await);
        }
        // Its entry in the heap is older than its debt.
        assert!(take(&limiter, "least", 7).await);
        assert!(take(&limiter, "another", 9).await);
        assert_eq!((store.len(), store.evictions()), (3, 1));
        for (key, remaining) in [("most", 0), ("least", 2), ("another", 1), ("middle", 10)] {
            assert_eq!(limiter.peek(key).await.unwrap().remaining(), remaining, "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_fresh_keys_neither_frees_a_denied_key_nor_grows_memory() {
        let (store, limiter) = limiter(1_000);
        assert!(take(&limiter, "denied", 10).await);
        for fresh in 0..200_000u32 {
            assert!(take(&limiter, fresh, 1).await);
        }
        assert!(!take(&limiter, "denied", 1).await);
        assert_eq!(store.len(), 1_000);
        assert_eq!(store.evictions(), 200_001 - 1_000);
        assert_eq!(store.shared.shards.entries(), 1_000);
        let (buckets, entries) = store.shared.shards.capacity();
        assert!(buckets < 4_000 && entries < 4_000, "{buckets} {entries}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_fresh_keys_frees_no_denied_key_of_any_algorithm() {
        for quota in [
            Quota::per_hour(1),
            Quota::per_hour(3).fixed_window(),
            Quota::per_hour(3).calendar(),
            Quota::per_hour(3).approximate_sliding_window(),
            Quota::per_hour(12).sliding_window(4),
            Quota::per_hour(3).interval_refill(),
        ] {
            let store = MemoryStore::with_max_keys(NonZeroUsize::new(1_000).unwrap());
            let limiter = Limiter::new(store.clone(), quota).unwrap();
            for denied in 0..500u32 {
                let key = format!("denied{denied}");
                while take(&limiter, key.as_str(), 1).await {}
                // A client can choose to ask for nothing, or for too much.
                assert!(take(&limiter, key.as_str(), 0).await);
                assert!(!take(&limiter, key.as_str(), 100).await);
            }
            for fresh in 0..20_000u32 {
                assert!(take(&limiter, fresh, 1).await);
            }
            for denied in 0..500u32 {
                assert!(!take(&limiter, format!("denied{denied}"), 1).await, "{quota:?} {denied}");
            }
            assert_eq!((store.len(), store.evictions()), (1_000, 500 + 20_000 - 1_000));
            assert_eq!(store.shared.shards.entries(), 1_000, "{quota:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn denied_keys_are_evicted_when_there_are_no_others_and_dropped_when_they_are_full() {
        let (store, limiter) = limiter(3);
        for key in 0..10u32 {
            assert!(take(&limiter, key, 10).await);
            assert!(!take(&limiter, key, 1).await);
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!((store.len(), store.evictions()), (3, 7));
        for key in 7..10u32 {
            assert!(!take(&limiter, key, 9).await, "{key}");
        }
        advance(Duration::from_secs(10)).await;
        assert!(take(&limiter, "fresh", 1).await);
        assert_eq!((store.len(), store.evictions()), (2, 7));
        assert_eq!(store.shared.shards.entries(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_no_longer_denied_is_not_spared() {
        for how in ["time", "credit", "reset"] {
            let (store, limiter) = limiter(3);
            for key in ["evicted", "freed", "denied"] {
                assert!(take(&limiter, key, 10).await);
                assert!(!take(&limiter, key, 1).await);
                advance(Duration::from_millis(1)).await;
            }
            assert!(take(&limiter, "fresh", 1).await);
            assert_eq!(store.evictions(), 1, "all were denied");
            match how {
                "time" => {
                    advance(Duration::from_secs(1)).await;
                    assert!(take(&limiter, "freed", 0).await);
                    assert!(take(&limiter, "denied", 1).await);
                }
                "credit" => limiter.credit("freed", 5).await.unwrap(),
                _ => limiter.reset("freed").await.unwrap(),
            }
            for key in ["first", "second"] {
                assert!(take(&limiter, key, 9).await);
            }
            assert_eq!(store.evictions(), if how == "reset" { 2 } else { 3 }, "{how}");
            for (key, remaining) in [("freed", 10), ("denied", 0), ("first", 1), ("second", 1)] {
                assert_eq!(limiter.peek(key).await.unwrap().remaining(), remaining, "{how} {key}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_denied_and_allowed_in_turn_do_not_grow_memory() {
        let (store, limiter) = limiter(3);
        for _ in 0..200 {
            for key in ["a", "b", "c"] {
                while take(&limiter, key, 1).await {}
            }
            assert!(take(&limiter, "fresh", 1).await);
            advance(Duration::from_secs(1)).await;
            for key in ["a", "b", "c"] {
                limiter.credit(key, 5).await.unwrap();
                assert!(take(&limiter, key, 1).await);
            }
        }
        let entries = store.shared.shards.entries();
        assert!(store.len() == 3 && entries <= 6, "{entries}");
    }

    #[tokio::test(start_paused = true)]
    async fn full_buckets_are_dropped_and_do_not_count_as_evictions() {
        let (store, limiter) = limiter(1_000_000);
        for idle in 0..10_000u32 {
            take(&limiter, idle, 1).await;
        }
        assert_eq!(store.len(), 10_000);
        advance(Duration::from_secs(2)).await;
        for busy in 0..10_000u32 {
            take(&limiter, format!("busy{busy}"), 5).await;
        }
        assert!(store.len() < 10_700, "two are dropped per insertion: {}", store.len());
        assert_eq!(store.evictions(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_quota_is_changed_the_reported_wait_is_long_enough() {
        let store = MemoryStore::new();
        let limiter = Limiter::new(store, Quota::per_day(1).burst(10)).unwrap();
        assert!(take(&limiter, "key", 10).await);
        limiter.update(Quota::per_second(1).burst(10)).unwrap();
        let denied = limiter.check("key").await.unwrap();
        advance(denied.retry_after().unwrap()).await;
        assert!(take(&limiter, "key", 1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn used_permits_stay_used_after_an_update() {
        for (old, new, used, left) in [
            (Quota::per_day(1).burst(3), Quota::per_day(1).burst(6), 3, 3),
            (Quota::per_day(1).burst(6), Quota::per_day(1).burst(3), 3, 0),
            (Quota::per_day(1).burst(3), Quota::per_second(3).burst(6), 3, 3),
            (Quota::per_day(7).burst(6), Quota::per_hour(1).burst(3), 2, 1),
            (Quota::per_hour(12).burst(6), Quota::per_day(1).burst(3), 2, 1),
        ] {
            let limiter = Limiter::new(MemoryStore::new(), old).unwrap();
            assert!(take(&limiter, "key", used).await);
            limiter.update(new).unwrap();
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), left);
            assert!(!take(&limiter, "key", left + 1).await);
            assert!(take(&limiter, "key", left).await);
            assert!(!take(&limiter, "key", 1).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_that_an_update_made_faster_is_dropped_when_it_is_full() {
        let store = MemoryStore::with_max_keys(NonZeroUsize::new(2).unwrap());
        let limiter = Limiter::new(store.clone(), Quota::per_day(1).burst(10)).unwrap();
        assert!(take(&limiter, "faster", 5).await);
        limiter.update(Quota::per_second(1).burst(10)).unwrap();
        assert!(take(&limiter, "faster", 1).await);
        assert!(take(&limiter, "denied", 10).await);
        advance(Duration::from_secs(7)).await;
        assert!(take(&limiter, "another", 1).await);
        assert_eq!((store.len(), store.evictions()), (2, 0));
        assert_eq!(limiter.peek("denied").await.unwrap().remaining(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn revisions_in_random_alternation_do_not_grow_memory() {
        let (store, limiter) = limiter(4);
        for round in 0..1_000u64 {
            let period = Duration::from_secs([1, 86_400][(round % 2) as usize]);
            limiter.update(Quota::new(1, period).burst(4_000)).unwrap();
            assert!(take(&limiter, round % 3, 1).await);
        }
        let entries = store.shared.shards.entries();
        assert!(store.len() == 3 && entries <= 6, "{entries}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_does_not_grow_a_table_that_is_full() {
        // Nearly as many as the table holds.
        let (store, limiter) = limiter(1_680);
        for key in 0..20_000u32 {
            assert!(take(&limiter, key, 1).await);
        }
        let (capacity, _) = store.shared.shards.capacity();
        assert!(capacity <= HashTable::<Bucket>::with_capacity(1_792).capacity(), "{capacity}");
    }

    #[tokio::test(start_paused = true)]
    async fn resetting_a_key_many_times_does_not_grow_memory() {
        let (store, limiter) = limiter(10);
        for _ in 0..1_000 {
            take(&limiter, "key", 10).await;
            limiter.reset("key").await.unwrap();
        }
        assert!(take(&limiter, "key", 10).await);
        assert_eq!((store.len(), store.shared.shards.entries()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn limiters_share_buckets_only_under_the_same_policy_name() {
        let store = MemoryStore::new();
        let limiter = |name: &'static str| {
            Limiter::new(store.clone(), Policy::new(name).quota("q", Quota::per_second(2))).unwrap()
        };
        assert!(take(&limiter("a"), "key", 2).await);
        assert!(!take(&limiter("a"), "key", 1).await);
        assert!(take(&limiter("b"), "key", 1).await);
    }
}

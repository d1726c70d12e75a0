use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use tokio::time::Instant;

use super::sealed::Open;
use super::{Answer, Buckets, Plan, Store};
use crate::algorithm::{Debt, FullAt};
use crate::{ConfigError, Decision, Error, Key};

/// Buckets in this process: the same decisions as on Redis, for one process.
///
/// Clones share their buckets. Memory is bounded: a bucket that is full again goes by itself as
/// others come, and at [`max_keys`](Self::max_keys) the bucket nearest to full gives way, so that
/// a flood of fresh keys cannot wash out the callers that are being denied. There is no background
/// task.
///
/// Time is [`tokio::time::Instant`]: the monotonic clock, or the paused one of a test.
///
/// ```
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(1))?;
/// assert!(limiter.check("user:7").await?.is_allowed());
/// assert!(!limiter.check("user:7").await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    /// Of the standard library, because a client that knew the hashes of its keys could choose
    /// those that meet in one place.
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    keys_per_shard: usize,
    policies: Mutex<Vec<Arc<str>>>,
    evictions: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    buckets: HashTable<(Id, FullAt)>,
    /// Each bucket once, under a time not later than the one at which it is full: that time only
    /// grows, and is brought up to date when the entry comes to the top.
    by_full_at: BinaryHeap<Reverse<(FullAt, Id)>>,
}

/// The index of a policy in the store, and a caller.
type Id = (u32, Key);

impl MemoryStore {
    /// At most a million keys, of all the policies that share the store: about 200 MB when full.
    pub fn new() -> Self {
        Self::max_keys(const { NonZeroUsize::new(1_000_000).unwrap() })
    }

    /// At most `keys` keys, of all the policies that share the store, about 200 bytes each.
    ///
    /// The keys are spread over up to 64 parts by a random hash; a part that is full evicts, so
    /// that eviction can begin some percent below the maximum. Below 4,096 keys there is one part,
    /// and the maximum is exact.
    pub fn max_keys(keys: NonZeroUsize) -> Self {
        let shards = (keys.get() / 2_048).clamp(1, 64);
        Self {
            shared: Arc::new(Shared {
                start: Instant::now(),
                hasher: RandomState::new(),
                shards: (0..shards).map(|_| Mutex::default()).collect(),
                keys_per_shard: keys.get() / shards,
                policies: Mutex::default(),
                evictions: AtomicU64::new(0),
            }),
        }
    }

    /// How many buckets are held.
    pub fn len(&self) -> usize {
        self.shared.shards.iter().map(|shard| lock(shard).buckets.len()).sum()
    }

    /// Whether no bucket is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many buckets that were not full have given way to others since the store was made.
    pub fn evictions(&self) -> u64 {
        self.shared.evictions.load(Ordering::Relaxed)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {}

impl Open for MemoryStore {
    fn open(&self, plan: Plan) -> Result<Arc<dyn Buckets>, ConfigError> {
        let mut policies = lock(&self.shared.policies);
        let policy = policies.iter().position(|name| *name == plan.policy).unwrap_or_else(|| {
            policies.push(plan.policy.clone());
            policies.len() - 1
        });
        Ok(Arc::new(MemoryBuckets { shared: self.shared.clone(), policy: policy as u32, plan }))
    }
}

#[derive(Debug)]
struct MemoryBuckets {
    shared: Arc<Shared>,
    policy: u32,
    plan: Plan,
}

impl MemoryBuckets {
    /// Runs a decision on a bucket's debt, and keeps the debt if it grew.
    fn decide(&self, key: &Key, decide: impl FnOnce(&mut Debt) -> Decision) -> Answer {
        let bucket = &self.plan.bucket;
        let hash = self.shared.hash(self.policy, key);
        let mut shard = lock(self.shared.shard(hash));
        // Read under the lock, so that time does not run backwards between two checks of a key.
        let now = self.shared.start.elapsed().as_micros() as u64;
        let kept = shard.find(hash, self.policy, key);
        let found = kept.as_ref().map_or(0, |full_at| bucket.debt(**full_at, now));
        let mut debt = found;
        let decision = decide(&mut debt);
        if debt > found {
            let full_at = bucket.full_at(debt, now);
            match kept {
                Some(kept) => *kept = full_at,
                None => {
                    let id = (self.policy, key.clone());
                    let evicted = shard.insert(hash, id, full_at, now, &self.shared);
                    self.shared.evictions.fetch_add(evicted, Ordering::Relaxed);
                }
            }
        }
        Answer::Ready(Ok(decision))
    }
}

impl Buckets for MemoryBuckets {
    fn check(&self, key: &Key, cost: u32) -> Answer {
        self.decide(key, |debt| self.plan.bucket.check(debt, cost))
    }

    fn peek(&self, key: &Key) -> Answer {
        self.decide(key, |debt| self.plan.bucket.peek(*debt))
    }

    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let hash = self.shared.hash(self.policy, key);
        let mut shard = lock(self.shared.shard(hash));
        // Its entry in the heap stays, so that the bucket still has exactly one.
        if let Some(full_at) = shard.find(hash, self.policy, key) {
            *full_at = FullAt { micros: 0, ticks: 0 };
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn is_remote(&self) -> bool {
        false
    }
}

impl Shared {
    fn hash(&self, policy: u32, key: &Key) -> u64 {
        self.hasher.hash_one((policy, key))
    }

    /// By bits that the table of the shard does not use: it takes the lowest and the highest.
    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        let middle = usize::from((hash >> 32) as u16);
        &self.shards[(middle * self.shards.len()) >> 16]
    }
}

impl Shard {
    fn find(&mut self, hash: u64, policy: u32, key: &Key) -> Option<&mut FullAt> {
        self.buckets.find_mut(hash, is(policy, key)).map(|(_, full_at)| full_at)
    }

    /// Adds a bucket, and makes room for it: drops a few that are full by now, and, if there are
    /// still too many, the one nearest to full. Returns how many of those were not full.
    fn insert(&mut self, hash: u64, id: Id, full_at: FullAt, now: u64, shared: &Shared) -> u64 {
        let mut evicted = 0;
        // Two for each that comes: the full ones are gone faster than others can arrive.
        for _ in 0..2 {
            self.drop_nearest_to_full(shared, |actual| actual.micros < now);
        }
        while self.buckets.len() >= shared.keys_per_shard.max(1) {
            let dropped = self.drop_nearest_to_full(shared, |_| true);
            evicted += u64::from(dropped.is_some_and(|actual| actual.micros >= now));
        }
        self.by_full_at.push(Reverse((full_at, id.clone())));
        self.buckets
            .insert_unique(hash, (id, full_at), |((policy, key), _)| shared.hash(*policy, key));
        evicted
    }

    /// Finds the bucket nearest to full, and drops it if it is near enough.
    fn drop_nearest_to_full(
        &mut self,
        shared: &Shared,
        near_enough: impl Fn(FullAt) -> bool,
    ) -> Option<FullAt> {
        while let Some(Reverse((known, _))) = self.by_full_at.peek() {
            if !near_enough(*known) {
                return None;
            }
            let Reverse((known, id)) = self.by_full_at.pop()?;
            let (policy, key) = &id;
            let hash = shared.hash(*policy, key);
            let Ok(bucket) = self.buckets.find_entry(hash, is(*policy, key)) else { continue };
            let actual = bucket.get().1;
            if actual > known {
                self.by_full_at.push(Reverse((actual, id)));
            } else {
                bucket.remove();
                return Some(actual);
            }
        }
        None
    }
}

fn is(policy: u32, key: &Key) -> impl Fn(&(Id, FullAt)) -> bool {
    move |((its_policy, its_key), _)| *its_policy == policy && its_key == key
}

/// A panic while the lock is held leaves whole buckets behind, so the poison means nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::{Limiter, Policy, Quota};

    fn limiter(max_keys: usize) -> (MemoryStore, Limiter) {
        let store = MemoryStore::max_keys(NonZeroUsize::new(max_keys).unwrap());
        // A permit a second, ten at most.
        let limiter = Limiter::new(store.clone(), Quota::per_second(1).burst(10)).unwrap();
        (store, limiter)
    }

    async fn take(limiter: &Limiter, key: impl Into<Key>, cost: u32) -> bool {
        limiter.check_cost(key, cost).await.unwrap().is_allowed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_store_gives_up_the_bucket_nearest_to_full() {
        let (store, limiter) = limiter(3);
        for (key, cost) in [("most", 10), ("least", 1), ("middle", 5)] {
            assert!(take(&limiter, key, cost).await);
        }
        // Its place in the heap is older than what it owes now.
        assert!(take(&limiter, "least", 7).await);
        assert!(take(&limiter, "another", 9).await);
        assert_eq!((store.len(), store.evictions()), (3, 1));
        for (key, remaining) in [("most", 0), ("least", 2), ("another", 1), ("middle", 10)] {
            assert_eq!(limiter.peek(key).await.unwrap().remaining(), remaining, "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_fresh_keys_neither_frees_who_is_denied_nor_takes_more_memory() {
        let (store, limiter) = limiter(1_000);
        assert!(take(&limiter, "denied", 10).await);
        for fresh in 0..200_000u32 {
            assert!(take(&limiter, fresh, 1).await);
        }
        assert!(!take(&limiter, "denied", 1).await);
        assert_eq!(store.len(), 1_000);
        assert_eq!(store.evictions(), 200_001 - 1_000);
        let shard = lock(&store.shared.shards[0]);
        assert_eq!(shard.by_full_at.len(), 1_000);
        assert!(shard.by_full_at.capacity() < 4_000 && shard.buckets.capacity() < 4_000);
    }

    #[tokio::test(start_paused = true)]
    async fn buckets_that_are_full_again_go_by_themselves_and_are_no_evictions() {
        let (store, limiter) = limiter(1_000_000);
        for idle in 0..10_000u32 {
            take(&limiter, idle, 1).await;
        }
        assert_eq!(store.len(), 10_000);
        advance(Duration::from_secs(2)).await;
        for busy in 0..10_000u32 {
            take(&limiter, format!("busy{busy}"), 5).await;
        }
        assert!(store.len() < 10_700, "two go for each that comes: {}", store.len());
        assert_eq!(store.evictions(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_any_number_of_resets_take_one_place() {
        let (store, limiter) = limiter(10);
        for _ in 0..1_000 {
            take(&limiter, "key", 10).await;
            limiter.reset("key").await.unwrap();
        }
        assert!(take(&limiter, "key", 10).await);
        assert_eq!((store.len(), lock(&store.shared.shards[0]).by_full_at.len()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn limiters_of_one_store_share_buckets_by_the_name_of_their_policy() {
        let store = MemoryStore::new();
        let limiter = |name: &'static str| {
            Limiter::new(store.clone(), Policy::new(name).quota("q", Quota::per_second(2))).unwrap()
        };
        assert!(take(&limiter("a"), "key", 2).await);
        assert!(!take(&limiter("a"), "key", 1).await);
        assert!(take(&limiter("b"), "key", 1).await);
    }
}

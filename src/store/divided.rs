//! The store of one instance of a fleet without a server: a memory store that enforces a share (`fleet`).

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::fleet::{Plan, Share};
use super::sealed::Open;
use super::shards::PolicyIndex;
use super::{KeyState, MemoryStore, Op, Store};
use crate::algorithm::Limits;
use crate::charge::{Place, Queued};
use crate::verdict::Verdict;
use crate::{ConfigError, Key};

/// A [`Store`] in the memory of one instance of a fleet, which enforces its share of the limits. The
/// shares of all instances add up to the limits.
///
/// It needs no server, and limits a fleet as well as its load is balanced: an instance denies when its
/// share is used up, even if others have permits left. Each instance has a number, such as the ordinal
/// of a pod in a Kubernetes `StatefulSet`. A limit below the number of instances is enforced by some of
/// them, chosen by the key; the others deny the key.
///
/// This is how a `RedisStore` decides [while Redis fails](crate::FailureMode::Local), where the
/// instances find each other through Redis.
///
/// ```
/// use std::num::NonZeroUsize;
/// use fleetlimit::{DividedStore, Limiter, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The second of three instances.
/// let store = DividedStore::new(1, NonZeroUsize::new(3).unwrap())?;
/// let limiter = Limiter::new(store.clone(), Quota::per_hour(300))?;
/// assert!(limiter.check_cost("user:7", 100).await?.is_allowed());
/// assert!(limiter.check("user:7").await?.is_denied());
///
/// // Another one ends. Used permits stay used.
/// store.set_instances(1, NonZeroUsize::new(2).unwrap())?;
/// assert!(limiter.check_cost("user:7", 50).await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DividedStore {
    pub(super) memory: MemoryStore,
    pub(super) share: Arc<ArcSwap<Share>>,
}

impl DividedStore {
    /// The store of an instance, which are numbered from 0, for at most a million keys. They take as
    /// much memory as those of a [`MemoryStore`].
    ///
    /// # Errors
    ///
    /// If the number of the instance is not below the number of instances.
    pub fn new(instance: usize, instances: NonZeroUsize) -> Result<Self, ConfigError> {
        Self::on(MemoryStore::new(), instance, instances)
    }

    /// Like [`new`](Self::new), for at most `keys` keys.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_max_keys(
        instance: usize,
        instances: NonZeroUsize,
        keys: NonZeroUsize,
    ) -> Result<Self, ConfigError> {
        Self::on(MemoryStore::with_max_keys(keys), instance, instances)
    }

    /// Changes the number of this instance, and how many there are, for all clones of the store. While
    /// some instances do not know the new number yet, the shares can add up to more or less than the
    /// limits.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new). Then nothing changes.
    pub fn set_instances(
        &self,
        instance: usize,
        instances: NonZeroUsize,
    ) -> Result<(), ConfigError> {
        self.share.store(share(instance, instances)?.into());
        Ok(())
    }

    fn on(
        memory: MemoryStore,
        instance: usize,
        instances: NonZeroUsize,
    ) -> Result<Self, ConfigError> {
        let share = Arc::new(ArcSwap::from_pointee(share(instance, instances)?));
        Ok(Self { memory, share })
    }
}

fn share(instance: usize, instances: NonZeroUsize) -> Result<Share, ConfigError> {
    if instance >= instances.get() {
        return Err(ConfigError::new(format!(
            "there is no instance {instance} of {instances}: number them from 0 to {}",
            instances.get() - 1
        )));
    }
    Ok(Share::new(instance as u64, Plan::even(instances.get() as u64), None))
}

/// Returns the limits that an instance with this share enforces for a key, if it has any.
pub(super) fn share_of(limits: &Limits, share: &Share, key: &Key) -> Option<Limits> {
    let hash = key.stable_hash();
    limits.divided(&|permits| share.of(hash, permits))
}

/// Decides by a share of the limits. `unknown` is the state of a key that has no bucket, for the divided
/// limits and by the time of the store.
pub(super) fn decide(
    memory: &MemoryStore,
    buckets: PolicyIndex,
    limits: &Limits,
    share: &Share,
    (key, op): (&Key, &Op),
    unknown: impl FnOnce(&Limits, u64) -> Option<KeyState>,
) -> Verdict {
    let now = || memory.clock();
    let empty = |op: &Op| op.decide(limits, &mut limits.empty(now()), now());
    match (share_of(limits, share, key), op) {
        (Some(share), Op::Adjust(adjustment)) => {
            // Credits are in units of the whole limits, like the next.
            let op = Op::Adjust(limits.in_units_of(&share, adjustment));
            memory.verdict(buckets, &share, key, &op, Some(|now| unknown(&share, now)))
        }
        (Some(share), Op::Leave(place)) => {
            let credit = limits.in_units_of(&share, &place.credit);
            let op = Op::Leave(Place { credit, ..(**place).clone() }.into());
            memory.verdict(buckets, &share, key, &op, Some(|now| unknown(&share, now)))
        }
        (Some(share), op) => {
            memory.verdict(buckets, &share, key, op, Some(|now| unknown(&share, now)))
        }
        // A share may come, and what was taken is charged on the server.
        (None, Op::Adjust(_)) => {
            memory.verdict(buckets, limits, key, op, Some(|now| unknown(limits, now)));
            empty(op)
        }
        // As if everything were taken, for good.
        (None, Op::Queue(queued)) => {
            empty(&Op::Queue(Queued { may_wait: false, ..(**queued).clone() }.into()))
        }
        (None, op) => empty(op),
    }
}

impl Store for DividedStore {}

impl fmt::Debug for DividedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DividedStore").field("memory", &self.memory).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limiter, Quota};

    fn instances(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_instances_together_allow_the_limit_of_each_key() {
        for quota in [
            Quota::per_hour(10),
            Quota::per_hour(10).fixed_window(),
            Quota::per_hour(10).sliding_window(6),
            Quota::per_hour(2),
        ] {
            let limiters = [0, 1, 2].map(|instance| {
                Limiter::new(DividedStore::new(instance, instances(3)).unwrap(), quota).unwrap()
            });
            for key in 0..20u32 {
                let mut allowed = 0;
                for _ in 0..10 {
                    for limiter in &limiters {
                        allowed += u64::from(limiter.check(key).await.unwrap().is_allowed());
                    }
                }
                assert_eq!(allowed, quota.permits(), "{quota:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_without_a_share_lets_nobody_wait() {
        let quota = Quota::per_second(10).queue(std::time::Duration::from_secs(5));
        let mut allowed = 0;
        for instance in 0..3 {
            let store = DividedStore::new(instance, instances(3)).unwrap();
            let limiter = Limiter::new(store, quota).unwrap();
            allowed += u32::from(limiter.acquire("key").await.unwrap().is_allowed());
        }
        assert_eq!(allowed, 1, "the burst is 1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_that_is_given_back_is_a_whole_one() {
        for quota in [Quota::per_second(1_000), Quota::per_hour(300), Quota::per_hour(7).burst(30)]
        {
            let store = DividedStore::new(0, instances(3)).unwrap();
            let limiter = Limiter::new(store, quota).unwrap();
            limiter.check_cost("key", 5).await.unwrap().ensure_allowed().unwrap();
            let before = limiter.peek("key").await.unwrap().remaining();
            limiter.credit("key", 3).await.unwrap();
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), before + 3, "{quota:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waiting_gives_back_what_was_taken_although_the_fleet_has_changed() {
        let store = DividedStore::new(0, instances(2)).unwrap();
        let quota = Quota::per_second(10).burst(10).queue(std::time::Duration::from_secs(30));
        let limiter = Limiter::new(store.clone(), quota).unwrap();
        let first = limiter.reserve("key", 5).await.unwrap();
        let second = limiter.reserve("key", 1).await.unwrap();
        assert!(first.delay().is_zero() && !second.delay().is_zero());
        store.set_instances(0, instances(1)).unwrap();
        drop(second);
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_owes_as_much_as_the_whole_could() {
        for quota in [
            Quota::per_hour(1_000),
            Quota::per_day(1_000_000_000),
            Quota::per_hour(1_000).interval_refill(),
            Quota::per_hour(1_000).fixed_window(),
            Quota::per_hour(1_000).approximate_sliding_window(),
            Quota::per_hour(1_000).sliding_window(6),
        ] {
            let store = DividedStore::new(0, instances(5)).unwrap();
            let limiter = Limiter::new(store, quota).unwrap();
            let thousandth = quota.permits() / 1_000;
            limiter.charge("key", 900 * thousandth).await.unwrap();
            // Its share is 200 of them.
            limiter.credit("key", 700 * thousandth).await.unwrap();
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), 0, "{quota:?}");
            limiter.credit("key", 1).await.unwrap();
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), 1, "{quota:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_charge_to_an_instance_without_a_share_counts_when_it_gets_one() {
        for instance in 0..3 {
            let store = DividedStore::new(instance, instances(3)).unwrap();
            let limiter = Limiter::new(store.clone(), Quota::per_hour(2)).unwrap();
            limiter.charge("key", 2).await.unwrap();
            store.set_instances(0, instances(1)).unwrap();
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), 0, "{instance}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn used_permits_stay_used_when_the_fleet_changes() {
        let store = DividedStore::new(0, instances(1)).unwrap();
        let limiter = Limiter::new(store.clone(), Quota::per_hour(90)).unwrap();
        assert!(limiter.check_cost("key", 20).await.unwrap().is_allowed());
        store.set_instances(0, instances(3)).unwrap();
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), 10);
        let error = store.set_instances(3, instances(3)).unwrap_err().to_string();
        assert!(error.contains("number them from 0 to 2"), "{error}");
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), 10);
    }
}

//! The denials that this process caches, for all limiters on one store.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, UnitWeighter};
use tokio::time::Instant;

use super::RevisionId;
use crate::Key;
use crate::algorithm::State;

/// A reset discards the denials of one in this many keys.
const RESET_SHARDS: usize = 1_024;

/// The keys that were denied last, under each revision.
pub(crate) struct Denials {
    /// Allocated by the first denial.
    cache: OnceLock<Cache<Id, Denial, UnitWeighter, RandomState>>,
    hasher: RandomState,
    start: Instant,
    /// Counts resets. A denial counts the resets before its check, so one that is inserted after the
    /// reset of its key is not used either.
    resets: AtomicU64,
    /// For each shard of keys, the number of its last reset. Allocated by the first reset.
    last_resets: OnceLock<Box<[AtomicU64]>>,
}

/// A denial by the store. Times of this process are nanoseconds since the start of [`Denials`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) sent_at: SentAt,
    pub(crate) received: u64,
    /// The state in which the checks of the call left the key.
    pub(crate) state: State,
    /// When the check was decided, in microseconds of the clock to which the state refers.
    pub(crate) decided: u64,
}

/// When a check was sent, in nanoseconds of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentAt {
    pub(crate) time: u64,
    /// The number of resets before it.
    resets: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Id {
    revision: RevisionId,
    key: Key,
}

/// Hashes like an [`Id`].
#[derive(Hash)]
struct IdRef<'a> {
    revision: RevisionId,
    key: &'a Key,
}

impl Denials {
    /// The number of cached keys, at about 290 bytes each. The cache prefers keys that are looked up
    /// again, so a flood of fresh keys does not evict one that keeps retrying.
    pub(crate) const MAX_KEYS: usize = 65_536;

    /// The time, for a check that is sent after this call.
    pub(crate) fn sent_now(&self) -> SentAt {
        SentAt { time: self.now(), resets: self.resets.load(Ordering::Acquire) }
    }

    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// The denial of a key, unless the key has been reset since the check was sent.
    pub(crate) fn get(&self, revision: RevisionId, key: &Key) -> Option<Denial> {
        let id = IdRef { revision, key };
        let denial = self.cache.get()?.get(&id)?;
        let before = denial.sent_at.resets;
        // The hash of the key is not needed while there are no resets.
        let is_reset = self.resets.load(Ordering::Acquire) > before
            && self.last_reset(revision, key).load(Ordering::Acquire) > before;
        (!is_reset).then_some(denial)
    }

    /// Removes the denial of a key, unless it is of a later call than one that was sent at this time.
    pub(crate) fn remove(&self, revision: RevisionId, key: &Key, sent_at: SentAt) {
        if let Some(cache) = self.cache.get() {
            let is_earlier = |denial: &Denial| denial.sent_at.time <= sent_at.time;
            cache.remove_if(&IdRef { revision, key }, is_earlier);
        }
    }

    /// Replaces the denial of a key, unless the one that is there is of a later call.
    pub(crate) fn insert(&self, revision: RevisionId, key: &Key, denial: Denial) {
        let cache = self.cache.get_or_init(|| {
            Cache::with(
                Self::MAX_KEYS,
                Self::MAX_KEYS as u64,
                UnitWeighter,
                self.hasher.clone(),
                DefaultLifecycle::default(),
            )
        });
        let known = cache.peek(&IdRef { revision, key });
        if known.is_none_or(|known| known.sent_at.time <= denial.sent_at.time) {
            cache.insert(Id { revision, key: key.clone() }, denial);
        }
    }

    /// Discards the denials of a key under all revisions of a policy, and those of checks that are in
    /// flight.
    pub(crate) fn reset(&self, revision: RevisionId, key: &Key) {
        let number = self.resets.fetch_add(1, Ordering::AcqRel) + 1;
        self.last_reset(revision, key).fetch_max(number, Ordering::AcqRel);
    }

    fn last_reset(&self, revision: RevisionId, key: &Key) -> &AtomicU64 {
        let shards =
            self.last_resets.get_or_init(|| (0..RESET_SHARDS).map(|_| AtomicU64::new(0)).collect());
        &shards[self.hasher.hash_one((revision.policy(), key)) as usize % RESET_SHARDS]
    }
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            cache: OnceLock::new(),
            hasher: RandomState::default(),
            start: Instant::now(),
            resets: AtomicU64::new(0),
            last_resets: OnceLock::new(),
        }
    }
}

impl Equivalent<Id> for IdRef<'_> {
    fn equivalent(&self, id: &Id) -> bool {
        self.revision == id.revision && *self.key == id.key
    }
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Denials")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    const REVISION: RevisionId = RevisionId(7);

    impl Denials {
        pub(crate) fn len(&self) -> usize {
            self.cache.get().map_or(0, Cache::len)
        }

        fn share_resets(&self, revision: RevisionId, a: &Key, b: &Key) -> bool {
            let shard = |key| std::ptr::from_ref(self.last_reset(revision, key));
            shard(a) == shard(b)
        }
    }

    fn denial(sent_at: SentAt) -> Denial {
        Denial { sent_at, received: 0, state: State::unused(), decided: 0 }
    }

    #[test]
    fn a_verdict_from_before_a_reset_is_not_cached_after_it() {
        let (denials, key) = (Denials::default(), Key::from("a"));
        let sent_at = denials.sent_now();
        denials.reset(REVISION, &key);
        denials.insert(REVISION, &key, denial(sent_at));
        assert_eq!(denials.get(REVISION, &key), None);

        let sent_at = denials.sent_now();
        denials.insert(REVISION, &key, denial(sent_at));
        assert!(denials.get(REVISION, &key).is_some());
        denials.reset(REVISION, &key);
        assert_eq!(denials.get(REVISION, &key), None);
    }

    #[test]
    fn a_reset_of_another_key_discards_no_denial_in_flight() {
        let (denials, key) = (Denials::default(), Key::from("a"));
        let mut others = 0;
        for other in (0..10_000u32).map(Key::from) {
            if denials.share_resets(REVISION, &key, &other) {
                continue;
            }
            let sent_at = denials.sent_now();
            denials.reset(REVISION, &other);
            denials.insert(REVISION, &key, denial(sent_at));
            assert_eq!(denials.get(REVISION, &key), Some(denial(sent_at)), "{other:?}");
            others += 1;
        }
        assert!(others > 9_000, "{others} of 10,000 keys are independent");
    }

    #[test]
    fn a_reply_that_is_late_does_not_replace_what_a_later_call_has_found() {
        let (denials, key) = (Denials::default(), Key::from("a"));
        let early = denials.sent_now();
        let late = SentAt { time: early.time + 1, ..early };
        denials.insert(REVISION, &key, denial(late));
        denials.insert(REVISION, &key, denial(early));
        denials.remove(REVISION, &key, early);
        assert_eq!(denials.get(REVISION, &key), Some(denial(late)));
        denials.remove(REVISION, &key, late);
        assert_eq!(denials.get(REVISION, &key), None);
    }

    #[test]
    fn a_denial_holds_only_for_its_revision_and_key() {
        let (denials, key) = (Denials::default(), Key::from("a"));
        let sent_at = denials.sent_now();
        denials.insert(REVISION, &key, denial(sent_at));
        assert_eq!(denials.get(RevisionId(8), &key), None);
        assert_eq!(denials.get(REVISION, &"b".into()), None);
    }

    /// A denial that is found when `reset` has returned is of a check that was sent after it began.
    #[test]
    fn a_reset_discards_the_denials_that_other_threads_are_inserting() {
        let (denials, key) = (Denials::default(), Key::from("a"));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        let sent_at = denials.sent_now();
                        denials.insert(REVISION, &key, denial(sent_at));
                    }
                });
            }
            let mut stale = None;
            for number in 1..=100_000 {
                denials.reset(REVISION, &key);
                if let Some(found) = denials.get(REVISION, &key)
                    && found.sent_at.resets < number
                {
                    stale = Some((number, found));
                    break;
                }
            }
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(stale, None);
        });
    }

    #[test]
    fn a_thousand_policies_stay_within_the_bound_of_their_store() {
        let denials = Denials::default();
        for revision in (0..1_000).map(RevisionId) {
            for key in (0..200u32).map(Key::from) {
                let sent_at = denials.sent_now();
                denials.insert(revision, &key, denial(sent_at));
            }
        }
        assert!(
            (Denials::MAX_KEYS / 2..=Denials::MAX_KEYS).contains(&denials.len()),
            "{}",
            denials.len()
        );
    }
}

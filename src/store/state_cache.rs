//! A cache of the state in which a store's server has last left each key, for all limiters on the store
//! and its clones.
//!
//! What this process knows of a key without a call comes from here: whether a denial still holds, and
//! from which level to decide while the server fails. An entry has the state, when the server decided
//! it, when the call was sent and when its reply was received, and under which revision of the policy.
//!
//! - **A key has one entry under all revisions of its policy**, because it has one value on the server.
//!   Each revision can read it, as it reads what another one has left on the server. A denial is found
//!   only under the revision that it was made under: denials under other numbers say nothing, and an
//!   update takes effect at once.
//! - **If a policy has leases, the entry of a key is a [`KeyLease`]**, which has the state, the denial and the
//!   leases under one lock.
//! - **The number of entries is bounded for the whole store**, however many limiters it has. A bound per
//!   limiter would grow with the number of policies.
//! - **Resets are numbered, and each of 1,024 shards of keys has the number of its last one.** An entry
//!   has the number of resets before its call, so a denial whose call was in flight during a reset is
//!   never used. A few other keys lose their denials, and ask the server once more. Their states remain,
//!   because a process that decides without the server would forget what they have used.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use foldhash::quality::RandomState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, OptionsBuilder, UnitWeighter};
use tokio::time::Instant;

use super::KeyState;
use super::RevisionId;
use super::lease::{KeyLease, Leases};
use crate::Key;

/// The fraction of the entries that are remembered, without their states, after they were evicted: they
/// are preferred if they are reported again. Each takes as much memory as an entry. With the default of
/// [`local_keys`](crate::RedisStore::local_keys), all just fit into tables of a power of two.
const REMEMBERED: f64 = 0.3;

/// The number of shards of keys that are reset together.
const RESET_SHARDS: usize = 1_024;

/// The last known state of each key.
///
/// Keys that are looked up or reported again are preferred to fresh ones, so a flood of fresh keys does
/// not evict one that keeps retrying.
pub(crate) struct StateCache {
    /// The entries. Not set until a store needs them: one in memory does not.
    entries: OnceLock<Cache<EntryId, Entry, UnitWeighter, RandomState>>,
    /// The most entries there may be.
    max_keys: Mutex<usize>,
    hasher: RandomState,
    start: Instant,
    /// The number of resets of any key.
    resets: AtomicU64,
    /// The number of the last reset of each shard of keys. Allocated by the first reset.
    last_resets: OnceLock<Box<[AtomicU64]>>,
    /// The ends of the leases in the entries.
    leases: Arc<Leases>,
}

/// An entry of the cache: the state of a key, or its leases with its state.
#[derive(Clone)]
enum Entry {
    State(CachedState),
    Lease(Arc<KeyLease>),
}

/// The state in which the checks of a call left a key. Times of this process are in nanoseconds since the
/// start of the [`StateCache`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedState {
    pub(crate) state: KeyState,
    /// The time at which the server decided the checks, in microseconds of its clock.
    pub(crate) decided: u64,
    pub(crate) sent_at: SentAt,
    /// The time at which this process received the reply.
    pub(crate) received: u64,
}

/// The time at which a call was sent, in nanoseconds of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentAt {
    pub(crate) time: u64,
    /// The number of resets before it, and one more. So an entry with leases fits in the place of this one.
    resets: NonZeroU64,
}

/// The identity of an entry, which is the policy and the key.
///
/// It also has what tells a denial from other states: then a look-up of a denial copies no other state,
/// which most keys have.
struct EntryId {
    revision: RevisionId,
    kind: EntryKind,
    key: Key,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    State,
    Denial,
    Lease,
}

/// A look-up of the entry of a key.
struct EntryQuery<'a> {
    revision: RevisionId,
    key: &'a Key,
    /// The kind of entry that is wanted, under this revision. `None` for any, under any revision.
    wanted: Option<EntryKind>,
}

impl StateCache {
    /// The smallest bound. Denials are worth caching also in a process that would decide few keys without
    /// the server.
    pub(crate) const LEAST_KEYS: usize = 65_536;

    /// Sets the bound to this number of keys, unless it is higher already. Before the first call, no
    /// states are cached.
    pub(crate) fn reserve(&self, keys: usize) {
        let keys = keys.max(Self::LEAST_KEYS);
        // Nothing that panics runs under the lock.
        let mut max_keys = self.max_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(keys)
            .weight_capacity(keys as u64)
            .ghost_allocation(REMEMBERED)
            .build();
        // It fails only without the first two options.
        if let Ok(options) = options
            && keys > *max_keys
        {
            *max_keys = keys;
            let (hasher, lifecycle) = (self.hasher.clone(), DefaultLifecycle::default());
            let new = || Cache::with_options(options, UnitWeighter, hasher, lifecycle);
            self.entries.get_or_init(new).set_capacity(keys as u64);
        }
    }

    /// Returns the time, for a call that is sent afterwards.
    pub(crate) fn sent_now(&self) -> SentAt {
        let resets = NonZeroU64::MIN.saturating_add(self.resets.load(Ordering::Acquire));
        SentAt { time: self.now(), resets }
    }

    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns the last known state of a key, under any revision of the policy.
    pub(crate) fn get(&self, revision: RevisionId, key: &Key) -> Option<CachedState> {
        match self.entries.get()?.get(&EntryQuery { revision, key, wanted: None })? {
            Entry::State(state) => Some(state),
            Entry::Lease(lease) => lease.known(),
        }
    }

    /// Returns the leases of a key under this revision.
    #[inline]
    pub(crate) fn lease(&self, revision: RevisionId, key: &Key) -> Option<Arc<KeyLease>> {
        let query = EntryQuery { revision, key, wanted: Some(EntryKind::Lease) };
        match self.entries.get()?.get(&query)? {
            Entry::Lease(lease) => Some(lease),
            Entry::State(_) => None,
        }
    }

    /// Replaces what is known of a key. Leases of another revision are given back.
    pub(crate) fn insert_lease(&self, revision: RevisionId, key: &Key, lease: Arc<KeyLease>) {
        if let Some(entries) = self.entries.get() {
            let id = EntryId { revision, kind: EntryKind::Lease, key: key.clone() };
            entries.insert(id, Entry::Lease(lease));
            if self.leases.is_cleared() {
                // A call was in flight when the store was dropped.
                entries.clear();
            }
        }
    }

    /// The ends of the leases of all keys.
    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    /// Forgets everything, from now on. An entry with leases refers to its policy, and that to the cache.
    pub(crate) fn clear(&self) {
        self.leases.clear();
        if let Some(entries) = self.entries.get() {
            entries.clear();
        }
    }

    /// Returns the last known state of a key if it is a denial under this revision, and the key has not
    /// been reset since its call was sent.
    pub(crate) fn denial(&self, revision: RevisionId, key: &Key) -> Option<CachedState> {
        let query = EntryQuery { revision, key, wanted: Some(EntryKind::Denial) };
        let Entry::State(denial) = self.entries.get()?.get(&query)? else { return None };
        (!self.is_reset(revision, key, denial.sent_at)).then_some(denial)
    }

    /// Returns true if the denials of a key were ended after a call was sent.
    pub(crate) fn is_reset(&self, revision: RevisionId, key: &Key, sent_at: SentAt) -> bool {
        let is_after = |number: &AtomicU64| number.load(Ordering::Acquire) >= sent_at.resets.get();
        // The hash of the key is not needed while there are no resets.
        is_after(&self.resets) && is_after(self.last_reset(revision, key))
    }

    /// Replaces the last known state of a key, but not with a denial that is older. (Replies can overtake
    /// each other. An older state that is no denial only costs a call.)
    pub(crate) fn insert(
        &self,
        revision: RevisionId,
        key: &Key,
        state: CachedState,
        is_denial: bool,
    ) {
        let Some(entries) = self.entries.get() else { return };
        let query = EntryQuery { revision, key, wanted: None };
        let is_late = |known: Entry| match known {
            Entry::State(known) => known.sent_at.time > state.sent_at.time,
            Entry::Lease(_) => false,
        };
        if !(is_denial && entries.peek(&query).is_some_and(is_late)) {
            let kind = if is_denial { EntryKind::Denial } else { EntryKind::State };
            entries.insert(EntryId { revision, kind, key: key.clone() }, Entry::State(state));
        }
    }

    /// Removes the state of a key, unless it is of a later call than one that was sent at this time.
    pub(crate) fn remove(&self, revision: RevisionId, key: &Key, sent_at: SentAt) {
        if let Some(entries) = self.entries.get() {
            let is_earlier = |entry: &Entry| match entry {
                Entry::State(state) => state.sent_at.time <= sent_at.time,
                Entry::Lease(_) => false,
            };
            entries.remove_if(&EntryQuery { revision, key, wanted: None }, is_earlier);
        }
    }

    /// Ends the denials of a key under all revisions of a policy, also those of calls that are in flight.
    pub(crate) fn end_denials(&self, revision: RevisionId, key: &Key) {
        if self.entries.get().is_some() {
            let number = self.resets.fetch_add(1, Ordering::AcqRel) + 1;
            self.last_reset(revision, key).fetch_max(number, Ordering::AcqRel);
            let query = EntryQuery { revision, key, wanted: None };
            if let Some(Entry::Lease(lease)) = self.entries.get().and_then(|all| all.peek(&query)) {
                lease.end_denial();
            }
        }
    }

    /// Ends the leases of a key that was reset, under any revision, without giving them back.
    pub(crate) fn void_leases(&self, revision: RevisionId, key: &Key) {
        let query = EntryQuery { revision, key, wanted: None };
        if let Some(Entry::Lease(lease)) = self.entries.get().and_then(|all| all.peek(&query)) {
            lease.void(self.now());
        }
    }

    fn last_reset(&self, revision: RevisionId, key: &Key) -> &AtomicU64 {
        let shards =
            self.last_resets.get_or_init(|| (0..RESET_SHARDS).map(|_| AtomicU64::new(0)).collect());
        let hash = self.hasher.hash_one(EntryQuery { revision, key, wanted: None });
        &shards[hash as usize % RESET_SHARDS]
    }
}

impl Default for StateCache {
    fn default() -> Self {
        Self {
            entries: OnceLock::new(),
            max_keys: Mutex::new(0),
            hasher: RandomState::default(),
            start: Instant::now(),
            resets: AtomicU64::new(0),
            last_resets: OnceLock::new(),
            leases: Arc::default(),
        }
    }
}

impl CachedState {
    /// Returns the times that the clock of the server may show at a time of this process, in microseconds.
    ///
    /// The server may have decided as early as the call was sent, or as late as the reply was received.
    pub(crate) fn server_times(&self, now: u64) -> RangeInclusive<u64> {
        let since_sent = now.saturating_sub(self.sent_at.time).div_ceil(1_000);
        let since_received = now.saturating_sub(self.received) / 1_000;
        self.decided.saturating_add(since_received)..=self.decided.saturating_add(since_sent)
    }
}

impl PartialEq for EntryId {
    fn eq(&self, other: &Self) -> bool {
        self.revision.policy == other.revision.policy && self.key == other.key
    }
}

impl Eq for EntryId {}

impl Hash for EntryId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.revision.policy, &self.key).hash(state);
    }
}

impl Hash for EntryQuery<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.revision.policy, self.key).hash(state);
    }
}

impl Equivalent<EntryId> for EntryQuery<'_> {
    fn equivalent(&self, id: &EntryId) -> bool {
        let is_wanted = match self.wanted {
            Some(kind) => id.kind == kind && self.revision == id.revision,
            None => self.revision.policy == id.revision.policy,
        };
        is_wanted && *self.key == id.key
    }
}

impl fmt::Debug for StateCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateCache")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::Quota;
    use crate::algorithm::TokenBucket;

    const REVISION: RevisionId = RevisionId { policy: 7, number: 1 };
    const OTHER_REVISION: RevisionId = RevisionId { policy: 7, number: 2 };
    const OTHER_POLICY: RevisionId = RevisionId { policy: 8, number: 1 };

    impl SentAt {
        /// A time before any reset.
        pub(crate) fn at(time: u64) -> Self {
            Self { time, resets: NonZeroU64::MIN }
        }
    }

    impl StateCache {
        /// A cache with the smallest bound.
        pub(crate) fn for_tests() -> Self {
            let cache = Self::default();
            cache.reserve(0);
            cache
        }

        pub(crate) fn len(&self) -> usize {
            self.entries.get().map_or(0, Cache::len)
        }

        fn share_resets(&self, revision: RevisionId, a: &Key, b: &Key) -> bool {
            let shard = |key| std::ptr::from_ref(self.last_reset(revision, key));
            shard(a) == shard(b)
        }

        fn insert_denial(&self, revision: RevisionId, key: &Key, sent_at: SentAt) {
            self.insert(revision, key, state(sent_at), true);
        }
    }

    fn state(sent_at: SentAt) -> CachedState {
        CachedState { sent_at, received: 0, state: KeyState::unused(), decided: 0 }
    }

    #[test]
    fn a_verdict_from_before_a_reset_is_not_cached_after_it() {
        let (cache, key) = (StateCache::for_tests(), Key::from("a"));
        let sent_at = cache.sent_now();
        cache.end_denials(REVISION, &key);
        cache.insert_denial(REVISION, &key, sent_at);
        assert_eq!(cache.denial(REVISION, &key), None);

        let sent_at = cache.sent_now();
        cache.insert_denial(REVISION, &key, sent_at);
        assert!(cache.denial(REVISION, &key).is_some());
        cache.end_denials(REVISION, &key);
        assert_eq!(cache.denial(REVISION, &key), None);
    }

    #[test]
    fn a_reset_of_another_key_discards_no_denial_in_flight() {
        let (cache, key) = (StateCache::for_tests(), Key::from("a"));
        let mut others = 0;
        for other in (0..10_000u32).map(Key::from) {
            if cache.share_resets(REVISION, &key, &other) {
                continue;
            }
            let sent_at = cache.sent_now();
            cache.end_denials(REVISION, &other);
            cache.insert_denial(REVISION, &key, sent_at);
            assert_eq!(cache.denial(REVISION, &key), Some(state(sent_at)), "{other:?}");
            others += 1;
        }
        assert!(others > 9_000, "{others} of 10,000 keys are independent");
    }

    /// A process that decides without the server would grant them their whole share again.
    #[test]
    fn a_reset_does_not_discard_the_states_of_other_keys_of_its_shard() {
        let cache = StateCache::for_tests();
        let (key, sent_at) = (Key::from("a"), cache.sent_now());
        let mut others = (0..u32::MAX).map(Key::from);
        let other = others.find(|other| cache.share_resets(REVISION, &key, other)).unwrap();
        cache.insert_denial(REVISION, &key, sent_at);
        cache.end_denials(REVISION, &other);
        assert_eq!(cache.denial(REVISION, &key), None);
        assert_eq!(cache.get(REVISION, &key), Some(state(sent_at)));
    }

    #[test]
    fn a_reply_that_is_late_does_not_replace_what_a_later_call_has_found() {
        let (cache, key) = (StateCache::for_tests(), Key::from("a"));
        let early = cache.sent_now();
        let late = SentAt { time: early.time + 1, ..early };
        for is_denial in [false, true] {
            cache.insert(REVISION, &key, state(late), is_denial);
            cache.insert_denial(REVISION, &key, early);
            cache.remove(REVISION, &key, early);
            assert_eq!(cache.get(REVISION, &key), Some(state(late)));
            assert_eq!(cache.denial(REVISION, &key).is_some(), is_denial);
        }
        cache.remove(REVISION, &key, late);
        assert_eq!(cache.get(REVISION, &key), None);
    }

    #[test]
    fn a_denial_holds_only_for_its_revision_and_key_and_a_state_for_all_revisions() {
        let (cache, key, other_key) = (StateCache::for_tests(), Key::from("a"), Key::from("b"));
        let sent_at = cache.sent_now();
        cache.insert_denial(REVISION, &key, sent_at);
        assert!(cache.denial(REVISION, &key).is_some());
        assert_eq!(cache.denial(OTHER_REVISION, &key), None);
        assert_eq!(cache.get(OTHER_REVISION, &key), Some(state(sent_at)));
        for (revision, key) in [(REVISION, &other_key), (OTHER_POLICY, &key)] {
            assert_eq!(cache.denial(revision, key), None);
            assert_eq!(cache.get(revision, key), None);
        }
    }

    #[test]
    fn a_state_that_is_no_denial_ends_the_denial_of_its_key() {
        let (cache, key) = (StateCache::for_tests(), Key::from("a"));
        let sent_at = cache.sent_now();
        for revision in [REVISION, OTHER_REVISION] {
            cache.insert_denial(REVISION, &key, sent_at);
            cache.insert(revision, &key, state(sent_at), false);
            assert_eq!(cache.denial(REVISION, &key), None);
            assert_eq!(cache.len(), 1);
        }
    }

    /// A denial that is found when `end_denials` has returned is of a check that was sent after it began.
    #[test]
    fn a_reset_discards_the_denials_that_other_threads_are_inserting() {
        let (cache, key) = (StateCache::for_tests(), Key::from("a"));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        let sent_at = cache.sent_now();
                        cache.insert_denial(REVISION, &key, sent_at);
                    }
                });
            }
            let mut stale = None;
            for number in 1..=100_000 {
                cache.end_denials(REVISION, &key);
                if let Some(found) = cache.denial(REVISION, &key)
                    && found.sent_at.resets.get() <= number
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
        let cache = StateCache::for_tests();
        for policy in 0..1_000 {
            for key in (0..200u32).map(Key::from) {
                let sent_at = cache.sent_now();
                let is_denial = policy % 2 == 0;
                cache.insert(
                    RevisionId { policy, number: policy },
                    &key,
                    state(sent_at),
                    is_denial,
                );
            }
        }
        let bounds = StateCache::LEAST_KEYS / 2..=StateCache::LEAST_KEYS;
        assert!(bounds.contains(&cache.len()), "{}", cache.len());
    }

    #[test]
    fn the_bound_is_the_largest_that_a_clone_of_the_store_has_set() {
        const LARGEST: usize = 200_000;
        let cache = StateCache::for_tests();
        for keys in [150_000, LARGEST, 1] {
            cache.reserve(keys);
        }
        let sent_at = cache.sent_now();
        for key in 0..2 * LARGEST as u64 {
            cache.insert(REVISION, &Key::from(key), state(sent_at), false);
        }
        assert!((LARGEST * 9 / 10..=LARGEST).contains(&cache.len()), "{}", cache.len());
    }

    #[test]
    fn a_store_that_reserves_nothing_caches_nothing() {
        let (cache, key) = (StateCache::default(), Key::from("a"));
        let sent_at = cache.sent_now();
        cache.insert_denial(REVISION, &key, sent_at);
        cache.end_denials(REVISION, &key);
        assert_eq!(cache.get(REVISION, &key), None);
        assert!(cache.last_resets.get().is_none());
    }

    /// As `LimiterBuilder::cache_denials` and `RedisStore::local_keys` document it. The longest keys are
    /// allocated in addition.
    #[test]
    fn an_entry_takes_no_more_memory_than_documented() {
        const DOCUMENTED: usize = 212;
        const KEYS: usize = 100_000;
        let (cache, bucket) =
            (StateCache::default(), TokenBucket::new(&Quota::per_day(1)).unwrap());
        cache.reserve(KEYS);
        let sent_at = cache.sent_now();
        for key in 0..4 * KEYS as u64 {
            let state = KeyState::Unnamed(bucket.rate().debt(key).state(0));
            let state = CachedState { state, decided: 0, sent_at, received: 0 };
            cache.insert(REVISION, &Key::from(key), state, true);
        }
        let memory = cache.entries.get().unwrap().memory_used();
        let bytes = memory.total() / cache.len();
        assert!((DOCUMENTED * 9 / 10..=DOCUMENTED).contains(&bytes), "{bytes}: {memory:?}");
    }
}

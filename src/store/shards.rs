//! The buckets of a store in memory, spread over shards, and which of them are evicted: the bucket nearest to
//! full, denied ones last. A heap in each shard, ordered by the time at which buckets are full, finds them.
//! There is no background task that sweeps.
//!
//! A bucket has the rate at which it refills, like a value in Redis. That takes 34 of a key's 205 bytes,
//! because half of a table can be empty. A pointer to a shared rate would take half as many, and a reference
//! count that all threads write. An index into a table of all rates would take few, but an application that
//! updates its limits all the time would make the table grow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use super::KeyState;
use super::key_hasher::{KeyHasher, random_hasher};
use crate::Key;
use crate::verdict::{Outcome, Verdict};

/// Spreads keys over shards by a random hash. Each shard evicts when it is full.
pub(super) struct Shards {
    /// Randomly keyed, because a client that knew the hashes of its keys could make them collide.
    hasher: KeyHasher,
    shards: Box<[Mutex<Shard>]>,
    keys_per_shard: usize,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    buckets: HashTable<Bucket>,
    /// At least one entry for each bucket that is not spared: a time in microseconds, and the hash of
    /// the bucket. The time is not later than the one at which the bucket is full, except after a
    /// reset. That time grows, and is brought up to date when the entry reaches the top. Only a charge
    /// at another rate or a credit makes it earlier, and adds an entry. The hash takes less memory than
    /// the key. If two buckets have the same hash, there are entries for both, and each removes one of
    /// them.
    by_full_at: EntryHeap,
    /// Entries like these for the buckets that were denied when they would have been evicted.
    spared: EntryHeap,
}

type EntryHeap = BinaryHeap<Reverse<(u64, u64)>>;

#[derive(Debug)]
pub(super) struct Bucket {
    policy: PolicyIndex,
    /// True if a check was denied, and no permits have been left since.
    was_denied: bool,
    is_spared: bool,
    key: Key,
    pub(super) state: KeyState,
}

/// The index of a policy in the store.
pub(super) type PolicyIndex = u32;

impl Shards {
    /// Shards for at most `keys` buckets: up to 64, and one below 4,096 keys.
    pub(super) fn new(keys: usize) -> Self {
        let shards = (keys / 2_048).clamp(1, 64);
        Self {
            hasher: random_hasher(),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            keys_per_shard: keys / shards,
        }
    }

    /// The number of buckets.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).buckets.len()).sum()
    }

    pub(super) fn hash(&self, policy: PolicyIndex, key: &Key) -> u64 {
        self.hasher.hash_one((policy, key))
    }

    /// The shard of the buckets with this hash.
    pub(super) fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // By bits that the shard's table does not use: it uses the lowest and the highest.
        let middle = usize::from((hash >> 32) as u16);
        lock(&self.shards[(middle * self.shards.len()) >> 16])
    }

    fn hash_of(&self, bucket: &Bucket) -> u64 {
        self.hash(bucket.policy, &bucket.key)
    }
}

impl Bucket {
    pub(super) fn new(policy: PolicyIndex, key: Key, state: KeyState) -> Self {
        Self { policy, was_denied: false, is_spared: false, key, state }
    }

    /// It has decided a check, before which it was going to be full at this time. Returns the time of
    /// another entry that it needs: see [`Shard::add_earlier`].
    #[inline]
    #[must_use]
    pub(super) fn decided(&mut self, verdict: &Verdict, was_full_at: u64) -> Option<u64> {
        let is_denied = match verdict.outcome {
            Outcome::Denied => true,
            Outcome::Allowed => self.was_denied && verdict.numbers.remaining == 0,
            Outcome::ExceedsCapacity => self.was_denied,
        };
        // A denial of a busy key writes nothing that other processors have read.
        if self.was_denied != is_denied {
            self.was_denied = is_denied;
        }
        let full_at = self.state.until();
        if full_at >= was_full_at && (is_denied || !self.is_spared) {
            return None;
        }
        self.is_spared = false;
        Some(full_at)
    }

    /// Fills it. Returns the same as [`decided`](Self::decided).
    #[must_use]
    pub(super) fn fill(&mut self) -> Option<u64> {
        self.state = KeyState::unused();
        self.was_denied = false;
        // Otherwise the entry in the heap stays, so that the heap does not grow.
        mem::take(&mut self.is_spared).then(|| self.state.until())
    }
}

impl Shard {
    #[inline]
    pub(super) fn find(
        &mut self,
        hash: u64,
        policy: PolicyIndex,
        key: &Key,
    ) -> Option<&mut Bucket> {
        let is_same = |bucket: &Bucket| bucket.policy == policy && bucket.key == *key;
        self.buckets.find_mut(hash, is_same)
    }

    /// Adds an entry for a bucket that is full earlier than its entry says.
    pub(super) fn add_earlier(&mut self, full_at: u64, hash: u64, shards: &Shards) {
        if self.by_full_at.len() + self.spared.len() < 2 * self.buckets.len() {
            self.by_full_at.push(Reverse((full_at, hash)));
        } else {
            let entry = |bucket: &mut Bucket| {
                bucket.is_spared = false;
                Reverse((bucket.state.until(), shards.hash_of(bucket)))
            };
            self.by_full_at = self.buckets.iter_mut().map(entry).collect();
            self.spared.clear();
        }
    }

    /// Adds a bucket and makes room for it: drops a few that are full by now, and evicts others if there
    /// are still too many. Returns how many of those were not full.
    pub(super) fn insert(&mut self, hash: u64, bucket: Bucket, now: u64, shards: &Shards) -> u64 {
        let mut evicted = 0;
        // Two per insertion, so that full buckets disappear faster than new ones arrive.
        for _ in 0..2 {
            self.drop_full(now, shards);
        }
        while self.buckets.len() >= shards.keys_per_shard.max(1) {
            let dropped = self.evict(now, shards);
            evicted += u64::from(dropped.is_some_and(|full_at| full_at >= now));
        }
        if self.buckets.len() + 1 >= shards.keys_per_shard
            && self.buckets.len() == self.buckets.capacity()
        {
            self.rebuild(shards);
        }
        self.by_full_at.push(Reverse((bucket.state.until(), hash)));
        self.buckets.insert_unique(hash, bucket, |bucket| shards.hash_of(bucket));
        evicted
    }

    /// Makes room in the table, where the remains of removed buckets count as used until it is twice as large.
    #[cold]
    fn rebuild(&mut self, shards: &Shards) {
        // With some room, or the next removals would fill it again.
        let keys = shards.keys_per_shard;
        let smallest = HashTable::with_capacity(keys + keys / 16);
        for bucket in mem::replace(&mut self.buckets, smallest) {
            let hash = shards.hash_of(&bucket);
            self.buckets.insert_unique(hash, bucket, |bucket| shards.hash_of(bucket));
        }
    }

    /// Drops a bucket that is full by now.
    fn drop_full(&mut self, now: u64, shards: &Shards) {
        let is_due = |entries: &EntryHeap| {
            entries.peek().is_some_and(|Reverse((full_at, _))| *full_at < now)
        };
        loop {
            let entries = match (is_due(&self.by_full_at), is_due(&self.spared)) {
                (true, _) => &mut self.by_full_at,
                (false, true) => &mut self.spared,
                (false, false) => return,
            };
            let Some(entry) = entries.pop() else { return };
            if self.remove(entry, |_| false, shards).is_some() {
                return;
            }
        }
    }

    /// Drops the bucket nearest to full, and returns when it is full. Those that are denied come last.
    fn evict(&mut self, now: u64, shards: &Shards) -> Option<u64> {
        let is_denied = |bucket: &Bucket| bucket.was_denied && bucket.state.until() >= now;
        while let Some(entry) = self.by_full_at.pop() {
            if let Some(full_at) = self.remove(entry, is_denied, shards) {
                return Some(full_at);
            }
        }
        let entry = self.spared.pop()?;
        self.remove(entry, |_| false, shards)
    }

    /// Removes the bucket of an entry, and returns when it is full. If the entry is out of date, or the
    /// bucket is to be spared, there is a new entry instead.
    fn remove(
        &mut self,
        Reverse((known, hash)): Reverse<(u64, u64)>,
        is_spared: impl Fn(&Bucket) -> bool,
        shards: &Shards,
    ) -> Option<u64> {
        let has_hash = |bucket: &Bucket| shards.hash_of(bucket) == hash;
        let mut entry = self.buckets.find_entry(hash, has_hash).ok()?;
        let bucket = entry.get_mut();
        let actual = bucket.state.until();
        if actual > known {
            bucket.is_spared = false;
            self.by_full_at.push(Reverse((actual, hash)));
            None
        } else if is_spared(bucket) {
            bucket.is_spared = true;
            self.spared.push(Reverse((actual, hash)));
            None
        } else {
            entry.remove();
            Some(actual)
        }
    }
}

/// A panic under the lock leaves whole buckets behind, so the poison means nothing.
fn lock(mutex: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Shards {
    /// The entries of all heaps, of which each bucket has one or two.
    pub(super) fn entries(&self) -> usize {
        let entries = |shard: &Shard| shard.by_full_at.len() + shard.spared.len();
        self.shards.iter().map(|shard| entries(&lock(shard))).sum()
    }

    /// Returns the numbers of buckets and of entries for which there is memory.
    pub(super) fn capacity(&self) -> (usize, usize) {
        let capacity = |shard: &Shard| {
            let entries = shard.by_full_at.capacity() + shard.spared.capacity();
            (shard.buckets.capacity(), entries)
        };
        let sum = |sum: (usize, usize), one: (usize, usize)| (sum.0 + one.0, sum.1 + one.1);
        self.shards.iter().map(|shard| capacity(&lock(shard))).fold((0, 0), sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_takes_few_bytes() {
        let id = size_of::<(PolicyIndex, Key)>();
        assert_eq!(size_of::<Bucket>(), id + 32);
    }
}

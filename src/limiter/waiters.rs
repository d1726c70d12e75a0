//! The checks of a limiter that wait: their number, and the lines in which they wait.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::Limiter;
use super::waiting_line::{KeptPlace, Line, Terms};
use crate::charge::Patience;
use crate::{Costs, Key};

/// The checks of a limiter that wait, or may have to, in this process.
pub(super) struct Waiters {
    most: usize,
    most_per_key: usize,
    count: AtomicUsize,
    /// The free places that are kept for other checks, at most as many.
    kept: Arc<AtomicUsize>,
    hasher: RandomState,
    /// The waiters by their keys, in shards.
    shards: [Mutex<HashMap<Key, OfKey, RandomState>>; Waiters::SHARDS],
}

#[derive(Default)]
struct OfKey {
    count: usize,
    /// Nearly always one: checks with other costs have others, or with another patience.
    lines: SmallVec<[Line; 1]>,
}

/// Permission to wait, which a limited number of checks has at a time.
pub(crate) struct Waiter {
    pub(super) limiter: Limiter,
    pub(super) key: Key,
    pub(super) costs: Costs,
    pub(super) patience: Patience,
    /// The start of the check.
    pub(super) since: Instant,
    /// True if there was a place of another check that has given up.
    pub(super) may_take_over: bool,
}

type WaitersShard<'a> = MutexGuard<'a, HashMap<Key, OfKey, RandomState>>;

impl Waiters {
    const SHARDS: usize = 16;

    pub(super) fn new(most: usize, most_per_key: usize) -> Self {
        let (count, kept, hasher) = Default::default();
        Self { most, most_per_key, count, kept, hasher, shards: Default::default() }
    }

    /// Uses the line of checks of a key that have these terms.
    pub(super) fn with_line<T>(
        &self,
        key: &Key,
        terms: &Terms,
        with: impl FnOnce(&mut Line) -> T,
    ) -> T {
        let mut ended = Vec::new();
        let mut shard = self.shard(key);
        let of_key = shard.entry(key.clone()).or_default();
        if let Some(line) = of_key.lines.iter_mut().find(|line| line.is_of(terms)) {
            return with(line);
        }
        of_key.drop_empty(&mut ended);
        let mut line = Line::new(terms.clone());
        let result = with(&mut line);
        of_key.lines.push(line);
        drop(shard);
        drop(ended);
        result
    }

    /// Counts a place that is kept for another check. `None` if too many are.
    pub(super) fn keep(&self) -> Option<KeptPlace> {
        if self.kept.load(Ordering::Relaxed) >= self.most {
            for shard in &self.shards {
                let mut shard = lock(shard);
                let mut ended = Vec::new();
                shard.retain(|_, of_key| !of_key.drop_empty(&mut ended));
                drop(shard);
                drop(ended);
            }
        }
        KeptPlace::new(&self.kept, self.most)
    }

    /// Drops the free places of a key, because the key has all permits again.
    pub(super) fn forget_free(&self, key: &Key) {
        if let Some(of_key) = self.shard(key).get_mut(key) {
            of_key.lines.iter_mut().for_each(Line::forget_free);
        }
        self.clean_up(key);
    }

    /// Drops what is not needed any more of a key.
    pub(super) fn clean_up(&self, key: &Key) {
        let mut ended = Vec::new();
        let mut shard = self.shard(key);
        if shard.get_mut(key).is_some_and(|of_key| of_key.drop_empty(&mut ended)) {
            shard.remove(key);
        }
        drop(shard);
        // Outside the lock, because this may run the code of a store.
        drop(ended);
    }

    /// Returns `None` if too many wait, or else whether a place is free.
    fn enter(&self, key: &Key) -> Option<bool> {
        let mut shard = self.shard(key);
        let of_key = match shard.get_mut(key) {
            Some(of_key) => of_key,
            None => shard.entry(key.clone()).or_default(),
        };
        let more = |count: usize| (count < self.most).then_some(count + 1);
        if of_key.count < self.most_per_key
            && self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        {
            of_key.count += 1;
            return Some(of_key.lines.iter().any(Line::has_free));
        }
        if of_key.count == 0 && of_key.lines.is_empty() {
            shard.remove(key);
        }
        None
    }

    fn leave(&self, key: &Key) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut shard = self.shard(key);
        let Some(of_key) = shard.get_mut(key) else { return };
        of_key.count -= 1;
        let is_done = of_key.count == 0;
        drop(shard);
        if is_done {
            self.clean_up(key);
        }
    }

    fn shard(&self, key: &Key) -> WaitersShard<'_> {
        lock(&self.shards[self.hasher.hash_one(key) as usize % Self::SHARDS])
    }
}

fn lock(shard: &Mutex<HashMap<Key, OfKey, RandomState>>) -> WaitersShard<'_> {
    // Nothing that panics runs under the lock.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OfKey {
    /// Moves lines without places to `ended`. Returns true if nothing else is left.
    fn drop_empty(&mut self, ended: &mut Vec<Line>) -> bool {
        let now = Instant::now();
        for mut line in mem::take(&mut self.lines) {
            match line.is_empty(now) {
                true => ended.push(line),
                false => self.lines.push(line),
            }
        }
        self.count == 0 && self.lines.is_empty()
    }
}

impl Waiter {
    /// Returns `None` if too many wait, of the limiter or of the key.
    pub(crate) fn new(
        limiter: &Limiter,
        key: &Key,
        costs: &Costs,
        patience: Patience,
    ) -> Option<Self> {
        let may_take_over = limiter.inner.waiters.enter(key)?;
        let (limiter, key, costs) = (limiter.clone(), key.clone(), costs.clone());
        Some(Self { limiter, key, costs, patience, since: Instant::now(), may_take_over })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.limiter.inner.waiters.leave(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use crate::{Limiter, MemoryStore, Quota, Reservation};

    fn limiter(most: usize) -> Limiter {
        let quota = Quota::per_second(1).queue(Duration::from_secs(100));
        let builder = Limiter::builder(MemoryStore::new(), quota);
        builder.max_waiters(most).max_waiters_per_key(most).build().unwrap()
    }

    async fn reserve(limiter: &Limiter, key: u64, cost: u64) -> Reservation {
        let reservation = limiter.reserve(key, cost).await.unwrap();
        assert!(reservation.decision().is_allowed());
        reservation
    }

    impl Limiter {
        /// The keys that the limiter knows waiters or free places of.
        fn known_keys(&self) -> usize {
            self.inner.waiters.shards.iter().map(|shard| super::lock(shard).len()).sum()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_left_of_keys_whose_checks_have_proceeded_or_given_up() {
        let limiter = limiter(1_000);
        for key in 0..100 {
            let mut waiting = Vec::new();
            for _ in 0..4 {
                waiting.push(reserve(&limiter, key, 1).await);
            }
            assert_eq!(limiter.known_keys(), 1);
            drop(waiting.remove(1 + key as usize % 3));
            for reservation in waiting {
                let _ = reservation.wait().await;
            }
            assert_eq!(limiter.known_keys(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_places_that_are_kept_for_others_are_bounded_and_forgotten_after_their_time() {
        let limiter = limiter(8);
        for key in 0..50 {
            let _first = reserve(&limiter, key, 1).await;
            let second = reserve(&limiter, key, 1).await;
            let _large = reserve(&limiter, key, 2).await;
            // The large one is behind it.
            drop(second);
            assert!(limiter.known_keys() <= 9, "{}", limiter.known_keys());
        }
        assert_eq!(limiter.known_keys(), 8);
        advance(Duration::from_secs(2)).await;
        let _first = reserve(&limiter, 99, 1).await;
        let second = reserve(&limiter, 99, 1).await;
        let _large = reserve(&limiter, 99, 2).await;
        drop(second);
        assert_eq!(limiter.known_keys(), 1);
    }
}

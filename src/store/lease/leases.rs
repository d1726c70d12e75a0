//! The ends of all leases of a store, and the permits to give back.
//!
//! A key with leases has one entry here, at the end of its last lease. While the key is in use, its requests give back
//! the unused permits of earlier leases. A key that is evicted from the `StateCache` is removed here too, so the
//! number of entries is bounded.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::part::Delays;
use super::{KeyLease, Part};
use crate::Key;

/// The leases of a store, sorted by their ends.
#[derive(Default)]
pub(crate) struct Leases {
    state: Mutex<LeasesState>,
    /// True if this process takes no more leases, because the store is shut down.
    is_closed: AtomicBool,
    /// True if the store was dropped. Then nothing is given back.
    is_cleared: AtomicBool,
    /// The original of a reference that each request in flight has a clone of.
    in_flight: Arc<()>,
}

/// A guard that counts a request as in flight until it is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestGuard(Option<Arc<()>>);

#[derive(Default)]
struct LeasesState {
    /// The keys that have leases.
    ends: BTreeMap<LeaseEnd, Weak<KeyLease>>,
    next: u64,
    returned: Vec<Returned>,
}

/// The index of a key among the ends: a time in nanoseconds on the clock of the process, and a unique number.
pub(super) type LeaseEnd = (u64, u64);

/// The unused permits of a lease, which are to be given back.
pub(crate) struct Returned {
    pub(crate) key: Key,
    pub(crate) part: Part,
    pub(crate) delays: Delays,
    /// The policy under which the permits are given back, in the form of the store.
    pub(crate) owner: Arc<dyn Any + Send + Sync>,
}

impl Leases {
    /// Adds a key whose last lease ends at `ends`.
    pub(super) fn add(&self, lease: &Arc<KeyLease>, ends: u64) -> LeaseEnd {
        let mut state = self.state();
        state.next += 1;
        let end = (ends, state.next);
        state.ends.insert(end, Arc::downgrade(lease));
        end
    }

    /// Removes a key that was evicted, and stores its unused permits for the next collection.
    pub(super) fn remove(&self, end: LeaseEnd, returned: impl IntoIterator<Item = Returned>) {
        // This iterator is dropped after the lock is released. It may have the last reference to keys whose drop calls
        // this method.
        let returned = returned.into_iter();
        let mut state = self.state();
        state.ends.remove(&end);
        if !self.is_cleared() {
            state.returned.extend(returned);
        }
    }

    /// Returns the permits to give back at this time, and true if there are more leases.
    pub(crate) fn collect(&self, now: u64) -> (Vec<Returned>, bool) {
        let ended: Vec<_> = {
            let mut state = self.state();
            let later = state.ends.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.ends, later).into_values().collect()
        };
        // The lock is not held here, because a key that is dropped removes itself from this table.
        let mut returned: Vec<_> =
            ended.iter().filter_map(Weak::upgrade).flat_map(|lease| lease.end(now)).collect();
        let mut state = self.state();
        returned.append(&mut state.returned);
        (returned, !state.ends.is_empty())
    }

    /// Ends all leases, and returns the permits to give back. No lease is asked for from now on.
    pub(crate) fn close(&self) -> Vec<Returned> {
        self.is_closed.store(true, Ordering::Relaxed);
        self.collect(u64::MAX).0
    }

    /// Returns a guard that a request keeps while it is in flight.
    pub(super) fn guard(&self) -> RequestGuard {
        RequestGuard(Some(self.in_flight.clone()))
    }

    /// Returns true if replies may still lease permits.
    pub(crate) fn has_in_flight(&self) -> bool {
        Arc::strong_count(&self.in_flight) > 1
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Removes everything, now and in the future, because the store was dropped.
    pub(crate) fn clear(&self) {
        self.is_cleared.store(true, Ordering::Release);
        let state = std::mem::take(&mut *self.state());
        drop(state);
    }

    /// Returns true if the store was dropped.
    pub(crate) fn is_cleared(&self) -> bool {
        self.is_cleared.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, LeasesState> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leases")
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::Quota;
    use crate::algorithm::Limits;
    use crate::metrics::PolicyMetrics;
    use crate::store::lease::{LeaseReport, LeaseTerms, Leased};
    use crate::store::{CachedState, KeyState, RevisionId, RevisionStates, SentAt, StateCache};

    /// Otherwise evicted keys would keep permits for the length of a lease, and an unbounded amount of memory.
    #[test]
    fn keys_that_are_evicted_or_superseded_give_their_leases_back_and_leave_no_trace() {
        const KEYS: u64 = 200_000;
        let cache = Arc::new(StateCache::for_tests());
        let revision =
            |number| RevisionStates::new(cache.clone(), RevisionId { policy: 1, number });
        let lease = |states: &RevisionStates, key: u64| reply(states, &key.into(), &Arc::new(()));
        let states = revision(1);
        (0..KEYS).for_each(|key| lease(&states, key));
        let leases = cache.leases();
        let live = leases.state().ends.len();
        assert!((1..=cache.len()).contains(&live), "{live} of {}", cache.len());
        let (evicted, has_more) = leases.collect(0);
        assert!(has_more && evicted.iter().all(|returned| returned.part.unused() == 3));
        assert_eq!(evicted.len() + live, KEYS as usize);
        // Another revision supersedes the leases.
        let key = Key::from(KEYS - 1);
        assert!(states.lease(&key).is_some());
        lease(&revision(2), KEYS - 1);
        assert!(states.lease(&key).is_none());
        let (superseded, _) = leases.collect(0);
        assert_eq!(superseded.iter().map(|returned| &returned.key).collect::<Vec<_>>(), [&key]);
        assert_eq!(leases.close().len(), live);
    }

    /// Reports a reply that leases three permits of a key.
    fn reply(states: &RevisionStates, key: &Key, owner: &Arc<impl Any + Send + Sync>) {
        let limits = Limits::new(&Quota::per_hour(100).into(), 0).unwrap();
        let metrics = PolicyMetrics::new("test");
        let terms = LeaseTerms { longest: u64::MAX, delay: u64::MAX, metrics };
        let mut standing = limits.standing(&[], 0);
        limits.check_run(&mut standing, 3, &1);
        let (permits, after) = (smallvec![3], limits.left(&standing));
        let leased = Leased { permits, after, keeps: u64::MAX, is_late: false };
        let state = KeyState::after(&standing, None, &limits, 0);
        let known = CachedState { state, decided: 0, sent_at: SentAt::at(1), received: 1 };
        let (free, leased) = (limits.free(&standing), Some(leased));
        let report = LeaseReport { known, is_denial: false, free, leased };
        states.report(&terms.into(), owner, key, report);
    }

    /// An entry has a reference to its policy, and the policy has one to the cache.
    #[test]
    fn a_store_that_is_dropped_while_calls_are_in_flight_leaves_no_memory_behind() {
        let cache = Arc::new(StateCache::for_tests());
        let states = RevisionStates::new(cache.clone(), RevisionId { policy: 1, number: 1 });
        let (states, key) = (Arc::new(states), Key::from("key"));
        let owner = Arc::new(states.clone());
        reply(&states, &key, &owner);
        let in_use = states.lease(&key).unwrap();
        cache.clear();
        reply(&states, &key, &owner);
        let memory = Arc::downgrade(&cache);
        drop((in_use, states, owner, cache));
        assert!(memory.upgrade().is_none());
    }

    /// The form of a policy changes with the next window of a calendar, under the same revision.
    #[test]
    fn permits_are_given_back_by_the_latest_form_of_the_policy() {
        let cache = Arc::new(StateCache::for_tests());
        let states = RevisionStates::new(cache.clone(), RevisionId { policy: 1, number: 1 });
        for window in 1..=2 {
            reply(&states, &Key::from("key"), &Arc::new(window));
        }
        let returned = cache.leases().close();
        let owners = returned.iter().map(|returned| returned.owner.downcast_ref::<i32>());
        assert_eq!(owners.collect::<Vec<_>>(), [Some(&2); 2]);
    }
}

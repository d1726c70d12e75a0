//! The keys with the most requests.

use std::cmp::Reverse;
use std::collections::HashMap;

use compact_str::CompactString;
use foldhash::quality::RandomState;
use smallvec::{SmallVec, smallvec};

/// Counts the requests of each key, and how many of them each run denied, in bounded memory.
///
/// Up to `most` keys, all counts are exact. With more, the half with the fewest requests is dropped.
/// A dropped key that comes back is counted from 0, so counts can then be too low, by at most `missed`.
#[derive(Debug)]
pub(crate) struct BusyKeys {
    counts: HashMap<CompactString, KeyCounts, RandomState>,
    most: usize,
    missed: u64,
}

/// The requests of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyCounts {
    pub(crate) requests: u64,
    /// The denied requests by the index of the run.
    pub(crate) denied: SmallVec<[u64; 2]>,
    /// The most requests that the key can have had before.
    missed: u64,
}

impl KeyCounts {
    fn add(&mut self, is_denied: &[bool]) {
        self.requests += 1;
        for (count, is_denied) in self.denied.iter_mut().zip(is_denied) {
            *count += u64::from(*is_denied);
        }
    }

    fn at_most(&self) -> u64 {
        self.requests + self.missed
    }
}

impl BusyKeys {
    pub(crate) fn new(most: usize) -> Self {
        Self { counts: HashMap::default(), most, missed: 0 }
    }

    /// Counts a request, with the decision of each run.
    pub(crate) fn count(&mut self, key: &str, is_denied: &[bool]) {
        if let Some(counts) = self.counts.get_mut(key) {
            counts.add(is_denied);
            return;
        }
        if self.counts.len() >= self.most {
            self.drop_rare();
        }
        let denied = smallvec![0; is_denied.len()];
        let mut counts = KeyCounts { requests: 0, denied, missed: self.missed };
        counts.add(is_denied);
        self.counts.insert(key.into(), counts);
    }

    /// Drops at least half of the keys, so that this is rare.
    fn drop_rare(&mut self) {
        let mut requests: Vec<_> = self.counts.values().map(KeyCounts::at_most).collect();
        requests.sort_unstable();
        self.missed = requests.get(requests.len() / 2).copied().unwrap_or_default();
        self.counts.retain(|_, counts| counts.at_most() > self.missed);
    }

    /// The most requests that are missing in the counts of any key.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// The number of keys that have such counts.
    pub(crate) fn len(&self, has: impl Fn(&KeyCounts) -> bool) -> usize {
        self.counts.values().filter(|counts| has(counts)).count()
    }

    /// The keys with the greatest `rank`, at most `most` of them. Those with a rank of 0 are left out.
    pub(crate) fn top(
        &self,
        most: usize,
        rank: impl Fn(&KeyCounts) -> u64,
    ) -> Vec<(&str, &KeyCounts)> {
        let ranked =
            self.counts.iter().map(|(key, counts)| (Reverse(rank(counts)), key.as_str(), counts));
        let mut ranked: Vec<_> = ranked.filter(|(Reverse(rank), ..)| *rank > 0).collect();
        ranked.sort_unstable_by_key(|&(rank, key, _)| (rank, key));
        ranked.into_iter().take(most).map(|(_, key, counts)| (key, counts)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_while_there_are_few_keys() {
        let mut keys = BusyKeys::new(3);
        for (key, is_denied) in [("a", false), ("b", true), ("a", true), ("c", false), ("a", true)]
        {
            keys.count(key, &[is_denied, false]);
        }
        let found: Vec<_> = keys
            .top(2, |counts| counts.requests)
            .into_iter()
            .map(|(key, counts)| (key, counts.requests, counts.denied.to_vec()))
            .collect();
        assert_eq!(found, [("a", 3, vec![2, 0]), ("b", 1, vec![1, 0])]);
        assert_eq!((keys.missed(), keys.len(|counts| counts.denied[0] > 0)), (0, 2));
        assert_eq!(keys.top(9, |counts| counts.denied[1]), [], "nothing was denied");
    }

    #[test]
    fn a_flood_of_keys_does_not_grow_memory_and_does_not_hide_the_busy_ones() {
        let mut keys = BusyKeys::new(100);
        for round in 0..1_000_u64 {
            keys.count("busy", &[true]);
            for other in 0..50 {
                keys.count(&format!("{round}-{other}"), &[false]);
            }
        }
        assert!(keys.counts.len() <= 100 && keys.counts.capacity() < 300);
        let [(key, counts), ..] = keys.top(5, |counts| counts.requests)[..] else { panic!() };
        assert_eq!((key, counts.requests, &*counts.denied), ("busy", 1_000, &[1_000][..]));
        let others = keys.top(5, |counts| counts.requests);
        assert!(others[1..].iter().all(|(_, counts)| counts.requests == 1));
    }

    #[test]
    fn no_more_requests_of_a_key_are_missing_than_reported() {
        let mut keys = BusyKeys::new(2);
        // It is dropped twice.
        for key in ["late", "late", "a", "a", "b", "late", "c", "late"] {
            keys.count(key, &[false]);
        }
        let requests = keys.counts["late"].requests;
        assert!(requests < 4 && requests + keys.missed() >= 4, "{keys:?}");
    }
}

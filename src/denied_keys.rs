use std::fmt;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::quality::RandomState;
use heavykeeper::{TopK, TopKNode};

use crate::{Decision, Key};

/// Finds the keys that are denied most often, in bounded memory.
///
/// Keys are in no metric, because there are too many of them, and because a key may identify a person.
/// Clones count together.
///
/// The counts are estimates: those of a key that is denied often are close, and a key that is denied
/// rarely may be missing (HeavyKeeper: Yang et al., "HeavyKeeper: An Accurate Algorithm for Finding
/// Top-k Elephant Flows", 2019). The memory depends only on how many keys are to be found. Each denial
/// takes a lock.
///
/// ```
/// use std::num::NonZeroU16;
/// use fleetlimit::resolve::PeerIp;
/// use fleetlimit::{DeniedKeys, Limiter, MemoryStore, Quota, RateLimitLayer};
///
/// # fn main() -> Result<(), fleetlimit::ConfigError> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let denied = DeniedKeys::plain(NonZeroU16::new(20).unwrap());
/// let counter = denied.clone();
/// let layer = RateLimitLayer::new(limiter, PeerIp::new())
///     .on_decision(move |checked| counter.observe(checked.key, checked.decision));
/// # let _ = layer;
///
/// // Every minute, for example:
/// for (key, count) in denied.take() {
///     println!("{key} was denied about {count} times");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[cfg_attr(docsrs, doc(cfg(feature = "denied-keys")))]
pub struct DeniedKeys {
    sketch: Arc<Mutex<Sketch>>,
    most: u16,
    is_hashed: bool,
}

type Sketch = TopK<Key, RandomState>;

impl DeniedKeys {
    /// Finds at most this many keys, and reports their text, as [`Key`] displays it. For a key longer than
    /// 128 bytes these are the escaped bytes of its SHA-256 hash.
    pub fn plain(most: NonZeroU16) -> Self {
        Self::new(most, false)
    }

    /// Finds at most this many keys, and reports their [digests](Key::digest). So a log contains no addresses
    /// or names, and a known key can still be looked up.
    pub fn hashed(most: NonZeroU16) -> Self {
        Self::new(most, true)
    }

    fn new(most: NonZeroU16, is_hashed: bool) -> Self {
        let most = most.get();
        Self { sketch: Arc::new(Mutex::new(sketch(most))), most, is_hashed }
    }

    /// Counts a decision about a key, if it is a denial, or would be one in shadow mode.
    pub fn observe(&self, key: &Key, decision: &Decision) {
        if decision.would_be_denied() {
            self.sketch.lock().unwrap_or_else(PoisonError::into_inner).add(key, 1);
        }
    }

    /// Returns the keys that were denied most often since the last [`take`](Self::take), with approximate
    /// counts in descending order. Nothing changes, so any number of readers see the same.
    ///
    /// Without a `take` from time to time, keys that were denied long ago stay in the list.
    #[must_use]
    pub fn list(&self) -> Vec<(String, u64)> {
        let keys = self.sketch.lock().unwrap_or_else(PoisonError::into_inner).list();
        self.sorted(keys)
    }

    /// Returns the keys that were denied most often, as [`list`](Self::list) does, and resets the counts.
    #[must_use]
    pub fn take(&self) -> Vec<(String, u64)> {
        let counted = {
            let mut sketch_in_use = self.sketch.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *sketch_in_use, sketch(self.most))
        };
        self.sorted(counted.list())
    }

    fn sorted(&self, mut keys: Vec<TopKNode<Key>>) -> Vec<(String, u64)> {
        keys.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.item.cmp(&b.item)));
        keys.into_iter().map(|node| (self.text(&node.item), node.count)).collect()
    }

    fn text(&self, key: &Key) -> String {
        if self.is_hashed { key.digest() } else { key.to_string() }
    }
}

/// Makes an empty sketch. Its seeds are random, because clients choose keys.
fn sketch(most: u16) -> Sketch {
    let most = usize::from(most);
    TopK::with_hasher(most, (8 * most).max(64), 2, 0.9, RandomState::default())
}

impl fmt::Debug for DeniedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedKeys").field("is_hashed", &self.is_hashed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TEN: NonZeroU16 = NonZeroU16::new(10).unwrap();

    fn deny(keys: &DeniedKeys, key: impl Into<Key>) {
        keys.observe(&key.into(), &Decision::denied(10, Duration::from_secs(1)));
    }

    #[test]
    fn those_who_are_denied_most_are_found_in_a_flood_of_others() {
        let keys = DeniedKeys::plain(TEN);
        for round in 0..1_000u32 {
            deny(&keys, "first");
            deny(&keys, "second");
            if round % 2 == 0 {
                deny(&keys, "second");
            }
            (0..50).for_each(|other| deny(&keys, 1_000 * round + other));
        }
        let found = keys.take();
        let [(second, most), (first, less), ..] = &found[..] else { panic!("{found:?}") };
        assert_eq!((second.as_str(), first.as_str()), ("second", "first"));
        assert!((1_350..=1_500).contains(most) && (900..=1_000).contains(less), "{found:?}");
        assert!(found.len() <= 10);
        assert_eq!(keys.take(), [], "counting starts anew");
    }

    #[test]
    fn an_allowed_check_is_not_counted() {
        let keys = DeniedKeys::plain(TEN);
        keys.observe(&"a".into(), &Decision::allowed(10, 3));
        assert_eq!(keys.take(), []);
    }

    #[test]
    fn a_hashed_key_is_not_readable_and_can_be_looked_up() {
        let keys = DeniedKeys::hashed(TEN);
        deny(&keys, "203.0.113.7");
        // printf %s 203.0.113.7 | sha256sum | cut -c 1-16
        assert_eq!(keys.take(), [("fec52565aa0cf18f".to_owned(), 1)]);
    }

    #[test]
    fn a_reader_takes_nothing_from_the_next_one() {
        let keys = DeniedKeys::plain(TEN);
        let expected = [("often".to_owned(), 2), ("once".to_owned(), 1)];
        ["once", "often", "often"].into_iter().for_each(|key| deny(&keys, key));
        for reader in [&keys, &keys.clone()] {
            assert_eq!(reader.list(), expected);
        }
        deny(&keys, "often");
        assert_eq!(keys.list()[0].1, 3, "counting goes on");
        assert_eq!(keys.take().len(), 2);
        assert_eq!(keys.list(), []);
    }

    #[test]
    fn a_key_of_any_bytes_is_printable() {
        let keys = DeniedKeys::plain(TEN);
        deny(&keys, &b"a\n\xff"[..]);
        assert_eq!(keys.take(), [(r"a\n\xff".to_owned(), 1)]);
    }
}

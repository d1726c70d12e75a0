//! Hashes keys in a way that clients cannot predict. Clients choose keys, and would otherwise make them
//! collide.
//!
//! `foldhash` is enough: the hash of the standard library resists clients that see hashes, but no hash leaves
//! the process, and the time of one lookup cannot be measured through a server. The table of the memory store
//! lives as long as the process, so its seeds come from the operating system. Batches, caches and waiters use
//! the seeds of `foldhash`, made of addresses and the time: their tables are bounded and short-lived.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

/// The hasher of a store: `foldhash`, with seeds from the operating system's randomness. Its own
/// seeds are made of addresses and the time.
pub(super) type KeyHasher = SeedableRandomState;

static SHARED_SEED: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(random()));

pub(super) fn random_hasher() -> KeyHasher {
    SeedableRandomState::with_seed(random(), &SHARED_SEED)
}

fn random() -> u64 {
    // Its keys come from the operating system, and are different in each call.
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Key;

    #[test]
    fn keys_that_collide_in_one_store_do_not_collide_in_another() {
        let (one, other) = (random_hasher(), random_hasher());
        // All end in the same 6 bits, which choose a place in a small table.
        let colliding: Vec<Key> = (0..64_000u32)
            .map(Key::from)
            .filter(|key| one.hash_one(key) % 64 == 0)
            .inspect(|key| assert_ne!(one.hash_one(key), other.hash_one(key)))
            .collect();
        let places: HashSet<u64> = colliding.iter().map(|key| other.hash_one(key) % 64).collect();
        assert_eq!(places.len(), 64);
    }
}

//! Random numbers: to spread out what would otherwise happen at once, and as identities.

#[cfg(test)]
pub(crate) mod seeded;

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

/// Returns a random number from 0 to 1.
pub fn unit() -> f64 {
    // Each has another seed.
    RandomState::default().hash_one(0) as f64 / u64::MAX as f64
}

/// Returns an identity that nobody else has, from 1 to 2^52.
pub(crate) fn id() -> u64 {
    // Unlike the hasher above, this one is seeded by the operating system. All numbers in Lua are below 2^53.
    (std::hash::RandomState::new().hash_one(0) >> 12) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_the_range() {
        let mut counts = [0; 10];
        for _ in 0..10_000 {
            counts[((unit() * 10.0) as usize).min(9)] += 1;
        }
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
}

//! Random numbers from a seed (SplitMix64).

use std::ops::Range;

#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(super) fn index(&mut self, len: usize) -> usize {
        self.range(0..len as u64) as usize
    }

    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.range(0..100) < percent
    }

    /// From 0 to 1.
    pub(super) fn unit(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }
}

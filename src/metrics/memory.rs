//! What is measured of a store in memory.

use super::instruments::Counter;

/// The measurements of a store in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryMetrics {
    pub(super) evictions: Counter,
}

impl MemoryMetrics {
    pub(crate) fn evicted(&self, buckets: u64) {
        self.evictions.add(buckets, self);
    }
}

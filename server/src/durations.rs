//! A histogram of the durations of checks. It records all of them, because that takes no lock.
//!
//! Each power of two nanoseconds has four buckets, so a quantile is at most a quarter too large.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The buckets of each power of two, as a power of two.
const BITS: u32 = 2;
const BUCKETS: usize = 64 << BITS;

/// The durations since the process started.
#[derive(Debug)]
pub(crate) struct Durations([AtomicU64; BUCKETS]);

/// The durations up to one time, or between two times.
#[derive(Clone, Debug)]
pub(crate) struct Recorded(Box<[u64; BUCKETS]>);

impl Durations {
    pub(crate) fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.0.get(bucket(nanos)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> Recorded {
        let mut recorded = Recorded::default();
        for (copy, count) in recorded.0.iter_mut().zip(&self.0) {
            *copy = count.load(Ordering::Relaxed);
        }
        recorded
    }
}

impl Default for Durations {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Default for Recorded {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

impl Recorded {
    /// Returns what was recorded after an earlier time.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        for (count, earlier) in later.0.iter_mut().zip(earlier.0.iter()) {
            *count = count.saturating_sub(*earlier);
        }
        later
    }

    /// Returns the duration that this percentage of the checks did not exceed. `None` if there are no checks.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let all: u64 = self.0.iter().sum();
        let needed = all.saturating_mul(percent).div_ceil(100);
        let mut below = 0;
        let bucket = self.0.iter().position(|count| {
            below += count;
            below >= needed
        });
        bucket.filter(|_| all > 0).map(|bucket| Duration::from_nanos(end(bucket)))
    }
}

/// Returns the bucket of a number: its highest bit, and the next ones. Nothing is measured that is shorter than the
/// first one.
fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(1 << BITS);
    let highest = nanos.ilog2();
    let next = (nanos >> (highest - BITS)) & ((1 << BITS) - 1);
    ((highest as usize) << BITS) | usize::try_from(next).unwrap_or_default()
}

/// Returns the first number above a bucket.
fn end(bucket: usize) -> u64 {
    let (highest, next) = (bucket >> BITS, bucket & ((1 << BITS) - 1));
    let end = ((1 << BITS) + next as u128 + 1) << highest >> BITS;
    u64::try_from(end).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_at_most_a_quarter_too_large() {
        for nanos in [1, 3, 4, 5, 999, 1_000, 1_234_567, 20_000_000, 3_000_000_000, u64::MAX] {
            let durations = Durations::default();
            durations.record(Duration::from_nanos(nanos));
            let found = durations.get().percentile(99).unwrap().as_nanos();
            let nanos = u128::from(nanos);
            assert!(found >= nanos && found <= (nanos + nanos / 4).max(5), "{nanos}: {found}");
        }
        let durations = Durations::default();
        durations.record(Duration::MAX);
        assert!(durations.get().percentile(50) > Some(Duration::from_secs(1 << 33)));
    }

    #[test]
    fn a_few_slow_checks_are_seen_only_in_the_high_percentiles_of_their_time() {
        let durations = Durations::default();
        assert_eq!(durations.get().percentile(99), None);
        (0..100).for_each(|_| durations.record(Duration::from_secs(9)));
        let before = durations.get();
        (0..98).for_each(|_| durations.record(Duration::from_millis(1)));
        (0..2).for_each(|_| durations.record(Duration::from_millis(500)));
        let recorded = durations.get().since(&before);
        let [median, high] = [50, 99].map(|percent| recorded.percentile(percent).unwrap());
        assert!(median < Duration::from_millis(2), "{median:?}");
        assert!(high > Duration::from_millis(500) && high < Duration::from_secs(1), "{high:?}");
    }
}

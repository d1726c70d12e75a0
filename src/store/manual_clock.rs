//! A clock that an application sets, for a memory store that replays recorded traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A manually advanced clock for a [`MemoryStore`](crate::MemoryStore), for replaying recorded traffic
/// faster than real time. Clones share the same clock.
///
/// Only decisions follow it: [`Limiter::acquire`](crate::Limiter::acquire) still waits by Tokio's clock.
/// In asynchronous tests, Tokio's paused clock is often simpler: a `MemoryStore` follows it by default.
///
/// ```
/// use std::num::NonZeroUsize;
/// use std::time::{Duration, UNIX_EPOCH};
/// use fleetlimit::{Limiter, ManualClock, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let start = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
/// let clock = ManualClock::new(start);
/// let keys = NonZeroUsize::new(1_000).unwrap();
/// let store = MemoryStore::with_manual_clock(keys, clock.clone());
/// let limiter = Limiter::new(store, Quota::per_hour(1))?;
/// assert!(limiter.check("user:7").await?.is_allowed());
/// assert!(limiter.check("user:7").await?.is_denied());
///
/// clock.advance_to(start + Duration::from_secs(3_600));
/// assert!(limiter.check("user:7").await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock set to `time`, truncated to microseconds. Times before 1970 become 1970-01-01
    /// 00:00 UTC.
    pub fn new(time: SystemTime) -> Self {
        Self(Arc::new(AtomicU64::new(micros(time))))
    }

    /// Advances the clock to `time`. It never goes backwards: an earlier time has no effect.
    pub fn advance_to(&self, time: SystemTime) {
        self.0.fetch_max(micros(time), Ordering::Relaxed);
    }

    /// Returns the current time of this clock.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.micros())
    }

    /// Since 1970.
    pub(super) fn micros(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

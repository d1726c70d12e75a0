use std::cell::Cell;
use std::time::{Duration, Instant};

/// Measures one check in 64: reading the clock twice would cost a few percent of a check.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Whether the next check is one of those that are measured, which are chosen at random.
    #[inline]
    pub(crate) fn is_due() -> bool {
        thread_local!(static RANDOM: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) });
        // Xorshift (Marsaglia, "Xorshift RNGs", 2003).
        let mut random = RANDOM.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        RANDOM.set(random);
        random >> 58 == 0
    }

    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(in crate::metrics) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

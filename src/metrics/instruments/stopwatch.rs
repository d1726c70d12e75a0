use std::cell::Cell;
use std::time::{Duration, Instant};

/// Measures one in 64, chosen at random: reading the clock twice would cost a few percent of a check.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// `None` if the check is not measured.
    #[inline]
    pub(crate) fn start() -> Option<Self> {
        thread_local!(static RANDOM: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) });
        // Xorshift (Marsaglia, "Xorshift RNGs", 2003).
        let mut random = RANDOM.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        RANDOM.set(random);
        (random >> 58 == 0).then(|| Self(Instant::now()))
    }

    pub(in crate::metrics) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

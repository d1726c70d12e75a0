use std::cell::Cell;
use std::time::{Duration, Instant};

/// Measures one in 64, chosen at random: reading the clock twice would cost a few percent of a check.
#[derive(Debug)]
pub(crate) struct Stopwatch(Option<Box<Instant>>);

impl Stopwatch {
    #[inline]
    pub(crate) fn start() -> Self {
        thread_local!(static RANDOM: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) });
        // Xorshift (Marsaglia, "Xorshift RNGs", 2003).
        let mut random = RANDOM.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        RANDOM.set(random);
        Self((random >> 58 == 0).then(|| Box::new(Instant::now())))
    }

    #[inline]
    pub(in crate::metrics) fn elapsed(&self) -> Option<Duration> {
        self.0.as_ref().map(|start| start.elapsed())
    }
}

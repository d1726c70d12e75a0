use std::cell::Cell;
use std::time::{Duration, Instant};

/// Measures one check in 256: with all, reading the clock and recording would cost a few percent of a check.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

thread_local! {
    static UNTIL_DUE: Cell<u64> = const { Cell::new(0) };
    static RANDOM: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

impl Stopwatch {
    /// Whether the next check is measured. The gaps are random, so that they do not follow a pattern of the
    /// checks.
    #[inline]
    pub(crate) fn is_due() -> bool {
        match UNTIL_DUE.get() {
            0 => {
                UNTIL_DUE.set(random_gap());
                true
            }
            checks => {
                UNTIL_DUE.set(checks - 1);
                false
            }
        }
    }

    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(in crate::metrics) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// From 0 to 510 checks, 255 on average.
#[cold]
fn random_gap() -> u64 {
    // Xorshift (Marsaglia, "Xorshift RNGs", 2003).
    let mut random = RANDOM.get();
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    RANDOM.set(random);
    random % 511
}

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::random;

/// Measures one check in 256: with all, reading the clock and recording would cost a few percent of a check.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Whether the next check is measured. The gaps are random, so that they do not follow a pattern of the
    /// checks.
    #[inline]
    pub(crate) fn is_due() -> bool {
        thread_local!(static UNTIL_DUE: Cell<u32> = const { Cell::new(0) });
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
fn random_gap() -> u32 {
    (random::unit() * 511.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_check_in_256_is_measured() {
        let measured = (0..2_560_000).filter(|_| Stopwatch::is_due()).count();
        assert!((9_500..10_500).contains(&measured), "{measured}");
    }
}

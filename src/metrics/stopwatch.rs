//! The clock of the checks that are measured, one in 256.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::random;

/// The start of a check that is measured. Only one check in 256 is: with all, reading the clock and recording
/// would cost a few percent of a check.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Returns true if the next check is measured. The gaps are random, so that they do not follow a pattern of
    /// the checks.
    #[inline]
    pub(crate) fn is_due() -> bool {
        if cfg!(not(feature = "metrics")) {
            return false;
        }
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

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Returns a number of checks from 0 to 510, on average 255.
#[cold]
fn random_gap() -> u32 {
    (random::unit() * 511.0) as u32
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;

    #[test]
    fn one_check_in_256_is_measured() {
        let measured = (0..2_560_000).filter(|_| Stopwatch::is_due()).count();
        assert!((9_500..10_500).contains(&measured), "{measured}");
    }
}

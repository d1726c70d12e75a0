//! The permits that a lease keeps after they were given back, for the next holds of the key.
//!
//! What was not needed at any time of half a lease is given back at its end. So a permit is kept for at most the length of
//! a lease after it was needed last.

use std::time::{Duration, Instant};

/// The permits of a key that this process keeps.
#[derive(Debug, Default)]
pub(super) struct Spare {
    permits: u64,
    /// The fewest permits since the start of the period, which nobody has needed.
    least: u64,
    /// The end of the period.
    end: Option<Instant>,
}

impl Spare {
    pub(super) fn permits(&self) -> u64 {
        self.permits
    }

    /// Keeps permits that were given back, up to `most` in all. Returns those that are kept.
    pub(super) fn keep(&mut self, permits: u64, most: u64, now: Instant, lease: Duration) -> u64 {
        let kept = permits.min(most.saturating_sub(self.permits));
        self.permits += kept;
        if kept > 0 && self.end.is_none() {
            self.start_period(now, lease);
        }
        kept
    }

    /// Takes permits, if there are as many.
    pub(super) fn take(&mut self, permits: u64) -> bool {
        let Some(left) = self.permits.checked_sub(permits) else { return false };
        self.permits = left;
        self.least = self.least.min(left);
        true
    }

    /// Returns the time at which permits may be given back.
    pub(super) fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Ends a period whose end has come. Returns the permits that nobody has needed in it.
    pub(super) fn end_period(&mut self, now: Instant, lease: Duration) -> u64 {
        if self.end.is_none_or(|end| now < end) {
            return 0;
        }
        let unused = self.least;
        self.permits -= unused;
        match self.permits {
            0 => self.end = None,
            _ => self.start_period(now, lease),
        }
        unused
    }

    /// Gives all permits back.
    pub(super) fn clear(&mut self) -> u64 {
        self.end = None;
        std::mem::take(&mut self.permits)
    }

    fn start_period(&mut self, now: Instant, lease: Duration) {
        (self.least, self.end) = (self.permits, Some(now + lease / 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(100);

    #[test]
    fn permits_that_nobody_needs_are_given_back_within_a_lease() {
        let (mut spare, start) = (Spare::default(), Instant::now());
        assert_eq!(spare.keep(5, 9, start, LEASE), 5);
        assert_eq!(spare.end_period(start + LEASE / 4, LEASE), 0);
        // Three are in use for a moment.
        assert!(spare.take(3));
        assert_eq!(spare.keep(3, 9, start + LEASE / 4, LEASE), 3);
        assert_eq!(spare.end_period(start + LEASE / 2, LEASE), 2);
        assert_eq!((spare.permits(), spare.end_period(start + LEASE, LEASE)), (3, 3));
        assert_eq!((spare.permits(), spare.end()), (0, None));
    }

    #[test]
    fn no_more_is_kept_than_allowed_and_no_more_taken_than_there_is() {
        let (mut spare, now) = (Spare::default(), Instant::now());
        assert_eq!([spare.keep(5, 3, now, LEASE), spare.keep(5, 3, now, LEASE)], [3, 0]);
        assert!(!spare.take(4) && spare.take(2) && !spare.take(2) && spare.take(1));
        assert_eq!(spare.clear(), 0);
    }
}

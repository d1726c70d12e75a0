//! What is logged at intervals, because anyone may send requests that cause it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two lines about one cause.
const INTERVAL: Duration = Duration::from_secs(60);

/// The causes. Each has an interval of its own, so that none hides another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    // Of checks over gRPC.
    UnknownDomain,
    TooManyParts,
    DeniedHits,
    NegativeHits,
    // Of requests that `/auth` cannot check.
    Caller,
    ClientQuery,
    Parameters,
    NoPolicy,
    PolicyHeader,
    UnknownPolicy,
    KeyHeader,
    /// The last one.
    Address,
}

impl Cause {
    const COUNT: usize = Self::Address as usize + 1;
}

#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<[Unlogged; Cause::COUNT]>);

#[derive(Debug, Default)]
struct Unlogged {
    count: u64,
    next_line: Option<Instant>,
}

impl Warnings {
    /// Counts an occurrence. Returns how many there were since the last line, if it is time for another.
    pub(crate) fn add(&self, cause: Cause) -> Option<u64> {
        self.add_at(cause, Instant::now())
    }

    fn add_at(&self, cause: Cause, now: Instant) -> Option<u64> {
        let mut causes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unlogged = &mut causes[cause as usize];
        unlogged.count += 1;
        if unlogged.next_line.is_some_and(|next_line| now < next_line) {
            return None;
        }
        unlogged.next_line = Some(now + INTERVAL);
        Some(std::mem::take(&mut unlogged.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_fill_the_log_and_one_cause_hides_no_other() {
        let (warnings, start) = (Warnings::default(), Instant::now());
        let add = |cause, seconds| warnings.add_at(cause, start + Duration::from_secs(seconds));
        let lines = [0, 0, 1, 59, 60, 61].map(|seconds| add(Cause::Caller, seconds));
        assert_eq!(lines, [Some(1), None, None, None, Some(4), None]);
        assert_eq!(add(Cause::Address, 61), Some(1));
        assert_eq!(add(Cause::Caller, 1_000), Some(2));
    }
}

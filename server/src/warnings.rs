//! Warnings that are logged at intervals, because anyone may send requests that cause them.

use std::time::{Duration, Instant};

use fleetlimit::internal::LogThrottle;

/// The least time between two lines about one cause.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

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

#[derive(Debug)]
pub(crate) struct Warnings([LogThrottle; Cause::COUNT]);

impl Warnings {
    /// Counts an occurrence. Returns how many there were since the last line, if it is time for another.
    pub(crate) fn add(&self, cause: Cause) -> Option<u64> {
        self.0[cause as usize].occurred(Instant::now())
    }
}

impl Default for Warnings {
    fn default() -> Self {
        Self([const { LogThrottle::new(LOG_INTERVAL) }; Cause::COUNT])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_fill_the_log_and_one_cause_hides_no_other() {
        let warnings = Warnings::default();
        let lines = (0..1_000).filter_map(|_| warnings.add(Cause::Caller));
        assert_eq!(lines.collect::<Vec<_>>(), [1]);
        assert_eq!(warnings.add(Cause::Address), Some(1));
    }
}

use crate::decision::{Outcome, Source};
use crate::{Decision, Error};

/// What answers a check when the store does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// The check is allowed, uncounted: an outage of the store is none of the service.
    Open,
    /// The check fails with the store's error; a layer answers 503. It is never told as a denial.
    Closed,
}

impl FailureMode {
    pub(super) fn answer(self, error: Error, limit: u32) -> Result<Decision, Error> {
        match self {
            Self::Closed => Err(error),
            Self::Open => Ok(Decision {
                outcome: Outcome::Allowed,
                source: Source::FailureMode,
                limit,
                remaining: limit,
                retry_after: 0,
                refill_after: 0,
                reset_after: 0,
            }),
        }
    }
}

use crate::decision::{Outcome, Source};
use crate::{Decision, Error};

/// What answers a check when the store does not.
///
/// ```
/// use tollgate::{FailureMode, Limiter, Quota, RedisStore, Source};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Nothing listens on port 1.
/// let limiter = Limiter::new(RedisStore::connect("redis://127.0.0.1:1")?, Quota::per_second(1))?;
/// let decision = limiter.check("user:7").await?;
/// assert!(decision.is_allowed() && decision.source() == Source::FailureMode);
///
/// let limiter = limiter.failure_mode(FailureMode::Closed);
/// assert!(limiter.check("user:7").await.is_err());
/// # Ok(()) }
/// ```
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

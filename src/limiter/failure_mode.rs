use crate::Error;
use crate::verdict::{Numbers, Outcome, Verdict};

/// What happens to a check when the store fails: it is unreachable, does not reply within the
/// timeout, or replies with an error.
///
/// While the store fails, each limiter logs a `tracing` warning at most every five seconds per
/// reason, under the target `tollgate`, with the policy, the reason, the server and the number of
/// checks.
///
/// ```
/// use tollgate::{FailureMode, Limiter, Quota, RedisStore, Source};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Nothing listens on port 1.
/// let store = RedisStore::open("redis://127.0.0.1:1")?;
/// let limiter = Limiter::new(store.clone(), Quota::per_second(1))?;
/// let decision = limiter.check("user:7").await?;
/// assert!(decision.is_allowed() && decision.source() == Source::FailureMode);
///
/// let limiter = Limiter::builder(store, Quota::per_second(1))
///     .failure_mode(FailureMode::Closed)
///     .build()?;
/// assert!(limiter.check("user:7").await.is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// The check is allowed without being counted, so a Redis outage does not take the service
    /// down. There is no rate limit while the store fails.
    #[default]
    Open,
    /// The check fails with the store's error, and a layer responds with 503. It is never reported
    /// as a denial.
    Closed,
}

impl FailureMode {
    pub(super) fn verdict(self, error: Error, limit: u64) -> Result<Verdict, Error> {
        match self {
            Self::Closed => Err(error),
            Self::Open => {
                let numbers = Numbers { remaining: limit, ..Numbers::default() };
                Ok(Verdict::new(Outcome::Allowed, numbers))
            }
        }
    }
}

use std::time::Duration;

/// The answer to a check: whether it was admitted, and where the caller's bucket stands.
///
/// Durations are exact to the microsecond, counted from the moment of the decision on the clock of
/// the store that made it, and rounded up.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(6).burst(2))?;
/// let decision = limiter.check("user:7").await?;
/// assert!(decision.is_allowed());
/// assert_eq!((decision.limit(), decision.remaining()), (2, 1));
///
/// let decision = limiter.check_cost("user:7", 2).await?;
/// assert!(!decision.is_allowed());
/// assert!(decision.retry_after() <= Duration::from_secs(10));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub(crate) outcome: Outcome,
    pub(crate) source: Source,
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    /// In microseconds, as the others are: half the size of a `Duration`, and cheaper to make.
    pub(crate) retry_after: u64,
    pub(crate) refill_after: u64,
    pub(crate) reset_after: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    OverLimit,
}

/// Who made a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// This process, which remembers that the store denied the same caller and when that ends.
    Remembered,
    /// The limiter's [`FailureMode`](crate::FailureMode), because the store did not answer: the
    /// numbers say nothing about the caller's bucket.
    FailureMode,
}

impl Decision {
    /// Whether the check was admitted and its cost charged.
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// Whether the cost is larger than the whole burst, so that no wait will ever admit it.
    ///
    /// Such a check is denied, [`retry_after`](Self::retry_after) is [`Duration::MAX`], and the
    /// response has no `Retry-After`.
    pub fn is_over_limit(&self) -> bool {
        self.outcome == Outcome::OverLimit
    }

    /// The burst: the most permits that the bucket holds.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The whole permits left in the bucket.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// How long until a check of the same cost can be admitted: zero when this one was, and
    /// [`Duration::MAX`] when none ever will be.
    pub fn retry_after(&self) -> Duration {
        match self.outcome {
            Outcome::OverLimit => Duration::MAX,
            _ => Duration::from_micros(self.retry_after),
        }
    }

    /// How long until [`remaining`](Self::remaining) grows by one: zero when the bucket is full.
    pub fn refill_after(&self) -> Duration {
        Duration::from_micros(self.refill_after)
    }

    /// How long until the bucket is full.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// Who decided.
    pub fn source(&self) -> Source {
        self.source
    }
}

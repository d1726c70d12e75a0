//! The holds that have ended, for as long as one of their tokens may be sent again.
//!
//! Ending a hold is a check of an internal limit: one per hold, in a time that is longer than its tokens are valid.
//! So all instances agree, also on a cluster, and what is remembered expires.

use std::time::Duration;

use fleetlimit::{AnyStore, ConfigError, Error, FailureMode, Limiter, Policy, Quota};

/// The name of the limit, which no policy of the settings can have.
const NAME: &str = "fleetlimit.ended-holds";
/// The time by which the clocks of instances may differ, in seconds.
const SKEW: u64 = 60;

/// The holds that have ended.
#[derive(Debug)]
pub(crate) struct EndedHolds(Limiter);

impl EndedHolds {
    /// `timeout` is that of checks.
    ///
    /// # Errors
    ///
    /// If the store cannot hold the limit.
    pub(crate) fn new(store: &AnyStore, timeout: Duration) -> Result<Self, ConfigError> {
        let builder = Limiter::builder(store.clone(), Policy::new(NAME).quota("once", once(1)));
        Ok(Self(builder.timeout(timeout).failure_mode(FailureMode::Closed).build()?))
    }

    /// Ends a hold whose tokens are each valid for so many seconds. Returns false if it has ended before.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn end(&self, hold: u64, seconds: u64) -> Result<bool, Error> {
        Ok(self.limit(seconds).check(key(hold)).await?.is_allowed())
    }

    /// Returns true if a hold has ended.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn has_ended(&self, hold: u64, seconds: u64) -> Result<bool, Error> {
        Ok(self.limit(seconds).peek(key(hold)).await?.remaining() == 0)
    }

    fn limit(&self, seconds: u64) -> Limiter {
        // The quota is valid for any number of seconds.
        self.0.with_quota(once(seconds + SKEW)).unwrap_or_else(|_| self.0.clone())
    }
}

/// One permit in so many seconds, so that there is none in that time after it was taken.
fn once(seconds: u64) -> Quota {
    Quota::new(1, Duration::from_secs(seconds))
}

fn key(hold: u64) -> String {
    format!("{hold:x}")
}

#[cfg(test)]
mod tests {
    use fleetlimit::MemoryStore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_hold_ends_once_while_its_tokens_are_valid() {
        let ended = EndedHolds::new(&MemoryStore::new().into(), Duration::from_secs(1)).unwrap();
        for seconds in [1, 60, 3_600] {
            assert!(!ended.has_ended(seconds, seconds).await.unwrap());
            assert!(ended.end(seconds, seconds).await.unwrap());
            for _ in 0..3 {
                assert!(!ended.end(seconds, seconds).await.unwrap());
                assert!(ended.has_ended(seconds, seconds).await.unwrap());
                tokio::time::advance(Duration::from_secs(seconds) / 3).await;
            }
            assert!(!ended.end(seconds, seconds).await.unwrap());
        }
    }
}

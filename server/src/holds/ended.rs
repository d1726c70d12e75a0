//! The holds that have ended, for as long as one of their tokens may be sent again.
//!
//! Ending a hold is a check of an internal limit: one per hold, in a time that is longer than its tokens are valid.
//! So all instances agree, also on a cluster, and what is remembered expires.

use std::time::Duration;

use fleetlimit::{AnyStore, ConfigError, Decision, Error, Limiter, Policy, Quota, Source};

use crate::settings::Checks;

/// The name of the limit, which no policy of the settings may have.
pub(crate) const ENDED_HOLDS: &str = "fleetlimit.ended-holds";
/// The time by which the clocks of instances may differ, in seconds.
const SKEW: u64 = 60;

/// The holds that have ended.
#[derive(Debug)]
pub(crate) struct EndedHolds(Limiter);

/// The outcome of ending a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    First,
    /// It has ended before.
    Again,
    /// The store fails, and the failure mode has decided. Nobody knows whether the hold has ended before.
    Unknown,
}

impl EndedHolds {
    /// # Errors
    ///
    /// If the store cannot hold the limit.
    pub(crate) fn new(store: &AnyStore, checks: &Checks) -> Result<Self, ConfigError> {
        let builder =
            Limiter::builder(store.clone(), Policy::new(ENDED_HOLDS).quota("once", once(1)));
        // In the failure mode of all others, so that it raises no other alerts.
        let builder = builder.timeout(checks.timeout).failure_mode(checks.failure_mode.into());
        Ok(Self(builder.build()?))
    }

    /// Ends a hold whose tokens are each valid for so many seconds.
    ///
    /// # Errors
    ///
    /// If the store fails, and the failure mode is `closed`.
    pub(crate) async fn end(&self, hold: u64, seconds: u64) -> Result<End, Error> {
        let decision = self.limit(seconds).check(key(hold)).await?;
        Ok(match (is_known(&decision), decision.is_allowed()) {
            (false, _) => End::Unknown,
            (true, true) => End::First,
            (true, false) => End::Again,
        })
    }

    /// Returns true if a hold has ended, as far as is known.
    pub(crate) async fn has_ended(&self, hold: u64, seconds: u64) -> bool {
        let peeked = self.limit(seconds).peek(key(hold)).await;
        peeked.is_ok_and(|decision| is_known(&decision) && decision.remaining() == 0)
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

fn is_known(decision: &Decision) -> bool {
    matches!(decision.source(), Source::Store | Source::Cached)
}

fn key(hold: u64) -> String {
    format!("{hold:x}")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::SystemTime;

    use fleetlimit::{ManualClock, MemoryStore};

    use super::*;

    #[tokio::test]
    async fn a_hold_ends_once_while_its_tokens_are_valid() {
        let clock = ManualClock::new(SystemTime::now());
        let keys = NonZeroUsize::new(9).unwrap();
        let store = MemoryStore::with_manual_clock(keys, clock.clone());
        let ended = EndedHolds::new(&store.into(), &Checks::default()).unwrap();
        for seconds in [1, 60, 3_600] {
            assert!(!ended.has_ended(seconds, seconds).await);
            assert_eq!(ended.end(seconds, seconds).await.unwrap(), End::First);
            let start = clock.now();
            for part in 0..=3 {
                clock.advance_to(start + Duration::from_secs(seconds) * part / 3);
                assert_eq!(ended.end(seconds, seconds).await.unwrap(), End::Again);
                assert!(ended.has_ended(seconds, seconds).await);
            }
        }
    }
}

//! Decides one key: by what an operator has blocked, then by its policy.

use std::time::{Duration, Instant};

use fleetlimit::{Costs, Decision, Error, ErrorKind, Key, Limiter, Source};

use crate::live::{ActivePolicy, Live};
use crate::telemetry;

/// The result of a check.
#[derive(Debug)]
pub(crate) enum Answer {
    /// An operator has blocked the key, for so long from now on.
    Blocked(Duration),
    Decided(Decision),
}

/// Checks a key. The limiter is that of the policy, or one with other numbers.
///
/// # Errors
///
/// If the store fails and the failure mode is `closed`, or if a cost names an unknown quota.
pub(crate) async fn check(
    live: &Live,
    policy: &ActivePolicy,
    limiter: &Limiter,
    key: &Key,
    costs: Costs,
) -> Result<Answer, Error> {
    let decision = decide(live, policy, limiter, key, costs).await?;
    Ok(match decision.source() {
        Source::Blocked => Answer::Blocked(decision.retry_after().unwrap_or_default()),
        _ => Answer::Decided(decision),
    })
}

/// Returns the remaining time for which an operator has blocked the key. Requests of several keys need it, none of
/// which may be checked if one is blocked.
pub(crate) fn blocked(live: &Live, policy: &ActivePolicy, key: &Key) -> Option<Duration> {
    let remaining = live.blocked.get(policy.name(), key)?;
    policy.counts().add_denial();
    live.history.add_denial();
    telemetry::overruled("block");
    Some(remaining)
}

/// Decides a key. The limiter denies one that is blocked.
///
/// # Errors
///
/// As for [`check`].
pub(crate) async fn decide(
    live: &Live,
    policy: &ActivePolicy,
    limiter: &Limiter,
    key: &Key,
    costs: Costs,
) -> Result<Decision, Error> {
    let start = Instant::now();
    let result = limiter.check_cost(key, costs).await;
    let decision = measure(live, policy, start, result, |decision| decision)?;
    count(live, policy, key, &decision);
    Ok(decision)
}

/// Records a check that ends now: its duration, its trace, and whether the store has failed to decide it.
///
/// # Errors
///
/// The error of the check.
pub(crate) fn measure<T>(
    live: &Live,
    policy: &ActivePolicy,
    start: Instant,
    result: Result<T, Error>,
    decision: impl FnOnce(&T) -> &Decision,
) -> Result<T, Error> {
    let duration = start.elapsed();
    live.history.add_duration(duration);
    if let Some(traces) = &live.traces {
        traces.record(policy.name(), duration, result.as_ref().map(decision));
    }
    result.inspect_err(|error| {
        let is_of_request = matches!(error.kind(), ErrorKind::UnknownQuota | ErrorKind::NotHeld);
        if !is_of_request {
            policy.counts().add_failure();
            live.history.add_failure();
        }
    })
}

/// Counts a decision.
pub(crate) fn count(live: &Live, policy: &ActivePolicy, key: &Key, decision: &Decision) {
    policy.counts().add_outcome(decision);
    policy.counts().add_source(decision);
    live.history.add(decision, policy.is_shadow());
    policy.near_limit().count(decision);
    match decision.source() {
        Source::Blocked => telemetry::overruled("block"),
        _ => live.denied.observe(policy.name(), key, decision),
    }
}

/// The seconds of a time, rounded up as `Retry-After` needs them.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

//! The answer to a request with all its descriptors.

use std::time::Duration;

use super::status::Outcome;
use crate::domain::Limit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overall {
    Allowed,
    /// The request is denied, with the time until it can be allowed, if it ever can.
    Denied(Option<Duration>),
}

/// Decides the request, which is over the limit if one of its limits is, or all of those in quota mode are. `None` if
/// that depends on checks that have failed.
///
/// If all limits are in quota mode, a descriptor without a limit is one that is not over it.
pub(super) fn overall(outcomes: &[Outcome<'_>], all_are_quotas: bool) -> Option<Overall> {
    let is_unmatched =
        |outcome: &Outcome<'_>| matches!(outcome, Outcome::Unlimited { is_matched: false, .. });
    let is_within = all_are_quotas && outcomes.iter().any(is_unmatched);
    let best = if_failed(outcomes, is_within, None);
    let worst = if_failed(outcomes, is_within, Some(Duration::MAX));
    ((best == Overall::Allowed) == (worst == Overall::Allowed)).then_some(best)
}

/// The result with this wait for the checks that have failed. `is_within` is true if not all quotas are over the limit.
fn if_failed(outcomes: &[Outcome<'_>], is_within: bool, failed: Option<Duration>) -> Overall {
    let wait = |outcome: &Outcome<'_>| if outcome.has_failed() { failed } else { wait(outcome) };
    let others = outcomes.iter().filter(|outcome| !is_quota(outcome));
    // An allowed one has no wait, which is less than any.
    let quotas = outcomes.iter().filter(|outcome| is_quota(outcome));
    let first_quota = quotas.map(&wait).min().flatten().filter(|_| !is_within);
    match others.filter_map(&wait).chain(first_quota).max() {
        None => Overall::Allowed,
        Some(wait) => Overall::Denied(Some(wait).filter(|wait| *wait < Duration::MAX)),
    }
}

/// Returns true in quota mode. A descriptor that is never over the limit does not keep the others from denying.
fn is_quota(outcome: &Outcome<'_>) -> bool {
    let rule = outcome.rule();
    rule.is_some_and(|rule| rule.quota_mode && !matches!(rule.limit, Limit::Unlimited))
}

/// The time until the descriptor is allowed. `None` if it is now, or if it was not checked.
fn wait(outcome: &Outcome<'_>) -> Option<Duration> {
    let wait = match outcome {
        Outcome::Decided { decision, .. } => decision.retry_after(),
        Outcome::Blocked(time) => *time,
        Outcome::Unlimited { .. } | Outcome::Never { .. } => None,
        Outcome::Undecided { .. } => return None,
    };
    (!outcome.is_allowed()).then(|| wait.unwrap_or(Duration::MAX))
}

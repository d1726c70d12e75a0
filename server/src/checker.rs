//! Decides one key: by the lists, by what an operator has blocked, then by its policy.

use std::time::Duration;

use tollgate::{Costs, Decision, Error, Key, Limiter};

use crate::denied::Denied;
use crate::live::{Active, ActivePolicy};

/// What a gateway is told.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The key is on the allow list.
    Exempt,
    /// The key is on the deny list, or blocked for a time.
    Blocked(Option<Duration>),
    Decided(Decision),
}

impl Answer {
    pub(crate) fn is_allowed(&self) -> bool {
        match self {
            Self::Exempt => true,
            Self::Blocked(_) => false,
            Self::Decided(decision) => decision.is_allowed(),
        }
    }
}

/// # Errors
///
/// If the store fails, and the failure mode is closed.
pub(crate) async fn check(
    active: &Active,
    policy: &ActivePolicy,
    limiter: &Limiter,
    denied: &Denied,
    key: &Key,
    costs: Costs,
) -> Result<Answer, Error> {
    if let Some(answer) = active.lists.answer(key) {
        policy.count(&answer);
        return Ok(answer);
    }
    let decision = limiter.check_costs(key, costs).await?;
    denied.observe(key, &decision);
    let answer = Answer::Decided(decision);
    policy.count(&answer);
    Ok(answer)
}

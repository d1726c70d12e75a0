//! Decides one key by its policy, and counts what was decided.

use tollgate::{Costs, Decision, Error, Key, Limiter};

use crate::denied::Denied;
use crate::live::ActivePolicy;

/// The limiter is that of the policy, or one with other numbers.
///
/// # Errors
///
/// If the store fails and the failure mode is `closed`, or if a cost names an unknown quota.
pub(crate) async fn check(
    policy: &ActivePolicy,
    limiter: &Limiter,
    denied: &Denied,
    key: &Key,
    costs: Costs,
) -> Result<Decision, Error> {
    let decision = limiter.check_costs(key, costs).await?;
    denied.observe(key, &decision);
    policy.count(&decision);
    Ok(decision)
}

//! The costs that a request names.

use std::collections::BTreeMap;

use axum::response::Response;
use fleetlimit::Costs;
use http::StatusCode;

use super::problem;
use crate::live::ActivePolicy;

/// `others` is the cost of each quota that `named` does not name. An unknown name is answered here: the
/// error of the limiter would count as a failure of the store.
pub(crate) fn costs(
    policy: &ActivePolicy,
    others: u64,
    named: BTreeMap<String, u64>,
) -> Result<Costs, Box<Response>> {
    let quotas = policy.limiter.policy();
    let is_known = |name: &str| quotas.quotas().any(|(quota, _)| quota == name);
    if let Some(unknown) = named.keys().find(|name| !is_known(name)) {
        let message = format!("policy `{}` has no quota `{unknown}`", policy.name());
        return Err(Box::new(problem(StatusCode::BAD_REQUEST, &message)));
    }
    let costs = Costs::new(others);
    Ok(named.into_iter().fold(costs, |costs, (quota, cost)| costs.with(quota, cost)))
}

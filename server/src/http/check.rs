//! `POST /v1/check`: one check, and the decision as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fleetlimit::Key;
use fleetlimit::layer::HeaderStyle;
use http::StatusCode;
use http::header::RETRY_AFTER;
use serde::Deserialize;
use serde_json::json;

use super::{Body, DecisionJson, costs, listed_response, problem, unknown_policy};
use crate::checker::{self, Answer};
use crate::live::Live;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckRequest {
    policy: String,
    key: String,
    /// The cost of each quota that `costs` does not name.
    #[serde(default = "super::one")]
    cost: u64,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
}

/// The decision, with status 200 also for a denial: the check itself succeeded.
pub(super) async fn check(
    State(live): State<Arc<Live>>,
    Body(request): Body<CheckRequest>,
) -> Response {
    let active = live.active();
    let Some(policy) = active.policy(&request.policy) else {
        return unknown_policy(&request.policy);
    };
    if request.key.is_empty() {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "the key is empty");
    }
    let costs = match costs(policy, request.cost, request.costs) {
        Ok(costs) => costs,
        Err(response) => return *response,
    };
    let key = Key::from(&request.key);
    if policy.has_holds() {
        let message = format!(
            "policy `{}` has a concurrent quota, whose permits have to be given back: use /v1/hold",
            policy.name()
        );
        return problem(StatusCode::BAD_REQUEST, &message);
    }
    if let Some(listed) = active.lists.of_key(&key) {
        return listed_response(listed);
    }
    match checker::check(&live, policy, &policy.limiter, &key, costs).await {
        Ok(Answer::Blocked(remaining)) => {
            let body = json!({
                "allowed": false, "source": "block", "retry_after": remaining.as_secs_f64(),
            });
            ([(RETRY_AFTER, checker::seconds(remaining).to_string())], Json(body)).into_response()
        }
        Ok(Answer::Decided(decision)) => {
            (decision.headers(HeaderStyle::Ietf), Json(DecisionJson::new(&decision)))
                .into_response()
        }
        Err(error) => error.response().map(Into::into),
    }
}

//! `POST /v1/check`: one check, and the decision as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;
use serde::Deserialize;
use tollgate::layer::HeaderStyle;
use tollgate::{Costs, ErrorKind, Key};

use super::{DecisionJson, problem};
use crate::checker::{self, Answer};
use crate::live::Live;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckRequest {
    policy: String,
    key: String,
    /// Of each quota that `costs` does not name.
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
}

fn one() -> u64 {
    1
}

impl CheckRequest {
    fn costs(&mut self) -> Costs {
        let costs = std::mem::take(&mut self.costs).into_iter();
        costs.fold(Costs::new(self.cost), |costs, (quota, cost)| costs.with(quota, cost))
    }
}

/// The decision, with status 200 also for a denial: the check itself has worked.
pub(super) async fn check(
    State(live): State<Arc<Live>>,
    request: Result<Json<CheckRequest>, JsonRejection>,
) -> Response {
    let mut request = match request {
        Ok(Json(request)) => request,
        Err(rejection) => return problem(rejection.status(), &rejection.body_text()),
    };
    let active = live.active();
    let Some(policy) = active.policy(&request.policy) else {
        let detail = format!("there is no policy `{}`", request.policy);
        return problem(StatusCode::NOT_FOUND, &detail);
    };
    let (key, costs) = (Key::from(&request.key), request.costs());
    match checker::check(&active, policy, &policy.limiter, &live.denied, &key, costs).await {
        Ok(Answer::Decided(decision)) => {
            (decision.headers(HeaderStyle::Ietf), Json(DecisionJson::new(&decision)))
                .into_response()
        }
        Ok(answer) => listed(&answer),
        Err(error) if error.kind() == ErrorKind::UnknownQuota => {
            problem(StatusCode::BAD_REQUEST, &error.to_string())
        }
        Err(error) => error.response().map(Into::into),
    }
}

/// The answer for a key that no policy was asked about.
fn listed(answer: &Answer) -> Response {
    let mut body = serde_json::json!({ "allowed": answer.is_allowed(), "source": "list" });
    let mut headers = http::HeaderMap::new();
    if let Answer::Blocked(Some(time)) = answer {
        body["source"] = "block".into();
        body["retry_after"] = time.as_secs_f64().into();
        headers.insert(RETRY_AFTER, (time.as_secs() + 1).into());
    }
    (headers, Json(body)).into_response()
}

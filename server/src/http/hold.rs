//! `POST /v1/hold`, and what continues and ends a hold: permits that a client keeps while something runs. What the
//! handlers take and return is documented in `docs/server/http-api.md`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fleetlimit::internal::DetachedHold;
use fleetlimit::layer::HeaderStyle;
use fleetlimit::{Costs, Decision, Key};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{Body, DecisionJson, costs, listed_response, problem, unknown_policy};
use crate::checker;
use crate::holds::{self, End, HoldToken, Invalid, TokenKey, unix_millis};
use crate::live::{Active, ActivePolicy, Live};

/// The time after which a call has arrived at the store, or never will.
const LATE: Duration = Duration::from_secs(5);
/// The most bytes of a key. A token has the key in it, and has to fit into a request.
const MOST_KEY: usize = 1_024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldRequest {
    policy: String,
    key: String,
    /// The cost of each quota that `costs` does not name. A concurrent quota that it does not name costs 1.
    #[serde(default = "super::one")]
    cost: u64,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
    /// The time for which the hold lasts, unless it is extended.
    #[serde(default = "default_seconds")]
    seconds: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendRequest {
    token: String,
    #[serde(default)]
    cost: u64,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleRequest {
    token: String,
    /// The actual cost of each quota that `costs` does not name.
    cost: Option<u64>,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseRequest {
    token: String,
}

/// A decision, with the token of the hold unless it holds nothing.
#[derive(Serialize)]
struct Held<'a> {
    #[serde(flatten)]
    decision: DecisionJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// The seconds until the hold ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_after: Option<u64>,
}

/// A hold that a request continues.
struct Continued {
    token: HoldToken,
    policy: ActivePolicy,
    hold: DetachedHold,
    costs: Costs,
}

fn default_seconds() -> u64 {
    holds::DEFAULT_SECONDS
}

/// Takes permits. The status is 200 also for a denial.
pub(super) async fn hold(
    State(live): State<Arc<Live>>,
    Body(request): Body<HoldRequest>,
) -> Response {
    let active = live.active();
    let HoldRequest { policy: name, key: text, seconds, .. } = request;
    let Some(policy) = active.policy(&name) else { return unknown_policy(&name) };
    let Some(token_key) = &live.token_key else { return no_secret() };
    if text.is_empty() {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "the key is empty");
    }
    if text.len() > MOST_KEY {
        let message = format!("the key of a hold has at most {MOST_KEY} bytes");
        return problem(StatusCode::UNPROCESSABLE_ENTITY, &message);
    }
    if !holds::SECONDS.contains(&seconds) {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "`seconds` must be from 1 to 3600");
    }
    let costs = match costs(policy, request.cost, request.costs) {
        Ok(costs) => costs,
        Err(response) => return *response,
    };
    let key = Key::from(&text);
    if let Some(listed) = active.lists.of_key(&key) {
        return listed_response(listed);
    }
    let (lifetime, ends) = (Duration::from_secs(seconds), ends(seconds));
    let (decision, hold) = match policy.limiter.hold_detached(&key, costs, lifetime).await {
        Ok(held) => held,
        Err(error) => return error.response().map(Into::into),
    };
    checker::count(&live, policy, &key, &decision);
    let token = hold.map(|hold| {
        live.in_flight.add(&name, signed(hold.permits()), ends);
        token_key.sign(&HoldToken { policy: name, key: text, seconds, ends, record: hold.record() })
    });
    answer(&decision, token, seconds)
}

/// Takes more permits, and lets the hold last for its time from now on.
pub(super) async fn extend(
    State(live): State<Arc<Live>>,
    Body(request): Body<ExtendRequest>,
) -> Response {
    let ExtendRequest { token, cost, costs } = request;
    to_the_end(async move {
        let active = live.active();
        let Some(token_key) = &live.token_key else { return no_secret() };
        let continued = match find(&active, token_key, &token, cost, costs) {
            Ok(continued) => continued,
            Err(response) => return *response,
        };
        let Continued { token, policy, mut hold, costs } = continued;
        let HoldToken { policy: name, key, seconds, ends: ended_before, .. } = token;
        let (before, ends) = (signed(hold.permits()), ends(seconds));
        let decision = match hold.extend(costs).await {
            Ok(decision) => decision,
            Err(error) => {
                tokio::spawn(end_late(active, hold, seconds));
                return error.response().map(Into::into);
            }
        };
        // After the call: otherwise the hold could end in between, and would begin again. While the store fails,
        // nobody knows.
        if active.ended_holds.has_ended(hold.number(), seconds).await {
            // If this fails, the permits are free when their time has passed.
            let _ = hold.retract(&decision).await;
            return ended();
        }
        checker::count(&live, &policy, &Key::from(&key), &decision);
        live.in_flight.add(&name, -before, ended_before);
        live.in_flight.add(&name, signed(hold.permits()), ends);
        let token = HoldToken { policy: name, key, seconds, ends, record: hold.record() };
        answer(&decision, Some(token_key.sign(&token)), seconds)
    })
    .await
}

/// Ends a hold, and replaces what it has taken by the actual cost.
pub(super) async fn settle(
    State(live): State<Arc<Live>>,
    Body(request): Body<SettleRequest>,
) -> Response {
    if request.cost.is_none() && request.costs.is_empty() {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "give `cost`, or `costs` by quota");
    }
    let (cost, costs) = (request.cost.unwrap_or(0), request.costs);
    end(live, request.token, cost, costs).await
}

/// Ends a hold, and gives back what it has taken.
pub(super) async fn release(
    State(live): State<Arc<Live>>,
    Body(request): Body<ReleaseRequest>,
) -> Response {
    end(live, request.token, 0, BTreeMap::new()).await
}

async fn end(live: Arc<Live>, token: String, cost: u64, costs: BTreeMap<String, u64>) -> Response {
    to_the_end(async move {
        let active = live.active();
        let Some(token_key) = &live.token_key else { return no_secret() };
        let continued = match find(&active, token_key, &token, cost, costs) {
            Ok(continued) => continued,
            Err(response) => return *response,
        };
        let Continued { token, policy, hold, costs } = continued;
        let permits = signed(hold.permits());
        let result = match active.ended_holds.end(hold.number(), token.seconds).await {
            Ok(End::First) => hold.settle(costs).await,
            Ok(End::Again) => {
                // The call that has ended it may have failed to give permits back.
                return match hold.finish().await {
                    Ok(()) => ended(),
                    Err(error) => error.response().map(Into::into),
                };
            }
            // Nothing is given back that could be given back twice.
            Ok(End::Unknown) => hold.finish().await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                live.in_flight.add(policy.name(), -permits, token.ends);
                StatusCode::NO_CONTENT.into_response()
            }
            Err(error) => error.response().map(Into::into),
        }
    })
    .await
}

/// Ends a hold again that has ended meanwhile, after an extension that failed may have arrived late.
async fn end_late(active: Arc<Active>, hold: DetachedHold, seconds: u64) {
    tokio::time::sleep(LATE).await;
    if active.ended_holds.has_ended(hold.number(), seconds).await {
        // If this fails, the permits are free when their time has passed.
        let _ = hold.finish().await;
    }
}

/// Runs several calls to the store, also if the client does not wait for them.
async fn to_the_end(calls: impl Future<Output = Response> + Send + 'static) -> Response {
    tokio::spawn(calls).await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Finds what a token stands for, and the costs that a request names.
fn find(
    active: &Active,
    token_key: &TokenKey,
    token: &str,
    cost: u64,
    named: BTreeMap<String, u64>,
) -> Result<Continued, Box<Response>> {
    let token = token_key.verify(token).map_err(|invalid| {
        Box::new(match invalid {
            Invalid::Forged => forged(),
            Invalid::Expired => ended(),
        })
    })?;
    let policy = active.policy(&token.policy);
    let policy = policy.ok_or_else(|| Box::new(unknown_policy(&token.policy)))?;
    let costs = costs(policy, cost, named)?;
    let hold = policy.limiter.attach(&token.key, &token.record);
    let hold = hold.ok_or_else(|| Box::new(forged()))?;
    Ok(Continued { token, policy: policy.clone(), hold, costs })
}

/// Returns the end of a hold that starts now.
fn ends(seconds: u64) -> u64 {
    unix_millis() + 1_000 * seconds
}

fn answer(decision: &Decision, token: Option<String>, seconds: u64) -> Response {
    let expires_after = token.is_some().then_some(seconds);
    let held = Held { decision: DecisionJson::new(decision), token, expires_after };
    (decision.headers(HeaderStyle::Ietf), Json(held)).into_response()
}

fn signed(permits: u64) -> i64 {
    permits.try_into().unwrap_or(i64::MAX)
}

fn forged() -> Response {
    problem(StatusCode::BAD_REQUEST, "no instance with this `holds.secret` has issued the token")
}

fn ended() -> Response {
    problem(
        StatusCode::GONE,
        "the hold has ended: it was settled or released, or not extended in time. Or there is a later token of it",
    )
}

fn no_secret() -> Response {
    problem(
        StatusCode::NOT_IMPLEMENTED,
        "holds need `holds.secret` in the settings, the same for all instances",
    )
}

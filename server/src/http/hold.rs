//! `POST /v1/hold`, and what continues and ends a hold: permits that a client keeps while something runs. What the
//! handlers take and return is documented in `docs/server/http-api.md`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fleetlimit::internal::DetachedHold;
use fleetlimit::layer::HeaderStyle;
use fleetlimit::{Costs, Decision, Error, Key};
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
struct Continued<'a> {
    token: HoldToken,
    policy: &'a ActivePolicy,
    hold: DetachedHold,
    costs: Costs,
}

fn default_seconds() -> u64 {
    holds::DEFAULT_SECONDS
}

/// The response of a handler. An error of it is one, too.
type HoldResult = Result<Response, Box<Response>>;

/// Takes permits. The status is 200 also for a denial.
pub(super) async fn hold(
    State(live): State<Arc<Live>>,
    Body(request): Body<HoldRequest>,
) -> Response {
    held(&live, request).await.unwrap_or_else(|response| *response)
}

async fn held(live: &Live, request: HoldRequest) -> HoldResult {
    let active = live.active();
    let HoldRequest { policy: name, key: text, cost, costs: named, seconds } = request;
    let policy = find_policy(&active, &name)?;
    let token_key = token_key(live)?;
    if text.is_empty() {
        return Err(unprocessable("the key is empty"));
    }
    if text.len() > MOST_KEY {
        return Err(unprocessable(&format!("the key of a hold has at most {MOST_KEY} bytes")));
    }
    if !holds::SECONDS.contains(&seconds) {
        return Err(unprocessable("`seconds` must be from 1 to 3600"));
    }
    let costs = costs(policy, cost, named)?;
    let key = Key::from(&text);
    if let Some(listed) = active.lists.of_key(&key) {
        return Ok(listed_response(listed));
    }
    let (lifetime, ends) = (Duration::from_secs(seconds), ends(seconds));
    let start = Instant::now();
    let held = policy.limiter.hold_detached(&key, costs, lifetime).await;
    let (decision, hold) =
        checker::measure(live, policy, start, held, |(decision, _)| decision).map_err(failed)?;
    checker::count(live, policy, &key, &decision);
    let token = hold.map(|hold| {
        live.in_flight.add(&name, signed(hold.permits()), ends);
        token_key.sign(&HoldToken { policy: name, key: text, seconds, ends, record: hold.record() })
    });
    Ok(answer(&decision, token, seconds))
}

/// Takes more permits, and lets the hold last for its time from now on.
pub(super) async fn extend(
    State(live): State<Arc<Live>>,
    Body(request): Body<ExtendRequest>,
) -> Response {
    to_the_end(async move { extended(&live, request).await }).await
}

async fn extended(live: &Live, request: ExtendRequest) -> HoldResult {
    let active = live.active();
    let ExtendRequest { token, cost, costs } = request;
    let Continued { token, policy, mut hold, costs } = find(live, &active, &token, cost, costs)?;
    let HoldToken { policy: name, key, seconds, ends: ended_before, .. } = token;
    let (before, ends) = (signed(hold.permits()), ends(seconds));
    let start = Instant::now();
    let extended = hold.extend(costs).await;
    let decision = match checker::measure(live, policy, start, extended, |decision| decision) {
        Ok(decision) => decision,
        Err(error) => {
            tokio::spawn(end_late(active.clone(), hold, seconds));
            return Err(failed(error));
        }
    };
    // After the call: otherwise the hold could end in between, and would begin again. While the store fails, nobody
    // knows.
    if active.ended_holds.has_ended(hold.number(), seconds).await {
        // If this fails, the permits are free when their time has passed.
        let _ = hold.retract(&decision).await;
        return Err(ended());
    }
    checker::count(live, policy, &Key::from(&key), &decision);
    live.in_flight.add(&name, -before, ended_before);
    live.in_flight.add(&name, signed(hold.permits()), ends);
    let token = HoldToken { policy: name, key, seconds, ends, record: hold.record() };
    Ok(answer(&decision, Some(token_key(live)?.sign(&token)), seconds))
}

/// Ends a hold, and replaces what it has taken by the actual cost.
pub(super) async fn settle(
    State(live): State<Arc<Live>>,
    Body(request): Body<SettleRequest>,
) -> Response {
    let SettleRequest { token, cost, costs } = request;
    if cost.is_none() && costs.is_empty() {
        return *unprocessable("give `cost`, or `costs` by quota");
    }
    to_the_end(async move { end(&live, &token, cost.unwrap_or(0), costs).await }).await
}

/// Ends a hold, and gives back what it has taken.
pub(super) async fn release(
    State(live): State<Arc<Live>>,
    Body(request): Body<ReleaseRequest>,
) -> Response {
    to_the_end(async move { end(&live, &request.token, 0, BTreeMap::new()).await }).await
}

async fn end(live: &Live, token: &str, cost: u64, costs: BTreeMap<String, u64>) -> HoldResult {
    let active = live.active();
    let Continued { token, policy, hold, costs } = find(live, &active, token, cost, costs)?;
    let permits = signed(hold.permits());
    match active.ended_holds.end(hold.number(), token.seconds).await.map_err(failed)? {
        End::First => hold.settle(costs).await.map_err(failed)?,
        // Nothing is given back that could be given back twice.
        End::Unknown => hold.finish().await.map_err(failed)?,
        End::Again => {
            // The call that has ended it may have failed to give permits back.
            hold.finish().await.map_err(failed)?;
            return Err(ended());
        }
    }
    live.in_flight.add(policy.name(), -permits, token.ends);
    Ok(StatusCode::NO_CONTENT.into_response())
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
async fn to_the_end(calls: impl Future<Output = HoldResult> + Send + 'static) -> Response {
    match tokio::spawn(calls).await {
        Ok(answer) => answer.unwrap_or_else(|response| *response),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Finds what a token stands for, and the costs that a request names.
fn find<'a>(
    live: &Live,
    active: &'a Active,
    token: &str,
    cost: u64,
    named: BTreeMap<String, u64>,
) -> Result<Continued<'a>, Box<Response>> {
    let token = token_key(live)?.verify(token).map_err(|invalid| match invalid {
        Invalid::Forged => forged(),
        Invalid::Expired => ended(),
    })?;
    let policy = find_policy(active, &token.policy)?;
    let costs = costs(policy, cost, named)?;
    let hold = policy.limiter.attach(&token.key, &token.record).ok_or_else(forged)?;
    Ok(Continued { token, policy, hold, costs })
}

fn find_policy<'a>(active: &'a Active, name: &str) -> Result<&'a ActivePolicy, Box<Response>> {
    active.policy(name).ok_or_else(|| unknown_policy(name).into())
}

fn token_key(live: &Live) -> Result<&TokenKey, Box<Response>> {
    live.token_key.as_ref().ok_or_else(|| {
        let message = "holds need `holds.secret` in the settings, the same for all instances";
        problem(StatusCode::NOT_IMPLEMENTED, message).into()
    })
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

fn failed(error: Error) -> Box<Response> {
    Box::new(error.response().map(Into::into))
}

fn unprocessable(detail: &str) -> Box<Response> {
    problem(StatusCode::UNPROCESSABLE_ENTITY, detail).into()
}

fn forged() -> Box<Response> {
    let message = "no instance with this `holds.secret` has issued the token";
    problem(StatusCode::BAD_REQUEST, message).into()
}

fn ended() -> Box<Response> {
    let message = "the hold has ended: it was settled or released, or not extended in time. Or there is a later token of \
                   it";
    problem(StatusCode::GONE, message).into()
}

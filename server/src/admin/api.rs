//! The admin API: the handlers of `/api/...`. What a handler takes and returns is documented in
//! `docs/server/http-api.md`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fleetlimit::{Error, ErrorKind, Key};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::checker::seconds;
use crate::control_plane::ControlPlane;
use crate::counts::Counted;
use crate::denied;
use crate::domain::Domains;
use crate::history::{self, SECONDS};
use crate::http::{Body, DecisionJson, costs, problem, unknown_policy};
use crate::lists::Listed;
use crate::live::{Active, ActivePolicy, Live};
use crate::reload::reload as reload_files;
use crate::settings::Settings;
use crate::store;

/// A policy with what it has decided since the start.
#[derive(Serialize)]
struct PolicyJson<'a> {
    name: &'a str,
    /// The quotas in the order of the settings. Empty if the numbers are in the requests.
    quotas: Vec<QuotaText<'a>>,
    is_shadow: bool,
    #[serde(flatten)]
    counted: Counted,
    /// The permits in flight, if the policy has any.
    held: Option<i64>,
}

#[derive(Serialize)]
struct QuotaText<'a> {
    name: &'a str,
    quota: String,
}

/// The active policies with what they have decided since the start, the keys that were denied most in
/// the last complete period, and those that are blocked. A policy whose numbers are in the requests has no
/// quotas of its own.
pub(super) async fn status(State(live): State<Arc<Live>>) -> Json<Value> {
    let active = live.active();
    let numbers: Vec<_> = active.policies().map(|(_, policy)| policy.limiter.policy()).collect();
    let policies = active.policies().zip(&numbers).map(|((name, policy), numbers)| {
        let is_override = active.domains.is_override(name);
        let quotas = numbers.quotas().filter(|_| !is_override);
        let quotas = quotas.map(|(name, quota)| QuotaText { name, quota: quota.to_string() });
        PolicyJson {
            name,
            quotas: quotas.collect(),
            is_shadow: policy.is_shadow(),
            counted: policy.counts().get(),
            held: policy.has_holds().then(|| live.in_flight.get(name)),
        }
    });
    let keys = live.denied.last().into_iter();
    let keys = keys
        .map(|denied| json!({ "policy": denied.policy, "key": denied.key, "count": denied.count }));
    let mut blocked = live.blocked.list();
    blocked.sort_by(|a, b| (&a.policy, &a.key).cmp(&(&b.policy, &b.key)));
    let blocked = blocked.into_iter().map(|blocked| {
        json!({
            "policy": blocked.policy,
            "key": blocked.key.to_string(),
            "seconds": seconds(blocked.remaining),
        })
    });
    Json(json!({
        "time": history::now().as_secs_f64(),
        "started": live.started.as_secs_f64(),
        "store": store::kind(&live.store),
        "failure_mode": active.settings.checks.failure_mode,
        "restart_needed": active.restart_needed,
        "control_plane": live.control_plane.as_ref().map(ControlPlane::status),
        "degraded": live.history.degraded(),
        "policies": policies.collect::<Vec<_>>(),
        "denied": { "seconds": denied::PERIOD.as_secs(), "keys": keys.collect::<Vec<_>>() },
        "blocked": blocked.collect::<Vec<_>>(),
    }))
}

/// The checks of all policies in the last 15 minutes.
pub(super) async fn history(State(live): State<Arc<Live>>) -> Json<Value> {
    Json(json!({ "seconds": SECONDS, "samples": live.history.samples() }))
}

/// The active configuration, without the token and the credentials of Redis.
pub(super) async fn config(State(live): State<Arc<Live>>) -> Response {
    #[derive(Serialize)]
    struct ActiveConfig<'a> {
        settings: &'a Settings,
        domains: &'a Domains,
    }
    let Active { settings, domains, .. } = &*live.active();
    Json(ActiveConfig { settings, domains }).into_response()
}

/// Reloads the configuration, or returns all errors.
pub(super) async fn reload(State(live): State<Arc<Live>>) -> Response {
    match reload_files(&live).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => problem(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
    }
}

/// A key, or the parts that are joined to a key.
#[derive(Deserialize)]
#[serde(untagged, expecting = "invalid type: expected a string, or an array of strings")]
enum Target {
    Key(String),
    Parts(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OneKey {
    policy: String,
    key: Target,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Adjustment {
    policy: String,
    key: Target,
    /// The cost of each quota that `costs` does not name. Without it, these cost nothing.
    cost: Option<u64>,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Block {
    policy: String,
    key: Target,
    /// The time from now on.
    seconds: u64,
}

/// The decision of the policy about a key, and the list or block that takes precedence over it.
#[derive(Serialize)]
struct Peeked<'a> {
    #[serde(flatten)]
    decision: DecisionJson<'a>,
    /// The list that the key is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    listed: Option<&'static str>,
    /// The remaining seconds of the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<u64>,
}

pub(super) async fn peek(State(live): State<Arc<Live>>, Body(target): Body<OneKey>) -> Response {
    let active = live.active();
    let policy = match find_with_numbers(&active, &target.policy) {
        Ok(policy) => policy,
        Err(response) => return *response,
    };
    let key = target.key.key();
    let listed = active.lists.of_key(&key).max(active.lists.of_parts(&target.key.parts()));
    let listed = listed.map(Listed::list);
    let blocked = live.blocked.get(&target.policy, &key).map(seconds);
    match policy.limiter.peek(key).await {
        Ok(decision) => {
            Json(Peeked { decision: DecisionJson::new(&decision), listed, blocked }).into_response()
        }
        Err(error) => failed(&error),
    }
}

pub(super) async fn reset(State(live): State<Arc<Live>>, Body(target): Body<OneKey>) -> Response {
    let active = live.active();
    match find(&active, &target.policy) {
        Ok(policy) => done(policy.limiter.reset(target.key.key()).await),
        Err(response) => *response,
    }
}

pub(super) async fn charge(
    State(live): State<Arc<Live>>,
    Body(target): Body<Adjustment>,
) -> Response {
    adjust(&live, target, true).await
}

pub(super) async fn credit(
    State(live): State<Arc<Live>>,
    Body(target): Body<Adjustment>,
) -> Response {
    adjust(&live, target, false).await
}

pub(super) async fn block(State(live): State<Arc<Live>>, Body(block): Body<Block>) -> Response {
    match find(&live.active(), &block.policy) {
        Ok(_) => {
            let time = Duration::from_secs(block.seconds);
            done(live.blocked.block(&block.policy, block.key.key(), time).await)
        }
        Err(response) => *response,
    }
}

/// Ends a block, also one of a policy that is gone.
pub(super) async fn unblock(State(live): State<Arc<Live>>, Body(target): Body<OneKey>) -> Response {
    done(live.blocked.unblock(&target.policy, target.key.key()).await)
}

async fn adjust(live: &Live, target: Adjustment, is_charge: bool) -> Response {
    let (active, key) = (live.active(), target.key.key());
    let policy = match find_with_numbers(&active, &target.policy) {
        Ok(policy) => policy,
        Err(response) => return *response,
    };
    if target.cost.is_none() && target.costs.is_empty() {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "give `cost`, or `costs` by quota");
    }
    let costs = match costs(policy, target.cost.unwrap_or(0), target.costs) {
        Ok(costs) => costs,
        Err(response) => return *response,
    };
    done(match is_charge {
        true => policy.limiter.charge(key, costs).await,
        false => policy.limiter.credit(key, costs).await,
    })
}

impl Target {
    fn key(&self) -> Key {
        match self {
            Self::Key(text) => Key::from(text),
            Self::Parts(_) => Key::join(&self.parts()),
        }
    }

    fn parts(&self) -> Vec<Key> {
        match self {
            Self::Key(text) => split(text).iter().map(Key::from).collect(),
            Self::Parts(parts) => parts.iter().map(Key::from).collect(),
        }
    }
}

/// The parts of a key that [`Key::join`] has joined.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut chars) = (vec![String::new()], text.chars());
    while let Some(char) = chars.next() {
        match (char, parts.last_mut()) {
            ('|', _) => parts.push(String::new()),
            ('\\', Some(part)) => part.extend(chars.next()),
            (char, Some(part)) => part.push(char),
            (_, None) => {}
        }
    }
    parts
}

fn find<'a>(active: &'a Active, name: &str) -> Result<&'a ActivePolicy, Box<Response>> {
    active.policy(name).ok_or_else(|| Box::new(unknown_policy(name)))
}

/// Finds a policy with numbers of its own. Only requests know the numbers of the others.
fn find_with_numbers<'a>(
    active: &'a Active,
    name: &str,
) -> Result<&'a ActivePolicy, Box<Response>> {
    if active.domains.is_override(name) {
        let advice = "the limits of this policy are in the requests: only `reset`, `block` and \
                      `unblock` apply to its keys";
        return Err(Box::new(problem(StatusCode::BAD_REQUEST, advice)));
    }
    find(active, name)
}

fn done(result: Result<(), Error>) -> Response {
    match result {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => failed(&error),
    }
}

/// The response to an operator, who gets the full error, unlike gateways.
fn failed(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::Rejected | ErrorKind::UnknownQuota | ErrorKind::NotHeld => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem(status, &error.to_string())
}

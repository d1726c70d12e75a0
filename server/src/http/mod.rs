//! Checks over HTTP: `check` takes one as JSON, and `auth` is for gateways. `unchecked` logs why `auth` cannot
//! check a request.
//!
//! `hold` takes permits that a client keeps, and gives them back.
//!
//! `body` and `costs` read a request. `listed` is the answer about a key on a list. `decision_json` is a decision as
//! JSON, here and in `/api/peek` of the admin API; about a key that is on a list or blocked, `check` writes less. `problem` writes errors, and what
//! `auth` denies by a list. Denials by a policy are those of the library (`layer/problem.rs`).

mod auth;
mod body;
mod check;
mod costs;
mod decision_json;
mod hold;
mod listed;
mod problem;
mod unchecked;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{any, post};
use axum::{Router, middleware};
use opentelemetry::context::FutureExt as _;

use crate::bearer::BearerToken;
use crate::live::Live;
use crate::secret::Secret;

pub(crate) use body::Body;
pub(crate) use costs::costs;
pub(crate) use decision_json::DecisionJson;
use listed::listed_response;
pub(crate) use problem::{problem, unauthorized, unknown_policy};

/// Builds the routes. With a token, only clients that send it may use `/v1/`. Gateways cannot, so `/auth` needs none: it has `auth.gateways`.
pub(crate) fn router(live: Arc<Live>, token: Option<&Secret>) -> Router {
    let mut api = Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/hold", post(hold::hold))
        .route("/v1/hold/extend", post(hold::extend))
        .route("/v1/hold/settle", post(hold::settle))
        .route("/v1/hold/release", post(hold::release));
    if let Some(token) = token {
        api =
            api.route_layer(middleware::from_fn_with_state(BearerToken::new(token), require_token));
    }
    let router = api.route("/auth", any(auth::auth)).with_state(live.clone());
    match live.traces {
        Some(_) => router.layer(middleware::from_fn_with_state(live, with_parent)),
        None => router,
    }
}

async fn require_token(State(token): State<BearerToken>, request: Request, next: Next) -> Response {
    if token.is_in(request.headers()) { next.run(request).await } else { unauthorized() }
}

/// Makes the caller's span the parent of those of checks.
async fn with_parent(State(live): State<Arc<Live>>, request: Request, next: Next) -> Response {
    let parent = live.traces.as_ref().map(|traces| traces.parent(request.headers()));
    next.run(request).with_context(parent.unwrap_or_default()).await
}

/// The cost of a check that names none.
fn one() -> u64 {
    1
}

//! Checks over HTTP: `check` takes one as JSON, and `auth` is for gateways. `unchecked` logs why `auth` cannot
//! check a request.
//!
//! `hold` takes permits that a client keeps, and gives them back.
//!
//! `body` and `costs` read a request. `listed` is the answer about a key on a list. `decision_json` is a decision as JSON, here and in `/api/peek` of the
//! admin API; about a key that is on a list or blocked, `check` writes less. `problem` writes errors, and what
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

use axum::Router;
use axum::routing::{any, post};

use crate::live::Live;

pub(crate) use body::Body;
pub(crate) use costs::costs;
pub(crate) use decision_json::DecisionJson;
use listed::listed_response;
pub(crate) use problem::{problem, unknown_policy};

pub(crate) fn router(live: Arc<Live>) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/hold", post(hold::hold))
        .route("/v1/hold/extend", post(hold::extend))
        .route("/v1/hold/settle", post(hold::settle))
        .route("/v1/hold/release", post(hold::release))
        .route("/auth", any(auth::auth))
        .with_state(live)
}

/// The cost of a check that names none.
fn one() -> u64 {
    1
}

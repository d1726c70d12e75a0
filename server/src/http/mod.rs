//! Checks over HTTP: `check` takes one as JSON, and `auth` is for gateways. `unchecked` logs why `auth` cannot
//! check a request.
//!
//! `body` and `costs` read a request. `decision_json` is a decision as JSON, here and in `/api/peek` of the
//! admin API; about a key that is on a list or blocked, `check` writes less. `problem` writes errors, and what
//! `auth` denies by a list. Denials by a policy are those of the library (`layer/problem.rs`).

mod auth;
mod body;
mod check;
mod costs;
mod decision_json;
mod problem;
mod unchecked;

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, post};

use crate::live::Live;

pub(crate) use body::Body;
pub(crate) use costs::costs;
pub(crate) use decision_json::DecisionJson;
pub(crate) use problem::{problem, unknown_policy};

pub(crate) fn router(live: Arc<Live>) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/auth", any(auth::auth))
        .with_state(live)
}

/// The cost of a check that names none.
fn one() -> u64 {
    1
}

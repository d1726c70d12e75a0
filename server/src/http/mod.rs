//! Checks over HTTP.

mod auth;
mod check;
mod decision_json;
mod problem;

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, post};

use crate::live::Live;

pub(crate) use decision_json::DecisionJson;
pub(crate) use problem::problem;

pub(crate) fn router(live: Arc<Live>) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/auth", any(auth::auth))
        .with_state(live)
}

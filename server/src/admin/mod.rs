//! The admin listener: what operators and their tools ask for.

mod api;
mod auth;
mod health;
mod page;

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::live::Live;
use crate::secret::Secret;

pub(crate) use health::{Readiness, router as health_router};

/// Health checks and metrics need no token: probes and scrapers rarely have one.
pub(crate) fn router(
    live: Arc<Live>,
    token: Option<&Secret>,
    readiness: Arc<Readiness>,
    prometheus: PrometheusHandle,
) -> Router {
    let api = Router::new()
        .route("/api/status", get(api::status))
        .route("/api/config", get(api::config))
        .route("/api/reload", post(api::reload))
        .route("/api/peek", post(api::peek))
        .route("/api/reset", post(api::reset))
        .route("/api/charge", post(api::charge))
        .route("/api/credit", post(api::credit))
        .route("/api/block", post(api::block))
        .route("/api/unblock", post(api::unblock))
        .with_state(live)
        .layer(middleware::from_fn_with_state(auth::Token::new(token), auth::require));
    let metrics = get(async move || prometheus.render());
    let open = Router::new().route("/metrics", metrics).merge(page::router());
    let router = open.merge(api);
    let router = match token {
        Some(_) => router,
        None => router.layer(middleware::from_fn(auth::require_same_site)),
    };
    router.merge(health_router(readiness))
}

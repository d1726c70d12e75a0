//! The admin listener: what operators and their tools ask for.
//!
//! `api` is what needs the token (`auth`), `page` the live page, `metrics` is for Prometheus, and
//! `health` serves `/healthz`, `/readyz` and `/healthcheck`, which the HTTP port has, too.

mod api;
mod auth;
mod health;
mod metrics;
mod page;

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{get, post};

use crate::live::Live;
use crate::secret::Secret;

pub(crate) use health::{Readiness, router as health_router};
pub(crate) use metrics::Metrics;

/// Health checks and metrics need no token: probes and scrapers rarely have one. The page has no data.
pub(crate) fn router(
    live: Arc<Live>,
    token: Option<&Secret>,
    readiness: Arc<Readiness>,
    metrics: &Metrics,
) -> Router {
    let api = Router::new()
        .route("/api/status", get(api::status))
        .route("/api/history", get(api::history))
        .route("/api/config", get(api::config))
        .route("/api/reload", post(api::reload))
        .route("/api/peek", post(api::peek))
        .route("/api/reset", post(api::reset))
        .route("/api/charge", post(api::charge))
        .route("/api/credit", post(api::credit))
        .route("/api/block", post(api::block))
        .route("/api/unblock", post(api::unblock))
        .with_state(live.clone());
    let is_loopback = live.active().settings.listen.admin.ip().is_loopback();
    let guard = auth::Guard::new(token, is_loopback);
    let same_site = middleware::from_fn_with_state(guard.clone(), auth::require_same_site);
    let metrics = metrics.router("/metrics");
    let router = match token {
        Some(_) => api
            .layer(middleware::from_fn_with_state(guard, auth::require_token))
            .merge(metrics.layer(same_site))
            .merge(page::router()),
        None => api.merge(metrics).merge(page::router()).layer(same_site),
    };
    router.merge(health_router(readiness))
}

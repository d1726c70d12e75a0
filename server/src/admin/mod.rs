//! The admin listener: what operators and their tools ask for.
//!
//! `api` is what needs the token (`auth`), `page` the live page, and `health` serves `/healthz` and `/readyz`,
//! which the HTTP port has, too.

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

/// Health checks and metrics need no token: probes and scrapers rarely have one. The page has no data.
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
        .with_state(live.clone());
    let is_loopback = live.active().settings.listen.admin.ip().is_loopback();
    let guard = auth::Guard::new(token, is_loopback);
    let same_site = middleware::from_fn_with_state(guard.clone(), auth::require_same_site);
    let render = async move || {
        live.in_flight.refresh();
        prometheus.render() + &live.details.render()
    };
    let metrics = Router::new().route("/metrics", get(render));
    let router = match token {
        Some(_) => api
            .layer(middleware::from_fn_with_state(guard, auth::require_token))
            .merge(metrics.layer(same_site))
            .merge(page::router()),
        None => api.merge(metrics).merge(page::router()).layer(same_site),
    };
    router.merge(health_router(readiness))
}

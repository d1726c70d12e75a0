//! `/healthz` and `/readyz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::routing::get;
use http::StatusCode;

/// Whether load balancers should send requests here.
#[derive(Debug)]
pub(crate) struct Readiness(AtomicBool);

impl Readiness {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(true))
    }

    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn status(&self) -> (StatusCode, &'static str) {
        if self.0.load(Ordering::Relaxed) {
            (StatusCode::OK, "ready\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
        }
    }
}

pub(crate) fn router(readiness: Arc<Readiness>) -> Router {
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(async move || readiness.status()))
}

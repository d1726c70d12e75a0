//! `/healthz` and `/readyz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::routing::get;
use http::StatusCode;

use crate::live::Live;

/// Whether load balancers should send requests here.
pub(crate) struct Readiness {
    live: Arc<Live>,
    is_ending: AtomicBool,
}

impl Readiness {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        Self { live, is_ending: AtomicBool::new(false) }
    }

    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn is_ready(&self) -> bool {
        self.unready_because().await.is_none()
    }

    async fn unready_because(&self) -> Option<&'static str> {
        if self.is_ending.load(Ordering::Relaxed) {
            Some("shutting down\n")
        } else if self.live.can_decide().await {
            None
        } else {
            Some("the store is unavailable, and the failure mode is `closed`\n")
        }
    }

    async fn status(&self) -> (StatusCode, &'static str) {
        match self.unready_because().await {
            None => (StatusCode::OK, "ready\n"),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
        }
    }
}

pub(crate) fn router(readiness: Arc<Readiness>) -> Router {
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(async move || readiness.status().await))
}

//! `/healthz`, `/readyz`, and `/healthcheck` of envoyproxy/ratelimit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;

use crate::live::Live;

/// The readiness of the process: load balancers should send requests only to one that is ready.
pub(crate) struct Readiness {
    live: Arc<Live>,
    can_decide: AtomicBool,
    is_ending: AtomicBool,
}

impl Readiness {
    /// Creates the readiness of a process that is not ready until the first update.
    pub(crate) fn new(live: Arc<Live>) -> Self {
        let (can_decide, is_ending) = Default::default();
        Self { live, can_decide, is_ending }
    }

    /// Asks the store, if its state matters. Requests do not: anyone may send them.
    pub(crate) async fn update(&self) {
        self.can_decide.store(self.live.can_decide().await, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.unready_because().is_none()
    }

    fn unready_because(&self) -> Option<&'static str> {
        if let Some(reason) = self.unusable_because() {
            Some(reason)
        } else if self.can_decide.load(Ordering::Relaxed) {
            None
        } else {
            Some("the store is unavailable, and the failure mode is `closed`\n")
        }
    }

    /// The reason not to send requests, whatever the state of the store.
    fn unusable_because(&self) -> Option<&'static str> {
        if self.is_ending.load(Ordering::Relaxed) {
            Some("shutting down\n")
        } else if self.live.waits_for_control_plane() {
            Some("the control plane has not sent a configuration yet\n")
        } else {
            None
        }
    }

    fn status(&self) -> (StatusCode, &'static str) {
        status("ready\n", self.unready_because())
    }

    /// Orchestrators restart a process for which this fails, so it does not depend on the store.
    fn healthcheck(&self) -> (StatusCode, &'static str) {
        status("OK", self.unusable_because())
    }
}

fn status(good: &'static str, problem: Option<&'static str>) -> (StatusCode, &'static str) {
    problem.map_or((StatusCode::OK, good), |problem| (StatusCode::SERVICE_UNAVAILABLE, problem))
}

pub(crate) fn router(readiness: Arc<Readiness>) -> Router {
    let healthcheck = async |State(readiness): State<Arc<Readiness>>| readiness.healthcheck();
    let readyz = async |State(readiness): State<Arc<Readiness>>| readiness.status();
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(healthcheck))
        .with_state(readiness)
}

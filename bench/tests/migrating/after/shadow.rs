use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use fleetlimit::layer::{DecisionPlacement, decisions};
use fleetlimit::resolve::PeerIp;
use fleetlimit::{ConfigError, Decision, Limiter, Policy, Quota, RateLimitLayer, Store};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

pub static ONLY_OLD_DENIES: AtomicU64 = AtomicU64::new(0);
pub static ONLY_NEW_DENIES: AtomicU64 = AtomicU64::new(0);

async fn compare(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let old = response.status() == StatusCode::TOO_MANY_REQUESTS;
    let new = decisions(response.extensions()).any(Decision::would_be_denied);
    match (old, new) {
        (true, false) => _ = ONLY_OLD_DENIES.fetch_add(1, Ordering::Relaxed),
        (false, true) => _ = ONLY_NEW_DENIES.fetch_add(1, Ordering::Relaxed),
        _ => {}
    }
    response
}

pub fn app(store: impl Store, quota: Quota) -> Result<Router, ConfigError> {
    let old = GovernorConfigBuilder::default().per_second(60).burst_size(5).finish().unwrap();
    let new = Limiter::builder(store, Policy::new("api").quota("requests", quota))
        .enforce_for_percent(0.0)
        .build()?;
    let new = RateLimitLayer::new(new, PeerIp::new()).decision_in(DecisionPlacement::Response);
    Ok(Router::new()
        .route("/", get(async || "hello"))
        // Enforces its limit as before.
        .layer(GovernorLayer::new(old))
        // Sees all requests, and denies none.
        .layer(new)
        .layer(from_fn(compare)))
}

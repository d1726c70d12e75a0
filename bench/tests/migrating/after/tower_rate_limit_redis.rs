use std::time::Duration;

use axum::Router;
use axum::routing::get;
use fleetlimit::resolve::PeerIp;
use fleetlimit::{ConfigError, FailureMode, Limiter, Policy, Quota, RateLimitLayer, Store};

/// Five requests at once, and then one per three minutes.
pub fn app(store: impl Store) -> Result<Router, ConfigError> {
    let quota = Quota::new(1, Duration::from_secs(180)).burst(5);
    let limiter = Limiter::builder(store, Policy::new("api").quota("requests", quota))
        .timeout(Duration::from_secs(1))
        .failure_mode(FailureMode::Closed)
        .build()?;
    let layer = RateLimitLayer::new(limiter, PeerIp::new());
    Ok(Router::new().route("/", get(async || "hello")).layer(layer))
}

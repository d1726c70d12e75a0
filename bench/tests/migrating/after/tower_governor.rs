use axum::Router;
use axum::routing::get;
use fleetlimit::resolve::PeerIp;
use fleetlimit::{ConfigError, Limiter, Policy, Quota, RateLimitLayer, Store};

/// Five requests at once, and then one per minute.
pub fn app(store: impl Store) -> Result<Router, ConfigError> {
    let policy = Policy::new("api").quota("requests", Quota::per_minute(1).burst(5));
    let layer = RateLimitLayer::new(Limiter::new(store, policy)?, PeerIp::new());
    Ok(Router::new().route("/", get(async || "hello")).layer(layer))
}

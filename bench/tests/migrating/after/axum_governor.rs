use axum::Router;
use axum::routing::get;
use fleetlimit::resolve::PeerIp;
use fleetlimit::{ConfigError, Limiter, Policy, Quota, RateLimitLayer, Store};

/// Three requests per hour, and at most one per minute.
pub fn app(store: impl Store) -> Result<Router, ConfigError> {
    let policy = Policy::new("client")
        .quota("hour", Quota::per_hour(3))
        .quota("minute", Quota::per_minute(1));
    let layer = RateLimitLayer::new(Limiter::new(store, policy)?, PeerIp::new().ipv6_prefix(56));
    Ok(Router::new().route("/", get(async || "hello")).layer(layer))
}

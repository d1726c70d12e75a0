use std::time::Duration;

use axum::Router;
use axum::routing::get;
use fleetlimit::resolve::ClientIp;
use fleetlimit::{ConfigError, Limiter, Policy, Quota, RateLimitLayer, Store};

/// 100 requests per 15 minutes, counted from the first, behind one proxy.
pub fn app(store: impl Store) -> Result<Router, ConfigError> {
    let quota = Quota::new(100, Duration::from_secs(15 * 60)).fixed_window();
    let limiter = Limiter::new(store, Policy::new("api").quota("100-in-15min", quota))?;
    let layer = RateLimitLayer::new(limiter, ClientIp::hops(1)?.ipv6_prefix(56));
    Ok(Router::new().route("/", get(async || "hello")).layer(layer))
}

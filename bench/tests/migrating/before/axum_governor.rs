use axum::Router;
use axum::routing::get;
use axum_governor::extractor::PeerIp;
use axum_governor::{GovernorConfigBuilder, GovernorLayer, Quota, nz};

/// Three requests per hour, and at most one per minute.
pub fn app() -> Router {
    let quotas = [Quota::requests_per_hour(nz!(3u32)), Quota::requests_per_minute(nz!(1u32))];
    let config = GovernorConfigBuilder::default()
        .with_extractor(PeerIp::default())
        .expect_connect_info()
        .quotas("client", PeerIp::default(), quotas)
        .finish()
        .unwrap();
    Router::new().route("/", get(async || "hello")).layer(GovernorLayer::new(config))
}

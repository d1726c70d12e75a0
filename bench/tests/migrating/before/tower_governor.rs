use axum::Router;
use axum::routing::get;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// Five requests at once, and then one per minute.
pub fn app() -> Router {
    let config = GovernorConfigBuilder::default().per_second(60).burst_size(5).finish().unwrap();
    Router::new().route("/", get(async || "hello")).layer(GovernorLayer::new(config))
}

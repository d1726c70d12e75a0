use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use redis::aio::MultiplexedConnection;
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

#[derive(Clone)]
pub struct Peer;

impl KeyResolver for Peer {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let key = peer.map(|peer| format!("api:{}", peer.ip()));
        key.ok_or_else(|| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}

/// Five requests at once, and then one per three minutes.
pub fn app(connection: MultiplexedConnection) -> Router {
    let layer = RateLimitLayer::builder()
        .conn(connection)
        .key_resolver(Peer)
        .capacity(5)
        .emission_interval(Duration::from_secs(180))
        .timeout(Duration::from_secs(1))
        .build();
    Router::new().route("/", get(async || "hello")).layer(layer)
}

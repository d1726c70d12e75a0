//! Per-route limits, each with its own quota and its own kind of key.
//!
//! ```sh
//! cargo run --example routes
//! ```
//!
//! `PORT` changes the port from 3000.

use std::env;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::http::HeaderName;
use axum::http::request::Parts;
use axum::routing::get;
use fleetlimit::resolve::{Header, MatchedPath, PeerIp};
use fleetlimit::{
    ConfigError, KeyResolver, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection,
};
use tokio::net::TcpListener;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn app() -> Result<Router, ConfigError> {
    let store = MemoryStore::new();
    // Each limiter has its own policy name, which keeps their buckets apart.
    let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));

    // A resolver of the crate: by API key. A request without one is rejected with 400. Clients can
    // invent keys, so the limit per client around all routes below is what protects the service.
    let search = Header::new(API_KEY);
    let search = RateLimitLayer::new(limiter("search", Quota::per_minute(3))?, search);

    // A tuple: each client has a bucket per route, for any id in the path.
    let items = (PeerIp::new(), MatchedPath);
    let items = RateLimitLayer::new(limiter("items", Quota::per_minute(2))?, items);

    // A closure: all users of a tenant share a bucket.
    let report = |parts: &Parts| match parts.headers.get("x-tenant") {
        Some(tenant) => Ok(tenant.as_bytes().to_vec()),
        None => Err(Rejection::bad_request("missing header: x-tenant")),
    };
    let report = RateLimitLayer::new(limiter("report", Quota::per_hour(1))?, report);

    // By client, except for the health check.
    let all = PeerIp::new().skip(|parts: &Parts| parts.uri.path() == "/health");
    let all = RateLimitLayer::new(limiter("all", Quota::per_minute(12))?, all);

    Ok(Router::new()
        .route("/items/{id}", get(async || "an item\n"))
        .route("/items/{id}/price", get(async || "a price\n"))
        // Around the routes above, not those below.
        .route_layer(items)
        .route("/search", get(async || "found\n").layer(search))
        .route("/report", get(async || "a report\n").layer(report))
        .route("/health", get(async || "healthy\n"))
        .layer(all))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    println!(
        "Try each a few times, and look at RateLimit and RateLimit-Policy:
  curl -i -H 'x-api-key: secret' http://{address}/search
  curl -i http://{address}/items/1
  curl -i http://{address}/items/2/price
  curl -i -H 'x-tenant: acme' http://{address}/report
  curl -i http://{address}/health",
        address = listener.local_addr()?,
    );
    Ok(axum::serve(listener, app).await?)
}

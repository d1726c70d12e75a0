//! Routes with quotas of their own, each counted by something else.
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
use axum::http::request::Parts;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::resolve::{Header, MatchedPath, PeerIp};
use tollgate::{ConfigError, KeyResolver, Limiter, MemoryStore, Policy, Quota};
use tollgate::{RateLimitLayer, Resolution};

fn app() -> Result<Router, ConfigError> {
    let store = MemoryStore::new();
    // Each limiter has a policy name of its own, which keeps their buckets apart.
    let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));

    // A resolver that ships: by API key. Who sends none is told so, with a 400.
    let search = Header::new("x-api-key");
    let search = RateLimitLayer::new(limiter("search", Quota::per_minute(3))?, search);

    // A tuple: each client has a bucket for each of the routes, whatever the id in the path.
    let items = (PeerIp::new(), MatchedPath);
    let items = RateLimitLayer::new(limiter("items", Quota::per_minute(2))?, items);

    // A closure: all users of a tenant share a bucket.
    let report = |parts: &Parts| match parts.headers.get("x-tenant") {
        Some(tenant) => Resolution::Key(tenant.as_bytes().into()),
        None => Resolution::missing("send the header x-tenant"),
    };
    let report = RateLimitLayer::new(limiter("report", Quota::per_hour(1))?, report);

    // A closure around a resolver: every client, but the health check is not counted.
    let peer = PeerIp::new();
    let all = move |parts: &Parts| match parts.uri.path() {
        "/health" => Resolution::Exempt,
        _ => peer.resolve(parts),
    };
    let all = RateLimitLayer::new(limiter("all", Quota::per_minute(12))?, all);

    Ok(Router::new()
        .route("/items/{id}", get(async || "an item\n"))
        .route("/items/{id}/price", get(async || "a price\n"))
        // Around the routes above, not those below.
        .route_layer(items)
        .route("/search", get(async || "found\n").layer(search))
        .route("/report", get(async || "a report\n").layer(report))
        .route("/health", get(async || "fine\n"))
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

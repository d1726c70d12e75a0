//! Per-route limits, each with its own quota and its own kind of key.
//!
//! ```sh
//! cargo run --example routes
//! ```
//!
//! `PORT` changes the port from 3000.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use fleetlimit::resolve::{Extension, MatchedPath, PeerIp};
use fleetlimit::{ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Account {
    id: u64,
    tenant: Option<&'static str>,
}

/// Stands for a look-up of the API key. An unknown key gets no further: a client that can choose its key of a
/// limit has no limit.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let account = match request.headers().get("x-api-key").map(|key| key.as_bytes()) {
        Some(b"secret-1") => Account { id: 1, tenant: Some("acme") },
        Some(b"secret-2") => Account { id: 2, tenant: Some("acme") },
        Some(b"secret-3") => Account { id: 3, tenant: None },
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn app() -> Result<Router, ConfigError> {
    let store = MemoryStore::new();
    // Each limiter has its own policy name, which keeps their buckets apart.
    let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));

    // A resolver of the crate: by account.
    let search = Extension::map(|account: &Account| account.id);
    let search = RateLimitLayer::new(limiter("search", Quota::per_minute(3))?, search);

    // A tuple: each client has a bucket per route, for any id in the path.
    let items = (PeerIp::new(), MatchedPath);
    let items = RateLimitLayer::new(limiter("items", Quota::per_minute(2))?, items);

    // A closure: all accounts of a tenant share a bucket, and others are rejected.
    let report = |parts: &Parts| match parts.extensions.get::<Account>() {
        Some(Account { tenant: Some(tenant), .. }) => Ok(*tenant),
        _ => Err(Rejection::forbidden("reports are for tenants")),
    };
    let report = RateLimitLayer::new(limiter("report", Quota::per_hour(1))?, report);

    // By client address, for all routes.
    let all = RateLimitLayer::new(limiter("all", Quota::per_minute(12))?, PeerIp::new());

    Ok(Router::new()
        .route("/search", get(async || "found\n").layer(search))
        .route("/report", get(async || "a report\n").layer(report))
        // Around the routes above, and not the ones below. The last layer runs first.
        .route_layer(from_fn(authenticate))
        .merge(
            Router::new()
                .route("/items/{id}", get(async || "an item\n"))
                .route("/items/{id}/price", get(async || "a price\n"))
                .route_layer(items),
        )
        .layer(all)
        // Outside of all limits, because a probe that is denied would restart the service.
        .route("/healthz", get(StatusCode::OK)))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    println!(
        "Try each a few times, and look at RateLimit and RateLimit-Policy:
  curl -i -H 'x-api-key: secret-1' http://{address}/search
  curl -i -H 'x-api-key: secret-2' http://{address}/report
  curl -i http://{address}/items/1
  curl -i http://{address}/items/2/price
  curl -i http://{address}/healthz",
        address = listener.local_addr()?,
    );
    axum::serve(listener, app).await?;
    Ok(())
}

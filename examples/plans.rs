//! Plans: free accounts have 10 permits per second, paid ones 100, and an export costs 5. A client address may send
//! 200 requests per second, with any token or none.
//!
//! ```sh
//! cargo run --example plans
//! ```
//!
//! `PORT` changes the port from 3000.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use fleetlimit::layer::{Cause, ErrorContext};
use fleetlimit::resolve::{Extension, PeerIp};
use fleetlimit::{KeyResolver, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
use serde_json::json;
use tokio::net::TcpListener;

#[derive(Clone)]
struct Account {
    id: u64,
    has_paid: bool,
}

/// Stands for real authentication: loads the account, and puts it where the rate limit layer looks.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let account = match request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes) {
        Some(b"Bearer paid") => Account { id: 1, has_paid: true },
        Some(b"Bearer free") => Account { id: 2, has_paid: false },
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn by_plan(free: Limiter, paid: Limiter) -> RateLimitLayer<impl KeyResolver> {
    RateLimitLayer::new(free, Extension::map(|account: &Account| account.id))
        .limiter_for(move |parts| has_paid(parts).then(|| paid.clone()))
        .cost(|parts| if parts.uri.path() == "/export" { 5 } else { 1 })
        .error_response(error_response)
}

fn has_paid(parts: &Parts) -> bool {
    parts.extensions.get::<Account>().is_some_and(|account| account.has_paid)
}

/// The layer adds `Retry-After` and the `RateLimit` fields to a denial.
fn error_response(context: &ErrorContext<'_>) -> Response {
    let Cause::Denied(decision) = context.cause() else {
        return context.default_response().into_response();
    };
    let wait = decision.retry_after().map(|wait| wait.as_micros().div_ceil(1_000));
    let advice = if has_paid(context.request()) { "wait" } else { "wait, or upgrade" };
    let body = json!({ "error": "rate limit exceeded", "advice": advice, "wait_ms": wait });
    (StatusCode::TOO_MANY_REQUESTS, Json(body)).into_response()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = MemoryStore::new();
    let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
    let free = limiter("free", Quota::per_second(10))?;
    let paid = limiter("paid", Quota::per_second(100))?;
    let by_address = limiter("address", Quota::per_second(200))?;
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/export", get(async || "all of it\n"))
        .layer(by_plan(free, paid))
        .layer(middleware::from_fn(authenticate))
        // The last layer runs first: it limits how many tokens a client can try.
        .layer(RateLimitLayer::new(by_address, PeerIp::new()));

    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!(
        "Three exports with each plan:
  curl -i -H 'authorization: Bearer paid' 'http://{address}/export?[1-3]'
  curl -i -H 'authorization: Bearer free' 'http://{address}/export?[1-3]'",
        address = listener.local_addr()?,
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

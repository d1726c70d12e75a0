//! Plans: free accounts have 10 permits a second, paid ones 100, and an export costs 5.
//!
//! ```sh
//! cargo run --example plans
//! ```
//!
//! `PORT` changes the port from 3000.

use std::env;
use std::error::Error;
use std::net::Ipv4Addr;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::middleware::{self, Next};
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::resolve::Extension;
use tollgate::{ConfigError, Decision, KeyResolver, Limiter};
use tollgate::{MemoryStore, Policy, Quota, RateLimitLayer};

#[derive(Clone)]
struct Account {
    id: u64,
    has_paid: bool,
}

/// Stands for real authentication: finds the account, and puts it where the rate limit looks.
async fn authenticate(
    mut request: Request,
    next: Next,
) -> Result<axum::response::Response, StatusCode> {
    let account = match request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes) {
        Some(b"Bearer paid") => Account { id: 1, has_paid: true },
        Some(b"Bearer free") => Account { id: 2, has_paid: false },
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn rate_limit() -> Result<RateLimitLayer<impl KeyResolver>, ConfigError> {
    let store = MemoryStore::new();
    let plan = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
    let free = plan("free", Quota::per_second(10))?;
    let paid = plan("paid", Quota::per_second(100))?;

    Ok(RateLimitLayer::new(free, Extension::map(|account: &Account| account.id))
        .plan(move |parts| has_paid(parts).then(|| paid.clone()))
        .cost(|parts| if parts.uri.path() == "/export" { 5 } else { 1 })
        .denied_response(too_many))
}

fn has_paid(parts: &Parts) -> bool {
    parts.extensions.get::<Account>().is_some_and(|account| account.has_paid)
}

/// The layer adds `Retry-After` and the `RateLimit` fields.
fn too_many(decision: &Decision, parts: &Parts) -> Response<String> {
    let wait = decision.retry_after().as_micros().div_ceil(1_000);
    let advice = if has_paid(parts) { "wait" } else { "wait, or upgrade" };
    let body = format!(r#"{{"error":"too many requests","advice":"{advice}","wait_ms":{wait}}}"#);
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/export", get(async || "all of it\n"))
        .layer(rate_limit()?)
        // Added last, so that it comes first.
        .layer(middleware::from_fn(authenticate));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!(
        "Three exports on each plan:
  curl -i -H 'authorization: Bearer paid' 'http://{address}/export?[1-3]'
  curl -i -H 'authorization: Bearer free' 'http://{address}/export?[1-3]'",
        address = listener.local_addr()?,
    );
    Ok(axum::serve(listener, app).await?)
}

//! Routes for an operator: what is left of a client's limit, who is denied most, and blocking a client.
//!
//! ```sh
//! ADMIN_TOKEN=change-me cargo run --example admin --features denied-keys
//! curl -s 'http://127.0.0.1:3000/?[1-20]'
//! curl -s -H 'authorization: Bearer change-me' http://127.0.0.1:3000/admin/denied
//! curl -s -H 'authorization: Bearer change-me' http://127.0.0.1:3000/admin/limits/127.0.0.1
//! curl -s -H 'authorization: Bearer change-me' -X PUT 'http://127.0.0.1:3000/admin/blocked/127.0.0.1?seconds=60'
//! curl -i http://127.0.0.1:3000/
//! ```
//!
//! It uses Redis if `REDIS_URL` is set. Then a block holds in all instances within about a second. `PORT` changes
//! the port from 3000.
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit enforced locally, by this instance's share event="failure_mode_decides" policy="requests" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, put};
use axum::{Json, Router};
use fleetlimit::resolve::PeerIp;
use fleetlimit::{AnyStore, BlockList, DeniedKeys, Error, Limiter, Policy, Quota, RateLimitLayer};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

const POLICY: &str = "requests";
const MOST_DENIED: NonZeroU16 = NonZeroU16::new(20).unwrap();

#[derive(Clone)]
struct Admin {
    token: Arc<str>,
    limiter: Limiter,
    denied: DeniedKeys,
    blocked: BlockList,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let token = env::var("ADMIN_TOKEN").context("ADMIN_TOKEN is not set")?;
    anyhow::ensure!(!token.is_empty(), "ADMIN_TOKEN is empty");
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
    let requests = limiter(POLICY, Quota::per_second(10))?;
    let attempts = limiter("admin", Quota::per_second(10).burst(100))?;

    let denied = DeniedKeys::plain(MOST_DENIED);
    let blocked = BlockList::new(&store);
    // So that the list applies to the first request. Without Redis it is empty until Redis works.
    if let Err(error) = blocked.refresh().await {
        tracing::warn!("cannot read the block list yet: {error}");
    }
    let admin =
        Admin { token: token.into(), limiter: requests.clone(), denied: denied.clone(), blocked };
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(
            RateLimitLayer::new(requests, PeerIp::new())
                .on_decision(move |checked| denied.observe(checked.key, checked.decision)),
        )
        .nest("/admin", admin_routes(admin, RateLimitLayer::new(attempts, PeerIp::new())));

    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("GET http://{0}/ and http://{0}/admin/denied", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// A key may contain a slash, because that of an IPv6 client is a network.
fn admin_routes(admin: Admin, attempts: RateLimitLayer<PeerIp>) -> Router {
    Router::new()
        .route("/limits/{*key}", get(peek).delete(reset))
        .route("/denied", get(denied))
        .route("/blocked", get(blocked))
        .route("/blocked/{*key}", put(block).delete(unblock))
        .layer(from_fn_with_state(admin.clone(), authenticate))
        // The last layer runs first: it limits how many tokens a client can try.
        .layer(attempts)
        .with_state(admin)
}

/// Compares hashes, so that the time of a comparison does not tell how much of a token is right.
async fn authenticate(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let header = request.headers().get(AUTHORIZATION).ok_or(StatusCode::UNAUTHORIZED)?;
    let expected = format!("Bearer {}", admin.token);
    match Sha256::digest(header) == Sha256::digest(expected) {
        true => Ok(next.run(request).await),
        false => Err(StatusCode::UNAUTHORIZED),
    }
}

/// What is left, without taking a permit.
async fn peek(State(admin): State<Admin>, Path(key): Path<String>) -> Result<Json<Value>, Error> {
    let decision = admin.limiter.peek(key.as_str()).await?;
    let blocked = admin.blocked.get(POLICY, &key.as_str().into());
    Ok(Json(json!({
        "limit": decision.limit(),
        "remaining": decision.remaining(),
        "blocked_seconds": blocked.map(|time| time.as_secs()),
    })))
}

async fn reset(State(admin): State<Admin>, Path(key): Path<String>) -> Result<StatusCode, Error> {
    admin.limiter.reset(key).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The clients that this instance has denied most, with approximate counts.
async fn denied(State(admin): State<Admin>) -> Json<Vec<(String, u64)>> {
    Json(admin.denied.list())
}

async fn blocked(State(admin): State<Admin>) -> Json<Vec<Value>> {
    let blocked = admin.blocked.list().into_iter();
    let entry = |key: String, time: Duration| json!({ "key": key, "seconds": time.as_secs() });
    Json(blocked.map(|blocked| entry(blocked.key.to_string(), blocked.remaining)).collect())
}

#[derive(Deserialize)]
struct Block {
    seconds: u64,
}

async fn block(
    State(admin): State<Admin>,
    Path(key): Path<String>,
    Query(block): Query<Block>,
) -> Result<StatusCode, Error> {
    admin.blocked.block(POLICY, key, Duration::from_secs(block.seconds)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn unblock(State(admin): State<Admin>, Path(key): Path<String>) -> Result<StatusCode, Error> {
    admin.blocked.unblock(POLICY, key).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! Several quotas on one key: each client may send 10 requests per second, 100 per minute and 1,000
//! per day. A request takes a permit of each quota, or of none.
//!
//! ```sh
//! cargo run --example policies
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example policies
//! ```
//!
//! `PORT` changes the port from 3000.
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit enforced locally, by this instance's share event="failure_mode_decides" policy="requests" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::routing::get;
use axum::{Extension, Router};
use fleetlimit::resolve::PeerIp;
use fleetlimit::{AnyStore, Decision, Limiter, Policy, Quota, RateLimitLayer};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Shows when Redis does not answer, and when it does again.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let policy = Policy::new("requests")
        .quota("second", Quota::per_second(10))
        .quota("minute", Quota::per_minute(100))
        // 24 hours from the first request. With `calendar()`, from midnight to midnight in UTC.
        .quota("day", Quota::per_day(1_000).fixed_window());
    let limiter = Limiter::new(store, policy)?;
    let app =
        Router::new().route("/", get(left)).layer(RateLimitLayer::new(limiter, PeerIp::new()));

    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!(
        "15 quick requests, each with what is left of the quotas:
  curl -i 'http://{address}/?[1-15]'",
        address = listener.local_addr()?,
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn left(Extension(decision): Extension<Decision>) -> String {
    let quotas = decision.quotas();
    let left = quotas.map(|quota| format!("{}: {} left\n", quota.name(), quota.remaining()));
    left.collect()
}

//! An app that limits the requests of each client: 5 per second, with bursts of up to 10.
//!
//! ```sh
//! cargo run --example quickstart
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example quickstart
//! REDIS_URL=redis+cluster://127.0.0.1:7000,127.0.0.1:7001 cargo run --example quickstart
//! ```
//!
//! `PORT` changes the port from 3000; 0 picks a free one. `LIMIT` changes the limit: `50/s burst 50`.
//! Several processes on the same Redis share the limit, also while Redis does not answer.
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit enforced locally, by this instance's share event="failure_mode_decides" policy="default" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::routing::get;
use axum::{Extension, Router};
use fleetlimit::resolve::PeerIp;
use fleetlimit::{AnyStore, Decision, Limiter, Quota, RateLimitLayer, Source};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Shows when Redis does not answer, and when it does again.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    // Opening a store does no I/O. Redis may start later.
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let limit = env::var("LIMIT").unwrap_or("5/s burst 10".into());
    let quota: Quota = limit.parse().context("invalid LIMIT")?;
    let limiter = Limiter::new(store, quota)?;
    let app =
        Router::new().route("/", get(hello)).layer(RateLimitLayer::new(limiter, PeerIp::new()));

    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
    println!(
        "GET http://{address}/ allows each client {limit}.

One response with its headers:
  curl -i http://{address}/
30 quick requests, counted by status:
  curl -s -o /dev/null -w '%{{http_code}}\\n' 'http://{address}/?[1-30]' | sort | uniq -c",
        address = listener.local_addr()?,
    );
    // `PeerIp` needs the connect info.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn hello(Extension(decision): Extension<Decision>) -> String {
    match decision.source() {
        Source::Local => "Hello! Redis does not answer: this process has its share.\n".into(),
        _ => format!("Hello! {} of {} left.\n", decision.remaining(), decision.limit()),
    }
}

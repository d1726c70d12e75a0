//! An app that limits the requests of each client: 5 per second, with bursts of up to 10.
//!
//! ```sh
//! cargo run --example quickstart
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example quickstart
//! REDIS_CLUSTER=redis://127.0.0.1:7000,redis://127.0.0.1:7001 cargo run --example quickstart
//! ```
//!
//! `PORT` changes the port from 3000; 0 picks a free one. `LIMIT` changes the limit: `50/s burst 50`.
//! Several processes on the same Redis share the limit, also while Redis does not answer.

use std::env;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use axum::routing::get;
use axum::{Extension, Router};
use fleetlimit::resolve::PeerIp;
use fleetlimit::{Decision, Limiter, MemoryStore, Quota, RateLimitLayer, RedisStore, Source};
use tokio::net::TcpListener;

const LIMIT: &str = "5/s burst 10";

#[tokio::main]
async fn main() -> ExitCode {
    // Shows when Redis does not answer, and when it does again.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let limit = env::var("LIMIT").unwrap_or_else(|_| LIMIT.into());
    let quota = limit.parse().map_err(|error| format!("LIMIT: {error}"))?;
    let (limiter, place) = limiter(quota)?;
    let app =
        Router::new().route("/", get(hello)).layer(RateLimitLayer::new(limiter, PeerIp::new()));

    let port = env::var("PORT").unwrap_or_else(|_| "3000".into());
    let port = port
        .parse()
        .map_err(|_| format!("invalid PORT {port:?}: expected a number from 0 to 65535"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}"))?;
    println!(
        "GET http://{address}/ allows each client {limit}.
The buckets are {place}.

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

/// A limiter, and where its buckets are. The type is the same for every store.
fn limiter(quota: Quota) -> Result<(Limiter, &'static str), Box<dyn Error>> {
    Ok(match (env::var("REDIS_URL"), env::var("REDIS_CLUSTER")) {
        (Err(_), Err(_)) => (Limiter::new(MemoryStore::new(), quota)?, "in this process"),
        // Opening a store does no I/O. Redis may start later.
        (Ok(url), Err(_)) => {
            let store = RedisStore::open(url).map_err(|error| format!("REDIS_URL: {error}"))?;
            (Limiter::new(store, quota)?, "in the Redis of REDIS_URL")
        }
        (Err(_), Ok(urls)) => {
            let store = RedisStore::open_cluster(urls.split(','))
                .map_err(|error| format!("REDIS_CLUSTER: {error}"))?;
            (Limiter::new(store, quota)?, "in the Redis cluster of REDIS_CLUSTER")
        }
        (Ok(_), Ok(_)) => return Err("REDIS_URL and REDIS_CLUSTER are both set: keep one".into()),
    })
}

async fn hello(Extension(decision): Extension<Decision>) -> String {
    match decision.source() {
        Source::Local => "Hello! Redis does not answer: this process has its share.\n".into(),
        _ => format!("Hello! {} of {} left.\n", decision.remaining(), decision.limit()),
    }
}

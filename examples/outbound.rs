//! Outgoing calls: any number of processes together call an API that never sees a sixth call within a
//! second, as long as none is delayed on its way by 100 ms more than another. Calls beyond the limit
//! wait for their turn, for up to 30 seconds.
//!
//! ```sh
//! cargo run --example outbound
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example outbound # in several terminals
//! ```
//!
//! `API_URL` is the `http://` URL to call (default: a server in this process), and `CALLS` the
//! number of calls (default 20).
//!
//! If Redis is down, the log has this line:
//!
//! ```text
//! WARN fleetlimit: rate limit unavailable, failing closed event="failure_mode_decides" policy="outbound" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use fleetlimit::{AnyStore, FailureMode, Limiter, Policy, Quota, RateLimitLayer};
use http::request::Parts;
use http::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt};

/// Not per second: calls proceed 220 ms apart, which leaves room for one that arrives late.
const PER_API: Quota = Quota::new(5, Duration::from_millis(1_100)).queue(Duration::from_secs(30));

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Shows when Redis does not answer, and when it does again.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let policy = Policy::new("outbound").quota("calls", PER_API);
    // Without Redis no call is made, rather than one too many.
    let limiter = Limiter::builder(store, policy)
        .failure_mode(FailureMode::Closed)
        .timeout(Duration::from_secs(5))
        .build()?;
    let api = match env::var("API_URL") {
        Ok(url) => url,
        Err(_) => serve().await?,
    };
    let calls = env::var("CALLS").unwrap_or("20".into()).parse::<u32>().context("invalid CALLS")?;

    // One queue for each host.
    let host = |parts: &Parts| parts.uri.host().unwrap_or_default().to_owned();
    let client = ServiceBuilder::new()
        .layer(RateLimitLayer::new(limiter, host))
        .service(Client::builder(TokioExecutor::new()).build_http::<Body>());

    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..calls {
        let (client, request) = (client.clone(), Request::get(&api).body(Body::empty())?);
        tasks.spawn(async move { (client.oneshot(request).await, start.elapsed()) });
    }
    while let Some(task) = tasks.join_next().await {
        match task? {
            (Ok(response), elapsed) if response.status() == StatusCode::OK => {
                println!("called after {elapsed:.1?}");
            }
            (Ok(response), _) => println!("not called: {}", response.status()),
            (Err(error), _) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Starts a server to call, and returns its address.
async fn serve() -> Result<String, std::io::Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let app = Router::new().route("/", get(async || "hello"));
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(format!("http://{address}/"))
}

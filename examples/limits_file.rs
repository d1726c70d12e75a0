//! Limits in a file, which can be edited while the service runs. It is read again when it changes,
//! and on SIGHUP.
//!
//! ```sh
//! cargo run --example limits_file --features serde
//! ```
//!
//! `LIMITS` is the file (by default one in the directory for temporary files, which each start
//! overwrites), `REDIS_URL` a Redis server (by default limits are in memory), and `PORT` the port
//! (default 3000).
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit enforced locally, by this instance's share event="failure_mode_decides" policy="search" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use fleetlimit::resolve::PeerIp;
use fleetlimit::{AnyStore, Limiters, Policy, PolicySet, Quota, RateLimitLayer};
use tokio::net::TcpListener;

const SAMPLE: &str = r#"# Policies, each with its quotas by name.
[search]
second = "5/s burst 10"
day = "1000/day calendar"
"#;

fn parse(text: &str) -> Result<PolicySet, toml::de::Error> {
    toml::from_str(text)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Shows when Redis does not answer, and when it does again.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let file = match env::var_os("LIMITS") {
        Some(path) => PathBuf::from(path),
        None => {
            let path = env::temp_dir().join("fleetlimit-limits.toml");
            std::fs::write(&path, SAMPLE)?;
            path
        }
    };
    let policies = parse(&std::fs::read_to_string(&file)?)?;
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let limiters = Limiters::new(store, policies)?;
    // Only in the file.
    let search = limiters.get("search")?;
    // Also in the code, for files without this policy.
    let items = limiters.limiter(Policy::new("items").quota("second", Quota::per_second(20)))?;
    for policy in limiters.unused() {
        tracing::warn!(policy, "no route uses this policy of the file");
    }
    let _watch = limiters.watch(&file, parse)?;
    reload_on_hangup(limiters, &file)?;

    let app = Router::new()
        .route("/search", get(async || "found").layer(RateLimitLayer::new(search, PeerIp::new())))
        .route("/items", get(async || "items").layer(RateLimitLayer::new(items, PeerIp::new())));
    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!(
        "Edit {file} and look at the headers again:
  curl -i http://{address}/search",
        file = file.display(),
        address = listener.local_addr()?,
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

#[cfg(unix)]
fn reload_on_hangup(limiters: Limiters, file: &Path) -> Result<(), std::io::Error> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut hangups, file) = (signal(SignalKind::hangup())?, file.to_owned());
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            match limiters.reload_file(&file, parse) {
                Ok(()) => tracing::info!("rate limits reloaded"),
                Err(error) => tracing::error!("rate limits not reloaded: {error}"),
            }
        }
    });
    Ok(())
}

#[cfg(not(unix))]
fn reload_on_hangup(_: Limiters, _: &Path) -> Result<(), std::io::Error> {
    Ok(())
}

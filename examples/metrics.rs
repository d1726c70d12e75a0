//! An app that limits its clients to 5 requests per second, and itself to 100 requests in flight. It serves its metrics
//! to Prometheus.
//!
//! ```sh
//! cargo run --example metrics --features metrics
//! curl -s 'http://127.0.0.1:3000/?[1-20]'
//! curl -s http://127.0.0.1:3000/metrics
//! ```
//!
//! It uses Redis if `REDIS_URL` is set. `PORT` changes the port from 3000; 0 picks a free one. The dashboard
//! `docs/grafana.json` shows these metrics.
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit enforced locally, by this instance's share event="failure_mode_decides" policy="default" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use fleetlimit::resolve::{Global, PeerIp};
use fleetlimit::{AnyStore, Limiter, Policy, Quota, RateLimitLayer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Shows when Redis does not answer, and when it does again.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let prometheus = recorder()?;
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let in_flight = Policy::new("in_flight").quota("requests", Quota::concurrent(100));
    let in_flight = Limiter::new(store.clone(), in_flight)?;
    let limiter = Limiter::new(store, Quota::per_second(5))?;
    // Routes after a layer are not limited by it.
    let app = Router::new()
        .route("/", get(async || "Hello!\n"))
        .layer(RateLimitLayer::new(in_flight, Global))
        .layer(RateLimitLayer::new(limiter, PeerIp::new()))
        .route("/metrics", get(async move || prometheus.render()));

    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("GET http://{0}/ and http://{0}/metrics", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Installs a recorder, before the first check.
fn recorder() -> anyhow::Result<PrometheusHandle> {
    let seconds: Vec<f64> = (0..16).map(|power| 50e-6 * f64::from(1 << power)).collect();
    let checks: Vec<f64> = (0..12).map(|power| f64::from(1 << power)).collect();
    let handle = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets_for_metric(Matcher::Suffix("duration".into()), &seconds)?
        .set_buckets_for_metric(Matcher::Suffix("size".into()), &checks)?
        .set_buckets_for_metric(Matcher::Suffix("length".into()), &checks)?
        .install_recorder()?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

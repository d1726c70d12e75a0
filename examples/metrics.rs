//! An app that limits its clients to 5 requests per second, and serves its metrics to Prometheus.
//!
//! ```sh
//! cargo run --example metrics --features metrics
//! curl -s 'http://127.0.0.1:3000/?[1-20]'
//! curl -s http://127.0.0.1:3000/metrics
//! ```
//!
//! It uses Redis if `REDIS_URL` is set. `PORT` changes the port from 3000; 0 picks a free one. The dashboard
//! `docs/grafana.json` shows these metrics.

use std::env;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use fleetlimit::resolve::PeerIp;
use fleetlimit::{ConfigError, Limiter, MemoryStore, Quota, RateLimitLayer, RedisStore};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let prometheus = recorder()?;
    let limits = RateLimitLayer::new(limiter()?, PeerIp::new());
    // Routes after a layer are not limited by it.
    let app = Router::new()
        .route("/", get(async || "Hello!\n"))
        .layer(limits)
        .route("/metrics", get(async move || prometheus.render()));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("GET http://{0}/ and http://{0}/metrics", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Installs a recorder, before the first check.
fn recorder() -> Result<PrometheusHandle, Box<dyn Error>> {
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

fn limiter() -> Result<Limiter, ConfigError> {
    let quota = Quota::per_second(5);
    match env::var("REDIS_URL") {
        Ok(url) => Limiter::new(RedisStore::open(url)?, quota),
        Err(_) => Limiter::new(MemoryStore::new(), quota),
    }
}

//! A service with what production needs: several instances share one limit on Redis, behind a proxy.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example production --features metrics
//! curl -i http://127.0.0.1:3000/
//! curl -s http://127.0.0.1:9000/metrics
//! ```
//!
//! To start from a copy of this file, in a project whose directory is next to the clone:
//!
//! ```sh
//! cargo add --path ../fleetlimit --features metrics
//! cargo add anyhow axum tracing tracing-subscriber
//! cargo add tokio --features full
//! cargo add tower-http --features cors
//! cargo add metrics-exporter-prometheus --no-default-features --features http-listener
//! ```
//!
//! In nginx, `proxy_set_header X-Forwarded-For $remote_addr;` names the client. Without this line all clients share one
//! limit. An address in `TRUSTED_PROXIES` can name any client, so do not test this with curl from 127.0.0.1, but with
//! `curl --interface 127.0.0.2`.
//!
//! | variable | default | |
//! |---|---|---|
//! | `REDIS_URL` | none | `redis://user:password@host:6379`; for a cluster `redis+cluster://host1:6379,host2:6379` |
//! | `KEY_PREFIX` | `production` | the same for all instances of this service, and another one for each other service |
//! | `INSTANCES` | `2` | the usual number of instances |
//! | `LIMIT` | `10/s burst 20` | the limit of a client |
//! | `TRUSTED_PROXIES` | `127.0.0.1,::1` | addresses or networks of the proxies that set `X-Forwarded-For` |
//! | `ALLOWED_ORIGIN` | `https://app.example.com` | the web app whose scripts may call this service |
//! | `LISTEN` | `127.0.0.1:3000` | in a container `0.0.0.0:3000` |
//! | `METRICS_LISTEN` | `127.0.0.1:9000` | a port that clients cannot reach; in a container `0.0.0.0:9000` |
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit enforced locally, by this instance's share event="failure_mode_decides" policy="requests" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::error::Error;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{Method, StatusCode};
use axum::routing::get;
use fleetlimit::resolve::ClientIp;
use fleetlimit::{AnyStore, Limiter, Policy, Quota, RateLimitLayer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::net::TcpListener;
use tokio::signal;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower_http::cors::CorsLayer;

/// The longest that a request waits for Redis. After that, this instance decides by its share of the limit.
///
/// Redis in the same region replies within a few milliseconds, so this is not reached while Redis works. It
/// is at least twice the round trip, and short compared with the time that a client waits for a response.
const REDIS_TIMEOUT: Duration = Duration::from_millis(50);

/// The time that requests have to finish after SIGTERM. `store.shutdown()` takes up to a second more, and Kubernetes
/// kills a pod 30 seconds after it has begun to end it. New requests still arrive for some of that time, so add a
/// `preStop` hook that sleeps for 5 seconds: SIGTERM follows it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The log says when Redis stops deciding, and when it decides again. Colors would make it hard to search.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).init();
    serve_metrics()?;
    let store = open_store()?;
    let limiter = limiter(&store)?;
    let app = app(limiter.clone(), client_ip()?)?;
    connect(&limiter).await;

    let address: SocketAddr = setting("LISTEN", "127.0.0.1:3000")?;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on LISTEN, {address}"))?;
    println!("listening on http://{}/", listener.local_addr()?);
    serve(listener, app).await?;

    // After the last request. The other instances get this one's share of the limits within about two seconds, and
    // not after ten.
    store.shutdown().await;
    Ok(())
}

/// Reads a setting from the environment. An error names the setting, and shows a valid value.
fn setting<T>(name: &str, default: &str) -> anyhow::Result<T>
where
    T: FromStr<Err: Error + Send + Sync + 'static>,
{
    let text = env::var(name).unwrap_or_else(|_| default.to_owned());
    text.parse().with_context(|| format!("invalid {name}: expected a value such as {default}"))
}

/// Opens the store, without connecting to Redis. Open one per process, because each counts as an instance.
fn open_store() -> anyhow::Result<AnyStore> {
    let url = env::var("REDIS_URL")
        .context("REDIS_URL is not set: expected a value such as redis://127.0.0.1:6379")?;
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let key_prefix: String = setting("KEY_PREFIX", "production")?;
    // An instance that starts while Redis is down assumes this number. With too low a number, the instances
    // together admit more than the limit.
    let instances = setting("INSTANCES", "2")?;
    Ok(store.map_redis(|redis| redis.key_prefix(key_prefix).instances(instances)))
}

/// The failure mode is the default, `Local`: while Redis is down, each instance enforces its share of the limit.
fn limiter(store: &AnyStore) -> anyhow::Result<Limiter> {
    let quota: Quota = setting("LIMIT", "10/s burst 20")?;
    let policy = Policy::new("requests").quota("client", quota);
    let limiter = Limiter::builder(store.clone(), policy).timeout(REDIS_TIMEOUT).build();
    limiter.context("invalid KEY_PREFIX or LIMIT")
}

/// Connects before the first request, and reports a wrong address or password. The service starts anyway,
/// because the limit is in force without Redis.
async fn connect(limiter: &Limiter) {
    if let Err(error) = limiter.peek("startup").await {
        let cause = error.source().map(ToString::to_string);
        tracing::warn!(cause, "Redis does not work yet: {error}");
    }
}

/// A client is the address in `X-Forwarded-For`, if a trusted proxy sends the request. Any other request is by the
/// client that sends it, whatever its headers say.
fn client_ip() -> anyhow::Result<ClientIp> {
    let proxies: String = setting("TRUSTED_PROXIES", "127.0.0.1,::1")?;
    let proxies = proxies.split(',').filter(|proxy| !proxy.is_empty());
    ClientIp::new(proxies).context("invalid TRUSTED_PROXIES")
}

/// In axum, a layer wraps the routes and layers that were added before it.
fn app(limiter: Limiter, client_ip: ClientIp) -> anyhow::Result<Router> {
    let origin: HeaderValue = setting("ALLOWED_ORIGIN", "https://app.example.com")?;
    let rate_limit = ["ratelimit", "ratelimit-policy"].map(HeaderName::from_static);
    let cors = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([CONTENT_TYPE])
        // Without this, scripts cannot read these headers.
        .expose_headers([rate_limit.as_slice(), &[RETRY_AFTER]].concat());
    Ok(Router::new()
        .route("/", get(async || "hello\n").post(async |body: String| body))
        .layer(RateLimitLayer::new(limiter, client_ip))
        // Around the limit, so that preflight requests take no permits, and scripts can read a 429.
        .layer(cors)
        // Outside of the limit, because a probe that is denied would restart the service.
        .route("/healthz", get(StatusCode::OK))
        // Check what requests need, such as the database. They do not need Redis.
        .route("/readyz", get(StatusCode::OK)))
}

/// Serves the app until SIGTERM or ctrl-c, and then finishes the requests in flight.
async fn serve(listener: TcpListener, app: Router) -> anyhow::Result<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    // `ClientIp` needs the connect info.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { _ = stopped.await });
    let server = tokio::spawn(server.into_future());

    stop_signal().await?;
    tracing::info!("stopping");
    _ = stop.send(());
    if timeout(DRAIN_TIMEOUT, server).await.is_err() {
        tracing::warn!("requests that take longer than {DRAIN_TIMEOUT:?} are cut off");
    }
    Ok(())
}

#[cfg(unix)]
async fn stop_signal() -> io::Result<()> {
    let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = signal::ctrl_c() => interrupted,
    }
}

#[cfg(not(unix))]
async fn stop_signal() -> io::Result<()> {
    signal::ctrl_c().await
}

/// Serves the metrics on a port of their own, before the first check is measured.
fn serve_metrics() -> anyhow::Result<()> {
    let address: SocketAddr = setting("METRICS_LISTEN", "127.0.0.1:9000")?;
    let seconds: Vec<f64> = (0..16).map(|power| 50e-6 * f64::from(1 << power)).collect();
    let checks: Vec<f64> = (0..12).map(|power| f64::from(1 << power)).collect();
    // The names and the histograms that `docs/grafana.json` shows.
    PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets_for_metric(Matcher::Suffix("duration".into()), &seconds)?
        .set_buckets_for_metric(Matcher::Suffix("size".into()), &checks)?
        .set_buckets_for_metric(Matcher::Suffix("length".into()), &checks)?
        .with_http_listener(address)
        .install()
        .with_context(|| format!("cannot serve metrics on METRICS_LISTEN, {address}"))
}

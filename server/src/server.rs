//! The process: three listeners, and an orderly end.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower_http::limit::RequestBodyLimitLayer;

use crate::admin::{self, Readiness};
use crate::config::{Errors, Origin, Source};
use crate::denied::Denied;
use crate::live::Live;
use crate::open_files;
use crate::serve::{Endpoint, Protocol};
use crate::settings::{Limits, Settings};
use crate::{grpc, http as http_api, reload, store, telemetry, tls};

/// The listeners.
const PORTS: u64 = 3;
/// The first connection may take longer than a check.
const STORE_PATIENCE: Duration = Duration::from_secs(2);
const STORE_INTERVAL: Duration = Duration::from_millis(200);

/// Checks a configuration as far as that is possible without connecting, and returns the number of its
/// policies.
///
/// # Errors
///
/// Everything that is wrong with it.
pub(crate) fn check(source: &Source) -> Result<usize, Errors> {
    let (_, service) = source.load();
    Ok(service?.config.policies.iter().count())
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
///
/// If the configuration is invalid, or a port is in use.
pub(crate) fn run(source: Source) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new()?;
    let result = runtime.block_on(serve(source));
    // A reload may be reading a file from a volume that does not answer.
    runtime.shutdown_background();
    result
}

async fn serve(source: Source) -> Result<(), Box<dyn Error>> {
    // Before the first limiter, which looks for the recorder.
    let prometheus = telemetry::init_metrics()?;
    let is_sample = matches!(source.origin, Origin::Sample);
    let (read, service) = source.load();
    let service = service?;
    let (settings, tls) = (service.config.settings.clone(), service.tls.clone());
    let Settings { listen, limits, admin, shutdown, .. } = &settings;
    open_files::allow(limits, PORTS);
    let live = Arc::new(Live::new(service, read, source)?);
    let readiness = Arc::new(Readiness::new(live.clone()));

    let acceptor =
        |protocol| tls.as_ref().map(|certificate| tls::acceptor(certificate, protocol)).transpose();
    let (grpc_services, mut health) = grpc::services(live.clone(), limits).await?;
    let grpc = Endpoint {
        name: "grpc",
        listener: bind(listen.grpc).await?,
        // gRPC limits the size of messages itself.
        handler: grpc_services,
        protocol: Protocol::Http2,
        tls: acceptor(Protocol::Http2)?,
    };
    let http_router = http_api::router(live.clone()).merge(admin::health_router(readiness.clone()));
    let http = Endpoint {
        name: "http",
        listener: bind(listen.http).await?,
        handler: bounded(http_router, limits),
        protocol: Protocol::Http1,
        tls: acceptor(Protocol::Http1)?,
    };
    let admin_router =
        admin::router(live.clone(), admin.token.as_ref(), readiness.clone(), prometheus);
    let admin = Endpoint {
        name: "admin",
        listener: bind(listen.admin).await?,
        handler: bounded(admin_router, limits),
        protocol: Protocol::Http1,
        tls: if listen.admin.ip().is_loopback() { None } else { acceptor(Protocol::Http1)? },
    };
    health.update(&readiness).await;
    // Without a handler, the signal ends the process.
    let hangups = signal(SignalKind::hangup())?;
    let mut end_signals = EndSignals::new()?;
    // Before the first request. Without Redis, the blocks apply within a second after it is back.
    let _ = live.blocked.refresh().await;
    let addresses = [&grpc.listener, &http.listener, &admin.listener].map(TcpListener::local_addr);
    let [grpc_address, http_address, admin_address] = addresses;
    let (grpc_address, http_address, admin_address) =
        (grpc_address?, http_address?, admin_address?);
    tracing::info!(
        store = store::kind(&live.store),
        grpc = %grpc_address,
        http = %http_address,
        admin = %admin_address,
        "listening"
    );
    if is_sample {
        tracing::warn!("no settings given: the limits are those of the built-in sample");
        print_sample(http_address, admin_address);
    }

    tokio::spawn(report_store(live.clone()));
    tokio::spawn(Denied::count(live.denied.clone()));
    tokio::spawn(reload::on_hangup(live.clone(), hangups));
    let _watch = reload::on_change(live.clone())?;
    let stop = watch::Sender::new(false);
    tokio::spawn(grpc.serve(limits.clone(), stop.subscribe()));
    tokio::spawn(http.serve(limits.clone(), stop.subscribe()));
    tokio::spawn(admin.serve(limits.clone(), stop.subscribe()));

    tokio::select! {
        () = end_signals.next() => {}
        never = health.follow(&readiness) => match never {},
    }
    tracing::info!("shutting down");
    health.set_not_serving().await;
    readiness.end();
    let drained = async {
        sleep(shutdown.delay).await;
        stop.send_replace(true);
        health.end_watches().await;
        // All connections have ended.
        timeout(shutdown.timeout, stop.closed()).await
    };
    tokio::select! {
        drained = drained => if drained.is_err() {
            tracing::warn!(timeout = ?shutdown.timeout, "requests were still open at the end");
        },
        () = end_signals.next() => tracing::warn!("a second signal: open requests are cut"),
    }
    live.store.shutdown().await;
    Ok(())
}

/// Logs at the start if the store cannot be used, such as with a wrong password. Without this, only the
/// first request would show it.
async fn report_store(live: Arc<Live>) {
    let start = Instant::now();
    while let Err(error) = live.try_store().await {
        if start.elapsed() > STORE_PATIENCE {
            tracing::error!(
                reason = with_causes(&error),
                failure_mode = ?live.active().settings.checks.failure_mode,
                "the store cannot be used: the failure mode decides until it can"
            );
            return;
        }
        sleep(STORE_INTERVAL).await;
    }
}

fn with_causes(error: &dyn Error) -> String {
    std::iter::successors(error.source(), |cause| (*cause).source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))
}

fn bounded(router: Router, limits: &Limits) -> Router {
    router.layer(RequestBodyLimitLayer::new(limits.request_bytes))
}

/// SIGTERM and SIGINT.
struct EndSignals {
    terminated: Signal,
    interrupted: Signal,
}

impl EndSignals {
    fn new() -> std::io::Result<Self> {
        let (terminated, interrupted) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminated, interrupted })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminated.recv() => {}
            _ = self.interrupted.recv() => {}
        }
    }
}

fn print_sample(http: SocketAddr, admin: SocketAddr) {
    let (http, admin) = (http.port(), admin.port());
    println!(
        "A sample configuration. Try, more than ten times:

  curl -i http://127.0.0.1:{http}/auth -H 'X-Forwarded-For: 192.0.2.1'
  curl -i http://127.0.0.1:{http}/v1/check --json '{{\"policy\": \"login\", \"key\": \"anna\"}}'

The page http://127.0.0.1:{admin}/ shows what is admitted and denied."
    );
}

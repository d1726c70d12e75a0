//! The process: three listeners, and an orderly end.

use std::error::Error;
use std::io;
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

use crate::admin::{self, Metrics, Readiness};
use crate::config::{Origin, RatelimitEnv, Source, WithoutEffect};
use crate::denied::Denied;
use crate::errors::Errors;
use crate::grpc::Health;
use crate::history::History;
use crate::live::Live;
use crate::open_files;
use crate::otlp::{self, Exporters};
use crate::protocol::Protocol;
use crate::serve::Endpoint;
use crate::settings::{Port, ResourceLimits, Settings, Shutdown};
use crate::tls::ServerTls;
use crate::{grpc, http as http_api, reload, store, telemetry, xds};

/// The listeners that each server has.
const PORTS: u64 = 3;
/// The first connection may take longer than a check.
const STORE_PATIENCE: Duration = Duration::from_secs(2);
const STORE_INTERVAL: Duration = Duration::from_millis(200);

/// A configuration without errors.
pub(crate) struct Checked {
    /// The number of its policies.
    pub(crate) policies: usize,
    pub(crate) without_effect: WithoutEffect,
    /// The control plane, which sends limits, too.
    pub(crate) control_plane: Option<String>,
}

/// Checks a configuration as far as that is possible without connecting.
///
/// # Errors
///
/// Everything that is wrong with it.
pub(crate) fn check(source: &Source) -> Result<Checked, Errors> {
    let config = source.load(None).1?.config;
    Ok(Checked {
        policies: config.policies.iter().count(),
        without_effect: source.without_effect(&config.settings),
        control_plane: config.settings.xds.map(|xds| xds.server),
    })
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
    let exporters = match source.otlp() {
        Some(settings) => otlp::start(settings).await?,
        None => Exporters::default(),
    };
    let prometheus = telemetry::init_metrics(exporters.recorder())?;
    let is_sample = matches!(source.origin, Origin::Sample);
    let (read, service) = source.load(None);
    let service = service?;
    let (settings, tls) = (service.config.settings.clone(), service.tls.clone());
    warn_of_variables(&source, &settings);
    let ports = PORTS + u64::from(settings.listen.metrics.is_some());
    open_files::allow(&settings.resource_limits, ports);
    let live = Arc::new(Live::new(service, read, source, exporters.traces())?);
    let readiness = Arc::new(Readiness::new(live.clone()));
    let (grpc_services, mut health) =
        grpc::services(live.clone(), &settings.resource_limits).await?;
    let metrics = Metrics::new(live.clone(), prometheus);
    let routers = [
        http_api::router(live.clone(), settings.http.token.as_ref())
            .merge(admin::health_router(readiness.clone())),
        admin::router(live.clone(), settings.admin.token.as_ref(), readiness.clone(), &metrics),
        metrics.router(&settings.listen.metrics_path),
    ];
    let endpoints = Endpoints::bind(&settings, tls.as_ref(), grpc_services, routers).await?;
    health.update(&readiness).await;
    // Without a handler, the signal ends the process.
    let hangups = signal(SignalKind::hangup())?;
    let mut end_signals = EndSignals::new()?;
    // Before the first request. Without Redis, the blocks apply within a second after it is back.
    let _ = live.blocked.refresh().await;
    endpoints.announce(&live, is_sample)?;

    tokio::spawn(xds::follow(live.clone()));
    tokio::spawn(report_store(live.clone()));
    tokio::spawn(Denied::count(live.denied.clone()));
    tokio::spawn(History::record(live.history.clone()));
    tokio::spawn(reload::on_hangup(live.clone(), hangups));
    let _watch = reload::on_change(live.clone())?;
    let stop = watch::Sender::new(false);
    endpoints.serve(&settings.resource_limits, &stop);

    tokio::select! {
        () = end_signals.next() => {}
        never = health.follow(&readiness) => match never {},
    }
    tracing::info!(event = "shutdown_started", "shutting down");
    health.set_not_serving().await;
    readiness.end();
    tokio::select! {
        () = drain(&settings.shutdown, &stop, &mut health) => {}
        () = end_signals.next() => {
            tracing::warn!(event = "shutdown_forced", "a second signal: open requests are cut");
        }
    }
    live.store.shutdown().await;
    exporters.flush().await;
    Ok(())
}

/// Logs the variables that were set for envoyproxy/ratelimit, and do nothing here.
fn warn_of_variables(source: &Source, settings: &Settings) {
    for (variable, reason) in source.without_effect(settings) {
        tracing::warn!(
            event = "variable_without_effect",
            variable,
            reason,
            "this variable of envoyproxy/ratelimit has no effect"
        );
    }
    if source.ratelimit.is_none() {
        let variables = RatelimitEnv::ignored().join(", ");
        if !variables.is_empty() {
            tracing::warn!(
                event = "variables_ignored",
                variables,
                "variables of envoyproxy/ratelimit are set, which apply only with `CONFIG_TYPE`, or if this program is \
                 started under the name `ratelimit`"
            );
        }
    }
}

/// The ports with what is served on them.
struct Endpoints {
    grpc: Endpoint<grpc::Services>,
    http: Endpoint<Router>,
    admin: Endpoint<Router>,
    /// A port for metrics only, if the settings have one.
    metrics: Option<Endpoint<Router>>,
}

impl Endpoints {
    /// # Errors
    ///
    /// If a port is in use.
    async fn bind(
        settings: &Settings,
        tls: Option<&Arc<ServerTls>>,
        grpc_services: grpc::Services,
        [http_router, admin_router, metrics_router]: [Router; 3],
    ) -> Result<Self, Box<dyn Error>> {
        let Settings { listen, resource_limits: limits, .. } = settings;
        let tls_of = |port: Port| {
            let ports = settings.tls.as_ref().map(|tls| &tls.ports);
            tls.filter(|_| ports.is_some_and(|ports| ports.contains(&port))).cloned()
        };
        // gRPC limits the size of messages itself.
        let bounded =
            |router: Router| router.layer(RequestBodyLimitLayer::new(limits.request_bytes));
        let is_admin_local = listen.admin.ip().is_loopback();
        let metrics = match listen.metrics {
            Some(address) => Some(Endpoint {
                name: "metrics",
                listener: bind(address).await?,
                handler: bounded(metrics_router),
                protocol: Protocol::Http1,
                tls: None,
            }),
            None => None,
        };
        Ok(Self {
            grpc: Endpoint {
                name: "grpc",
                listener: bind(listen.grpc).await?,
                handler: grpc_services,
                protocol: Protocol::Http2,
                tls: tls_of(Port::Grpc),
            },
            http: Endpoint {
                name: "http",
                listener: bind(listen.http).await?,
                handler: bounded(http_router),
                protocol: Protocol::Http1,
                tls: tls_of(Port::Http),
            },
            admin: Endpoint {
                name: "admin",
                listener: bind(listen.admin).await?,
                handler: bounded(admin_router),
                protocol: Protocol::Http1,
                tls: tls_of(Port::Admin).filter(|_| !is_admin_local),
            },
            metrics,
        })
    }

    /// Logs the addresses, which have other ports than the settings if those are 0.
    fn announce(&self, live: &Live, is_sample: bool) -> io::Result<()> {
        let [grpc, http, admin] = [&self.grpc.listener, &self.http.listener, &self.admin.listener]
            .map(TcpListener::local_addr);
        let (grpc, http, admin) = (grpc?, http?, admin?);
        let store = store::kind(&live.store);
        let metrics = self.metrics.as_ref().map(|it| it.listener.local_addr()).transpose()?;
        let metrics = metrics.map(tracing::field::display);
        tracing::info!(event = "listening", store, %grpc, %http, %admin, metrics, "listening");
        if is_sample {
            tracing::warn!(
                event = "sample_in_use",
                "no settings given: the limits are those of the built-in sample"
            );
            print_sample(http, admin);
        }
        Ok(())
    }

    /// Serves all ports until `stop` is true.
    fn serve(self, limits: &ResourceLimits, stop: &watch::Sender<bool>) {
        tokio::spawn(self.grpc.serve(limits.clone(), stop.subscribe()));
        tokio::spawn(self.http.serve(limits.clone(), stop.subscribe()));
        tokio::spawn(self.admin.serve(limits.clone(), stop.subscribe()));
        if let Some(metrics) = self.metrics {
            tokio::spawn(metrics.serve(limits.clone(), stop.subscribe()));
        }
    }
}

/// Lets the requests in flight finish, while no others are accepted.
async fn drain(shutdown: &Shutdown, stop: &watch::Sender<bool>, health: &mut Health) {
    sleep(shutdown.delay).await;
    stop.send_replace(true);
    health.end_watches().await;
    // All connections have ended.
    if timeout(shutdown.timeout, stop.closed()).await.is_err() {
        tracing::warn!(
            event = "shutdown_timed_out", timeout = ?shutdown.timeout,
            "requests were still open at the end"
        );
    }
}

/// Logs at the start if the store cannot be used, such as with a wrong password. Without this, only the
/// first request would show it.
async fn report_store(live: Arc<Live>) {
    let start = Instant::now();
    while let Err(error) = live.try_store().await {
        if start.elapsed() > STORE_PATIENCE {
            tracing::error!(
                event = "store_unusable",
                reason = fleetlimit::internal::with_causes(&error),
                failure_mode = ?live.active().settings.checks.failure_mode,
                "the store cannot be used: the failure mode decides until it can"
            );
            return;
        }
        sleep(STORE_INTERVAL).await;
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))
}

/// SIGTERM and SIGINT.
struct EndSignals {
    terminated: Signal,
    interrupted: Signal,
}

impl EndSignals {
    fn new() -> io::Result<Self> {
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

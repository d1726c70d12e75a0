//! Logs on standard error, and metrics for Prometheus and OpenTelemetry.

use std::error::Error;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_opentelemetry::OpenTelemetryRecorder;
use metrics_util::layers::FanoutBuilder;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Old values of histograms are dropped this often.
const UPKEEP: Duration = Duration::from_secs(5);

pub(crate) const RELOADS: &str = "fleetlimit.server.reloads";
pub(crate) const UNMATCHED: &str = "fleetlimit.server.unmatched";
pub(crate) const UNCOUNTED: &str = "fleetlimit.server.uncounted";
pub(crate) const RELOAD_FAILED: &str = "fleetlimit.server.reload.failed";
pub(crate) const OVERRULED: &str = "fleetlimit.server.overruled";
pub(crate) const GRPC_ERRORS: &str = "fleetlimit.server.grpc.errors";
pub(crate) const NEAR_LIMIT: &str = "fleetlimit.server.near_limit";
pub(crate) const XDS_CONNECTED: &str = "fleetlimit.server.xds.connected";
pub(crate) const XDS_UPDATES: &str = "fleetlimit.server.xds.updates";
pub(crate) const XDS_REJECTED: &str = "fleetlimit.server.xds.rejected";
pub(crate) const TLS_FAILURES: &str = "fleetlimit.server.tls.failures";
pub(crate) const CONNECTIONS_REFUSED: &str = "fleetlimit.server.connections.refused";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    /// One object per line.
    Json,
}

/// `RUST_LOG` selects what is logged, instead of this level: `info` by default.
pub(crate) fn init_logs(level: Option<LevelFilter>, format: LogFormat) {
    // Below `info`, the lines of other crates would hide those of this one.
    let default = match level.unwrap_or(LevelFilter::INFO) {
        level if level > LevelFilter::INFO => {
            format!("info,fleetlimit={level},fleetlimit_server={level}")
        }
        level => level.to_string(),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

/// The upper bounds of the buckets of histograms, by the end of their names: seconds, or numbers of checks.
pub(crate) fn buckets() -> [(&'static str, Vec<f64>); 3] {
    let doubled = |first: f64, number: u32| -> Vec<f64> {
        (0..number).map(|power| first * f64::from(1 << power)).collect()
    };
    [("duration", doubled(50e-6, 16)), ("size", doubled(1.0, 12)), ("length", doubled(1.0, 12))]
}

/// # Errors
///
/// If a metrics recorder is already installed.
pub(crate) fn init_metrics(
    otlp: Option<OpenTelemetryRecorder>,
) -> Result<PrometheusHandle, Box<dyn Error>> {
    let mut builder = PrometheusBuilder::new().with_recommended_naming(true);
    for (suffix, bounds) in buckets() {
        builder = builder.set_buckets_for_metric(Matcher::Suffix(suffix.to_owned()), &bounds)?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    match otlp {
        Some(otlp) => {
            let both = FanoutBuilder::default().add_recorder(recorder).add_recorder(otlp).build();
            metrics::set_global_recorder(both)?;
        }
        None => metrics::set_global_recorder(recorder)?,
    }
    describe();
    metrics::gauge!(RELOAD_FAILED).set(0.0);
    // A counter that appears with its first event has not increased, so no alert would fire for that.
    for reason in ["denied", "failed", "negative"] {
        uncounted(reason, 0);
    }
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

fn describe() {
    metrics::describe_counter!(RELOADS, "Attempts to reload the configuration");
    metrics::describe_gauge!(
        RELOAD_FAILED,
        "1 if the last reload was rejected, so the configuration in use is not that of the files"
    );
    metrics::describe_counter!(
        UNMATCHED,
        "What no limit applies to: requests of a domain and descriptors that the configuration does not have, by reason"
    );
    metrics::describe_counter!(
        UNCOUNTED,
        "Hits of requests with several that were not counted, or not given back, by the reason"
    );
    metrics::describe_counter!(
        OVERRULED,
        "Checks that a list, a block or a limit of 0 has decided, not a policy"
    );
    metrics::describe_counter!(
        NEAR_LIMIT,
        "Checks that a policy allows, and after which a quota of it is used beyond `checks.near_limit_ratio`"
    );
    metrics::describe_counter!(
        GRPC_ERRORS,
        "Requests over gRPC that got an error instead of a decision, by status code"
    );
    metrics::describe_counter!(
        CONNECTIONS_REFUSED,
        "Connections that were closed because their client address had too many, by port"
    );
    metrics::describe_counter!(
        TLS_FAILURES,
        "Connections that ended before TLS was established, such as without a client certificate, by port"
    );
}

/// The counter of checks near the limit of a policy.
pub(crate) fn near_limit(policy: &Arc<str>) -> Counter {
    metrics::counter!(NEAR_LIMIT, "policy" => policy.clone())
}

pub(crate) fn reloaded(has_worked: bool) {
    let outcome = if has_worked { "applied" } else { "rejected" };
    metrics::counter!(RELOADS, "outcome" => outcome).increment(1);
    metrics::gauge!(RELOAD_FAILED).set(if has_worked { 0.0 } else { 1.0 });
}

/// The server has a control plane: it is not connected yet. Without one, there are no such metrics.
pub(crate) fn init_control_plane() {
    metrics::describe_gauge!(
        XDS_CONNECTED,
        "1 while the control plane is connected and has sent a configuration over this connection"
    );
    metrics::describe_counter!(XDS_UPDATES, "Configurations that the control plane has sent");
    metrics::describe_gauge!(
        XDS_REJECTED,
        "1 if the last configuration of the control plane was rejected, so an older one is in use"
    );
    control_plane_connected(false);
    for outcome in ["applied", "rejected"] {
        metrics::counter!(XDS_UPDATES, "outcome" => outcome).increment(0);
    }
    metrics::gauge!(XDS_REJECTED).set(0.0);
}

pub(crate) fn control_plane_connected(is_connected: bool) {
    metrics::gauge!(XDS_CONNECTED).set(if is_connected { 1.0 } else { 0.0 });
}

/// A configuration of the control plane was applied or rejected.
pub(crate) fn received(has_worked: bool) {
    let outcome = if has_worked { "applied" } else { "rejected" };
    metrics::counter!(XDS_UPDATES, "outcome" => outcome).increment(1);
    metrics::gauge!(XDS_REJECTED).set(if has_worked { 0.0 } else { 1.0 });
}

/// A request of a `domain`, or a `descriptor`, to which no limit applies.
pub(crate) fn unmatched(reason: &'static str) {
    metrics::counter!(UNMATCHED, "reason" => reason).increment(1);
}

/// Hits that are not counted, because they are `denied` or the check has `failed`, or not given back, because they are
/// `negative`.
pub(crate) fn uncounted(reason: &'static str, hits: u64) {
    // Otherwise a few requests would bring the counter back to 0.
    let hits = hits.min(u32::MAX.into());
    metrics::counter!(UNCOUNTED, "reason" => reason).increment(hits);
}

/// A check that a list (`allow`, `deny`), an operator's `block` or a limit of `zero` has decided.
pub(crate) fn overruled(by: &'static str) {
    metrics::counter!(OVERRULED, "by" => by).increment(1);
}

/// A request over gRPC got an error.
pub(crate) fn grpc_error(code: tonic::Code) {
    metrics::counter!(GRPC_ERRORS, "code" => status_name(code)).increment(1);
}

/// As in the specification of gRPC: `RESOURCE_EXHAUSTED`.
fn status_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// A connection has ended before TLS was established.
pub(crate) fn tls_failure(port: &'static str) {
    metrics::counter!(TLS_FAILURES, "port" => port).increment(1);
}

/// A connection beyond those of its client address.
pub(crate) fn connection_refused(port: &'static str) {
    metrics::counter!(CONNECTIONS_REFUSED, "port" => port).increment(1);
}

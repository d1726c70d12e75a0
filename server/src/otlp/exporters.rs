//! The exporters of the SDK. Their threads send spans every few seconds and metrics every minute, and drop what a collector
//! does not take in time, so a check never waits for them.

use std::time::Duration;

use metrics_opentelemetry::{OpenTelemetryMetrics, OpenTelemetryRecorder};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{Aggregation, Instrument, SdkMeterProvider, Stream};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::http_client::HttpClient;
use super::traces::Traces;
use crate::settings::{Otlp, OtlpProtocol};
use crate::telemetry;

/// The longest wait for the last spans and metrics at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
const SCOPE: &str = env!("CARGO_PKG_NAME");

/// The providers of what is exported.
#[derive(Clone, Default)]
pub(crate) struct Exporters {
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
}

/// Starts the exporters, which connect in the background.
///
/// # Errors
///
/// If an endpoint of the environment (`OTEL_EXPORTER_OTLP_ENDPOINT`) is invalid.
pub(crate) async fn start(settings: Otlp) -> Result<Exporters, ExporterBuildError> {
    let resource = resource(&settings);
    let traces = if settings.traces {
        let ratio = Sampler::TraceIdRatioBased(settings.sampling_ratio);
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.clone())
            // The caller has decided, if it sends a `traceparent`.
            .with_sampler(Sampler::ParentBased(Box::new(ratio)))
            .with_batch_exporter(span_exporter(&settings)?);
        Some(provider.build())
    } else {
        None
    };
    let metrics = if settings.metrics {
        let provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_view(with_buckets)
            .with_periodic_exporter(metric_exporter(&settings)?);
        Some(provider.build())
    } else {
        None
    };
    Ok(Exporters { traces, metrics })
}

impl Exporters {
    pub(crate) fn traces(&self) -> Option<Traces> {
        self.traces.as_ref().map(|provider| Traces::new(provider, SCOPE))
    }

    pub(crate) fn recorder(&self) -> Option<OpenTelemetryRecorder> {
        let meter = self.metrics.as_ref()?.meter(SCOPE);
        Some(OpenTelemetryRecorder::new(OpenTelemetryMetrics::new(meter)))
    }

    /// Sends what has not been sent, at the end of the process.
    pub(crate) async fn flush(self) {
        let flush = spawn_blocking(move || {
            // An error means that the collector is gone, which the SDK has logged.
            let _ = self.traces.map(|provider| provider.shutdown());
            let _ = self.metrics.map(|provider| provider.shutdown());
        });
        let _ = timeout(FLUSH_TIMEOUT, flush).await;
    }
}

fn resource(settings: &Otlp) -> Resource {
    let optional = [
        ("service.namespace", &settings.service_namespace),
        ("service.instance.id", &settings.service_instance_id),
    ];
    let optional = optional
        .into_iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| KeyValue::new(name, value.clone())));
    Resource::builder()
        .with_service_name(settings.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(optional)
        .build()
}

fn span_exporter(settings: &Otlp) -> Result<SpanExporter, ExporterBuildError> {
    let builder = SpanExporter::builder();
    match settings.protocol {
        OtlpProtocol::Grpc => to(settings, "", builder.with_tonic()).build(),
        OtlpProtocol::Http => {
            let builder = builder.with_http().with_http_client(HttpClient::new());
            to(settings, "/v1/traces", builder.with_protocol(Protocol::HttpBinary)).build()
        }
    }
}

fn metric_exporter(settings: &Otlp) -> Result<MetricExporter, ExporterBuildError> {
    let builder = MetricExporter::builder();
    match settings.protocol {
        OtlpProtocol::Grpc => to(settings, "", builder.with_tonic()).build(),
        OtlpProtocol::Http => {
            let builder = builder.with_http().with_http_client(HttpClient::new());
            to(settings, "/v1/metrics", builder.with_protocol(Protocol::HttpBinary)).build()
        }
    }
}

/// Sets the endpoint, with the path of a signal. Without one, the builder takes that of the environment.
fn to<B: WithExportConfig>(settings: &Otlp, path: &str, builder: B) -> B {
    match &settings.endpoint {
        Some(endpoint) => builder.with_endpoint(endpoint.trim_end_matches('/').to_owned() + path),
        None => builder,
    }
}

/// The buckets of a histogram, which are those of Prometheus: the defaults of the SDK are milliseconds.
fn with_buckets(instrument: &Instrument) -> Option<Stream> {
    let mut all = telemetry::buckets().into_iter();
    let (_, boundaries) = all.find(|(suffix, _)| instrument.name().ends_with(suffix))?;
    let buckets = Aggregation::ExplicitBucketHistogram { boundaries, record_min_max: true };
    Stream::builder().with_aggregation(buckets).build().ok()
}

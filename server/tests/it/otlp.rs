//! Traces and metrics for a collector of OpenTelemetry.

use std::net::SocketAddr;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use futures_util::stream;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::common::{FREE_PORTS, Files, PATIENCE, Redis, Server, check, program, request};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector, over HTTP and gRPC.
struct Collector {
    http: SocketAddr,
    grpc: SocketAddr,
    traces: mpsc::UnboundedReceiver<ExportTraceServiceRequest>,
    metrics: mpsc::UnboundedReceiver<ExportMetricsServiceRequest>,
}

#[derive(Clone)]
struct Service {
    traces: mpsc::UnboundedSender<ExportTraceServiceRequest>,
    metrics: mpsc::UnboundedSender<ExportMetricsServiceRequest>,
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let _ = self.traces.send(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let _ = self.metrics.send(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

impl Collector {
    async fn start() -> Self {
        let (traces, received_traces) = mpsc::unbounded_channel();
        let (metrics, received_metrics) = mpsc::unbounded_channel();
        let service = Service { traces: traces.clone(), metrics };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = listener.local_addr().unwrap();
        let receive = async move |body: Bytes| {
            let _ = traces.send(ExportTraceServiceRequest::decode(body).unwrap());
        };
        let router = Router::new().route("/v1/traces", post(receive));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = listener.local_addr().unwrap();
        let incoming = stream::unfold(listener, async |listener| {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(service.clone()))
            .add_service(MetricsServiceServer::new(service));
        tokio::spawn(server.serve_with_incoming(Box::pin(incoming)));
        Self { http, grpc, traces: received_traces, metrics: received_metrics }
    }

    /// The next spans, with the attributes of their process.
    async fn spans(&mut self) -> (Vec<KeyValue>, Vec<Span>) {
        let request = timeout(PATIENCE, self.traces.recv()).await.expect("no spans").unwrap();
        let [traces] = &request.resource_spans[..] else { panic!("{request:?}") };
        let resource = traces.resource.clone().unwrap().attributes;
        (resource, traces.scope_spans.iter().flat_map(|scope| scope.spans.clone()).collect())
    }
}

/// The attributes with text.
fn texts(attributes: &[KeyValue]) -> Vec<(&str, &str)> {
    let texts = attributes.iter().filter_map(|attribute| {
        let value = attribute.value.as_ref()?.value.as_ref()?;
        let any_value::Value::StringValue(text) = value else { return None };
        Some((attribute.key.as_str(), text.as_str()))
    });
    texts.collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a check with this `traceparent`.
async fn ask(server: &Server, key: &str, traceparent: Option<&str>) -> Code {
    let mut asked = Request::new(request("d", &[&[(key, "s3cret-key")]]));
    if let Some(traceparent) = traceparent {
        asked.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
    }
    let mut envoy = server.client().await;
    envoy.0.should_rate_limit(asked).await.unwrap().get_ref().overall_code()
}

const DOMAIN: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: other, rate_limit: { unit: year, requests_per_unit: 1 } }
";

#[tokio::test]
async fn a_check_is_a_span_of_its_caller_if_the_caller_is_traced() {
    let mut collector = Collector::start().await;
    let files = Files::new(&[("config/d.yaml", DOMAIN)]);
    let endpoint = format!("http://{}", collector.http);
    let root = files.path("");
    let env = [
        ("CONFIG_TYPE", "FILE"),
        ("RUNTIME_ROOT", root.to_str().unwrap()),
        ("BACKEND_TYPE", "memory"),
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAME", "limits"),
        ("TRACING_SERVICE_NAMESPACE", "gateway"),
        ("TRACING_SERVICE_INSTANCE_ID", "limits-1"),
        // Only requests of which the caller says that they are traced.
        ("TRACING_SAMPLING_RATE", "0"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    let server = Server::spawn(program(&[&FREE_PORTS[..], &env].concat()));
    let traced = format!("00-{TRACE}-{PARENT}-01");
    let untraced = format!("00-{}-{PARENT}-00", TRACE.replace('4', "5"));
    assert_eq!(ask(&server, "other", None).await, Code::Ok);
    assert_eq!(ask(&server, "other", Some(&untraced)).await, Code::OverLimit);
    assert_eq!(ask(&server, "other", Some("00-nonsense")).await, Code::OverLimit);
    for (code, outcome) in [(Code::Ok, "allowed"), (Code::OverLimit, "denied")] {
        assert_eq!(ask(&server, "user", Some(&traced)).await, code);
        // The checks before have no span, or it would come first.
        let (resource, spans) = collector.spans().await;
        let [span] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
        assert_eq!(span.name, "rate_limit_check");
        let expected = [
            ("fleetlimit.policy", "d.user"),
            ("fleetlimit.outcome", outcome),
            ("fleetlimit.source", "store"),
        ];
        assert_eq!(texts(&span.attributes), expected);
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        assert!(!format!("{span:?}").contains("s3cret"), "{span:?}");
        for expected in [
            ("service.name", "limits"),
            ("service.namespace", "gateway"),
            ("service.instance.id", "limits-1"),
        ] {
            assert!(texts(&resource).contains(&expected), "{resource:?}");
        }
    }
}

#[tokio::test]
async fn traces_and_metrics_are_sent_over_grpc_and_the_last_ones_at_the_end() {
    let mut collector = Collector::start().await;
    let redis = Redis::start().await;
    let files = Files::new(&[("d.yaml", DOMAIN)]);
    let settings = format!(
        "domains: [d.yaml]\npolicies: {{ p: {{ day: 1/day }} }}\notlp: {{ endpoint: \"http://{}\" }}",
        collector.grpc
    );
    files.write("settings.yaml", &settings);
    let settings = files.path("settings.yaml");
    let url = redis.url();
    let env = [
        ("REDIS_URL", &*url),
        // Only at the end.
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "3600000"),
    ];
    let mut server = Server::start(&settings, &env);
    let body = json!({ "policy": "p", "key": "ada" });
    let traced = format!("00-{TRACE}-{PARENT}-01");
    let client = reqwest::Client::new();
    let check = client.post(server.http("/v1/check")).json(&body).header("traceparent", traced);
    assert_eq!(check.send().await.unwrap().status(), 200);
    let scraped = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    assert!(scraped.contains("fleetlimit_decisions_total{fleetlimit_policy=\"p\""), "{scraped}");
    server.signal("TERM");
    assert!(server.ends().await);
    let (resource, spans) = collector.spans().await;
    assert!(texts(&resource).contains(&("service.name", "fleetlimit-server")), "{resource:?}");
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(hex(&span.trace_id), TRACE);
    assert!(texts(&span.attributes).contains(&("fleetlimit.source", "store")), "{span:?}");
    let metrics = timeout(PATIENCE, collector.metrics.recv()).await.unwrap().unwrap();
    let all: Vec<_> = metrics.resource_metrics.iter().flat_map(|it| &it.scope_metrics).collect();
    let mut histograms = all.iter().flat_map(|it| &it.metrics).filter_map(|metric| {
        let Some(Data::Histogram(histogram)) = &metric.data else { return None };
        Some((metric.name.as_str(), histogram.data_points[0].explicit_bounds.clone()))
    });
    // In seconds.
    let (_, bounds) =
        histograms.find(|(name, _)| *name == "fleetlimit.redis.call.duration").unwrap();
    assert!(bounds[0] < 0.001 && bounds.len() > 10, "{bounds:?}");
    let names: Vec<_> = all.iter().flat_map(|it| &it.metrics).map(|it| it.name.as_str()).collect();
    for expected in ["fleetlimit.decisions", "fleetlimit.server.reload.failed"] {
        assert!(names.contains(&expected), "{names:?}");
    }
}

#[tokio::test]
async fn a_collector_that_does_not_answer_delays_neither_checks_nor_the_end() {
    // It accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = format!(
        "domains: [domain.yaml]\notlp: {{ endpoint: \"http://{}\" }}",
        silent.local_addr().unwrap()
    );
    let files = Files::new(&[("domain.yaml", DOMAIN), ("settings.yaml", &settings)]);
    let settings = files.path("settings.yaml");
    let mut server = Server::start(&settings, &[("OTEL_BSP_SCHEDULE_DELAY", "10")]);
    let start = Instant::now();
    for _ in 0..200 {
        ask(&server, "user", None).await;
    }
    assert!(start.elapsed() < PATIENCE / 3, "{:?}", start.elapsed());
    server.signal("TERM");
    assert!(server.ends().await);
}

#[tokio::test]
async fn a_collector_that_is_gone_is_logged() {
    // Nothing listens there.
    let settings = "policies: { p: { q: 1/s } }\notlp: { endpoint: \"http://127.0.0.1:1\" }";
    let files = Files::new(&[("settings.yaml", settings)]);
    let server = Server::start(&files.path("settings.yaml"), &[("OTEL_BSP_SCHEDULE_DELAY", "10")]);
    let check = reqwest::Client::new().post(server.http("/v1/check"));
    check.json(&json!({ "policy": "p", "key": "ada" })).send().await.unwrap();
    let line = server.wait_for_line("BatchSpanProcessor.ExportError");
    assert!(line.contains("opentelemetry_sdk") && line.contains("Connection refused"), "{line}");
}

#[test]
fn settings_that_cannot_work_are_errors() {
    for (section, expected) in [
        ("endpoint: collector", "otlp.endpoint: must be a URL such as http://collector:4317"),
        ("endpoint: \"ftp://collector\"", "otlp.endpoint: must be a URL"),
        (
            "endpoint: \"https://collector\", protocol: http",
            "only the protocol `grpc` supports TLS",
        ),
        ("sampling_ratio: 1.5", "otlp.sampling_ratio: must be 0 to 1"),
        ("traces: false, metrics: false", "otlp: set `traces` or `metrics` to true"),
        ("protocol: thrift", "unknown variant `thrift`"),
    ] {
        let settings = format!("policies: {{ p: {{ q: 1/s }} }}\notlp: {{ {section} }}");
        let files = Files::new(&[("settings.yaml", &settings)]);
        let output = check(&files.path("settings.yaml"));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(expected), "{section}: {text}");
    }
}

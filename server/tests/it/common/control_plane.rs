//! A control plane that speaks xDS.

use std::net::SocketAddr;
use std::pin::Pin;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use futures_util::{Stream, stream};
use prost::{Message, Name};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::{PATIENCE, until};

/// A version and its resources.
type Snapshot = Option<(String, Vec<Any>)>;
type Requests = mpsc::UnboundedReceiver<(MetadataMap, DiscoveryRequest)>;
type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A control plane. It sends its snapshot to each stream that begins, and again when it changes.
pub(crate) struct ControlPlane {
    pub(crate) address: SocketAddr,
    /// The certificates from the next start on.
    pub(crate) tls: Option<ServerTlsConfig>,
    /// The type of responses from the next start on.
    pub(crate) type_url: String,
    snapshots: watch::Sender<Snapshot>,
    requests: Requests,
    /// Its own, so that all of its connections end with it.
    runtime: Option<Runtime>,
}

impl ControlPlane {
    /// Starts without a snapshot.
    pub(crate) async fn start() -> Self {
        Self::with_tls(None).await
    }

    pub(crate) async fn with_tls(tls: Option<ServerTlsConfig>) -> Self {
        let (_, requests) = mpsc::unbounded_channel();
        let snapshots = watch::Sender::new(None);
        let address = ([127, 0, 0, 1], 0).into();
        let type_url = RateLimitConfig::type_url();
        let mut this = Self { address, tls, type_url, snapshots, requests, runtime: None };
        this.restart().await;
        this
    }

    /// Ends it with all connections.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Starts it at the same address as before.
    pub(crate) async fn restart(&mut self) {
        self.stop();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut listener = None;
        until(async || {
            // The one before may still be ending.
            let address = self.address;
            listener = runtime.spawn(TcpListener::bind(address)).await.unwrap().ok();
            listener.is_some()
        })
        .await;
        let listener = listener.unwrap();
        self.address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        self.requests = requests;
        let type_url = self.type_url.clone();
        let service = Service { type_url, snapshots: self.snapshots.clone(), requests: sender };
        let mut server = Server::builder();
        if let Some(tls) = &self.tls {
            server = server.tls_config(tls.clone()).unwrap();
        }
        let server = server.add_service(AggregatedDiscoveryServiceServer::new(service));
        let incoming = stream::unfold(listener, async |listener| {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        runtime.spawn(server.serve_with_incoming(Box::pin(incoming)));
        self.runtime = Some(runtime);
    }

    /// The section of the settings, with more fields.
    pub(crate) fn settings(&self, fields: &str) -> String {
        let port = self.address.port();
        format!("xds: {{ server: \"localhost:{port}\", retry: {{ first: 50ms }}, {fields} }}\n")
    }

    pub(crate) fn send(&self, version: &str, resources: Vec<Any>) {
        self.snapshots.send_replace(Some((version.to_owned(), resources)));
    }

    /// The next request of the server, which begins a stream, or acknowledges or rejects a snapshot.
    pub(crate) async fn request(&mut self) -> DiscoveryRequest {
        self.request_with_headers().await.1
    }

    pub(crate) async fn request_with_headers(&mut self) -> (MetadataMap, DiscoveryRequest) {
        timeout(PATIENCE, self.requests.recv()).await.expect("no request").unwrap()
    }

    /// Sends a snapshot, and waits until the server has it. Returns the errors if the server rejects it.
    pub(crate) async fn apply(&mut self, version: &str, resources: Vec<Any>) -> Result<(), String> {
        self.send(version, resources);
        loop {
            let request = self.request().await;
            if let Some(error) = request.error_detail {
                return Err(error.message);
            }
            if request.version_info == version {
                return Ok(());
            }
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Service {
    type_url: String,
    snapshots: watch::Sender<Snapshot>,
    requests: mpsc::UnboundedSender<(MetadataMap, DiscoveryRequest)>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (headers, sender) = (request.metadata().clone(), self.requests.clone());
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                // The test may have seen enough.
                let _ = sender.send((headers.clone(), request));
            }
        });
        let mut snapshots = self.snapshots.subscribe();
        snapshots.mark_changed();
        let type_url = self.type_url.clone();
        let first = (snapshots, type_url, 0);
        let responses = stream::unfold(first, async |(mut snapshots, type_url, nonce)| {
            loop {
                snapshots.changed().await.ok()?;
                let snapshot = snapshots.borrow_and_update().clone();
                let Some((version_info, resources)) = snapshot else { continue };
                let response = DiscoveryResponse {
                    version_info,
                    resources,
                    type_url: type_url.clone(),
                    nonce: format!("nonce-{nonce}"),
                    ..DiscoveryResponse::default()
                };
                return Some((Ok(response), (snapshots, type_url, nonce + 1)));
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("only the state of the world"))
    }
}

/// A resource with the limits of a domain: the key and the value of each descriptor, and a number of requests per day.
pub(crate) fn resource(domain: &str, limits: &[(&str, &str, u32)]) -> Any {
    let descriptors = limits.iter().map(|(key, value, requests_per_unit)| RateLimitDescriptor {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
        rate_limit: Some(RateLimitPolicy {
            unit: RateLimitUnit::Day.into(),
            requests_per_unit: *requests_per_unit,
            ..RateLimitPolicy::default()
        }),
        ..RateLimitDescriptor::default()
    });
    encode(&RateLimitConfig {
        name: format!("name-of-{domain}"),
        domain: domain.to_owned(),
        descriptors: descriptors.collect(),
    })
}

pub(crate) fn encode(config: &RateLimitConfig) -> Any {
    Any { type_url: RateLimitConfig::type_url(), value: config.encode_to_vec() }
}

//! The client of the control plane, which connects, receives configurations, and acknowledges or rejects each: xDS in the
//! variant "state of the world", over an aggregated stream (ADS).
//!
//! Source: "xDS REST and gRPC protocol" in Envoy's documentation, and "xDS Management Server Based Configuration Loading"
//! in the README of envoyproxy/ratelimit.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use envoy_types::pb::google::rpc;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Request};

use crate::control_plane::{ControlPlane, Pauses, endpoint, metadata};
use crate::domain::Resource;
use crate::live::Live;
use crate::secret::start;
use crate::settings::Xds;

/// The most characters of errors in a rejection. The log has all of them.
const MAX_DETAIL: usize = 16 * 1_024;

/// The time to connect, with the handshake of TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which a control plane that has sent nothing is logged, each time.
const SILENCE: Duration = Duration::from_secs(20);

/// The pause after each configuration, so that a control plane that sends very many costs little.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection that has lasted longer than this is replaced after the first pause.
const STABLE: Duration = Duration::from_secs(10);

type Failure = Box<dyn Error + Send + Sync>;

/// Receives the domains of the control plane for as long as the process runs, or returns if the settings name none.
pub(crate) async fn follow(live: Arc<Live>) {
    let settings = live.active().settings.xds.clone();
    let (Some(settings), Some(control_plane)) = (settings, &live.control_plane) else { return };
    let mut pauses = Pauses::new(settings.retry.clone());
    loop {
        let start = Instant::now();
        let Err(error) = connect_and_receive(&live, control_plane, &settings).await;
        control_plane.lost();
        if start.elapsed() > STABLE {
            pauses.reset();
        }
        let pause = pauses.next(fleetlimit::internal::random_unit());
        let (server, reason) = (&settings.server, fleetlimit::internal::with_causes(&*error));
        if live.active().awaits_control_plane {
            tracing::warn!(
                event = "control_plane_lost",
                server,
                reason,
                ?pause,
                "the control plane is not connected, and has sent no configuration yet: checks of its domains fail"
            );
        } else {
            tracing::warn!(
                event = "control_plane_lost",
                server,
                reason,
                ?pause,
                "the control plane is not connected: what it has sent stays in effect, and changes do not arrive"
            );
        }
        sleep(pause).await;
    }
}

/// Receives until the connection fails.
async fn connect_and_receive(
    live: &Arc<Live>,
    control_plane: &ControlPlane,
    settings: &Xds,
) -> Result<Infallible, Failure> {
    let of_files = settings.clone();
    let endpoint = spawn_blocking(move || endpoint(&of_files)).await??;
    let channel = timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
    let channel = channel.map_err(|_| "connecting has taken longer than 5s")??;
    let mut client = AggregatedDiscoveryServiceClient::new(channel)
        .max_decoding_message_size(settings.max_message_bytes);
    let (requests, mut queue) = mpsc::channel(1);
    // Without a version, also after a reconnect: another process may use the same version for other resources, and would
    // then send nothing.
    requests.send(request(settings)).await?;
    let mut request = Request::new(stream::poll_fn(move |context| queue.poll_recv(context)));
    *request.metadata_mut() = metadata(settings)?;
    let first = async {
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        Ok::<_, tonic::Status>((responses.message().await?, responses))
    };
    let (mut next, mut responses) = report_silence(settings, first).await?;
    let mut accepted = String::new();
    while let Some(response) = next {
        let (found, expected) = (&response.type_url, Resource::type_url());
        if *found != expected {
            // A rejection would be one of our own type.
            return Err(format!("a response has the type {found:?} instead of {expected}").into());
        }
        if control_plane.connected() {
            let server = &settings.server;
            tracing::info!(
                event = "control_plane_connected",
                server,
                "the control plane is connected"
            );
        }
        let answer = answer(live, control_plane, settings, response, &mut accepted).await?;
        // If the stream has ended, the next message says why.
        let _ = requests.send(answer).await;
        sleep(PAUSE).await;
        next = responses.message().await?;
    }
    Err("the control plane has ended the stream".into())
}

/// Waits for the first response, and logs if there is none for a while: some control planes send nothing to a node that
/// they do not know.
async fn report_silence<T>(settings: &Xds, first: impl Future<Output = T>) -> T {
    let mut first = pin!(first);
    loop {
        tokio::select! {
            first = &mut first => return first,
            () = sleep(SILENCE) => tracing::warn!(
                event = "control_plane_silent",
                server = settings.server,
                node_id = settings.node_id,
                "the control plane has sent nothing since it was connected: it may not know the `node_id`"
            ),
        }
    }
}

/// Applies a response. Returns the request that acknowledges or rejects it.
async fn answer(
    live: &Arc<Live>,
    control_plane: &ControlPlane,
    settings: &Xds,
    response: DiscoveryResponse,
    accepted: &mut String,
) -> Result<DiscoveryRequest, Failure> {
    let DiscoveryResponse { version_info: version, resources, nonce, .. } = response;
    let (live, domains) = (live.clone(), resources.len());
    let result = spawn_blocking(move || live.receive(resources)).await?;
    let error_detail = match result {
        Ok(()) => {
            control_plane.applied(&version);
            tracing::info!(
                event = "control_plane_update_applied",
                version,
                domains,
                "the configuration of the control plane is in effect"
            );
            *accepted = version;
            None
        }
        Err(error) => {
            let error = error.to_string();
            control_plane.rejected(&version, &error);
            tracing::error!(
                event = "control_plane_update_rejected",
                version,
                "the configuration of the control plane is rejected, the old one stays:\n{error}"
            );
            Some(rejection(&error))
        }
    };
    let version_info = accepted.clone();
    Ok(DiscoveryRequest { version_info, response_nonce: nonce, error_detail, ..request(settings) })
}

fn rejection(errors: &str) -> rpc::Status {
    let message = start(errors, None, MAX_DETAIL).into_owned();
    rpc::Status { code: Code::InvalidArgument.into(), message, details: Vec::new() }
}

/// A request for all domains, without a version.
fn request(settings: &Xds) -> DiscoveryRequest {
    let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields = settings.node_metadata.iter().map(|(name, value)| (name.clone(), text(value)));
    let node = Node {
        id: settings.node_id.clone(),
        metadata: Some(Struct { fields: fields.collect() }),
        user_agent_name: env!("CARGO_PKG_NAME").to_owned(),
        user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion(
            env!("CARGO_PKG_VERSION").to_owned(),
        )),
        ..Node::default()
    };
    DiscoveryRequest {
        node: Some(node),
        type_url: Resource::type_url(),
        ..DiscoveryRequest::default()
    }
}

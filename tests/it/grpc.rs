//! The layer on a tonic server, over real sockets, and what a tonic client makes of its answers.

use std::net::{Ipv4Addr, SocketAddr};

use http::request::Parts;
use http::{HeaderName, Request, StatusCode};
use tokio::net::{TcpListener, TcpSocket};
use tollgate::resolve::{Global, Header, PeerIp};
use tollgate::{
    FailureMode, KeyResolver, Limiter, MemoryStore, Quota, RateLimitLayer, RedisStore, Rejection,
    Resolution,
};
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::ServingStatus::{NotServing, Serving};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::{HealthReporter, health_reporter};
use tonic_types::StatusExt;
use tower::{Service, ServiceExt};

/// One call passes, and no other for a day: no run of a test is long enough to see another.
fn once() -> Limiter {
    Limiter::new(MemoryStore::new(), Quota::per_day(1)).unwrap()
}

/// The health service of tonic behind a limit.
struct Served {
    address: SocketAddr,
    reporter: HealthReporter,
}

impl Served {
    async fn by(limiter: &Limiter, resolver: impl KeyResolver + 'static) -> Self {
        Self::behind(RateLimitLayer::new(limiter.clone(), resolver)).await
    }

    async fn behind(layer: RateLimitLayer<impl KeyResolver + 'static>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (reporter, health) = health_reporter();
        let server = Server::builder().layer(layer).add_service(health);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self { address, reporter }
    }

    /// A connection from one of the addresses that this machine has.
    async fn channel(&self, from: [u8; 4]) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.local_address(Some(Ipv4Addr::from(from).into())).connect().await.unwrap()
    }

    async fn client(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel([127, 0, 0, 1]).await)
    }

    async fn check(&self) -> Result<tonic::metadata::MetadataMap, Status> {
        let response = self.client().await.check(HealthCheckRequest::default()).await?;
        assert_eq!(response.get_ref().status, Serving as i32);
        Ok(response.metadata().clone())
    }

    async fn denied(&self) -> Status {
        self.check().await.unwrap_err()
    }
}

#[tokio::test]
async fn a_denial_tells_the_wait_to_grpc_clients_and_ends_with_it() {
    let limiter = once();
    let served = Served::by(&limiter, Global).await;
    let passed = served.check().await.unwrap();
    assert_eq!(passed.get("ratelimit-policy").unwrap(), r#""default";q=1;w=86400"#);

    let before = limiter.peek("global").await.unwrap().retry_after().unwrap();
    let denied = served.denied().await;
    let after = limiter.peek("global").await.unwrap().retry_after().unwrap();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let wait = denied.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!((after..=before).contains(&wait), "{after:?} <= {wait:?} <= {before:?}");
    let told = |name| denied.metadata().get(name).unwrap().to_str().unwrap().parse::<u128>();
    assert_eq!(told("grpc-retry-pushback-ms").unwrap(), wait.as_micros().div_ceil(1_000));
    assert_eq!(told("retry-after").unwrap(), wait.as_micros().div_ceil(1_000_000));

    limiter.reset("global").await.unwrap();
    served.check().await.unwrap();
}

#[tokio::test]
async fn what_can_never_pass_is_not_to_be_tried_again() {
    let served = Served::behind(RateLimitLayer::new(once(), Global).cost(|_: &Parts| 2)).await;
    let denied = served.denied().await;
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    assert!(denied.get_details_retry_info().is_none());
    assert!(denied.metadata().get("retry-after").is_none());
}

/// What is on the wire, which a tonic client does not show.
#[tokio::test]
async fn a_denial_is_http_200_with_trailers_only() {
    let limiter = once();
    limiter.check("global").await.unwrap().ensure_allowed().unwrap();
    let mut channel = Served::by(&limiter, Global).await.channel([127, 0, 0, 1]).await;
    let uri = "http://localhost/grpc.health.v1.Health/Check";
    let request = Request::post(uri).header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(Body::empty()).unwrap();
    let response = channel.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-status"], "8");
    assert!(http_body::Body::is_end_stream(response.body()), "neither a body nor trailers follow");
}

#[tokio::test]
async fn a_request_without_a_key_has_the_code_of_its_reason() {
    let cases = [
        (StatusCode::UNAUTHORIZED, Code::Unauthenticated),
        (StatusCode::FORBIDDEN, Code::PermissionDenied),
        (StatusCode::BAD_REQUEST, Code::Internal),
        (StatusCode::NOT_FOUND, Code::Unimplemented),
        (StatusCode::TOO_MANY_REQUESTS, Code::Unavailable),
        (StatusCode::BAD_GATEWAY, Code::Unavailable),
        (StatusCode::INTERNAL_SERVER_ERROR, Code::Unknown),
        (StatusCode::GONE, Code::Unknown),
    ];
    for (status, code) in cases {
        let refuse = move |_: &Parts| -> Resolution {
            Rejection::new(status, "100%25 \u{fc}ber").unwrap().into()
        };
        let refused = Served::by(&once(), refuse).await.denied().await;
        assert_eq!((refused.code(), refused.message()), (code, "100%25 \u{fc}ber"));
    }
    let missing =
        Served::by(&once(), Header::new(HeaderName::from_static("x-api-key"))).await.denied().await;
    assert_eq!(missing.code(), Code::Internal);
    assert_eq!(missing.message(), "missing header: x-api-key");
}

#[tokio::test]
async fn an_outage_is_unavailable_and_no_denial() {
    // Bound and not listening: refuses, and nobody else can listen there.
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let url = format!("redis://{}/", refusing.local_addr().unwrap());
    let limiter = |mode| {
        let store = RedisStore::open(url.as_str()).unwrap();
        Limiter::builder(store, Quota::per_day(1)).failure_mode(mode).build().unwrap()
    };

    let closed = Served::by(&limiter(FailureMode::Closed), Global).await;
    let open = Served::by(&limiter(FailureMode::Open), Global).await;
    for _ in 0..2 {
        let status = closed.denied().await;
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.metadata().get("ratelimit").is_none());
        assert!(open.check().await.unwrap().get("ratelimit").is_none());
    }
}

#[tokio::test]
async fn a_large_message_arrives_whole() {
    let served = Served::by(&once(), Global).await;
    let name = "a".repeat(4_000_000);
    served.reporter.set_service_status(&name, NotServing).await;
    let request = HealthCheckRequest { service: name };
    let response = served.client().await.check(request).await.unwrap();
    assert_eq!(response.get_ref().status, NotServing as i32);
}

#[tokio::test]
async fn a_stream_is_one_call_and_goes_on_past_the_limit() {
    let mut served = Served::by(&once(), Global).await;
    let mut client = served.client().await;
    let mut stream = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().status, Serving as i32);
    for status in [NotServing, Serving] {
        assert_eq!(served.denied().await.code(), Code::ResourceExhausted);
        served.reporter.set_service_status("", status).await;
        assert_eq!(stream.message().await.unwrap().unwrap().status, status as i32);
    }
    served.reporter.clear_service_status("").await;
    assert!(stream.message().await.unwrap().is_none(), "and ends with its trailers");
}

#[tokio::test]
async fn each_client_counts_by_its_address() {
    let served = Served::by(&once(), PeerIp::new()).await;
    for from in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        // Two connections, for an address is not a port.
        let check = async || {
            HealthClient::new(served.channel(from).await).check(HealthCheckRequest::default()).await
        };
        check().await.unwrap();
        assert_eq!(check().await.unwrap_err().code(), Code::ResourceExhausted, "{from:?}");
    }
}

//! The layer on a tonic server over real sockets, and how a tonic client reads its responses.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use fleetlimit::resolve::{Global, Header, PeerIp};
use fleetlimit::{
    FailureMode, KeyResolver, Limiter, MemoryStore, Quota, RateLimitLayer, RedisStore, Rejection,
    Resolution,
};
use http::request::Parts;
use http::{HeaderName, Request, StatusCode};
use tokio::net::{TcpListener, TcpSocket};
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

/// Allows one call per day. No test runs long enough for a second one.
fn one_per_day() -> Limiter {
    Limiter::new(MemoryStore::new(), Quota::per_day(1)).unwrap()
}

/// A server of tonic's health service with a rate limit.
struct TestServer {
    address: SocketAddr,
    reporter: HealthReporter,
}

impl TestServer {
    async fn with_limiter(limiter: &Limiter, resolver: impl KeyResolver + 'static) -> Self {
        Self::with_layer(RateLimitLayer::new(limiter.clone(), resolver)).await
    }

    async fn with_layer(layer: RateLimitLayer<impl KeyResolver + 'static>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (reporter, health) = health_reporter();
        let server = Server::builder().layer(layer).add_service(health);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self { address, reporter }
    }

    /// Connects from one of the loopback addresses.
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

    async fn check_error(&self) -> Status {
        self.check().await.unwrap_err()
    }
}

#[tokio::test]
async fn a_denial_has_the_retry_delay_for_grpc_clients_until_the_bucket_is_reset() {
    let limiter = one_per_day();
    let layer = RateLimitLayer::new(limiter.clone(), Global).retry_jitter(Duration::ZERO);
    let server = TestServer::with_layer(layer).await;
    let allowed = server.check().await.unwrap();
    assert_eq!(allowed.get("ratelimit-policy").unwrap(), r#""default";q=1;w=86400"#);

    let before = limiter.peek("global").await.unwrap().retry_after().unwrap();
    let denied = server.check_error().await;
    let after = limiter.peek("global").await.unwrap().retry_after().unwrap();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let delay = denied.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!((after..=before).contains(&delay), "{after:?} <= {delay:?} <= {before:?}");
    let number = |name| denied.metadata().get(name).unwrap().to_str().unwrap().parse::<u128>();
    assert_eq!(number("grpc-retry-pushback-ms").unwrap(), delay.as_micros().div_ceil(1_000));
    assert_eq!(number("retry-after").unwrap(), delay.as_micros().div_ceil(1_000_000));

    limiter.reset("global").await.unwrap();
    server.check().await.unwrap();
}

#[tokio::test]
async fn a_cost_above_the_capacity_must_not_be_retried() {
    let server =
        TestServer::with_layer(RateLimitLayer::new(one_per_day(), Global).cost(|_: &Parts| 2))
            .await;
    let denied = server.check_error().await;
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    assert!(denied.get_details_retry_info().is_none());
    assert!(denied.metadata().get("retry-after").is_none());
}

/// Reads the HTTP response itself, which a tonic client does not show.
#[tokio::test]
async fn a_denial_is_a_trailers_only_response_with_http_200() {
    let limiter = one_per_day();
    limiter.check("global").await.unwrap().ensure_allowed().unwrap();
    let mut channel =
        TestServer::with_limiter(&limiter, Global).await.channel([127, 0, 0, 1]).await;
    let uri = "http://localhost/grpc.health.v1.Health/Check";
    let request = Request::post(uri).header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(Body::empty()).unwrap();
    let response = channel.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-status"], "8");
    assert!(!response.headers().contains_key("cache-control"), "it would be metadata");
    assert!(http_body::Body::is_end_stream(response.body()), "no body and no trailers follow");
}

#[tokio::test]
async fn the_http_status_of_a_rejection_determines_the_grpc_code() {
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
        let reject = move |_: &Parts| -> Resolution {
            Rejection::new(status, "100%25 \u{fc}ber").unwrap().into()
        };
        let rejected = TestServer::with_limiter(&one_per_day(), reject).await.check_error().await;
        assert_eq!((rejected.code(), rejected.message()), (code, "100%25 \u{fc}ber"));
    }
    let missing =
        TestServer::with_limiter(&one_per_day(), Header::new(HeaderName::from_static("x-api-key")))
            .await
            .check_error()
            .await;
    assert_eq!(missing.code(), Code::Internal);
    assert_eq!(missing.message(), "missing header: x-api-key");
}

#[tokio::test]
async fn an_outage_is_unavailable_and_not_a_denial() {
    // A socket that is bound but does not listen refuses connections and reserves the port.
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let url = format!("redis://{}/", refusing.local_addr().unwrap());
    let limiter = |mode| {
        let store = RedisStore::open(url.as_str()).unwrap();
        Limiter::builder(store, Quota::per_day(1)).failure_mode(mode).build().unwrap()
    };

    let closed = TestServer::with_limiter(&limiter(FailureMode::Closed), Global).await;
    let open = TestServer::with_limiter(&limiter(FailureMode::Open), Global).await;
    for _ in 0..2 {
        let status = closed.check_error().await;
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.metadata().get("ratelimit").is_none());
        let wait = |name: &str| status.metadata().get(name).unwrap().to_str().unwrap().to_owned();
        assert_eq!(wait("grpc-retry-pushback-ms"), format!("{}000", wait("retry-after")));
        assert!(open.check().await.unwrap().get("ratelimit").is_none());
    }
}

#[tokio::test]
async fn a_large_message_passes_through_unchanged() {
    let server = TestServer::with_limiter(&one_per_day(), Global).await;
    let name = "a".repeat(4_000_000);
    server.reporter.set_service_status(&name, NotServing).await;
    let request = HealthCheckRequest { service: name };
    let response = server.client().await.check(request).await.unwrap();
    assert_eq!(response.get_ref().status, NotServing as i32);
}

#[tokio::test]
async fn a_stream_counts_as_one_call_and_continues_after_the_limit_is_reached() {
    let mut server = TestServer::with_limiter(&one_per_day(), Global).await;
    let mut client = server.client().await;
    let mut stream = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().status, Serving as i32);
    for status in [NotServing, Serving] {
        assert_eq!(server.check_error().await.code(), Code::ResourceExhausted);
        server.reporter.set_service_status("", status).await;
        assert_eq!(stream.message().await.unwrap().unwrap().status, status as i32);
    }
    server.reporter.clear_service_status("").await;
    assert!(stream.message().await.unwrap().is_none(), "the stream ends with its trailers");
}

#[tokio::test]
async fn each_ip_address_has_its_own_limit() {
    let server = TestServer::with_limiter(&one_per_day(), PeerIp::new()).await;
    for from in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        // Each check uses a new connection, from another port.
        let check = async || {
            HealthClient::new(server.channel(from).await).check(HealthCheckRequest::default()).await
        };
        check().await.unwrap();
        assert_eq!(check().await.unwrap_err().code(), Code::ResourceExhausted, "{from:?}");
    }
}

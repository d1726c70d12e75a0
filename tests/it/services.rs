//! The layer around any tower service: which instance it calls, when, and what it returns.

use std::convert::Infallible;
use std::future::poll_fn;
use std::mem::size_of;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use axum::routing::get;
use axum::{Router, serve};
use bytes::Bytes;
use fleetlimit::layer::{Errors, Http};
use fleetlimit::resolve::{Global, PeerIp};
use fleetlimit::{
    Check, Decision, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Quota, RateLimit,
    RateLimitLayer, RedisStore, Rejection, Resolution, Store,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_test::{assert_request_eq, mock};

use crate::common::{BOUND, Server};

fn limiter(quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), quota).unwrap()
}

/// Returns a limiter with a long timeout. On Redis a check is pending until the server replies.
fn redis_limiter(url: &str, quota: Quota) -> Limiter {
    let builder = Limiter::builder(RedisStore::open(url).unwrap(), quota);
    builder.timeout(BOUND).failure_mode(FailureMode::Closed).build().unwrap()
}

fn global_layer(limiter: &Limiter) -> RateLimitLayer<Global, &'static str, Errors> {
    RateLimitLayer::with_errors(limiter.clone(), Global)
}

async fn poll_once<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

async fn poll_ready<R, S: Service<R>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    poll_fn(|cx| Poll::Ready(service.poll_ready(cx))).await
}

#[derive(Debug)]
enum ServiceError {
    RateLimit(Error),
    Inner(u32),
}

impl From<Error> for ServiceError {
    fn from(error: Error) -> Self {
        Self::RateLimit(error)
    }
}

impl ServiceError {
    fn unwrap_rate_limit(self) -> Error {
        let Self::RateLimit(error) = self else { panic!("{self:?}") };
        error
    }
}

/// Adds a layer that returns errors. A request is its cost. It skips 0 and rejects 7.
fn with_limit<S: Service<u32, Error: From<Error>> + Clone>(
    limiter: Limiter,
    service: S,
) -> impl Service<u32, Response = S::Response, Error = S::Error> + Clone {
    let resolver = |&request: &u32| match request {
        0 => Resolution::Skip,
        7 => Rejection::forbidden("rejected").into(),
        _ => Resolution::Key("all".into()),
    };
    RateLimitLayer::with_errors(limiter, resolver)
        .cost(|&request| u64::from(request))
        .layer(service)
}

#[tokio::test(start_paused = true)]
async fn errors_distinguish_denials_rejections_and_errors_of_the_inner_service() {
    let inner = service_fn(async |request: u32| match request {
        3 => Err(ServiceError::Inner(3)),
        request => Ok(request),
    });
    let service = with_limit(limiter(Quota::per_minute(6)), inner);
    let call = |request| service.clone().oneshot(request);

    assert_eq!(call(2).await.unwrap(), 2);
    assert!(
        matches!(call(3).await, Err(ServiceError::Inner(3))),
        "an error of the inner service is unchanged"
    );

    let denied = call(2).await.unwrap_err().unwrap_rate_limit();
    assert_eq!((denied.kind(), denied.is_transient()), (ErrorKind::Denied, true));
    let decision = denied.decision().unwrap();
    assert_eq!((decision.is_allowed(), decision.remaining(), decision.limit()), (false, 1, 6));
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(10)));

    let never = call(9).await.unwrap_err().unwrap_rate_limit();
    assert_eq!((never.kind(), never.is_transient()), (ErrorKind::Denied, false));
    assert!(never.decision().unwrap().exceeds_capacity());

    let rejected = call(7).await.unwrap_err().unwrap_rate_limit();
    assert_eq!((rejected.kind(), rejected.is_transient()), (ErrorKind::Rejected, false));
    assert_eq!((rejected.decision(), rejected.to_string()), (None, "rejected".to_owned()));
    let response = rejected.response();
    let caching = response.headers().get("cache-control");
    assert_eq!((response.status().as_u16(), caching), (400, Some(&"no-store".parse().unwrap())));

    assert_eq!(call(0).await.unwrap(), 0, "skipped");
    assert_eq!(call(1).await.unwrap(), 1, "denied and rejected requests are not charged");
}

#[tokio::test(start_paused = true)]
async fn a_boxed_error_can_be_downcast() {
    let echo = service_fn(async |request: u32| Ok::<_, BoxError>(request));
    let service = with_limit(limiter(Quota::per_minute(1)), echo);
    service.clone().oneshot(1).await.unwrap();
    let error = service.oneshot(1).await.unwrap_err().downcast::<Error>().unwrap();
    assert_eq!(error.decision().unwrap().retry_after(), Some(Duration::from_secs(60)));
}

#[tokio::test]
async fn an_outage_is_an_error_and_not_a_denial() {
    let server = Server::start().await;
    let limiter = redis_limiter(&server.url(), Quota::per_minute(1));
    server.stop();
    let service = with_limit(limiter, service_fn(async |_: u32| Ok::<(), ServiceError>(())));
    let error = service.oneshot(1).await.unwrap_err().unwrap_rate_limit();
    assert_eq!((error.kind(), error.decision()), (ErrorKind::Unavailable, None));
    assert!(error.is_transient());
}

#[tokio::test(start_paused = true)]
async fn the_service_is_ready_only_when_the_inner_service_is() {
    let (mut service, mut handle) = mock::spawn_layer(global_layer(&limiter(Quota::per_minute(1))));
    handle.allow(0);
    assert!(service.poll_ready().is_pending());
    handle.allow(1);
    assert!(service.is_woken());
    assert!(service.poll_ready().is_ready());
    let response = service.call("a");
    assert_request_eq!(handle, "a").send_response("b");
    assert_eq!(response.await.unwrap(), "b");

    handle.send_error("broken");
    let Poll::Ready(Err(broken)) = service.poll_ready() else { panic!("expected an error") };
    assert_eq!(broken.to_string(), "broken");
}

#[tokio::test(start_paused = true)]
async fn the_http_service_is_ready_only_when_the_inner_service_is() {
    let layer = RateLimitLayer::new(limiter(Quota::per_minute(1)), Global);
    let (mut service, mut handle) = mock::spawn_layer(layer);
    handle.allow(0);
    assert!(service.poll_ready::<Request<String>>().is_pending());
    handle.allow(1);
    assert!(service.is_woken());
    assert!(service.poll_ready::<Request<String>>().is_ready());
    let response = service.call(Request::new(String::new()));
    let (_, sender) = handle.next_request().await.unwrap();
    sender.send_response(Response::new(Full::<Bytes>::default()));
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
}

// The mock panics if an instance is called whose `poll_ready` has not returned ready.
#[tokio::test]
async fn only_the_instance_that_was_ready_is_called_and_only_after_the_decision() {
    let server = Server::start().await;
    let (mut service, mut handle) =
        mock::spawn_layer(global_layer(&redis_limiter(&server.url(), Quota::per_minute(9))));
    for n in 0..2 {
        handle.allow(1);
        assert!(service.poll_ready().is_ready());
        handle.allow(0);
        let mut response = Box::pin(service.call("a"));
        assert!(service.poll_ready().is_pending(), "the remaining instance has to poll again");
        assert!(poll_once(&mut response).await.is_pending());
        assert!(handle.poll_request().is_pending(), "call {n} comes after the decision");
        let (response, ()) =
            tokio::join!(response, async { assert_request_eq!(handle, "a").send_response("b") });
        assert_eq!(response.unwrap(), "b");
    }
}

#[tokio::test]
async fn a_denied_request_never_reaches_the_inner_service() {
    let server = Server::start().await;
    let remote = redis_limiter(&server.url(), Quota::per_day(1));
    for limiter in [remote, limiter(Quota::per_day(1))] {
        assert!(limiter.check("global").await.unwrap().is_allowed());
        let service =
            global_layer(&limiter).layer(service_fn(async |_| Ok::<_, ServiceError>("served")));
        // On Redis the second denial is cached.
        for _ in 0..2 {
            let denied = service.clone().oneshot("a").await.unwrap_err().unwrap_rate_limit();
            assert_eq!(denied.kind(), ErrorKind::Denied);
        }
    }
}

#[tokio::test]
async fn the_handler_and_the_client_also_get_the_decision_of_a_pending_check() {
    let server = Server::start().await;
    let handler = service_fn(async |request: Request<String>| {
        let decision = request.extensions().get::<Decision>().unwrap();
        Ok::<_, Infallible>(Response::new(decision.remaining().to_string()))
    });
    let layer = RateLimitLayer::new(redis_limiter(&server.url(), Quota::per_day(2)), Global);
    let service = layer.layer(handler.map_response(|response| response.map(Full::<Bytes>::from)));
    for (status, remaining) in [(200, 1), (200, 0), (429, 0), (429, 0)] {
        let response = service.clone().oneshot(Request::new(String::new())).await.unwrap();
        let (parts, body) = response.into_parts();
        assert_eq!(parts.status, status);
        let rate_limit = parts.headers["ratelimit"].to_str().unwrap();
        assert!(rate_limit.starts_with(&format!(r#""default";r={remaining};t="#)), "{rate_limit}");
        assert_eq!(parts.headers.contains_key("retry-after"), status == 429);
        let body = body.collect().await.unwrap().to_bytes();
        assert!(status == 429 || body == remaining.to_string());
    }
}

#[tokio::test]
async fn a_request_cancelled_before_the_decision_is_neither_charged_nor_served() {
    let server = Server::start().await;
    let limiter = redis_limiter(&server.url(), Quota::per_day(2));
    let (mut service, mut handle) = mock::spawn_layer::<_, (), _>(global_layer(&limiter));
    assert!(service.poll_ready().is_ready());
    let mut response = Box::pin(service.call("a"));
    assert!(poll_once(&mut response).await.is_pending());
    drop(response);
    assert_eq!(limiter.peek("global").await.unwrap().remaining(), 2);
    assert!(handle.poll_request().is_pending());
}

#[tokio::test]
async fn a_denied_or_rejected_request_releases_the_concurrency_permit() {
    let server = Server::start().await;
    for limiter in [redis_limiter(&server.url(), Quota::per_day(1)), limiter(Quota::per_day(1))] {
        let one_at_a_time = ServiceBuilder::new()
            .concurrency_limit(1)
            .service(service_fn(async |request: u32| Ok::<_, BoxError>(request)));
        let mut service = with_limit(limiter, one_at_a_time);
        let mut other = service.clone();
        service.ready().await.unwrap().call(1).await.unwrap();
        // Denied, denied (cached on Redis), and rejected.
        for request in [1, 1, 7] {
            service.ready().await.unwrap().call(request).await.unwrap_err();
            assert!(
                poll_ready(&mut other).await.is_ready(),
                "request {request} releases the only permit"
            );
            other = service.clone();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stack_of_buffers_timeouts_and_concurrency_limits_loses_no_request() {
    let service = ServiceBuilder::new()
        .buffer(4)
        .concurrency_limit(3)
        .timeout(Duration::from_secs(1))
        .layer(global_layer(&limiter(Quota::per_minute(5))))
        .buffer(2)
        .concurrency_limit(1)
        .service(service_fn(async |request: &'static str| Ok::<_, BoxError>(request)));
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        calls.spawn(service.clone().oneshot("a"));
    }
    let results = calls.join_all().await;
    let (allowed, denied): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((allowed.len(), denied.len()), (5, 15));
    for error in denied {
        let error = error.unwrap_err().downcast::<Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::Denied);
    }
}

// A paused clock is safe here: the server never replies, so no timer can expire before a reply.
#[tokio::test(start_paused = true)]
async fn an_outer_timeout_ends_a_pending_check() {
    let unresponsive = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", unresponsive.local_addr().unwrap());
    let (inner, mut handle) = mock::pair::<_, ()>();
    let service = ServiceBuilder::new()
        .timeout(Duration::from_millis(10))
        .layer(global_layer(&redis_limiter(&url, Quota::per_minute(1))))
        .service(inner);
    let error = service.clone().oneshot("a").await.unwrap_err();
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
    assert!(handle.poll_request().is_pending());
}

#[test]
fn layers_services_and_futures_implement_send_and_sync_as_needed() {
    fn assert_clone_send_sync<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn assert_send<T: Send + 'static>(_: &T) {}
    fn assert_send_sync_unpin<T: Send + Sync + Unpin + 'static>() {}

    let http = RateLimitLayer::new(limiter(Quota::per_minute(1)), |_: &Parts| "key")
        .cost(|_| 1)
        .limiter_for(|_| None)
        .error_response(|_| Response::new(String::new()));
    assert_clone_send_sync(&http);
    let router: Router = Router::new();
    let mut service = http.layer(router);
    assert_clone_send_sync(&service);
    assert_send(&service.call(Request::new(axum::body::Body::empty())));

    let errors = global_layer(&limiter(Quota::per_minute(1)));
    assert_clone_send_sync(&errors);
    let mut service = errors.layer(service_fn(async |_: &'static str| Ok::<_, BoxError>(())));
    assert_clone_send_sync(&service);
    assert_send(&service.call("a"));

    assert_send_sync_unpin::<Check<'_>>();
    assert_send_sync_unpin::<Limiter>();
    assert_send_sync_unpin::<Decision>();
    assert_send_sync_unpin::<Error>();
    assert_send_sync_unpin::<Box<dyn Store>>();
}

/// Each request moves these types through all layers. A larger size must be a deliberate choice.
#[test]
fn types_moved_with_each_request_stay_small() {
    type LayerOverhead<M, R> = RateLimit<(), Global, R, M>;
    // Seven numbers, a pointer, two tags, and an inline name.
    assert!(size_of::<Decision>() <= 96);
    // 32 inline bytes (an IPv6 network as text fits), a length, and a flag for digests.
    assert!(size_of::<Key>() <= 48);
    // A key, the time of its start, its verdict or a receiver for it, and a pointer each for the
    // limiter, metrics and traces.
    assert!(size_of::<Check<'_>>() <= 136);
    // With the numbers of a quota per request.
    assert_eq!(size_of::<Limiter>(), 2 * size_of::<usize>());
    // One pointer each.
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert_eq!(size_of::<LayerOverhead<Http, Parts>>(), size_of::<usize>());
    assert_eq!(size_of::<LayerOverhead<Errors, ()>>(), size_of::<usize>());
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("x"))])
}

#[tokio::test(start_paused = true)]
async fn a_body_keeps_its_length_and_its_trailers() {
    let inner = service_fn(async |_: Request<()>| {
        let body = Full::new(Bytes::from_static(b"body"));
        let body = body.with_trailers(async { Some(Ok::<_, Infallible>(trailers())) });
        Ok::<_, Infallible>(Response::new(body))
    });
    let limiter = limiter(Quota::per_minute(1));
    // Then the body of a request may be of any type.
    let service = RateLimitLayer::new(limiter, Global).without_drain().layer(inner);

    let allowed = service.clone().oneshot(Request::new(())).await.unwrap();
    let mut body = Box::pin(allowed.into_body());
    assert_eq!(body.size_hint().exact(), Some(4));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "body");
    assert!(!body.is_end_stream());
    assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers());
    assert!(body.frame().await.is_none());

    let denied = service.oneshot(Request::new(())).await.unwrap();
    let mut body = Box::pin(denied.into_body());
    let length = body.size_hint().exact().unwrap();
    let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(length, data.len() as u64);
    assert!(body.is_end_stream() && body.frame().await.is_none());
}

/// Serves with hyper on a real socket, and adds the peer address to each request.
async fn serve_with_hyper<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let add_peer = move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            };
            let service = ServiceBuilder::new().map_request(add_peer).service(service.clone());
            tokio::spawn(async move {
                auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                    .await
            });
        }
    });
    address
}

/// Returns a client that connects from this address and keeps its connection.
fn client(address: [u8; 4]) -> Client<HttpConnector, Full<Bytes>> {
    let mut connector = HttpConnector::new();
    connector.set_local_address(Some(Ipv4Addr::from(address).into()));
    Client::builder(TokioExecutor::new()).build(connector)
}

async fn statuses<const N: usize>(
    client: &Client<HttpConnector, Full<Bytes>>,
    server: SocketAddr,
    sizes: [usize; N],
) -> [u16; N] {
    let mut statuses = [0; N];
    for (status, size) in statuses.iter_mut().zip(sizes) {
        let body = Bytes::from(vec![b'a'; size]);
        let request = Request::post(format!("http://{server}/")).body(body.clone().into()).unwrap();
        let response = client.request(request).await.unwrap();
        *status = response.status().as_u16();
        let echo = response.into_body().collect().await.unwrap().to_bytes();
        assert!(*status != 200 || echo == body);
    }
    statuses
}

#[tokio::test]
async fn each_client_of_a_hyper_server_has_its_own_limit() {
    let limiter = limiter(Quota::per_day(2));
    let echo =
        service_fn(async |request: Request<Incoming>| Ok(Response::new(request.into_body())));
    let server = serve_with_hyper(RateLimitLayer::new(limiter, PeerIp::new()).layer(echo)).await;
    for address in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        let client = client(address);
        assert_eq!(statuses(&client, server, [3_000_000, 0, 0, 0]).await, [200, 200, 429, 429]);
    }
}

#[tokio::test]
async fn each_client_of_an_axum_server_has_its_own_limit() {
    let layer = RateLimitLayer::new(limiter(Quota::per_day(2)), PeerIp::new());
    let app =
        Router::new().route("/", get(async || ()).post(async |body: Bytes| body)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { serve(listener, app).await });
    for address in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        let client = client(address);
        assert_eq!(statuses(&client, server, [1_000_000, 0, 0, 0]).await, [200, 200, 429, 429]);
    }
}

//! Layers with a concurrent quota: for how long they hold the permit of a request.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Extension;
use axum::routing::{any, get};
use fleetlimit::layer::HeaderStyle;
use fleetlimit::resolve::Global;
use fleetlimit::{Costs, Hold, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::common::{BOUND, Server, wait_until};

fn policy() -> Policy {
    Policy::new("exports")
        .quota("in_flight", Quota::concurrent(2))
        .quota("tokens", Quota::per_day(1_000_000))
}

fn limiter() -> Limiter {
    Limiter::new(MemoryStore::new(), policy()).unwrap()
}

fn layer(limiter: &Limiter) -> RateLimitLayer<Global> {
    RateLimitLayer::new(limiter.clone(), Global)
}

/// Returns the permits that are left, of requests in flight and of tokens.
async fn left(limiter: &Limiter) -> (u64, u64) {
    let peeked = limiter.peek(fleetlimit::Key::from("global")).await.unwrap();
    let left: Vec<_> = peeked.quotas().map(|quota| quota.remaining()).collect();
    (left[0], left[1])
}

fn request() -> Request<Body> {
    Request::new(Body::empty())
}

async fn send(app: &Router) -> Response<Body> {
    app.clone().oneshot(request()).await.unwrap()
}

/// An app that streams what a test sends.
fn streaming(limiter: &Limiter) -> (Router, mpsc::Sender<Result<Bytes, Infallible>>) {
    let (sender, receiver) = mpsc::channel(1);
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let handler = async move || match receiver.lock().unwrap().take() {
        Some(receiver) => Body::from_stream(unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|part| (part, receiver))
        })),
        None => Body::empty(),
    };
    (Router::new().route("/", get(handler)).layer(layer(limiter)), sender)
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_response_has_ended() {
    let limiter = limiter();
    let (app, sender) = streaming(&limiter);
    let response = send(&app).await;
    let mut body = response.into_body().into_data_stream();
    sender.send(Ok("part".into())).await.unwrap();
    assert_eq!(body.next().await.unwrap().unwrap(), "part");
    assert_eq!(left(&limiter).await, (1, 999_999));
    drop(sender);
    assert!(body.next().await.is_none());
    // Before the body is dropped.
    assert_eq!(left(&limiter).await, (2, 999_999));
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_client_disconnects() {
    let limiter = limiter();
    let (app, _sender) = streaming(&limiter);
    let response = send(&app).await;
    assert_eq!(left(&limiter).await.0, 1);
    drop(response);
    assert_eq!(left(&limiter).await.0, 2);

    // While the handler runs.
    let app = Router::new().route("/", get(pending::<()>)).layer(layer(&limiter));
    let _ = tokio::time::timeout(Duration::from_millis(1), send(&app)).await.unwrap_err();
    assert_eq!(left(&limiter).await.0, 2);
    let request = send(&app);
    tokio::pin!(request);
    let polled = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx).is_pending())).await;
    assert!(polled);
    assert_eq!(left(&limiter).await.0, 1);
}

#[tokio::test]
async fn a_denial_says_that_requests_in_flight_are_limited_and_knows_no_wait() {
    for (style, remaining) in
        [(HeaderStyle::Ietf, "ratelimit"), (HeaderStyle::XRateLimit, "x-ratelimit-remaining")]
    {
        let limiter = limiter();
        let handler = async || {
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>())
        };
        let app = Router::new().route("/", get(handler));
        let app = app.layer(layer(&limiter).headers(style));
        let in_flight = [send(&app).await, send(&app).await];
        assert!(in_flight.iter().all(|response| response.status() == StatusCode::OK));
        let denied = send(&app).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        let header = |headers: &HeaderMap, name: &str| {
            headers.get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        let headers = denied.headers().clone();
        assert_eq!(header(&headers, "retry-after"), None);
        match style {
            HeaderStyle::Ietf => {
                assert_eq!(
                    header(&headers, "ratelimit-policy").unwrap(),
                    r#""in_flight";q=2;qu="concurrent-requests", "tokens";q=1000000;w=86400"#
                );
                let field = header(&headers, remaining).unwrap();
                assert!(field.starts_with(r#""in_flight";r=0, "tokens";r=999998"#), "{field}");
            }
            _ => assert_eq!(header(&headers, remaining).unwrap(), "0"),
        }
        let body = denied.into_body().collect().await.unwrap().to_bytes();
        assert!(str::from_utf8(&body).unwrap().contains(r#""violated-policies":["in_flight"]"#));
        drop(in_flight);
        assert_eq!(send(&app).await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn the_cost_of_a_response_replaces_that_of_its_request() {
    let limiter = limiter();
    let app = Router::new().route("/", get(async || "12345"));
    let layer = layer(&limiter).cost(|_| 100).cost_by_response(|sent| sent.body_bytes);
    let app = app.layer(layer.cost_without_response(7));
    let response = send(&app).await;
    assert_eq!(left(&limiter).await, (1, 999_900));
    response.into_body().collect().await.unwrap();
    assert_eq!(left(&limiter).await, (2, 999_995));
}

#[tokio::test]
async fn a_handler_can_extend_and_settle_the_hold_of_its_request() {
    let limiter = limiter();
    let handler = async |Extension(hold): Extension<Arc<Hold>>| {
        assert!(hold.decision().is_allowed());
        assert!(hold.extend(50).await.unwrap().is_allowed());
        hold.settle(20);
        "done"
    };
    let app = Router::new().route("/", get(handler)).layer(layer(&limiter).cost(|_| 10));
    send(&app).await.into_body().collect().await.unwrap();
    assert_eq!(left(&limiter).await, (2, 999_980));

    // A handler that does nothing with it, or keeps it, holds nothing when its response has ended.
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let keeps = kept.clone();
    let handler =
        async move |Extension(hold): Extension<Arc<Hold>>| keeps.lock().unwrap().push(hold);
    let app = Router::new().route("/", get(handler)).layer(layer(&limiter).cost(|_| 10));
    send(&app).await.into_body().collect().await.unwrap();
    assert_eq!(left(&limiter).await, (2, 999_970));
    let ended = kept.lock().unwrap()[0].clone();
    assert_eq!(ended.extend(1).await.unwrap_err().kind(), fleetlimit::ErrorKind::NotHeld);
}

/// Otherwise the extractor of a handler would fail.
#[tokio::test]
async fn a_handler_finds_a_hold_also_if_the_limit_is_not_enforced() {
    let builder = Limiter::builder(MemoryStore::new(), policy()).enforce_for_percent(0.0);
    let limiter = builder.build().unwrap();
    let handler = async |Extension(hold): Extension<Arc<Hold>>| hold.settle(3);
    let app = Router::new().route("/", get(handler)).layer(layer(&limiter));
    for _ in 0..5 {
        assert_eq!(send(&app).await.status(), StatusCode::OK);
    }
    assert_eq!(left(&limiter).await, (2, 999_985));
}

#[tokio::test]
async fn a_service_that_is_not_http_is_in_flight_until_it_has_responded() {
    let limiter = limiter();
    let inner = limiter.clone();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::with_errors(limiter.clone(), Global))
        .service(service_fn(move |(): ()| {
            let limiter = inner.clone();
            async move { Ok::<_, fleetlimit::Error>(left(&limiter).await.0) }
        }));
    assert_eq!(service.oneshot(()).await.unwrap(), 1);
    assert_eq!(left(&limiter).await.0, 2);
}

/// A connection that sends back what it receives, after the response that has upgraded it.
async fn echo(hold: Option<Arc<Hold>>, mut request: Request<Body>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    drop(request);
    tokio::spawn(async move {
        let _hold = hold;
        let mut connection = hyper_util::rt::TokioIo::new(upgrade.await.unwrap());
        let mut byte = [0];
        while connection.read_exact(&mut byte).await.is_ok() {
            connection.write_all(&byte).await.unwrap();
        }
    });
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    response.header("upgrade", "echo").header("connection", "upgrade").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn an_upgraded_connection_is_in_flight_while_its_handler_keeps_the_hold() {
    for keeps in [true, false] {
        let limiter = limiter();
        let handler = async move |request: Request<Body>| {
            let hold = request.extensions().get::<Arc<Hold>>().cloned();
            echo(hold.filter(|_| keeps), request).await
        };
        let app = Router::new().route("/", any(handler)).layer(layer(&limiter));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        for _ in 0..3 {
            client.write_all(b"x").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'x');
            assert_eq!(left(&limiter).await.0, if keeps { 1 } else { 2 });
        }
        drop(client);
        wait_until("it is closed", BOUND, async || left(&limiter).await.0 == 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_too_requests_are_in_flight_until_they_end() {
    let server = Server::start().await;
    let limiter = Limiter::builder(RedisStore::open(server.url()).unwrap(), policy())
        .timeout(BOUND)
        .build()
        .unwrap();
    let (app, sender) = streaming(&limiter);
    let first = send(&app).await;
    let second = send(&app).await;
    assert_eq!(left(&limiter).await, (0, 999_998));
    assert_eq!(send(&app).await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(second);
    wait_until("one has ended", BOUND, async || left(&limiter).await.0 == 1).await;
    let third = send(&app).await;
    assert_eq!(third.status(), StatusCode::OK);
    drop((sender, first, third));
    wait_until("all have ended", BOUND, async || left(&limiter).await.0 == 2).await;
    let unknown = layer(&limiter).cost(|_| Costs::new(1).with("unknown", 1));
    let app = Router::new().route("/", get(async || ())).layer(unknown);
    assert_eq!(send(&app).await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

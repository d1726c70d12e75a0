//! Requests that are charged by their responses.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fleetlimit::resolve::Global;
use fleetlimit::{
    Costs, DividedStore, FailureMode, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    RedisStore,
};
use futures_util::stream;
use http::StatusCode;
use http::request::Parts;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::common::{BOUND, Proxy, Server, wait_until};
use crate::exact::{test_limiter, test_limiter_builder};
use crate::log::Log;

fn limiter(quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), quota).unwrap()
}

/// Of the key of all requests.
async fn remaining(limiter: &Limiter) -> u64 {
    limiter.peek("global").await.unwrap().remaining()
}

/// Failed requests cost 1, others nothing.
fn failures(limiter: &Limiter) -> RateLimitLayer<Global> {
    RateLimitLayer::new(limiter.clone(), Global)
        .cost_by_response(|sent| u64::from(sent.response.status == StatusCode::UNAUTHORIZED))
}

/// Responds with the status in the path.
fn app(layer: RateLimitLayer<Global>) -> Router {
    let handler = async |request: Request| {
        let status = request.uri().path()[1..].parse().unwrap();
        StatusCode::from_u16(status).unwrap().into_response()
    };
    Router::new().fallback(handler).layer(layer)
}

async fn status(app: &Router, path: &str) -> StatusCode {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let _ = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    status
}

#[tokio::test(start_paused = true)]
async fn only_failed_requests_are_charged() {
    let limiter = limiter(Quota::per_day(3));
    let app = app(failures(&limiter));
    for _ in 0..10 {
        assert_eq!(status(&app, "/200").await, StatusCode::OK);
    }
    for _ in 0..3 {
        assert_eq!(status(&app, "/401").await, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(status(&app, "/200").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        status(&app, "/200").await,
        StatusCode::TOO_MANY_REQUESTS,
        "a denial is not settled"
    );
}

#[tokio::test(start_paused = true)]
async fn the_estimate_counts_while_requests_are_in_flight() {
    let limiter = limiter(Quota::per_day(3));
    let app = failures(&limiter).layer(service_fn(async |_: Request| {
        pending::<()>().await;
        Ok::<_, Infallible>(StatusCode::OK.into_response())
    }));
    let request = || Request::new(Body::empty());
    let mut requests: Vec<_> = (0..3).map(|_| Box::pin(app.clone().oneshot(request()))).collect();
    for request in &mut requests {
        assert!(poll_once(request).await.is_none());
    }
    let denied = app.clone().oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// The output of a future after one poll.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *future).poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn without_a_response_the_estimate_stands_unless_configured_otherwise() {
    for (without_response, left) in [(None, 2), (Some(0), 3), (Some(2), 1)] {
        let set = |layer: RateLimitLayer<Global>| match without_response {
            None => layer,
            Some(cost) => layer.cost_without_response(Costs::new(cost)),
        };
        let request = || Request::new(Body::empty());

        let failing = limiter(Quota::per_day(3));
        let service = set(failures(&failing)).layer(service_fn(async |_: Request| {
            Err::<Response, BoxError>("the service failed".into())
        }));
        assert!(service.oneshot(request()).await.is_err());
        assert_eq!(remaining(&failing).await, left);

        let disconnecting = limiter(Quota::per_day(3));
        let service = set(failures(&disconnecting)).layer(service_fn(async |_: Request| {
            pending::<()>().await;
            Ok::<Response, Infallible>(StatusCode::OK.into_response())
        }));
        let mut response = Box::pin(service.oneshot(request()));
        assert!(poll_once(&mut response).await.is_none());
        drop(response);
        assert_eq!(remaining(&disconnecting).await, left);
    }
}

fn bytes(limiter: &Limiter) -> RateLimitLayer<Global> {
    RateLimitLayer::new(limiter.clone(), Global)
        .cost(|_| 0)
        .cost_by_response(|sent| sent.body_bytes)
}

fn chunks(sizes: &'static [usize]) -> Body {
    let frame = |&size| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; size])));
    Body::new(StreamBody::new(stream::iter(sizes.iter().map(frame))))
}

#[tokio::test(start_paused = true)]
async fn the_bytes_that_were_sent_are_charged_and_then_the_client_waits() {
    let limiter = limiter(Quota::per_day(1_000));
    let handler = get(async || chunks(&[600, 300, 400]).into_response());
    let app = Router::new().route("/", handler).layer(bytes(&limiter));
    let send = || app.clone().oneshot(Request::new(Body::empty()));

    // The client disconnects after the first two.
    let mut body = send().await.unwrap().into_body();
    for size in [600, 300] {
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), size);
    }
    assert_eq!(remaining(&limiter).await, 1_000, "the body is not complete");
    drop(body);
    assert_eq!(remaining(&limiter).await, 100);

    // Something is left, so this is allowed, and everything charged.
    let body = send().await.unwrap().into_body();
    assert_eq!(to_bytes(body, usize::MAX).await.unwrap().len(), 1_300);
    let denied = send().await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    // A debt of 1,200: a day and a fifth of one, and the time for a byte.
    let wait: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((103_767..=103_767 + 30).contains(&wait), "{wait}");
}

#[tokio::test(start_paused = true)]
async fn quotas_can_be_settled_at_different_costs() {
    let policy = Policy::new("downloads")
        .quota("requests", Quota::per_day(10))
        .quota("bytes", Quota::per_day(1_000));
    let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
    let layer = RateLimitLayer::new(limiter.clone(), Global)
        .cost(|_| Costs::new(1).with("bytes", 500))
        .cost_by_response(|sent| Costs::new(3).with("bytes", sent.body_bytes));
    let service = layer.layer(service_fn(async |_: Request| {
        Ok::<_, Infallible>(Response::new(Body::from("12345")))
    }));
    let response = service.oneshot(Request::new(Body::empty())).await.unwrap();
    let _ = response.into_body().collect().await.unwrap();
    let left = limiter.peek("global").await.unwrap();
    assert_eq!(left.quotas().map(|quota| quota.remaining()).collect::<Vec<_>>(), [7, 995]);
}

#[tokio::test]
async fn on_redis_a_response_does_not_wait_for_its_charge() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = test_limiter(store, Quota::per_day(3));
    let app = app(failures(&limiter));
    assert_eq!(status(&app, "/200").await, StatusCode::OK);
    wait_until("the estimate is given back", BOUND, async || remaining(&limiter).await == 3).await;
    assert_eq!(status(&app, "/401").await, StatusCode::UNAUTHORIZED);
    assert_eq!(remaining(&limiter).await, 2);
}

#[tokio::test]
async fn a_charge_that_is_lost_is_logged() {
    let (log, _guard) = Log::capture();
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_day(1_000))
        .failure_mode(FailureMode::Closed)
        .timeout(Duration::from_secs(2))
        .build()
        .unwrap();
    let handler = get(async || chunks(&[600]).into_response());
    let app = Router::new().route("/", handler).layer(bytes(&limiter));
    let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
    drop(server);
    let _ = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    wait_until("the log says so", BOUND, async || {
        log.events().iter().any(|line| {
            line.contains("WARN") && line.contains("permits are not charged or given back")
        })
    })
    .await;
}

#[tokio::test]
async fn a_request_that_an_outage_let_pass_is_charged_in_full() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let limiter = test_limiter_builder(store, Quota::per_day(3));
    let limiter = limiter.failure_mode(FailureMode::Open).build().unwrap();
    let app = app(failures(&limiter));
    proxy.refuse().await;
    let request = Request::get("/401").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    proxy.accept().await;
    wait_until("the store works", BOUND, async || limiter.peek("global").await.is_ok()).await;
    assert_eq!(remaining(&limiter).await, 3);
    drop(response);
    wait_until("the failure is charged", BOUND, async || remaining(&limiter).await == 2).await;
}

/// The first layer allows `outer` requests, the second `middle`, and the third `inner`.
fn three_layers(limiters: [&Limiter; 3]) -> Router {
    let [outer, middle, inner] =
        limiters.map(|limiter| RateLimitLayer::new(limiter.clone(), Global).refund_inner_denials());
    Router::new().route("/200", get(async || "hello")).layer(inner).layer(middle).layer(outer)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_an_inner_layer_denies_takes_nothing_of_the_outer_ones() {
    let [outer, middle, inner] = [5, 5, 2].map(|n| limiter(Quota::per_day(n)));
    let app = three_layers([&outer, &middle, &inner]);
    for (code, left) in [(200, [4, 4, 1]), (200, [3, 3, 0]), (429, [3, 3, 0]), (429, [3, 3, 0])] {
        assert_eq!(status(&app, "/200").await.as_u16(), code);
        assert_eq!(
            [remaining(&outer).await, remaining(&middle).await, remaining(&inner).await],
            left
        );
    }
    inner.reset("global").await.unwrap();
    middle.charge("global", 3).await.unwrap();
    assert_eq!(status(&app, "/200").await.as_u16(), 429);
    assert_eq!([remaining(&outer).await, remaining(&inner).await], [3, 2]);
}

#[tokio::test]
async fn on_redis_the_outer_permits_come_back_too() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let [outer, middle, inner] = [("a", 5), ("b", 5), ("c", 1)].map(|(name, n)| {
        test_limiter(store.clone(), Policy::new(name).quota(name, Quota::per_day(n)))
    });
    let app = three_layers([&outer, &middle, &inner]);
    assert_eq!(status(&app, "/200").await.as_u16(), 200);
    assert_eq!(status(&app, "/200").await.as_u16(), 429);
    wait_until("the permits come back", BOUND, async || {
        (remaining(&outer).await, remaining(&middle).await) == (4, 4)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_allowed_after_a_denied_one_is_paid_for() {
    let [outer, first, second] = [5, 1, 5].map(|n| limiter(Quota::per_day(n)));
    first.charge("global", 1).await.unwrap();
    let attempts = [first, second].map(|inner| app(RateLimitLayer::new(inner, Global)));
    let layer = RateLimitLayer::new(outer.clone(), Global).refund_inner_denials();
    let service = layer.layer(service_fn(|request: Request| {
        let attempts = attempts.clone();
        let (parts, _) = request.into_parts();
        async move {
            let mut response = None;
            for attempt in attempts {
                let request = Request::from_parts(parts.clone(), Body::empty());
                response = Some(attempt.oneshot(request).await.unwrap());
            }
            Ok::<_, Infallible>(response.unwrap())
        }
    }));
    let request = Request::get("/200").body(Body::empty()).unwrap();
    assert_eq!(service.oneshot(request).await.unwrap().status(), StatusCode::OK);
    assert_eq!(remaining(&outer).await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_status_of_the_application_is_not_taken_for_a_denial() {
    let limiter = limiter(Quota::per_day(5));
    let app = app(RateLimitLayer::new(limiter.clone(), Global).refund_inner_denials());
    assert_eq!(status(&app, "/429").await.as_u16(), 429);
    assert_eq!(remaining(&limiter).await, 4);
}

/// The permits that are left after a request that costs nothing in the end, and during which others have
/// been charged.
async fn remaining_after_held(
    limiter: &Limiter,
    estimate: u64,
    held_for: Duration,
    others: u64,
) -> u64 {
    let (open, held) = tokio::sync::watch::channel(false);
    let layer = failures(limiter).cost(move |_: &Parts| estimate);
    let service = layer.layer(service_fn(async |_: Request| {
        let _ = held.clone().wait_for(|is_open| *is_open).await;
        Ok::<_, Infallible>(StatusCode::OK.into_response())
    }));
    let before = remaining(limiter).await;
    let mut request = std::pin::pin!(service.oneshot(Request::new(Body::empty())));
    assert!(poll_once(&mut request).await.is_none());
    assert_eq!(remaining(limiter).await, before - estimate);
    tokio::time::sleep(held_for).await;
    limiter.charge("global", others).await.unwrap();
    open.send(true).unwrap();
    drop(request.await.unwrap());
    remaining(limiter).await
}

/// Otherwise a client could collect permits with requests that it keeps open, and use them all at once.
#[tokio::test(start_paused = true)]
async fn an_estimate_of_a_window_that_has_ended_is_not_given_back() {
    for (quota, seconds) in [
        (Quota::per_minute(3), 20),
        (Quota::per_minute(3).fixed_window(), 60),
        (Quota::per_minute(3).interval_refill(), 60),
        // Others may have used the next segment, or the next window.
        (Quota::per_minute(3).sliding_window(6), 11),
        (Quota::per_minute(3).approximate_sliding_window(), 61),
    ] {
        let held_for = Duration::from_secs(seconds);
        assert_eq!(remaining_after_held(&limiter(quota), 1, held_for, 3).await, 0, "{quota}");
    }
}

/// The part refills by 5 permits per second.
#[tokio::test(start_paused = true)]
async fn a_share_of_a_limit_gives_back_what_has_not_refilled_at_its_own_rate() {
    let quota = Quota::per_second(15).burst(30);
    for quota in [quota, quota.interval_refill()] {
        let store = DividedStore::new(0, 3.try_into().unwrap()).unwrap();
        let limiter = Limiter::new(store, quota).unwrap();
        let remaining = remaining_after_held(&limiter, 10, Duration::from_secs(1), 5).await;
        // Parts of a microsecond count as refilled.
        assert!((4..=5).contains(&remaining), "{quota}: {remaining}");
    }
}

//! What applications see and replace: decisions in handlers and middleware, observers, responses.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use fleetlimit::layer::{Cause, DecisionPlacement, HeaderStyle, decisions};
use fleetlimit::resolve::Global;
use fleetlimit::{
    Decision, FailureMode, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore,
    Rejection, Resolution, Source,
};
use http::StatusCode;
use http_body_util::StreamBody;
use serde_json::{Value, json};
use tower::ServiceExt;

fn limiter(name: &'static str, quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), Policy::new(name).quota(name, quota)).unwrap()
}

fn layer(name: &'static str, n: u64) -> RateLimitLayer<Global> {
    RateLimitLayer::new(limiter(name, Quota::per_minute(n)), Global)
}

async fn send(app: &Router) -> Response {
    app.clone().oneshot(Request::new(Body::empty())).await.unwrap()
}

async fn text(response: Response) -> String {
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

fn names(extensions: &http::Extensions) -> String {
    decisions(extensions).map(Decision::quota_name).collect::<Vec<_>>().join(",")
}

/// Responds with the quota names of the decisions that the handler sees, and puts those that outer
/// middleware sees into a header.
fn visible(layers: impl FnOnce(Router) -> Router) -> Router {
    let handler = get(async |request: Request| names(request.extensions()));
    let show = async |request: Request, next: Next| {
        let mut response = next.run(request).await;
        let names = names(response.extensions());
        response.headers_mut().insert("x-decisions", names.parse().unwrap());
        response
    };
    layers(Router::new().route("/", handler)).layer(from_fn(show))
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_only_where_it_was_asked_for() {
    for (placement, in_request, in_response) in [
        (DecisionPlacement::Request, "a", ""),
        (DecisionPlacement::Response, "", "a"),
        (DecisionPlacement::Both, "a", "a"),
        (DecisionPlacement::Neither, "", ""),
    ] {
        let app = visible(|app| app.layer(layer("a", 1).decision_in(placement)));
        let response = send(&app).await;
        assert_eq!(response.headers()["x-decisions"], in_response, "{placement:?}");
        assert_eq!(text(response).await, in_request, "{placement:?}");
        let denied = send(&app).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(denied.headers()["x-decisions"], in_response, "denied, {placement:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_decisions_of_all_layers_can_be_found() {
    let both = |name, n| layer(name, n).decision_in(DecisionPlacement::Both);
    let app =
        visible(|app| app.layer(both("inner", 1)).layer(both("middle", 2)).layer(both("outer", 3)));
    let response = send(&app).await;
    assert_eq!(response.headers()["x-decisions"], "inner,middle,outer");
    assert_eq!(text(response).await, "outer,middle,inner");
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_every_decision_with_its_key_and_policy() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let observed = log.clone();
    let layer = layer("a", 1).on_decision(move |checked| {
        let path = checked.request.uri.path().to_owned();
        let key = checked.key.as_bytes().to_vec();
        let policy = checked.policy.name().to_owned();
        observed.lock().unwrap().push((path, key, policy, checked.decision.is_allowed()));
    });
    let app = Router::new().route("/", get(async || ())).layer(layer);
    for _ in 0..2 {
        send(&app).await;
    }
    let expected =
        [true, false].map(|allowed| ("/".into(), b"global".to_vec(), "a".into(), allowed));
    assert_eq!(*log.lock().unwrap(), expected);
}

/// A hook for every response of the layer, as a user writes it.
fn custom(
    layer: RateLimitLayer<impl fleetlimit::KeyResolver>,
) -> RateLimitLayer<impl fleetlimit::KeyResolver> {
    layer.error_response(|context| {
        let key = context.key().map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        let (status, error) = match context.cause() {
            Cause::Denied(_) => (StatusCode::TOO_MANY_REQUESTS, "denied"),
            Cause::MissingKey(_) => (StatusCode::BAD_REQUEST, "missing"),
            Cause::Rejected(_) => (StatusCode::FORBIDDEN, "rejected"),
            Cause::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            _ => return context.default_response().into_response(),
        };
        let body = json!({ "error": error, "policy": context.policy().name(), "key": key });
        (status, Json(body)).into_response()
    })
}

#[tokio::test]
async fn one_hook_makes_every_response_of_the_layer() {
    let resolver = |parts: &http::request::Parts| match parts.uri.path() {
        "/missing" => Resolution::Missing(Rejection::bad_request("no")),
        "/rejected" => Rejection::forbidden("no").into(),
        _ => Resolution::from("key"),
    };
    let limited = limiter("a", Quota::per_day(1));
    let _ = limited.check("key").await.unwrap();
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let policy = Policy::new("a").quota("a", Quota::per_day(1));
    let down = Limiter::builder(store, policy).failure_mode(FailureMode::Closed).build().unwrap();
    for (limiter, path, status, error, key) in [
        (&limited, "/", 429, "denied", json!("key")),
        (&limited, "/missing", 400, "missing", Value::Null),
        (&limited, "/rejected", 403, "rejected", Value::Null),
        (&down, "/", 503, "unavailable", json!("key")),
    ] {
        let app = Router::new()
            .fallback(async || "served")
            .layer(custom(RateLimitLayer::new(limiter.clone(), resolver)));
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers().contains_key("retry-after"), [429, 503].contains(&status));
        let body: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(body, json!({ "error": error, "policy": "a", "key": key }));
    }
}

/// A cache in front of the service may store a 404 for as long as it likes, and any status if it is
/// configured to.
#[tokio::test]
async fn no_cache_may_serve_a_response_to_one_client_to_others() {
    let resolver = |parts: &http::request::Parts| match parts.uri.path() {
        "/missing" => Resolution::Missing(Rejection::not_found("no")),
        "/rejected" => Rejection::forbidden("no").into(),
        _ => Resolution::from("key"),
    };
    let limited = limiter("a", Quota::per_day(1));
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let policy = Policy::new("a").quota("a", Quota::per_day(1));
    let down = Limiter::builder(store, policy).failure_mode(FailureMode::Closed).build().unwrap();
    let exchange = async |layer: RateLimitLayer<_>, path: &str| {
        let app = Router::new().fallback(async || "served").layer(layer);
        let response = app.oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let header = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
        let values = response.headers().get_all("cache-control").iter().map(header);
        (response.status().as_u16(), values.collect::<Vec<_>>())
    };
    let layer = |limiter: &Limiter| RateLimitLayer::new(limiter.clone(), resolver);
    // What the service says is its own concern.
    assert_eq!(exchange(layer(&limited), "/").await, (200, vec![]));
    for (limiter, path, status) in [
        (&limited, "/", 429),
        (&limited, "/missing", 404),
        (&limited, "/rejected", 403),
        (&down, "/", 503),
    ] {
        let no_store = (status, vec!["no-store".to_owned()]);
        assert_eq!(exchange(layer(limiter), path).await, no_store);
        let custom = layer(limiter).error_response(move |_| {
            http::Response::builder().status(status).body(String::new()).unwrap()
        });
        assert_eq!(exchange(custom, path).await, no_store);
        let decided = layer(limiter).error_response(move |_| {
            let response = http::Response::builder().status(status);
            response.header("cache-control", "max-age=5").body(String::new()).unwrap()
        });
        assert_eq!(exchange(decided, path).await, (status, vec!["max-age=5".to_owned()]));
    }
    // Outside of a layer.
    let error = down.check("key").await.unwrap_err();
    assert_eq!(error.response().headers()["cache-control"], "no-store");
    let denied = limited.check("key").await.unwrap();
    assert_eq!(denied.response().headers()["cache-control"], "no-store");
    assert_eq!(denied.headers(HeaderStyle::None)["cache-control"], "no-store");
    let allowed = Decision::allowed(10, 3);
    assert!(!allowed.response().headers().contains_key("cache-control"));
}

#[tokio::test(start_paused = true)]
async fn a_custom_body_may_be_a_stream_that_fails() {
    let layer = layer("a", 1).error_response(|_| {
        let frame = |bytes: &'static str| http_body::Frame::data(Bytes::from(bytes));
        let frames = [Ok(frame("slow ")), Ok(frame("down")), Err(std::fmt::Error)];
        http::Response::new(StreamBody::new(futures_util::stream::iter(frames)))
    });
    let app = Router::new().route("/", get(async || "served")).layer(layer);
    assert_eq!(text(send(&app).await).await, "served");
    let mut body = Box::pin(send(&app).await.into_body().into_data_stream());
    let mut frames = Vec::new();
    while let Some(frame) = futures_util::StreamExt::next(&mut body).await {
        frames.push(frame.ok());
    }
    assert_eq!(frames, [Some("slow ".into()), Some("down".into()), None]);
}

#[tokio::test(start_paused = true)]
async fn a_check_in_a_handler_answers_like_the_layer() {
    let in_handler = limiter("a", Quota::per_minute(1));
    let handler = get(async |Extension(limiter): Extension<Limiter>| {
        let decision = limiter.check("global").await?;
        decision.ensure_allowed()?;
        Ok::<_, fleetlimit::Error>((decision, "served"))
    });
    let by_hand = Router::new().route("/", handler).layer(Extension(in_handler));
    let by_layer = Router::new().route("/", get(async || "served"));
    let by_layer = by_layer.layer(layer("a", 1).retry_jitter(Duration::ZERO));
    for status in [200, 429] {
        let (hand, layer) = (send(&by_hand).await, send(&by_layer).await);
        assert_eq!(hand.status(), status);
        assert_eq!(layer.status(), status);
        assert_eq!(hand.headers(), layer.headers());
        assert_eq!(text(hand).await, text(layer).await);
    }
}

#[tokio::test]
async fn an_error_in_a_handler_answers_like_the_layer_and_describes_nothing() {
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let closed = Limiter::builder(store, Quota::per_day(1))
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap();
    let error = closed.check("key").await.unwrap_err();
    assert_eq!(error.server(), Some("127.0.0.1:1"));
    let by_layer =
        Router::new().route("/", get(async || ())).layer(RateLimitLayer::new(closed, Global));
    let (hand, layer) = (error.into_response(), send(&by_layer).await);
    assert_eq!(hand.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(hand.status(), layer.status());
    let hand = text(hand).await;
    assert!(!hand.contains("127.0.0.1"), "{hand}");
    assert_eq!(hand, text(layer).await);
}

/// As a unit test of a handler writes it.
#[test]
fn a_test_can_make_any_decision() {
    let allowed = Decision::allowed(10, 3).with_source(Source::Cached);
    assert_eq!((allowed.limit(), allowed.remaining(), allowed.source()), (10, 3, Source::Cached));
    assert_eq!(allowed.headers(HeaderStyle::Ietf)["ratelimit"], r#""default";r=3"#);
    let denied = Decision::denied(10, Duration::from_millis(1_500));
    assert_eq!((denied.remaining(), denied.retry_after()), (0, Some(Duration::from_millis(1_500))));
    assert_eq!(denied.response().headers()["retry-after"], "2");
    let never = Decision::exceeding_capacity(10);
    assert!(never.exceeds_capacity() && never.ensure_allowed().is_err());
    assert_eq!(never.source(), Source::Quota);
    assert!(!never.response().headers().contains_key("retry-after"));
}

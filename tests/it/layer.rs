//! The layer on axum apps, with the buckets in memory and a clock that stands still.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::connect_info::MockConnectInfo;
use axum::extract::{Extension, Request};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use axum::{Router, ServiceExt as _, middleware};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, advance};
use tollgate::layer::HeaderStyle;
use tollgate::resolve::{Global, Header, MatchedPath, PeerIp};
use tollgate::{
    Decision, FailureMode, KeyResolver, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    RedisStore, Resolution, Source,
};
use tower::{Service, ServiceBuilder, ServiceExt};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

fn limiter(name: &'static str, quota: Quota) -> Limiter {
    let policy = Policy::new(name).quota(name, quota);
    Limiter::new(MemoryStore::new(), policy).unwrap()
}

/// One request passes, and no other for a minute.
fn once(name: &'static str) -> RateLimitLayer<Global> {
    RateLimitLayer::new(limiter(name, Quota::per_minute(1)), Global)
}

fn handler() -> MethodRouter {
    get(async || "handled")
}

fn request(path: &str) -> Request {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn send(app: &Router, request: Request) -> Response<Bytes> {
    read(app.clone().oneshot(request).await.unwrap()).await
}

async fn read(response: Response) -> Response<Bytes> {
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, to_bytes(body, usize::MAX).await.unwrap())
}

async fn status(app: &Router, path: &str) -> StatusCode {
    send(app, request(path)).await.status()
}

/// The body as what it says it is.
fn problem(response: &Response<Bytes>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(problem["status"], response.status().as_u16());
    assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()));
    problem
}

fn values(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter();
    values.map(|value| value.to_str().unwrap().to_owned()).collect()
}

/// All fields that tell a client where it stands.
fn told(headers: &HeaderMap) -> BTreeMap<&str, &str> {
    let names = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    names.filter(|(name, _)| name.contains("ratelimit") || *name == "retry-after").collect()
}

/// What a user writes: the types of bodies are nowhere.
fn app() -> Router {
    let api_key = RateLimitLayer::new(limiter("search", Quota::per_minute(1)), {
        Header::new("x-api-key").or_exempt()
    });
    let by_route = RateLimitLayer::new(limiter("routes", Quota::per_minute(2)), {
        (PeerIp::new(), MatchedPath.or(Global))
    });
    Router::new()
        .route("/search", get(async || "found").layer(api_key))
        .route("/users/{id}", handler())
        .layer(by_route.headers(HeaderStyle::Draft03).cost(|_| 1))
}

#[tokio::test(start_paused = true)]
async fn an_app_needs_no_type_of_a_body_to_be_written() {
    let _ = app().into_make_service_with_connect_info::<SocketAddr>();
    let client = |n| app_with_client(app(), SocketAddr::from(([192, 0, 2, n], 4711)));
    let search = |key: Option<&str>| {
        let mut request = request("/search");
        let key = key.map(|key| HeaderValue::from_str(key).unwrap());
        key.map(|key| request.headers_mut().insert("x-api-key", key));
        request
    };

    let app = client(1);
    assert_eq!(send(&app, search(Some("a"))).await.status(), StatusCode::OK);
    assert_eq!(send(&app, search(Some("a"))).await.status(), StatusCode::TOO_MANY_REQUESTS);
    // The third to the route from this client, whatever its key.
    assert_eq!(send(&app, search(None)).await.status(), StatusCode::TOO_MANY_REQUESTS);
    for (path, expected) in [("/users/1", 200), ("/users/2", 200), ("/users/3", 429), ("/", 404)] {
        assert_eq!(status(&app, path).await, expected, "{path}");
    }
}

fn app_with_client(app: Router, client: SocketAddr) -> Router {
    app.layer(MockConnectInfo(client))
}

#[tokio::test(start_paused = true)]
async fn wherever_axum_takes_a_layer_it_limits() {
    let inner = || Router::new().route("/", handler());
    let apps = [
        ("Router::layer", inner().layer(once("a"))),
        ("Router::route_layer", inner().route_layer(once("a"))),
        ("MethodRouter::layer", Router::new().route("/", handler().layer(once("a")))),
        ("MethodRouter::route_layer", Router::new().route("/", handler().route_layer(once("a")))),
        ("a part of the methods", Router::new().route("/", get(async || "").layer(once("a")))),
        ("nest", Router::new().nest("/", Router::new()).merge(inner().layer(once("a")))),
        ("nest_service", Router::new().fallback_service(once_around(inner()))),
        ("ServiceBuilder", {
            inner().layer(ServiceBuilder::new().concurrency_limit(9).layer(once("a")))
        }),
        ("option_layer", inner().layer(tower::util::option_layer(Some(once("a"))))),
    ];
    for (place, app) in apps {
        let response = send(&app, request("/")).await;
        assert_eq!(response.status(), StatusCode::OK, "{place}");
        assert_eq!(values(response.headers(), "ratelimit"), [r#""a";r=0;t=60"#], "{place}");
        assert_eq!(status(&app, "/").await, StatusCode::TOO_MANY_REQUESTS, "{place}");
    }
}

fn once_around(app: Router) -> impl Clone + Service<
    Request,
    Response = Response<impl http_body::Body<Data = Bytes, Error = axum::Error> + Send>,
    Error = std::convert::Infallible,
    Future: Send,
> {
    ServiceBuilder::new().layer(once("a")).service(app)
}

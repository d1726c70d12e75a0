//! The layer on axum apps, with a memory store and a paused clock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::connect_info::MockConnectInfo;
use axum::extract::{Extension, Request};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use axum::{Router, ServiceExt};
use fleetlimit::layer::HeaderStyle;
use fleetlimit::resolve::{Global, Header, MatchedPath, PeerIp};
use fleetlimit::{
    Decision, FailureMode, KeyResolver, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    RedisStore, Rejection, Resolution, Source,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::advance;
use tower::{Layer, ServiceBuilder, ServiceExt as _};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

fn limiter(name: &'static str, quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), Policy::new(name).quota(name, quota)).unwrap()
}

fn global(quota: Quota) -> RateLimitLayer<Global> {
    RateLimitLayer::new(limiter("a", quota), Global).retry_jitter(Duration::ZERO)
}

/// Allows one request per minute.
fn one_per_minute() -> RateLimitLayer<Global> {
    global(Quota::per_minute(1))
}

fn handler() -> MethodRouter {
    get(async || "handled")
}

fn router() -> Router {
    Router::new().route("/", handler())
}

fn request(path: &str, headers: &[(&str, &str)]) -> Request {
    let builder = headers.iter().fold(Request::get(path), |builder, (k, v)| builder.header(*k, *v));
    builder.body(Body::empty()).unwrap()
}

async fn send(app: &Router, request: Request) -> Response<Bytes> {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    Response::from_parts(parts, to_bytes(body, usize::MAX).await.unwrap())
}

async fn fetch(app: &Router, path: &str) -> Response<Bytes> {
    send(app, request(path, &[])).await
}

async fn statuses<const N: usize>(app: &Router, paths: [&str; N]) -> [u16; N] {
    let mut statuses = [0; N];
    for (status, path) in statuses.iter_mut().zip(paths) {
        *status = fetch(app, path).await.status().as_u16();
    }
    statuses
}

/// Parses the problem details of a response.
fn problem(response: &Response<Bytes>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(problem["status"], response.status().as_u16());
    assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{problem}");
    problem
}

fn values<'a>(response: &'a Response<Bytes>, name: &str) -> Vec<&'a str> {
    let values = response.headers().get_all(name).iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

/// Returns all rate limit headers, and `Retry-After`.
fn rate_limit_headers(headers: &HeaderMap) -> BTreeMap<&str, &str> {
    let all = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    all.filter(|(name, _)| name.contains("ratelimit") || *name == "retry-after").collect()
}

fn headers<const N: usize>(
    headers: [(&'static str, &'static str); N],
) -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from(headers)
}

/// Must compile without a type annotation for a body, as users write it.
fn app() -> Router {
    let by_key = Header::new(HeaderName::from_static("x-api-key")).or_skip();
    let search = RateLimitLayer::new(limiter("search", Quota::per_minute(1)), by_key)
        .retry_jitter(Duration::ZERO);
    let by_route = (PeerIp::new(), MatchedPath.or(Global));
    let routes = RateLimitLayer::new(limiter("routes", Quota::per_minute(3)), by_route)
        .retry_jitter(Duration::ZERO)
        .headers(HeaderStyle::IetfDraft03)
        .cost(|parts| if parts.uri.path() == "/free" { 0 } else { 1 });
    Router::new()
        .route("/search", get(async || "found").layer(search))
        .route("/users/{id}", handler())
        .layer(routes)
}

#[tokio::test(start_paused = true)]
async fn an_app_with_several_layers_needs_no_type_annotation_for_a_body() {
    let _ = app().into_make_service_with_connect_info::<SocketAddr>();
    let client = |n| app().layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, n], 4711))));
    let (app, key) = (client(1), [("x-api-key", "a")]);

    assert_eq!(send(&app, request("/search", &key)).await.status(), 200);
    assert_eq!(send(&app, request("/search", &key)).await.status(), 429);
    assert_eq!(send(&app, request("/search", &[])).await.status(), 200);
    // This is the fourth request of this client to the route, whatever its API key.
    assert_eq!(send(&app, request("/search", &[("x-api-key", "b")])).await.status(), 429);
    assert_eq!(
        statuses(&app, ["/users/1", "/users/2", "/users/3", "/users/4"]).await,
        [200, 200, 200, 429]
    );
}

#[tokio::test(start_paused = true)]
async fn the_layer_works_wherever_axum_accepts_a_layer() {
    let stack =
        || ServiceBuilder::new().map_request(|request: Request| request).layer(one_per_minute());
    let apps = [
        ("Router::layer", router().layer(one_per_minute())),
        ("Router::route_layer", router().route_layer(one_per_minute())),
        ("MethodRouter::layer", Router::new().route("/", handler().layer(one_per_minute()))),
        (
            "MethodRouter::route_layer",
            Router::new().route("/", handler().route_layer(one_per_minute())),
        ),
        ("ServiceBuilder::layer", router().layer(stack())),
        ("ServiceBuilder::service", Router::new().fallback_service(stack().service(router()))),
    ];
    for (method, app) in apps {
        let response = fetch(&app, "/").await;
        assert_eq!((response.status(), &**response.body()), (StatusCode::OK, &b"handled"[..]));
        assert_eq!(values(&response, "ratelimit"), [r#""a";r=0;t=60"#], "{method}");
        assert_eq!(fetch(&app, "/").await.status(), 429, "{method}");
    }
    // A layer around a whole app returns no router, but axum can serve the result.
    let _ = ServiceExt::<Request>::into_make_service(one_per_minute().layer(router()));
}

#[tokio::test(start_paused = true)]
async fn a_layer_counts_only_the_requests_that_pass_through_it() {
    let two = || Router::new().route("/a", handler()).route("/b", handler());
    let one_route =
        Router::new().route("/a", handler().layer(one_per_minute())).route("/b", handler());
    assert_eq!(statuses(&one_route, ["/b", "/a", "/a", "/b"]).await, [200, 200, 429, 200]);

    let nested = Router::new().nest("/n", router().layer(one_per_minute())).route("/", handler());
    assert_eq!(statuses(&nested, ["/n", "/n", "/"]).await, [200, 429, 200]);

    let routes = two().route_layer(one_per_minute());
    assert_eq!(statuses(&routes, ["/none", "/a", "/b", "/none"]).await, [404, 200, 429, 404]);
    let all = two().layer(one_per_minute());
    assert_eq!(statuses(&all, ["/none", "/a", "/none"]).await, [404, 429, 429]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_denied_clients_do_not_return_in_the_same_second() {
    let layer = RateLimitLayer::new(limiter("a", Quota::per_minute(1)), Global);
    let app = Router::new().route("/", handler()).layer(layer);
    assert_eq!(statuses(&app, ["/"]).await, [200]);
    let mut returning = BTreeMap::<u64, u32>::new();
    for _ in 0..1_000 {
        let denied = fetch(&app, "/").await;
        let [seconds] = &values(&denied, "retry-after")[..] else { panic!("{denied:?}") };
        *returning.entry(seconds.parse().unwrap()).or_default() += 1;
    }
    // A quarter of the wait is the spread.
    assert!(returning.keys().all(|seconds| (60..=75).contains(seconds)), "{returning:?}");
    let busiest = *returning.values().max().unwrap();
    assert!(busiest <= 2 * 1_000 / 16, "{returning:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_layers_both_send_headers_and_the_outer_checks_first() {
    let outer = RateLimitLayer::new(limiter("outer", Quota::per_minute(2)), Global)
        .retry_jitter(Duration::ZERO);
    let inner = limiter("inner", Quota::per_minute(1));
    let handler =
        get(async |Extension(decision): Extension<Decision>| decision.limit().to_string());
    let app = Router::new()
        .route(
            "/",
            handler.layer(RateLimitLayer::new(inner.clone(), Global).retry_jitter(Duration::ZERO)),
        )
        .layer(outer);

    let both = fetch(&app, "/").await;
    assert_eq!(both.body(), "1", "the handler receives the decision of the inner layer");
    assert_eq!(values(&both, "ratelimit"), [r#""inner";r=0;t=60"#, r#""outer";r=1;t=30"#]);
    assert_eq!(values(&both, "ratelimit-policy"), [r#""inner";q=1;w=60"#, r#""outer";q=2;w=60"#]);

    let by_inner = fetch(&app, "/").await;
    assert_eq!(problem(&by_inner)["violated-policies"], json!(["inner"]));
    assert_eq!(values(&by_inner, "ratelimit"), [r#""inner";r=0;t=60"#, r#""outer";r=0;t=30"#]);
    assert_eq!(values(&by_inner, "retry-after"), ["60"]);

    inner.reset("global").await.unwrap();
    let by_outer = fetch(&app, "/").await;
    assert_eq!(problem(&by_outer)["violated-policies"], json!(["outer"]));
    assert_eq!(values(&by_outer, "ratelimit"), [r#""outer";r=0;t=30"#]);
    assert_eq!(
        inner.peek("global").await.unwrap().remaining(),
        1,
        "the inner layer does not check"
    );
}

#[tokio::test(start_paused = true)]
async fn responses_have_the_rate_limit_headers() {
    let app = router().layer(global(Quota::per_minute(2).burst(3)));
    let policy = ("ratelimit-policy", r#""a";q=3;w=90"#);
    for value in [r#""a";r=2;t=30"#, r#""a";r=1;t=30"#, r#""a";r=0;t=30"#] {
        let response = fetch(&app, "/").await;
        assert_eq!(rate_limit_headers(response.headers()), headers([("ratelimit", value), policy]));
    }
    advance(Duration::from_micros(10_000_001)).await;
    let denied = fetch(&app, "/").await;
    let rate_limit = ("ratelimit", r#""a";r=0;t=20"#);
    assert_eq!(
        rate_limit_headers(denied.headers()),
        headers([rate_limit, policy, ("retry-after", "20")])
    );
}

#[tokio::test(start_paused = true)]
async fn a_denial_has_problem_details_with_the_violated_policy() {
    let handled = Arc::new(AtomicU32::new(0));
    let counter = handled.clone();
    let handler = get(async move || counter.fetch_add(1, SeqCst).to_string());
    let app = Router::new().route("/", handler).layer(one_per_minute());
    assert_eq!(statuses(&app, ["/", "/"]).await, [200, 429]);
    let expected = json!({
        "type": QUOTA_EXCEEDED,
        "title": "Rate limit exceeded",
        "status": 429,
        "violated-policies": ["a"],
    });
    assert_eq!(problem(&fetch(&app, "/").await), expected);
    assert_eq!(handled.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_honors_retry_after_is_admitted() {
    let quotas = [
        (Quota::per_second(10).burst(3), 1),
        (Quota::per_second(3).burst(2), 2),
        (Quota::new(1, Duration::from_micros(1_500_000)), 1),
        (Quota::new(1, Duration::from_micros(2_000_001)), 1),
        (Quota::new(7, Duration::from_secs(60)).burst(5), 4),
        (Quota::new(u32::MAX.into(), Duration::from_micros(7)).burst(1), 1),
        (Quota::per_day(1), 1),
    ];
    for (quota, cost) in quotas {
        let app = router().layer(global(quota).cost(move |_| cost));
        let mut response = fetch(&app, "/").await;
        while response.status() == 200 {
            response = fetch(&app, "/").await;
        }
        let rate_limit = values(&response, "ratelimit")[0];
        let t: u64 = rate_limit.split_once(";t=").unwrap().1.parse().unwrap();
        let retry_after: u64 = values(&response, "retry-after")[0].parse().unwrap();
        assert!(retry_after >= t.max(1), "{quota:?}: {rate_limit}, {retry_after}");
        advance(Duration::from_secs(retry_after)).await;
        assert_eq!(fetch(&app, "/").await.status(), 200, "{quota:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_refills_at_the_exact_microsecond() {
    let limiter = limiter("a", Quota::per_minute(7).burst(2));
    let app =
        router().layer(RateLimitLayer::new(limiter.clone(), Global).retry_jitter(Duration::ZERO));
    assert_eq!(statuses(&app, ["/", "/", "/"]).await, [200, 200, 429]);
    let wait = limiter.peek("global").await.unwrap().retry_after().unwrap();
    assert_eq!(wait, Duration::from_micros(8_571_429));
    advance(wait - Duration::from_micros(1)).await;
    let denied = fetch(&app, "/").await;
    assert_eq!(
        (denied.status(), values(&denied, "retry-after")),
        (429.try_into().unwrap(), vec!["1"])
    );
    advance(Duration::from_micros(1)).await;
    assert_eq!(statuses(&app, ["/", "/"]).await, [200, 429]);
}

#[tokio::test(start_paused = true)]
async fn each_header_style_uses_only_its_own_names() {
    let styles = [
        (HeaderStyle::IetfDraft03, Some("ratelimit-")),
        (HeaderStyle::XRateLimit, Some("x-ratelimit-")),
        (HeaderStyle::None, None),
    ];
    for (style, prefix) in styles {
        let with_reset = |reset: &str| -> BTreeMap<_, _> {
            let three = [("limit", "2"), ("remaining", "0"), ("reset", reset)];
            let named =
                |prefix| three.map(|(name, value)| (format!("{prefix}{name}"), value.into()));
            prefix.into_iter().flat_map(named).collect()
        };
        let app = router().layer(global(Quota::per_minute(2)).headers(style));
        assert_eq!(statuses(&app, ["/"]).await, [200]);
        let actual = async || {
            let response = fetch(&app, "/").await;
            let headers = rate_limit_headers(response.headers()).into_iter();
            headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        assert_eq!(actual().await, with_reset("60"), "{style:?}");
        let mut denied = with_reset("30");
        denied.insert("retry-after".into(), "30".into());
        assert_eq!(actual().await, denied, "{style:?}");
    }
}

/// `Retry-After` has a random delay.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_the_reset_of_a_denial_waits_as_long_as_retry_after_says() {
    for style in [HeaderStyle::IetfDraft03, HeaderStyle::XRateLimit] {
        let limiter = limiter("a", Quota::per_hour(1));
        let app = router().layer(RateLimitLayer::new(limiter, Global).headers(style));
        assert_eq!(statuses(&app, ["/"]).await, [200]);
        for _ in 0..20 {
            let denied = fetch(&app, "/").await;
            let headers = rate_limit_headers(denied.headers());
            let reset = headers.iter().find(|(name, _)| name.ends_with("-reset")).unwrap().1;
            assert_eq!(*reset, headers["retry-after"], "{style:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_denied_learns_the_policy_also_if_allowed_responses_leave_it_out() {
    let layer = |quota| global(quota).headers(HeaderStyle::IetfPolicyOnDenial);
    let app = router().layer(layer(Quota::per_minute(1)));
    let allowed = fetch(&app, "/").await;
    let rate_limit = ("ratelimit", r#""a";r=0;t=60"#);
    assert_eq!(rate_limit_headers(allowed.headers()), headers([rate_limit]));
    let denied = fetch(&app, "/").await;
    let policy = ("ratelimit-policy", r#""a";q=1;w=60"#);
    let retry_after = ("retry-after", "60");
    let expected = headers([rate_limit, policy, retry_after]);
    assert_eq!(rate_limit_headers(denied.headers()), expected);

    // The outer layer allows what the inner one denies.
    let app = app.layer(layer(Quota::per_minute(9)));
    let denied = fetch(&app, "/").await;
    assert_eq!(values(&denied, "ratelimit"), [r#""a";r=0;t=60"#, r#""a";r=8;t=7"#]);
    assert_eq!(values(&denied, "ratelimit-policy"), [r#""a";q=1;w=60"#]);

    // Nobody has looked how many permits remain.
    let app = router().layer(layer(Quota::per_minute(10)).cost(|_| 11));
    let denied = fetch(&app, "/").await;
    let policy = ("ratelimit-policy", r#""a";q=10;w=60"#);
    assert_eq!(rate_limit_headers(denied.headers()), headers([policy]));
}

#[tokio::test(start_paused = true)]
async fn the_epoch_style_sends_the_time_of_the_reset() {
    let epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let app = router().layer(one_per_minute().headers(HeaderStyle::XRateLimitEpoch));
    let before = epoch();
    let response = fetch(&app, "/").await;
    let reset: u64 = values(&response, "x-ratelimit-reset")[0].parse().unwrap();
    assert!((before + 60..=epoch() + 61).contains(&reset), "{reset}");
}

#[tokio::test(start_paused = true)]
async fn of_two_layers_with_a_legacy_style_one_sets_all_three_headers() {
    let layer = |quota| global(quota).headers(HeaderStyle::IetfDraft03);
    let app = router().layer(layer(Quota::per_minute(2))).layer(layer(Quota::per_minute(9)));
    let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    let response = fetch(&app, "/").await;
    assert_eq!(names.map(|name| values(&response, name)), [["2"], ["1"], ["30"]].map(Vec::from));
}

#[tokio::test(start_paused = true)]
async fn a_custom_denial_gets_the_rate_limit_headers() {
    let app = router().layer(one_per_minute().error_response(|context| {
        let wait = context.decision().unwrap().retry_after().unwrap();
        let text = format!("{} has to wait {wait:?}", context.request().uri.path());
        Response::builder().status(420).header("x-custom", "1").body(text).unwrap()
    }));
    assert_eq!(statuses(&app, ["/"]).await, [200]);
    let denied = fetch(&app, "/").await;
    assert_eq!((denied.status().as_u16(), &**denied.body()), (420, &b"/ has to wait 60s"[..]));
    assert_eq!(denied.headers()["x-custom"], "1");
    let rate_limit = ("ratelimit", r#""a";r=0;t=60"#);
    let policy = ("ratelimit-policy", r#""a";q=1;w=60"#);
    assert_eq!(
        rate_limit_headers(denied.headers()),
        headers([rate_limit, policy, ("retry-after", "60")])
    );
}

#[tokio::test(start_paused = true)]
async fn headers_that_a_custom_denial_sets_are_kept() {
    let app = router().layer(one_per_minute().error_response(|_| {
        let builder = Response::builder().status(429).header("retry-after", "3600");
        let builder = builder.header("ratelimit", r#""mine";r=0"#).header("vary", "a");
        builder.header("vary", "b").body(String::new()).unwrap()
    }));
    assert_eq!(statuses(&app, ["/"]).await, [200]);
    let denied = fetch(&app, "/").await;
    assert_eq!(values(&denied, "retry-after"), ["3600"]);
    assert_eq!(values(&denied, "ratelimit"), [r#""mine";r=0"#]);
    assert_eq!(values(&denied, "ratelimit-policy"), [r#""a";q=1;w=60"#]);
    assert_eq!(values(&denied, "vary"), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn the_cost_hook_sets_the_cost_of_a_request() {
    let cost = |parts: &Parts| parts.uri.query().map_or(1, |cost| cost.parse().unwrap());
    let app = router().layer(global(Quota::per_minute(10)).cost(cost));
    let mut responses = Vec::new();
    for path in ["/?4", "/?0", "/?7", "/?6", "/?0", "/?1"] {
        let response = fetch(&app, path).await;
        let rate_limit = values(&response, "ratelimit")[0].to_owned();
        responses.push((response.status().as_u16(), rate_limit));
    }
    let six = r#""a";r=6;t=6"#.to_owned();
    let none = r#""a";r=0;t=6"#.to_owned();
    let expected =
        [(200, &six), (200, &six), (429, &six), (200, &none), (200, &none), (429, &none)];
    let actual = responses.iter().map(|(status, rate_limit)| (*status, rate_limit));
    assert!(actual.eq(expected), "{responses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_capacity_has_no_retry_after() {
    let app = router().layer(global(Quota::per_minute(10)).cost(|_| 11));
    for _ in 0..2 {
        let denied = fetch(&app, "/").await;
        assert_eq!(denied.status(), 429);
        // Nobody has looked how many permits remain.
        let policy = ("ratelimit-policy", r#""a";q=10;w=60"#);
        assert_eq!(rate_limit_headers(denied.headers()), headers([policy]));
        let problem = problem(&denied);
        assert_eq!(problem["violated-policies"], json!(["a"]));
        assert!(problem["detail"].as_str().unwrap().contains("can ever allow"));
    }
}

#[tokio::test(start_paused = true)]
async fn limiters_per_request_have_separate_buckets_and_policy_names() {
    let store = MemoryStore::new();
    let plan = |name, n| {
        let policy = Policy::new(name).quota(name, Quota::per_minute(n));
        Limiter::new(store.clone(), policy).unwrap()
    };
    let (free, paid) = (plan("free", 1), plan("paid", 2));
    let app =
        router().layer(RateLimitLayer::new(free, Global).limiter_for(move |parts: &Parts| {
            parts.headers.contains_key("x-paid").then(|| paid.clone())
        }));
    let fetch = async |headers: &[_]| {
        let response = send(&app, request("/", headers)).await;
        let rate_limit = values(&response, "ratelimit")[0].to_owned();
        let violated =
            (response.status() == 429).then(|| problem(&response)["violated-policies"][0].clone());
        (rate_limit, violated)
    };
    let allowed = |rate_limit: &str| (rate_limit.to_owned(), None);
    let denied = |rate_limit: &str, policy: &str| (rate_limit.to_owned(), Some(json!(policy)));
    let paid = [("x-paid", "1")];
    assert_eq!(fetch(&[]).await, allowed(r#""free";r=0;t=60"#));
    assert_eq!(fetch(&paid).await, allowed(r#""paid";r=1;t=30"#));
    assert_eq!(fetch(&[]).await, denied(r#""free";r=0;t=60"#, "free"));
    assert_eq!(fetch(&paid).await, allowed(r#""paid";r=0;t=30"#));
    assert_eq!(fetch(&paid).await, denied(r#""paid";r=0;t=30"#, "paid"));
}

#[tokio::test(start_paused = true)]
async fn the_handler_receives_the_decision() {
    let limiter = limiter("a", Quota::per_minute(3));
    let expected = limiter.peek("global").await.unwrap();
    let handler = get(async |Extension(decision): Extension<Decision>| format!("{decision:?}"));
    let app = Router::new()
        .route("/", handler)
        .layer(RateLimitLayer::new(limiter.clone(), Global).retry_jitter(Duration::ZERO));
    let body = fetch(&app, "/").await.into_body();
    let now = limiter.check_cost("global", 0).await.unwrap();
    assert_eq!(body, format!("{now:?}"));
    assert_eq!((expected.remaining(), now.remaining(), now.source()), (3, 2, Source::Store));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_is_skipped_or_rejected_and_never_counted() {
    let resolver = |parts: &Parts| match parts.uri.path() {
        "/skipped" => Resolution::Skip,
        "/missing" => Resolution::Missing(Rejection::bad_request("missing key")),
        "/rejected" => Rejection::forbidden("a \"quoted\" \\ reason\n\u{e9}").into(),
        _ => Resolution::Key("key".into()),
    };
    let limiter = limiter("a", Quota::per_minute(1));
    let handler = get(async |decision: Option<Extension<Decision>>| decision.is_some().to_string());
    let layer = RateLimitLayer::new(limiter.clone(), resolver);
    let app = Router::new().fallback_service(handler).layer(layer);

    let skipped = fetch(&app, "/skipped").await;
    assert_eq!((skipped.status().as_u16(), &**skipped.body()), (200, &b"false"[..]));
    let missing = fetch(&app, "/missing").await;
    assert_eq!(
        (missing.status().as_u16(), &problem(&missing)["detail"]),
        (400, &json!("missing key"))
    );
    let rejected = fetch(&app, "/rejected").await;
    let detail = json!("a \"quoted\" \\ reason \u{e9}");
    assert_eq!((rejected.status().as_u16(), &problem(&rejected)["detail"]), (403, &detail));
    for response in [skipped, missing, rejected] {
        assert_eq!(rate_limit_headers(response.headers()), headers([]));
    }
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 1);
    assert_eq!(fetch(&app, "/counted").await.body(), "true");
}

#[tokio::test(start_paused = true)]
async fn a_response_reveals_nothing_about_a_misconfigured_server() {
    let limiter = limiter("a", Quota::per_minute(1));
    let app = router().layer(RateLimitLayer::new(limiter, PeerIp::new()));
    let response = fetch(&app, "/").await;
    assert_eq!(response.status(), 500);
    let problem = problem(&response);
    assert_eq!(
        problem,
        json!({ "type": "about:blank", "title": "Internal Server Error", "status": 500 })
    );

    let client = |n| app.clone().layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, n], 4711))));
    assert_eq!(statuses(&client(1), ["/", "/"]).await, [200, 429]);
    assert_eq!(statuses(&client(2), ["/", "/"]).await, [200, 429]);
}

/// Sends three requests, one after the other, to an app whose Redis is down. Each is answered sooner than
/// an attempt to connect is given up, which takes half a second.
async fn fetch_without_redis(address: SocketAddr, mode: FailureMode) -> Vec<Response<Bytes>> {
    let store = RedisStore::open(format!("redis://{address}/")).unwrap();
    let limiter = Limiter::builder(store, Quota::per_minute(3)).failure_mode(mode).build().unwrap();
    let handler =
        get(async |Extension(decision): Extension<Decision>| format!("{:?}", decision.source()));
    let app = Router::new().route("/", handler).layer(RateLimitLayer::new(limiter, Global));
    let mut responses = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        responses.push(fetch(&app, "/").await);
        let took = started.elapsed();
        assert!(took < Duration::from_millis(50 + 300), "{mode:?}: {took:?}");
    }
    responses
}

#[tokio::test]
async fn an_outage_is_never_reported_as_a_denial() {
    // A socket that is bound but does not listen refuses connections and reserves the port. The
    // listener accepts connections and never replies.
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let unresponsive = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for address in [refusing.local_addr().unwrap(), unresponsive.local_addr().unwrap()] {
        for response in fetch_without_redis(address, FailureMode::Closed).await {
            assert_eq!(
                (response.status().as_u16(), &problem(&response)["type"]),
                (503, &json!(REDUCED_CAPACITY))
            );
            let retry_after = response.headers()["retry-after"].to_str().unwrap();
            assert!((1..=5).contains(&retry_after.parse().unwrap()), "{retry_after}");
            assert_eq!(rate_limit_headers(response.headers()).len(), 1);
        }
        for response in fetch_without_redis(address, FailureMode::Open).await {
            assert_eq!(
                (response.status().as_u16(), &**response.body()),
                (200, &b"FailureMode"[..])
            );
            assert_eq!(rate_limit_headers(response.headers()), headers([]));
        }
        for response in fetch_without_redis(address, FailureMode::Local).await {
            assert_eq!((response.status().as_u16(), &**response.body()), (200, &b"Local"[..]));
            assert_ne!(rate_limit_headers(response.headers()), headers([]));
        }
    }
}

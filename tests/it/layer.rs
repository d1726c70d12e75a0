//! The layer on axum apps, with buckets in memory and a clock that stands still.

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
use axum::{Router, ServiceExt};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, advance};
use tollgate::layer::HeaderStyle;
use tollgate::resolve::{Global, Header, MatchedPath, PeerIp};
use tollgate::{
    Decision, FailureMode, KeyResolver, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    RedisStore, Rejection, Resolution, Source,
};
use tower::{Layer, ServiceBuilder, ServiceExt as _};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

fn limiter(name: &'static str, quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), Policy::new(name).quota(name, quota)).unwrap()
}

fn global(quota: Quota) -> RateLimitLayer<Global> {
    RateLimitLayer::new(limiter("a", quota), Global)
}

/// One request passes, and no other for a minute.
fn once() -> RateLimitLayer<Global> {
    global(Quota::per_minute(1))
}

fn handler() -> MethodRouter {
    get(async || "handled")
}

fn plain() -> Router {
    Router::new().route("/", handler())
}

/// Headers as pairs after the path.
fn request(path: &str, headers: &[(&str, &str)]) -> Request {
    let builder = headers.iter().fold(Request::get(path), |builder, (k, v)| builder.header(*k, *v));
    builder.body(Body::empty()).unwrap()
}

async fn send(app: &Router, request: Request) -> Response<Bytes> {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    Response::from_parts(parts, to_bytes(body, usize::MAX).await.unwrap())
}

async fn ask(app: &Router, path: &str) -> Response<Bytes> {
    send(app, request(path, &[])).await
}

async fn statuses<const N: usize>(app: &Router, paths: [&str; N]) -> [u16; N] {
    let mut statuses = [0; N];
    for (status, path) in statuses.iter_mut().zip(paths) {
        *status = ask(app, path).await.status().as_u16();
    }
    statuses
}

/// The problem that a response says it is.
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

/// All fields that tell a client where it stands.
fn told(headers: &HeaderMap) -> BTreeMap<&str, &str> {
    let all = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    all.filter(|(name, _)| name.contains("ratelimit") || *name == "retry-after").collect()
}

fn fields<const N: usize>(
    fields: [(&'static str, &'static str); N],
) -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from(fields)
}

/// As a user writes it: the type of a body is nowhere.
fn app() -> Router {
    let by_key = Header::new(HeaderName::from_static("x-api-key")).or_skip();
    let search = RateLimitLayer::new(limiter("search", Quota::per_minute(1)), by_key);
    let by_route = (PeerIp::new(), MatchedPath.or(Global));
    let routes = RateLimitLayer::new(limiter("routes", Quota::per_minute(3)), by_route)
        .headers(HeaderStyle::IetfDraft03)
        .cost(|parts| if parts.uri.path() == "/free" { 0 } else { 1 });
    Router::new()
        .route("/search", get(async || "found").layer(search))
        .route("/users/{id}", handler())
        .layer(routes)
}

#[tokio::test(start_paused = true)]
async fn an_app_with_limits_is_written_without_the_type_of_a_body() {
    let _ = app().into_make_service_with_connect_info::<SocketAddr>();
    let client = |n| app().layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, n], 4711))));
    let (app, key) = (client(1), [("x-api-key", "a")]);

    assert_eq!(send(&app, request("/search", &key)).await.status(), 200);
    assert_eq!(send(&app, request("/search", &key)).await.status(), 429);
    assert_eq!(send(&app, request("/search", &[])).await.status(), 200);
    // The fourth that this client sends there, whatever its key.
    assert_eq!(send(&app, request("/search", &[("x-api-key", "b")])).await.status(), 429);
    assert_eq!(
        statuses(&app, ["/users/1", "/users/2", "/users/3", "/users/4"]).await,
        [200, 200, 200, 429]
    );
}

#[tokio::test(start_paused = true)]
async fn it_limits_wherever_axum_takes_a_layer() {
    let stack = || ServiceBuilder::new().map_request(|request: Request| request).layer(once());
    let apps = [
        ("Router::layer", plain().layer(once())),
        ("Router::route_layer", plain().route_layer(once())),
        ("MethodRouter::layer", Router::new().route("/", handler().layer(once()))),
        ("MethodRouter::route_layer", Router::new().route("/", handler().route_layer(once()))),
        ("ServiceBuilder::layer", plain().layer(stack())),
        ("ServiceBuilder::service", Router::new().fallback_service(stack().service(plain()))),
    ];
    for (place, app) in apps {
        let response = ask(&app, "/").await;
        assert_eq!((response.status(), &**response.body()), (StatusCode::OK, &b"handled"[..]));
        assert_eq!(values(&response, "ratelimit"), [r#""a";r=0;t=60"#], "{place}");
        assert_eq!(ask(&app, "/").await.status(), 429, "{place}");
    }
    // Around a whole app there is no router left, but still a service to serve.
    let _ = ServiceExt::<Request>::into_make_service(once().layer(plain()));
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_one_route_or_of_the_routes_counts_nothing_else() {
    let two = || Router::new().route("/a", handler()).route("/b", handler());
    let one_route = Router::new().route("/a", handler().layer(once())).route("/b", handler());
    assert_eq!(statuses(&one_route, ["/b", "/a", "/a", "/b"]).await, [200, 200, 429, 200]);

    let nested = Router::new().nest("/n", plain().layer(once())).route("/", handler());
    assert_eq!(statuses(&nested, ["/n", "/n", "/"]).await, [200, 429, 200]);

    let routes = two().route_layer(once());
    assert_eq!(statuses(&routes, ["/none", "/a", "/b", "/none"]).await, [404, 200, 429, 404]);
    let all = two().layer(once());
    assert_eq!(statuses(&all, ["/none", "/a", "/none"]).await, [404, 429, 429]);
}

#[tokio::test(start_paused = true)]
async fn of_two_layers_both_tell_and_the_outer_asks_first() {
    let outer = RateLimitLayer::new(limiter("outer", Quota::per_minute(2)), Global);
    let inner = limiter("inner", Quota::per_minute(1));
    let sees = get(async |Extension(seen): Extension<Decision>| seen.limit().to_string());
    let app = Router::new()
        .route("/", sees.layer(RateLimitLayer::new(inner.clone(), Global)))
        .layer(outer);

    let both = ask(&app, "/").await;
    assert_eq!(both.body(), "1", "the decision next to the handler");
    assert_eq!(values(&both, "ratelimit"), [r#""inner";r=0;t=60"#, r#""outer";r=1;t=30"#]);
    assert_eq!(values(&both, "ratelimit-policy"), [r#""inner";q=1;w=60"#, r#""outer";q=2;w=60"#]);

    let by_inner = ask(&app, "/").await;
    assert_eq!(problem(&by_inner)["violated-policies"], json!(["inner"]));
    assert_eq!(values(&by_inner, "ratelimit"), [r#""inner";r=0;t=60"#, r#""outer";r=0;t=30"#]);
    assert_eq!(values(&by_inner, "retry-after"), ["60"]);

    inner.reset("global").await.unwrap();
    let by_outer = ask(&app, "/").await;
    assert_eq!(problem(&by_outer)["violated-policies"], json!(["outer"]));
    assert_eq!(values(&by_outer, "ratelimit"), [r#""outer";r=0;t=30"#]);
    assert_eq!(inner.peek("global").await.unwrap().remaining(), 1, "the inner was not asked");
}

#[tokio::test(start_paused = true)]
async fn the_fields_tell_where_a_client_stands() {
    let app = plain().layer(global(Quota::per_minute(2).burst(3)));
    let policy = ("ratelimit-policy", r#""a";q=3;w=90"#);
    for standing in [r#""a";r=2;t=30"#, r#""a";r=1;t=30"#, r#""a";r=0;t=30"#] {
        let response = ask(&app, "/").await;
        assert_eq!(told(response.headers()), fields([("ratelimit", standing), policy]));
    }
    advance(Duration::from_micros(10_000_001)).await;
    let denied = ask(&app, "/").await;
    let standing = ("ratelimit", r#""a";r=0;t=20"#);
    assert_eq!(told(denied.headers()), fields([standing, policy, ("retry-after", "20")]));
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_a_problem_that_names_the_policy() {
    let handled = Arc::new(AtomicU32::new(0));
    let counted = handled.clone();
    let handler = get(async move || counted.fetch_add(1, SeqCst).to_string());
    let app = Router::new().route("/", handler).layer(once());
    assert_eq!(statuses(&app, ["/", "/"]).await, [200, 429]);
    let expected = json!({
        "type": QUOTA_EXCEEDED,
        "title": "Rate limit exceeded",
        "status": 429,
        "violated-policies": ["a"],
    });
    assert_eq!(problem(&ask(&app, "/").await), expected);
    assert_eq!(handled.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_as_told_is_never_early() {
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
        let app = plain().layer(global(quota).cost(move |_| cost));
        let mut response = ask(&app, "/").await;
        while response.status() == 200 {
            response = ask(&app, "/").await;
        }
        let standing = values(&response, "ratelimit")[0];
        let t: u64 = standing.split_once(";t=").unwrap().1.parse().unwrap();
        let retry_after: u64 = values(&response, "retry-after")[0].parse().unwrap();
        assert!(retry_after >= t.max(1), "{quota:?}: {standing}, {retry_after}");
        advance(Duration::from_secs(retry_after)).await;
        assert_eq!(ask(&app, "/").await.status(), 200, "{quota:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_recovers_at_the_microsecond() {
    let limiter = limiter("a", Quota::per_minute(7).burst(2));
    let app = plain().layer(RateLimitLayer::new(limiter.clone(), Global));
    assert_eq!(statuses(&app, ["/", "/", "/"]).await, [200, 200, 429]);
    let wait = limiter.peek("global").await.unwrap().retry_after().unwrap();
    assert_eq!(wait, Duration::from_micros(8_571_429));
    advance(wait - Duration::from_micros(1)).await;
    let denied = ask(&app, "/").await;
    assert_eq!(
        (denied.status(), values(&denied, "retry-after")),
        (429.try_into().unwrap(), vec!["1"])
    );
    advance(Duration::from_micros(1)).await;
    assert_eq!(statuses(&app, ["/", "/"]).await, [200, 429]);
}

#[tokio::test(start_paused = true)]
async fn each_style_is_told_in_its_own_names_only() {
    let three = |prefix: &str, reset: &str| {
        let names = ["limit", "remaining", "reset"].map(|name| format!("{prefix}{name}"));
        names.into_iter().zip(["2", "0", reset].map(String::from)).collect::<Vec<_>>()
    };
    let styles = [
        (HeaderStyle::IetfDraft03, three("ratelimit-", "60")),
        (HeaderStyle::XRateLimit, three("x-ratelimit-", "60")),
        (HeaderStyle::None, vec![]),
    ];
    for (style, expected) in styles {
        let app = plain().layer(global(Quota::per_minute(2)).headers(style));
        assert_eq!(statuses(&app, ["/"]).await, [200]);
        let own = |(name, value): &(String, String)| (name.clone(), value.clone());
        let mut expected: BTreeMap<_, _> = expected.iter().map(own).collect();
        let told = async || {
            let response = ask(&app, "/").await;
            let owned = told(response.headers()).into_iter();
            owned
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        assert_eq!(told().await, expected, "{style:?}");
        expected.insert("retry-after".into(), "30".into());
        assert_eq!(told().await, expected, "{style:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_epoch_is_that_of_the_reset() {
    let epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let app = plain().layer(once().headers(HeaderStyle::XRateLimitEpoch));
    let before = epoch();
    let response = ask(&app, "/").await;
    let reset: u64 = values(&response, "x-ratelimit-reset")[0].parse().unwrap();
    assert!((before + 60..=epoch() + 61).contains(&reset), "{reset}");
}

#[tokio::test(start_paused = true)]
async fn of_two_layers_in_an_older_dialect_the_innermost_tells_all_three() {
    let layer = |quota| global(quota).headers(HeaderStyle::IetfDraft03);
    let app = plain().layer(layer(Quota::per_minute(2))).layer(layer(Quota::per_minute(9)));
    let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    let response = ask(&app, "/").await;
    assert_eq!(names.map(|name| values(&response, name)), [["2"], ["1"], ["30"]].map(Vec::from));
}

#[tokio::test(start_paused = true)]
async fn a_denial_of_ones_own_is_completed() {
    let app = plain().layer(once().error_response(|context| {
        let wait = context.decision().unwrap().retry_after().unwrap();
        let text = format!("{} has to wait {wait:?}", context.request().uri.path());
        Response::builder().status(420).header("x-own", "1").body(text).unwrap()
    }));
    assert_eq!(statuses(&app, ["/"]).await, [200]);
    let denied = ask(&app, "/").await;
    assert_eq!((denied.status().as_u16(), &**denied.body()), (420, &b"/ has to wait 60s"[..]));
    assert_eq!(denied.headers()["x-own"], "1");
    let standing = [("ratelimit", r#""a";r=0;t=60"#), ("ratelimit-policy", r#""a";q=1;w=60"#)];
    let [standing, policy] = standing;
    assert_eq!(told(denied.headers()), fields([standing, policy, ("retry-after", "60")]));
}

#[tokio::test(start_paused = true)]
async fn what_a_denial_of_ones_own_says_itself_is_kept() {
    let app = plain().layer(once().error_response(|_| {
        let builder = Response::builder().status(429).header("retry-after", "3600");
        let builder = builder.header("ratelimit", r#""mine";r=0"#).header("vary", "a");
        builder.header("vary", "b").body(String::new()).unwrap()
    }));
    assert_eq!(statuses(&app, ["/"]).await, [200]);
    let denied = ask(&app, "/").await;
    assert_eq!(values(&denied, "retry-after"), ["3600"]);
    assert_eq!(values(&denied, "ratelimit"), [r#""mine";r=0"#]);
    assert_eq!(values(&denied, "ratelimit-policy"), [r#""a";q=1;w=60"#]);
    assert_eq!(values(&denied, "vary"), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_costs_what_the_hook_says() {
    let cost = |parts: &Parts| parts.uri.query().map_or(1, |cost| cost.parse().unwrap());
    let app = plain().layer(global(Quota::per_minute(10)).cost(cost));
    let mut told = Vec::new();
    for path in ["/?4", "/?0", "/?7", "/?6", "/?0", "/?1"] {
        let response = ask(&app, path).await;
        let standing = values(&response, "ratelimit")[0].to_owned();
        told.push((response.status().as_u16(), standing));
    }
    let six = r#""a";r=6;t=6"#.to_owned();
    let none = r#""a";r=0;t=6"#.to_owned();
    let expected =
        [(200, &six), (200, &six), (429, &six), (200, &none), (200, &none), (429, &none)];
    assert!(told.iter().map(|(status, standing)| (*status, standing)).eq(expected), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn what_can_never_pass_is_not_told_to_come_again() {
    let app = plain().layer(global(Quota::per_minute(10)).cost(|_| 11));
    for _ in 0..2 {
        let denied = ask(&app, "/").await;
        assert_eq!(denied.status(), 429);
        let policy = ("ratelimit-policy", r#""a";q=10;w=60"#);
        assert_eq!(told(denied.headers()), fields([("ratelimit", r#""a";r=10"#), policy]));
        let problem = problem(&denied);
        assert_eq!(problem["violated-policies"], json!(["a"]));
        assert!(problem["detail"].as_str().unwrap().contains("can ever allow"));
    }
}

#[tokio::test(start_paused = true)]
async fn plans_have_their_own_buckets_and_names() {
    let store = MemoryStore::new();
    let plan = |name, n| {
        let policy = Policy::new(name).quota(name, Quota::per_minute(n));
        Limiter::new(store.clone(), policy).unwrap()
    };
    let (free, paid) = (plan("free", 1), plan("paid", 2));
    let app = plain().layer(RateLimitLayer::new(free, Global).limiter_for(move |parts: &Parts| {
        parts.headers.contains_key("x-paid").then(|| paid.clone())
    }));
    let ask = async |headers: &[_]| {
        let response = send(&app, request("/", headers)).await;
        let told = values(&response, "ratelimit")[0].to_owned();
        let violated =
            (response.status() == 429).then(|| problem(&response)["violated-policies"][0].clone());
        (told, violated)
    };
    let passes = |told: &str| (told.to_owned(), None);
    let denied = |told: &str, by: &str| (told.to_owned(), Some(json!(by)));
    let paying = [("x-paid", "1")];
    assert_eq!(ask(&[]).await, passes(r#""free";r=0;t=60"#));
    assert_eq!(ask(&paying).await, passes(r#""paid";r=1;t=30"#));
    assert_eq!(ask(&[]).await, denied(r#""free";r=0;t=60"#, "free"));
    assert_eq!(ask(&paying).await, passes(r#""paid";r=0;t=30"#));
    assert_eq!(ask(&paying).await, denied(r#""paid";r=0;t=30"#, "paid"));
}

#[tokio::test(start_paused = true)]
async fn the_handler_finds_the_decision() {
    let limiter = limiter("a", Quota::per_minute(3));
    let expected = limiter.peek("global").await.unwrap();
    let handler = get(async |Extension(decision): Extension<Decision>| format!("{decision:?}"));
    let app = Router::new().route("/", handler).layer(RateLimitLayer::new(limiter.clone(), Global));
    let body = ask(&app, "/").await.into_body();
    let now = limiter.check_cost("global", 0).await.unwrap();
    assert_eq!(body, format!("{now:?}"));
    assert_eq!((expected.remaining(), now.remaining(), now.source()), (3, 2, Source::Store));
}

#[tokio::test(start_paused = true)]
async fn without_a_key_a_request_is_exempt_or_answered_and_never_counted() {
    let who = |parts: &Parts| match parts.uri.path() {
        "/exempt" => Resolution::Skip,
        "/missing" => Resolution::Missing(Rejection::bad_request("who are you?")),
        "/refused" => Rejection::forbidden("not \"you\" \\ again\n\u{e9}").into(),
        _ => Resolution::Key("somebody".into()),
    };
    let limiter = limiter("a", Quota::per_minute(1));
    let sees = get(async |seen: Option<Extension<Decision>>| seen.is_some().to_string());
    let app = Router::new().fallback_service(sees).layer(RateLimitLayer::new(limiter.clone(), who));

    let exempt = ask(&app, "/exempt").await;
    assert_eq!((exempt.status().as_u16(), &**exempt.body()), (200, &b"false"[..]));
    let missing = ask(&app, "/missing").await;
    assert_eq!(
        (missing.status().as_u16(), &problem(&missing)["detail"]),
        (400, &json!("who are you?"))
    );
    let refused = ask(&app, "/refused").await;
    let title = json!("not \"you\" \\ again \u{e9}");
    assert_eq!((refused.status().as_u16(), &problem(&refused)["detail"]), (403, &title));
    for response in [exempt, missing, refused] {
        assert_eq!(told(response.headers()), fields([]));
    }
    assert_eq!(limiter.peek("somebody").await.unwrap().remaining(), 1);
    assert_eq!(ask(&app, "/counted").await.body(), "true");
}

#[tokio::test(start_paused = true)]
async fn a_client_learns_nothing_about_a_misconfigured_server() {
    let limiter = limiter("a", Quota::per_minute(1));
    let app = plain().layer(RateLimitLayer::new(limiter, PeerIp::new()));
    let response = ask(&app, "/").await;
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

/// Asks an app on a Redis that is down, three times in a row, with what each answer took.
async fn without_redis(address: SocketAddr, mode: FailureMode) -> Vec<(Response<Bytes>, Duration)> {
    let store = RedisStore::open(format!("redis://{address}/")).unwrap();
    let limiter = Limiter::builder(store, Quota::per_minute(1)).failure_mode(mode).build().unwrap();
    let sees = get(async |Extension(seen): Extension<Decision>| format!("{:?}", seen.source()));
    let app = Router::new().route("/", sees).layer(RateLimitLayer::new(limiter, Global));
    let mut answers = Vec::new();
    for _ in 0..3 {
        let asked = Instant::now();
        answers.push((ask(&app, "/").await, asked.elapsed()));
    }
    answers
}

/// A clock that stands still goes on to the next timer when nobody has anything to do, so that an
/// answer that takes too long for itself takes too long here, whatever else the machine does. It is
/// only for servers that never answer: what they would send could come too late by this clock.
#[tokio::test(start_paused = true)]
async fn an_outage_is_never_told_as_a_denial_and_takes_no_longer_than_the_deadline() {
    // Bound, so that nobody else listens there, and not listening: refuses. And one that takes
    // connections and says nothing.
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Tokio's timers are in whole milliseconds, rounded up.
    let timeout = Duration::from_millis(50 + 1);

    for address in [refusing.local_addr().unwrap(), silent.local_addr().unwrap()] {
        for (answer, took) in without_redis(address, FailureMode::Closed).await {
            assert_eq!(
                (answer.status().as_u16(), &problem(&answer)["type"]),
                (503, &json!(REDUCED_CAPACITY))
            );
            assert_eq!(told(answer.headers()), fields([]));
            assert!(took <= timeout, "{took:?}");
        }
        for (answer, took) in without_redis(address, FailureMode::Open).await {
            assert_eq!((answer.status().as_u16(), &**answer.body()), (200, &b"FailureMode"[..]));
            assert_eq!(told(answer.headers()), fields([]));
            assert!(took <= timeout, "{took:?}");
        }
    }
}

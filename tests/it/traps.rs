//! Common mistakes: each fails to compile, returns an error, or logs what to change. Those that must
//! not compile are doc tests of the items they concern.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::routing::{any, get};
use axum::{Extension, Router};
use fleetlimit::layer::HeaderStyle;
use fleetlimit::resolve::{ClientIp, Extension as Ext, Global, Header, PeerIp};
use fleetlimit::{
    Costs, Decision, ErrorKind, FailureMode, KeyResolver, Limiter, MemoryStore, Policy, Quota,
    RateLimitLayer, RedisStore, Source, Store,
};
use http::header::CONTENT_TYPE;
use http::{HeaderName, StatusCode};
use tokio::time::advance;
use tower::{Layer, ServiceExt};

use crate::common::{BOUND, Proxy, Server, start, wait_until};
use crate::log::Log;
use crate::metrics::{recorder, value};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Nothing listens there.
const NOWHERE: &str = "redis://127.0.0.1:1";

fn policy(name: &'static str, quota: Quota) -> Policy {
    Policy::new(name).quota(name, quota)
}

async fn get_status(app: &Router, request: Request) -> StatusCode {
    app.clone().oneshot(request).await.unwrap().status()
}

fn request(headers: &[(HeaderName, &str)]) -> Request {
    with_method("GET", headers)
}

fn post(headers: &[(HeaderName, &str)]) -> Request {
    with_method("POST", headers)
}

fn post_to(path: &str, headers: &[(HeaderName, &str)]) -> Request {
    let mut request = post(headers);
    *request.uri_mut() = path.parse().unwrap();
    request
}

fn with_method(method: &str, headers: &[(HeaderName, &str)]) -> Request {
    let builder = Request::builder().method(method).uri("/");
    let builder =
        headers.iter().fold(builder, |builder, (name, value)| builder.header(name, *value));
    builder.body(Body::empty()).unwrap()
}

// Trap 1.

fn assert_one_policy_per_name(store: impl Store + Clone) {
    let per_second = Limiter::new(store.clone(), Quota::per_second(10)).unwrap();
    let error = Limiter::new(store.clone(), Quota::per_day(1_000)).unwrap_err().to_string();
    assert!(error.contains("`default`") && error.contains("its own name"), "{error}");
    assert!(error.contains("10/s") && error.contains("1000/day"), "{error}");

    let same = Limiter::new(store.clone(), Quota::per_second(10)).unwrap();
    let named = Limiter::new(store.clone(), policy("daily", Quota::per_day(1_000))).unwrap();
    drop((per_second, named));
    assert!(Limiter::new(store.clone(), Quota::per_day(1_000)).is_err(), "one is still in use");
    drop(same);
    Limiter::new(store, Quota::per_day(1_000)).unwrap();
}

#[test]
fn two_quotas_of_one_name_on_one_store_are_an_error() {
    assert_one_policy_per_name(MemoryStore::new());
    assert_one_policy_per_name(RedisStore::open(NOWHERE).unwrap());
}

#[test]
fn another_key_prefix_is_another_store() {
    let store = RedisStore::open(NOWHERE).unwrap();
    let _one = Limiter::new(store.clone(), Quota::per_second(10)).unwrap();
    Limiter::new(store.key_prefix("other"), Quota::per_day(1_000)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_update_changes_all_limiters_of_the_policy_and_no_other() {
    let store = MemoryStore::new();
    let [one, other] =
        [(); 2].map(|()| Limiter::new(store.clone(), policy("a", Quota::per_minute(1))).unwrap());
    let unrelated = Limiter::new(store.clone(), policy("b", Quota::per_minute(1))).unwrap();
    one.update(policy("a", Quota::per_minute(5))).unwrap();
    for limiter in [&one, &other] {
        assert_eq!(limiter.check("key").await.unwrap().limit(), 5);
        assert_eq!(limiter.policy().quotas().next().unwrap().1.permits(), 5);
    }
    assert_eq!(unrelated.check("key").await.unwrap().limit(), 1);
    Limiter::new(store, policy("a", Quota::per_minute(5))).unwrap();
}

#[tokio::test]
async fn costs_for_a_quota_that_does_not_exist_are_an_error_in_any_failure_mode() {
    let policy = Policy::new("upload").quota("bytes", Quota::per_day(1_000));
    let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
    let costs = Costs::new(1).with("byts", 10);
    let error = limiter.check_cost("key", costs).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownQuota);
    assert!(
        error.to_string().contains("`byts`") && error.to_string().contains("`upload`"),
        "{error}"
    );
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 1_000);
}

#[tokio::test]
async fn an_invalid_update_changes_nothing() {
    let limiter = Limiter::new(MemoryStore::new(), policy("a", Quota::per_minute(1))).unwrap();
    let error = limiter.update(Quota::per_minute(5)).unwrap_err().to_string();
    assert!(error.contains("`a`") && error.contains("keeps the name"), "{error}");
    limiter.update(policy("a", Quota::per_minute(0))).unwrap_err();
    limiter.update(Policy::new("a")).unwrap_err();
    assert_eq!(*limiter.policy(), policy("a", Quota::per_minute(1)));
}

#[tokio::test]
async fn a_cached_denial_does_not_outlive_an_update() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_day(1))
        .cache_denials(BOUND)
        .timeout(BOUND)
        .build()
        .unwrap();
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Cached);
    // Also empty by the new numbers, so that only the cache could still answer.
    limiter.update(Quota::per_day(2).burst(1)).unwrap();
    let denied = limiter.check("key").await.unwrap();
    assert!(denied.is_denied() && denied.source() == Source::Store, "{denied:?}");
}

#[tokio::test]
async fn a_raised_quota_helps_an_exhausted_key_at_once() {
    let server = Server::start().await;
    for is_cached in [false, true] {
        let store = RedisStore::open(server.url()).unwrap().key_prefix(format!("p{is_cached}"));
        let limiter =
            Limiter::builder(store, Quota::per_day(3)).cache_denials(BOUND).timeout(BOUND);
        let limiter = limiter.build().unwrap();
        assert!(limiter.check_cost("key", 3).await.unwrap().is_allowed());
        if is_cached {
            assert!(limiter.check("key").await.unwrap().is_denied());
            assert_eq!(limiter.check("key").await.unwrap().source(), Source::Cached);
        }
        limiter.update(Quota::per_day(6)).unwrap();
        for remaining in [2, 1, 0] {
            let decision = limiter.check("key").await.unwrap();
            assert!(decision.is_allowed() && decision.remaining() == remaining, "{decision:?}");
        }
        assert!(limiter.check("key").await.unwrap().is_denied());
    }
}

#[tokio::test]
async fn a_denial_at_the_rate_of_another_revision_is_cached_with_its_wait() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_hour(10)).cache_denials(BOUND).timeout(BOUND);
    let limiter = limiter.build().unwrap();
    assert!(limiter.check_cost("key", 10).await.unwrap().is_allowed());
    limiter.update(Quota::per_second(10)).unwrap();
    let waits = async |cost| {
        let denied = limiter.check_cost("key", cost).await.unwrap();
        (denied.source(), denied.retry_after().unwrap().as_secs_f64())
    };
    let (source, wait) = waits(1).await;
    assert!(source == Source::Store && (359.0..=360.0).contains(&wait), "{wait}");
    for (cost, seconds) in [(1, 360.0), (2, 720.0), (10, 3_600.0)] {
        let (source, wait) = waits(cost).await;
        assert_eq!(source, Source::Cached);
        assert!((seconds - 1.0..=seconds).contains(&wait), "{cost}: {wait}");
    }
}

/// The reply to a check that was sent before an update is read by the numbers that it was sent with.
#[tokio::test]
async fn a_check_in_flight_during_an_update_is_decided_by_the_old_numbers() {
    let server = Server::start().await;
    let builder = Limiter::builder(RedisStore::open(server.url()).unwrap(), Quota::per_day(10));
    let limiter = builder.timeout(BOUND).build().unwrap();
    limiter.check("warm").await.unwrap().ensure_allowed().unwrap();
    server.pause();
    let (checked, peeked) = (start(limiter.check("key")), start(limiter.peek("key")));
    limiter.update(Quota::per_day(3)).unwrap();
    server.resume();
    assert_eq!(checked.await.unwrap().limit(), 10);
    assert_eq!(peeked.await.unwrap().limit(), 10);
    assert_eq!(limiter.check("key").await.unwrap().limit(), 3);
}

// Trap 2: see `Decision` for what does not compile.

#[tokio::test(start_paused = true)]
async fn a_denial_stops_a_handler_that_uses_the_question_mark() {
    async fn handle(limiter: &Limiter) -> Result<&'static str, fleetlimit::Error> {
        limiter.check("key").await?.ensure_allowed()?;
        Ok("handled")
    }
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    assert_eq!(handle(&limiter).await.unwrap(), "handled");
    let error = handle(&limiter).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(error.decision().unwrap().retry_after(), Some(Duration::from_secs(60)));
}

// Trap 3.

#[tokio::test(start_paused = true)]
async fn a_key_over_its_limit_is_denied_and_does_not_exceed_the_capacity() {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let allowed = limiter.check("key").await.unwrap();
    assert!(allowed.is_allowed() && !allowed.is_denied());
    assert_eq!(allowed.retry_after(), None);
    let denied = limiter.check("key").await.unwrap();
    assert!(denied.is_denied() && !denied.exceeds_capacity());
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)));
    let never = limiter.check_cost("key", 2).await.unwrap();
    assert!(never.is_denied() && never.exceeds_capacity());
    assert_eq!((never.retry_after(), never.source()), (None, Source::Quota));
}

// Trap 4: see `grpc.rs` for real clients.

#[tokio::test(start_paused = true)]
async fn a_grpc_web_request_gets_a_grpc_web_response() {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let layer = RateLimitLayer::new(limiter, Global).grpc();
    let app = Router::new().fallback(async || ()).layer(layer);
    let web = [(CONTENT_TYPE, "application/grpc-web+proto")];
    assert_eq!(get_status(&app, post(&web)).await, StatusCode::OK);
    let denied = app.clone().oneshot(post(&web)).await.unwrap();
    assert_eq!(denied.status(), StatusCode::OK);
    assert_eq!(denied.headers()["grpc-status"], "8");
    assert_eq!(denied.headers()["content-type"], "application/grpc-web");
    assert_eq!(get_status(&app, post(&[])).await, StatusCode::TOO_MANY_REQUESTS);
    // A cache would store a 200.
    assert_eq!(get_status(&app, request(&web)).await, StatusCode::TOO_MANY_REQUESTS);
}

/// The status of a gRPC response is 200, which logs, and programs that block addresses after errors, take
/// for success.
#[tokio::test(start_paused = true)]
async fn a_client_of_an_http_route_cannot_turn_its_denial_into_a_success() {
    let grpc = [(CONTENT_TYPE, "application/grpc")];
    for (route, path) in [
        ("/login", "/login"),
        ("/v1.0/{*rest}", "/v1.0/Login"),
        ("/{bucket}/{object}", "/package.Service/Method"),
        ("/{*rest}", "/package.Service/Method"),
        ("/files/{*rest}", "/files/package.Service/Method"),
    ] {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
        let layer = RateLimitLayer::new(limiter, Global);
        // Around the routes, where axum has found the route, and around the whole app.
        let routes = Router::new().route(route, any(async || ()));
        let around = layer.layer(Router::new().route(route, any(async || ())));
        for app in [routes.layer(layer), Router::new().fallback_service(around)] {
            let _ = app.clone().oneshot(post_to(path, &grpc)).await.unwrap();
            let denied = app.oneshot(post_to(path, &grpc)).await.unwrap();
            assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS, "{route}");
            assert_eq!(denied.headers()["content-type"], "application/problem+json");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tonic_service_in_an_axum_router_needs_no_option_for_grpc() {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let routes = tonic::service::Routes::new(health).into_axum_router();
    let app = routes.route("/login", any(async || ())).layer(RateLimitLayer::new(limiter, Global));
    let request = |path| post_to(path, &[(CONTENT_TYPE, "application/grpc")]);
    let _ = app.clone().oneshot(request("/grpc.health.v1.Health/Check")).await.unwrap();
    let denied = app.clone().oneshot(request("/grpc.health.v1.Health/Check")).await.unwrap();
    assert_eq!((denied.status(), &denied.headers()["grpc-status"]), (StatusCode::OK, &8.into()));
    let denied = app.oneshot(request("/login")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// There the layer does not know the route.
#[tokio::test(start_paused = true)]
async fn a_tonic_service_in_a_whole_app_needs_the_option_for_grpc() {
    for (is_grpc, status) in [(false, StatusCode::TOO_MANY_REQUESTS), (true, StatusCode::OK)] {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
        let (_, health) = tonic_health::server::health_reporter();
        let routes = || tonic::service::Routes::new(health.clone()).into_axum_router();
        let layer = RateLimitLayer::new(limiter, Global);
        let layer = if is_grpc { layer.grpc() } else { layer };
        let around = Router::new().fallback_service(layer.layer(routes()));
        let fallback = Router::new().fallback_service(routes()).layer(layer.clone());
        let nested = Router::new().nest("/api", routes().layer(layer));
        let path = "/grpc.health.v1.Health/Check";
        let _ = get_status(&around, post_to(path, &[])).await;
        for (app, prefix) in [(around, ""), (fallback, ""), (nested, "/api")] {
            let grpc = post_to(&format!("{prefix}{path}"), &[(CONTENT_TYPE, "application/grpc")]);
            let denied = app.oneshot(grpc).await.unwrap();
            assert_eq!(denied.status(), status);
            assert_eq!(denied.headers().contains_key("grpc-status"), is_grpc);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_custom_response_decides_for_grpc_too() {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let layer = RateLimitLayer::new(limiter, Global).grpc().error_response(|context| {
        let mut response = context.default_response();
        if response.headers().contains_key("grpc-status") {
            response.headers_mut().insert("grpc-status", 14.into());
        }
        response
    });
    let app = Router::new().fallback(async || ()).layer(layer);
    let grpc = [(CONTENT_TYPE, "application/grpc")];
    assert_eq!(get_status(&app, post(&grpc)).await, StatusCode::OK);
    let denied = app.oneshot(post(&grpc)).await.unwrap();
    assert_eq!(denied.headers()["grpc-status"], "14");
}

// Trap 5.

/// What limiters log, without the circuit breakers and the registration of the store.
fn of_limiters(log: &Log) -> Vec<String> {
    log.events().into_iter().filter(|event| event.contains("policy=")).collect()
}

/// Fails open for the reason in the log, and reports it once however often it happens.
async fn assert_reported(limiter: &Limiter, server: &str, reason: &str) {
    let (log, _guard) = Log::capture();
    for _ in 0..20 {
        let decision = limiter.check("key").await.unwrap();
        assert_eq!(decision.source(), Source::FailureMode, "{reason}");
    }
    let events = of_limiters(&log);
    let reported: Vec<_> = events.iter().filter(|event| event.contains(reason)).collect();
    assert_eq!(reported.len(), 1, "{reason}: {events:#?}");
    let event = reported[0];
    for part in ["WARN fleetlimit:", "rate limit not enforced", "policy=\"default\"", "count=1"] {
        assert!(event.contains(part), "{part}: {event}");
    }
    assert!(event.contains(&format!("server=\"{server}\"")), "{server}: {event}");
}

fn open_limiter(url: String) -> Limiter {
    let builder = Limiter::builder(RedisStore::open(url).unwrap(), Quota::per_day(10));
    builder.failure_mode(FailureMode::Open).cache_denials(Duration::ZERO).build().unwrap()
}

fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// The checks in all lines of limiters.
fn logged_checks(log: &Log) -> u64 {
    let count = |event: &String| -> Option<u64> {
        event.split_whitespace().find_map(|field| field.strip_prefix("count=")?.parse().ok())
    };
    of_limiters(log).iter().filter_map(count).sum()
}

#[tokio::test]
async fn what_was_counted_in_an_outage_is_reported_before_the_process_ends() {
    for mode in [FailureMode::Local, FailureMode::Open, FailureMode::Closed] {
        for is_shut_down in [true, false] {
            let (prometheus, _metrics) = recorder();
            let (log, _log) = Log::capture();
            // Nothing listens there. A clone, because that is what applications keep.
            let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
            let builder = Limiter::builder(store.clone(), Quota::per_second(1)).failure_mode(mode);
            let limiter = builder.build().unwrap();
            for _ in 0..1_000 {
                let _ = limiter.check("key").await;
            }
            assert!(logged_checks(&log) < 1_000);
            if is_shut_down {
                store.shutdown().await;
            } else {
                drop(limiter);
            }
            assert_eq!(logged_checks(&log), 1_000, "{mode:?} {is_shut_down}");
            let decisions = value(&prometheus.render(), "fleetlimit_decisions_total", &[]);
            assert_eq!(decisions, Some(1_000.0), "{mode:?} {is_shut_down}");
        }
    }
}

#[tokio::test]
async fn failing_open_because_of_an_error_reply_is_logged() {
    let server = Server::start().await;
    let limiter = open_limiter(server.url());
    let connected = async || limiter.peek("warm").await.is_ok();
    wait_until("the store answers", BOUND, connected).await;

    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_reported(&limiter, &address(&server), "OOM").await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    wait_until("the store answers", BOUND, connected).await;

    server.command(&["ACL", "SETUSER", "default", "-evalsha"]).await;
    assert_reported(&limiter, &address(&server), "NoPerm").await;
}

#[tokio::test]
async fn failing_open_because_of_a_replica_is_logged() {
    // Redis 6.2 says that `replica-serve-stale-data` is no, and later servers `on a stale replica`.
    for (stale, reason) in [("yes", "READONLY"), ("no", "stale")] {
        let server = Server::with_args(&["--replica-serve-stale-data", stale]).await;
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
        assert_reported(&open_limiter(server.url()), &address(&server), reason).await;
    }
}

#[tokio::test]
async fn failing_open_because_of_a_failed_snapshot_is_logged() {
    let server = Server::with_args(&["--save", "3600", "1000000"]).await;
    server.obstruct_snapshots();
    server.save("err").await;
    assert_reported(&open_limiter(server.url()), &address(&server), "MISCONF").await;
}

#[tokio::test]
async fn failing_open_because_of_paused_clients_is_logged() {
    let server = Server::start().await;
    let limiter = open_limiter(server.url());
    let connected = async || limiter.peek("warm").await.is_ok();
    wait_until("the store answers", BOUND, connected).await;
    server.command(&["CLIENT", "PAUSE", "2000"]).await;
    assert_reported(&limiter, &address(&server), "did not reply in time").await;
}

#[tokio::test]
async fn failing_open_because_of_a_missing_password_is_logged() {
    let server = Server::start().await;
    server.command(&["CONFIG", "SET", "requirepass", "secret"]).await;
    assert_reported(&open_limiter(server.url()), &address(&server), "NOAUTH").await;
}

#[tokio::test]
async fn failing_open_because_of_late_replies_and_lost_connections_is_logged() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = open_limiter(proxy.url());
    let connected = async || limiter.peek("warm").await.is_ok();
    wait_until("the store answers", BOUND, connected).await;
    let address = proxy.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();

    proxy.swallow(true);
    assert_reported(&limiter, &address, "did not reply in time").await;
    proxy.swallow(false);
    wait_until("the store answers", BOUND, connected).await;

    server.stop();
    let (log, _guard) = Log::capture();
    for _ in 0..20 {
        assert_eq!(limiter.check("key").await.unwrap().source(), Source::FailureMode);
    }
    // A connection that breaks, and attempts that fail, are different reasons.
    let events = of_limiters(&log);
    assert!((1..=3).contains(&events.len()), "{events:#?}");
    assert!(events.iter().all(|event| event.contains("Redis unreachable")), "{events:#?}");
}

#[tokio::test]
async fn failing_closed_is_logged_too() {
    let builder = Limiter::builder(RedisStore::open(NOWHERE).unwrap(), Quota::per_day(10));
    let limiter = builder.failure_mode(FailureMode::Closed).build().unwrap();
    let (log, _guard) = Log::capture();
    limiter.check("key").await.unwrap_err();
    let events = of_limiters(&log);
    assert!(events[0].contains("failing closed"), "{events:?}");
}

/// The clock is paused, so the connection attempts of the store time out at once.
#[tokio::test(start_paused = true)]
async fn a_long_outage_is_logged_every_few_seconds_with_the_count() {
    let (log, _guard) = Log::capture();
    let limiter = open_limiter(NOWHERE.into());
    for _ in 0..100 {
        let _ = limiter.check("key").await.unwrap();
    }
    assert_eq!(of_limiters(&log).len(), 1, "{:?}", of_limiters(&log));
    advance(Duration::from_secs(5)).await;
    let _ = limiter.check("key").await.unwrap();
    let events = of_limiters(&log);
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[1].contains("count=100"), "{}", events[1]);
}

#[tokio::test]
async fn the_end_of_an_outage_is_logged_with_what_was_not_yet_counted() {
    let server = Server::start().await;
    let limiter = open_limiter(server.url());
    server.stop();
    let (log, _guard) = Log::capture();
    for _ in 0..3 {
        let _ = limiter.check("key").await.unwrap();
    }
    server.restart().await;
    let recovered = async || limiter.check("key").await.unwrap().source() == Source::Store;
    wait_until("the store answers", BOUND, recovered).await;
    let ended = || of_limiters(&log).iter().any(|event| event.contains("by the store again"));
    wait_until("the end is logged", BOUND, async || {
        let _ = limiter.check("key").await.unwrap();
        ended()
    })
    .await;
    let counts: u64 = log
        .events()
        .iter()
        .filter_map(|event| event.split("count=").nth(1)?.split(' ').next()?.parse::<u64>().ok())
        .sum();
    assert!(counts >= 3, "{:?}", of_limiters(&log));
}

// Trap 6.

/// The pattern in the guide: by address outside, by what was authenticated inside.
#[tokio::test(start_paused = true)]
async fn a_client_that_invents_api_keys_is_limited() {
    #[derive(Clone)]
    struct Account(u64);

    let store = MemoryStore::new();
    let per_address = Limiter::new(store.clone(), policy("address", Quota::per_minute(5))).unwrap();
    let per_account = Limiter::new(store, policy("account", Quota::per_minute(3))).unwrap();
    let authenticate =
        axum::middleware::from_fn(async |mut request: Request, next: axum::middleware::Next| {
            match request.headers().get(API_KEY).map(|key| key.as_bytes()) {
                Some(b"valid") => request.extensions_mut().insert(Account(7)),
                _ => return Err(StatusCode::UNAUTHORIZED),
            };
            Ok(next.run(request).await)
        });
    let app = Router::new()
        .route("/", get(async || ()))
        .layer(RateLimitLayer::new(per_account, Ext::map(|account: &Account| account.0)))
        .layer(authenticate)
        .layer(RateLimitLayer::new(per_address, PeerIp::new()));
    let client = |n| {
        let address = std::net::SocketAddr::from(([192, 0, 2, n], 4711));
        app.clone().layer(axum::extract::connect_info::MockConnectInfo(address))
    };
    let mut invented = Vec::new();
    for n in 0..7 {
        invented.push(get_status(&client(1), request(&[(API_KEY, &format!("key{n}"))])).await);
    }
    assert_eq!(invented[..5], [StatusCode::UNAUTHORIZED; 5]);
    assert_eq!(invented[5..], [StatusCode::TOO_MANY_REQUESTS; 2]);
    let mut valid = Vec::new();
    for n in 2..6 {
        valid.push(get_status(&client(n), request(&[(API_KEY, "valid")])).await);
    }
    assert_eq!(valid[..3], [StatusCode::OK; 3], "an account may use several addresses");
    assert_eq!(valid[3], StatusCode::TOO_MANY_REQUESTS);
}

// Trap 7: see `RateLimitLayer::with_errors` for what does not compile.

// Trap 8.

/// A runtime that waits for a socket looks idle to a paused clock, which then jumps to the next
/// timer. The store has no timer there.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_does_not_let_checks_on_redis_time_out() {
    tokio::time::resume();
    let server = Server::start().await;
    tokio::time::pause();
    let limiter = open_limiter(server.url());
    for _ in 0..10 {
        assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    }
}

// Trap 9. One test, because the provider is that of the process.

#[cfg(feature = "tls-rustls")]
#[tokio::test]
async fn a_store_uses_the_crypto_provider_of_the_application_and_installs_none_before() {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};

    static USES: AtomicU32 = AtomicU32::new(0);

    #[derive(Debug)]
    struct Counting(&'static dyn SecureRandom);

    impl SecureRandom for Counting {
        fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
            USES.fetch_add(1, Ordering::Relaxed);
            self.0.fill(bytes)
        }
    }

    let server = Server::start().await;
    let plain = Limiter::new(RedisStore::open(server.url()).unwrap(), Quota::per_day(9)).unwrap();
    let connected = async || plain.check("key").await.unwrap().source() == Source::Store;
    wait_until("the store answers", BOUND, connected).await;
    let tls = RedisStore::open(server.url().replace("redis://", "rediss://")).unwrap();
    let tls = Limiter::builder(tls, Quota::per_day(9)).timeout(BOUND).build().unwrap();
    assert!(CryptoProvider::get_default().is_none(), "installed before any TLS connection");

    let ring = ring::default_provider();
    let counting = Box::leak(Box::new(Counting(ring.secure_random)));
    let provider = CryptoProvider { secure_random: counting, ..ring };
    provider.install_default().expect("nobody else has installed one");
    // The server does not speak TLS, but the client begins a handshake.
    assert_eq!(tls.check("key").await.unwrap().source(), Source::Local);
    assert!(USES.load(Ordering::Relaxed) > 0, "the application's provider was not used");
}

// Trap 10: see `Header` for a name that does not compile, `Rejection` for a status that is an
// error, and `grpc.rs` for the codes.

#[tokio::test(start_paused = true)]
async fn a_header_name_in_any_case_is_the_same_header() {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let name = HeaderName::try_from("X-Api-Key").unwrap();
    let layer = RateLimitLayer::new(limiter, Header::new(name));
    let app = Router::new().route("/", get(async || ())).layer(layer);
    assert_eq!(get_status(&app, request(&[(API_KEY, "a")])).await, StatusCode::OK);
    assert_eq!(get_status(&app, request(&[(API_KEY, "a")])).await, StatusCode::TOO_MANY_REQUESTS);
}

// Also found.

#[test]
fn a_timeout_of_zero_is_an_error() {
    let builder = Limiter::builder(MemoryStore::new(), Quota::per_second(1));
    let error = builder.timeout(Duration::ZERO).build().unwrap_err().to_string();
    assert!(error.contains("timeout of zero"), "{error}");
}

#[test]
fn a_runtime_without_timers_or_io_is_an_error_and_not_a_hang() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let builder = Limiter::builder(RedisStore::open(NOWHERE).unwrap(), Quota::per_second(1));
    // Tokio panics, and it can take longer than the default timeout to print the backtrace.
    let builder = builder.timeout(BOUND).failure_mode(FailureMode::Closed);
    let limiter = builder.build().unwrap();
    let error = runtime.block_on(limiter.check("key")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("enable_all"), "{error}");
}

#[test]
fn no_runtime_is_an_error_and_not_a_panic() {
    let builder = Limiter::builder(RedisStore::open(NOWHERE).unwrap(), Quota::per_second(1));
    let limiter = builder.failure_mode(FailureMode::Closed).build().unwrap();
    let check = std::pin::pin!(start(limiter.check("key")));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = check.poll(&mut context) else { panic!("it hangs") };
    assert!(error.to_string().contains("needs a Tokio runtime"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_misconfiguration_is_logged_once_and_not_shown_to_clients() {
    #[derive(Clone)]
    struct User(u64);

    let (log, _guard) = Log::capture();
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let layer = RateLimitLayer::new(limiter, Ext::map(|user: &User| user.0));
    let app = Router::new().route("/", get(async || ())).layer(layer);
    for _ in 0..3 {
        let response = app.clone().oneshot(request(&[])).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        assert!(!String::from_utf8_lossy(&body).contains("User"), "{body:?}");
    }
    let events = log.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("ERROR fleetlimit:") && events[0].contains("User"), "{events:?}");
    assert!(events[0].contains("run the layer that inserts it before"), "{events:?}");
}

/// A 404 for an unknown path is normal, and must not use up the line for a real mistake.
#[tokio::test(start_paused = true)]
async fn each_misconfiguration_of_a_layer_is_logged() {
    let (log, _guard) = Log::capture();
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let by_route = fleetlimit::resolve::MatchedPath;
    let resolver = move |parts: &http::request::Parts| match parts.headers.contains_key("x-peer") {
        true => fleetlimit::KeyResolver::resolve(&PeerIp::new(), parts),
        false => fleetlimit::KeyResolver::resolve(&by_route, parts),
    };
    let app = Router::new().fallback(async || ()).layer(RateLimitLayer::new(limiter, resolver));
    for _ in 0..2 {
        assert_eq!(get_status(&app, request(&[])).await, StatusCode::NOT_FOUND);
        let peer = [(HeaderName::from_static("x-peer"), "1")];
        assert_eq!(get_status(&app, request(&peer)).await, StatusCode::INTERNAL_SERVER_ERROR);
    }
    let events = log.events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].contains("INFO") && events[0].contains("matched no route"), "{events:?}");
    assert!(events[1].contains("ERROR") && events[1].contains("peer address"), "{events:?}");
}

/// All of its clients share a bucket, and nobody would know.
#[tokio::test(start_paused = true)]
async fn a_proxy_that_does_not_report_its_clients_is_logged_at_intervals_for_each_cause() {
    const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
    const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

    let resolve = |resolver: &ClientIp, peer: [u8; 4], headers: &[(HeaderName, &str)]| {
        let (mut parts, _) = request(headers).into_parts();
        parts.extensions.insert(SocketAddr::from((peer, 4711)));
        resolver.resolve(&parts)
    };
    let causes = [
        (vec![], "INFO", "health checks"),
        (vec![(X_REAL_IP, "203.0.113.7")], "WARN", "other=\"x-real-ip\""),
        (vec![(X_FORWARDED_FOR, "unknown")], "WARN", "no address"),
    ];
    let trusting = ClientIp::new(["192.0.2.1"]).unwrap();
    for resolver in [trusting, ClientIp::hops(1).unwrap()] {
        let (log, _guard) = Log::capture();
        for _ in 0..3 {
            for (headers, ..) in &causes {
                let clone = resolver.clone();
                assert_eq!(resolve(&clone, [192, 0, 2, 1], headers), "192.0.2.1".into());
            }
        }
        let _ = resolve(&resolver, [192, 0, 2, 1], &[(X_FORWARDED_FOR, "203.0.113.7")]);
        let events = log.events();
        assert_eq!(events.len(), causes.len(), "{events:#?}");
        for ((_, level, text), event) in causes.iter().zip(&events) {
            let is_complete =
                [level, text, &"proxy=192.0.2.1", &"header=\"x-forwarded-for\"", &"count=1 "]
                    .iter()
                    .all(|part| event.contains(*part));
            assert!(is_complete, "{event}");
        }
        // Health checks had the first line.
        tokio::time::advance(Duration::from_secs(600)).await;
        for _ in 0..2 {
            let _ = resolve(&resolver, [192, 0, 2, 1], &causes[0].0);
        }
        let events = log.events().split_off(causes.len());
        assert!(events.len() == 1 && events[0].contains("count=3 "), "{events:#?}");
    }
    // A client that is no proxy need not report anybody.
    let (log, _guard) = Log::capture();
    let _ = resolve(&ClientIp::new(["192.0.2.1"]).unwrap(), [192, 0, 2, 9], &causes[1].0);
    assert_eq!(log.events(), Vec::<String>::new());
}

fn layer(name: &'static str, quota: Quota, style: HeaderStyle) -> RateLimitLayer<Global> {
    let limiter = Limiter::new(MemoryStore::new(), policy(name, quota)).unwrap();
    RateLimitLayer::new(limiter, Global).retry_jitter(Duration::ZERO).headers(style)
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_not_earlier_than_the_reset_of_an_outer_limit_that_is_used_up() {
    let inner = layer("inner", Quota::per_second(1), HeaderStyle::Ietf);
    let outer = layer("outer", Quota::per_minute(2), HeaderStyle::Ietf);
    let app = Router::new().route("/", get(async || ())).layer(inner).layer(outer);
    assert_eq!(get_status(&app, request(&[])).await, StatusCode::OK);
    let denied = app.oneshot(request(&[])).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let fields: Vec<_> = denied.headers().get_all("ratelimit").iter().collect();
    assert_eq!(fields, [r#""inner";r=0;t=1"#, r#""outer";r=0;t=30"#]);
    assert_eq!(denied.headers()["retry-after"], "30");
}

#[tokio::test(start_paused = true)]
async fn a_grpc_wait_is_not_shorter_than_an_outer_limit_that_is_used_up() {
    let inner = layer("inner", Quota::per_second(1), HeaderStyle::Ietf);
    let outer = layer("outer", Quota::per_minute(2), HeaderStyle::Ietf);
    let app = Router::new().fallback(async || ()).layer(inner.grpc()).layer(outer);
    let grpc = [(CONTENT_TYPE, "application/grpc")];
    assert_eq!(get_status(&app, post(&grpc)).await, StatusCode::OK);
    let denied = app.oneshot(post(&grpc)).await.unwrap();
    assert_eq!(denied.headers()["retry-after"], "30");
    assert_eq!(denied.headers()["grpc-retry-pushback-ms"], "30000");
}

/// A client does not have to wait for a limit that would allow it, and `t` is optional.
#[tokio::test(start_paused = true)]
async fn no_reset_of_a_limit_with_permits_left_contradicts_retry_after() {
    let inner = layer("inner", Quota::per_second(1), HeaderStyle::Ietf);
    let outer = layer("outer", Quota::per_day(1_000), HeaderStyle::Ietf);
    let app = Router::new().route("/", get(async || ())).layer(inner).layer(outer);
    assert_eq!(get_status(&app, request(&[])).await, StatusCode::OK);
    let denied = app.oneshot(request(&[])).await.unwrap();
    let fields: Vec<_> = denied.headers().get_all("ratelimit").iter().collect();
    assert_eq!(fields, [r#""inner";r=0;t=1"#, r#""outer";r=998"#]);
    assert_eq!(denied.headers()["retry-after"], "1");
}

#[tokio::test(start_paused = true)]
async fn in_a_legacy_style_the_strictest_limit_wins_wherever_it_is() {
    for style in [HeaderStyle::IetfDraft03, HeaderStyle::XRateLimit] {
        let prefix = if style == HeaderStyle::XRateLimit { "x-" } else { "" };
        for (inner, outer) in [(9, 2), (2, 9)] {
            let inner = layer("inner", Quota::per_minute(inner), style);
            let outer = layer("outer", Quota::per_minute(outer), style);
            let app = Router::new().route("/", get(async || ())).layer(inner).layer(outer);
            let response = app.oneshot(request(&[])).await.unwrap();
            let header = |name| response.headers()[format!("{prefix}ratelimit-{name}")].clone();
            assert_eq!((header("limit"), header("remaining")), (2.into(), 1.into()));
            assert_eq!(header("reset"), "30");
        }
    }
}

/// These layers need `Default` bodies, or errors that convert into boxed errors.
#[tokio::test(start_paused = true)]
async fn a_service_builder_with_layers_of_tower_http_around_the_limit_compiles() {
    use tower_http::cors::CorsLayer;
    use tower_http::timeout::TimeoutLayer;
    use tower_http::validate_request::ValidateRequestHeaderLayer;

    let limit = layer("a", Quota::per_minute(1), HeaderStyle::Ietf);
    let timeout = Duration::from_secs(1);
    let stack = tower::ServiceBuilder::new()
        .layer(CorsLayer::permissive())
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, timeout))
        .layer(ValidateRequestHeaderLayer::accept("text/plain"))
        .layer(limit);
    let app = Router::new().route("/", get(async || ())).layer(stack);
    assert_eq!(get_status(&app, request(&[])).await, StatusCode::OK);
    assert_eq!(get_status(&app, request(&[])).await, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn an_extension_layer_marks_the_requests_of_a_unix_socket() {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
    let app = Router::new()
        .route("/", get(async || ()))
        .layer(RateLimitLayer::new(limiter.clone(), PeerIp::new()))
        .layer(Extension(fleetlimit::resolve::UnixSocket));
    assert_eq!(get_status(&app, request(&[])).await, StatusCode::OK);
    assert!(limiter.peek("unix").await.unwrap().is_denied());
}

#[test]
fn debug_shows_settings_and_neither_passwords_nor_internals() {
    let url = "redis://user:hunter2@127.0.0.1:1/3";
    let single = RedisStore::open(url).unwrap();
    let cluster = RedisStore::open_cluster([url, "redis://127.0.0.1:2"]).unwrap();
    let memory = MemoryStore::new();
    let limiter = Limiter::new(single.clone(), Quota::per_minute(1)).unwrap();
    let layer = RateLimitLayer::new(limiter.clone(), PeerIp::new());
    let decision = Decision::denied(10, Duration::from_secs(1));
    for text in [
        format!("{decision:?}"),
        format!("{:?}", decision.ensure_allowed().unwrap_err()),
        format!("{single:?}"),
        format!("{cluster:?}"),
        format!("{memory:?}"),
        format!("{limiter:?}"),
        format!("{layer:?}"),
    ] {
        assert!(!text.contains("hunter2") && !text.contains("Mutex"), "{text}");
        assert!(!text.contains("Verdict") && !text.contains("Inner"), "{text}");
        assert!(text.len() < 700, "{text}");
    }
    assert!(format!("{cluster:?}").contains("127.0.0.1:2"));
    assert!(format!("{limiter:?}").contains("50ms"));
}

#[tokio::test]
async fn debug_output_of_a_store_is_short_and_has_no_password() {
    let url = NOWHERE.replace("//", "//fleetlimit:secret@");
    let memory = MemoryStore::new();
    let limiter = Limiter::new(memory.clone(), Quota::per_day(10)).unwrap();
    for key in 0..1_000u32 {
        assert!(limiter.check(key).await.unwrap().is_allowed());
    }
    let mut stores: Vec<Box<dyn std::fmt::Debug>> = vec![
        Box::new(memory),
        Box::new(limiter),
        Box::new(RedisStore::open(url.as_str()).unwrap()),
        Box::new(RedisStore::from_client(redis::Client::open(url.as_str()).unwrap())),
        Box::new(RedisStore::open_cluster([url.as_str()]).unwrap()),
        Box::new(Limiter::new(RedisStore::open(url.as_str()).unwrap(), Quota::per_day(1)).unwrap()),
    ];
    #[cfg(feature = "sentinel")]
    stores.push(Box::new(RedisStore::open_sentinel([url.as_str()], "service").unwrap()));
    for store in stores {
        let text = format!("{store:?}");
        assert!(text.len() < 500 && !text.contains("secret"), "{text}");
    }
}

/// As in a handler that opens one for each request.
#[tokio::test]
async fn a_second_store_for_the_same_buckets_is_reported() {
    let open = |url: &str| RedisStore::open(url).unwrap();
    let use_it = |store: RedisStore| {
        let limiter = Limiter::new(store.clone(), Quota::per_second(1)).unwrap();
        (store, limiter)
    };
    let (log, _guard) = Log::capture();
    let warnings = || log.events().iter().filter(|line| line.contains("several stores")).count();
    const URL: &str = "redis://second-store.invalid";
    drop(use_it(open(URL)));
    let first = use_it(open(URL));
    let others = [
        open(URL).key_prefix("other"),
        open("redis://second-store.invalid/1"),
        open("redis://second-store.invalid:6380"),
        first.0.clone(),
    ];
    let others = others.map(use_it);
    assert_eq!(warnings(), 0, "{:#?}", log.events());
    let limiter = use_it(open("redis://user:secret@second-store.invalid:6379/0")).1;
    let lines = log.events();
    let line = lines.iter().find(|line| line.contains("several stores")).unwrap();
    for part in
        ["WARN", "second-store.invalid:6379", "key_prefix=\"fleetlimit\"", "stores=2", "clone it"]
    {
        assert!(line.contains(part), "{line}");
    }
    let more = [(); 30].map(|()| use_it(open(URL)));
    assert_eq!(warnings(), 1, "once in a while");
    drop((limiter, more, others));
}

#[tokio::test]
async fn a_second_store_on_the_same_cluster_or_pool_is_reported() {
    let (log, _guard) = Log::capture();
    let warnings = || log.events().iter().filter(|line| line.contains("several stores")).count();
    let mut limiters = Vec::new();
    let mut use_it = |store: RedisStore| {
        limiters.push(Limiter::new(store, Quota::per_second(1)).unwrap());
        warnings()
    };
    let cluster = |urls: [&str; 2]| RedisStore::open_cluster(urls).unwrap();
    let urls = ["redis://one.second-cluster.invalid", "redis://two.second-cluster.invalid"];
    assert_eq!(use_it(cluster(urls)), 0);
    assert_eq!(use_it(cluster([urls[1], urls[0]])), 1, "the order does not matter");
    let sentinel = |service: &str| RedisStore::open_sentinel(urls, service).unwrap();
    assert_eq!(use_it(sentinel("a")), 1);
    assert_eq!(use_it(sentinel("b")), 1);
    assert_eq!(use_it(sentinel("a")), 2);
    let pool = || deadpool_redis::Config::from_url(urls[0]).create_pool(None).unwrap();
    let (one, two) = (pool(), pool());
    assert_eq!(use_it(RedisStore::from_pool(one.clone())), 2);
    assert_eq!(use_it(RedisStore::from_pool(two)), 2, "nobody knows where it leads");
    assert_eq!(use_it(RedisStore::from_pool(one)), 3);
}

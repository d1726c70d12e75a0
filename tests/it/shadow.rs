//! Limits that are tried out: decided and charged as usual, but not enforced for some keys.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use fleetlimit::layer::Sent;
use fleetlimit::resolve::Global;
use fleetlimit::{
    BestEffortChecks, FailureMode, Limiter, LimiterBuilder, MemoryStore, Quota, RateLimitLayer,
    RedisStore, Source,
};
use http::StatusCode;
use tower::ServiceExt;

const QUOTA: Quota = Quota::per_hour(2);

fn shadow(quota: Quota) -> LimiterBuilder {
    Limiter::builder(MemoryStore::new(), quota).enforce_for_percent(0.0)
}

async fn get(app: &Router) -> Response {
    let request = Request::get("/").body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

fn app(layer: RateLimitLayer<Global>) -> Router {
    Router::new().fallback(async || "hello").layer(layer)
}

#[tokio::test]
async fn a_limit_in_shadow_mode_denies_nothing_and_tells_clients_nothing() {
    let limiter = shadow(QUOTA).build().unwrap();
    let silent = app(RateLimitLayer::new(limiter.clone(), Global));
    for _ in 0..3 {
        let response = get(&silent).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("ratelimit"));
        assert!(!response.headers().contains_key("ratelimit-policy"));
    }
    // It is charged as usual: for the allowed, and not for those that would be denied.
    let decision = limiter.peek("global").await.unwrap();
    assert_eq!((decision.remaining(), decision.would_be_denied()), (0, true));
    let open = app(RateLimitLayer::new(limiter, Global).headers_if_not_enforced());
    let response = get(&open).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers()["ratelimit"].to_str().unwrap().contains("r=0"));
    assert!(!response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_decision_says_what_would_have_happened() {
    let limiter = shadow(QUOTA).build().unwrap();
    for (cost, would_be_denied) in [(2, false), (1, true), (3, true)] {
        let decision = limiter.check_cost("key", cost).await.unwrap();
        assert!(decision.is_allowed() && !decision.is_denied() && !decision.is_enforced());
        assert_eq!(decision.would_be_denied(), would_be_denied, "{decision:?}");
        assert!(decision.ensure_allowed().is_ok());
        assert!(!decision.exceeds_capacity() && decision.retry_after().is_none());
        assert_eq!(decision.quotas().any(|quota| quota.is_violated()), would_be_denied);
    }
}

#[tokio::test]
async fn a_failed_store_denies_nothing_in_shadow_mode() {
    for mode in [FailureMode::Local, FailureMode::Open, FailureMode::Closed] {
        let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
        let builder = Limiter::builder(store, QUOTA).enforce_for_percent(0.0);
        let limiter = builder.failure_mode(mode).build().unwrap();
        for _ in 0..3 {
            let decision = limiter.check("key").await.unwrap();
            assert!(decision.is_allowed(), "{mode:?}");
            let source =
                if mode == FailureMode::Local { Source::Local } else { Source::FailureMode };
            assert_eq!(decision.source(), source);
        }
    }
}

#[tokio::test]
async fn some_keys_are_limited_and_the_others_never() {
    let limiter = Limiter::builder(MemoryStore::new(), Quota::per_hour(1))
        .enforce_for_percent(30.0)
        .build()
        .unwrap();
    let mut limited = 0;
    for key in 0..1_000u32 {
        let first = limiter.check(key).await.unwrap();
        let denied: Vec<_> = [
            limiter.check(key).await.unwrap().is_denied(),
            limiter.check(key).await.unwrap().is_denied(),
        ]
        .into();
        assert!(first.is_allowed());
        assert_eq!(denied, [first.is_enforced(); 2], "a key is either in or out");
        limited += u32::from(first.is_enforced());
    }
    assert!((250..350).contains(&limited), "{limited}");
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_in_a_queue_that_is_tried_out() {
    let limiter = shadow(Quota::per_second(1).queue(Duration::from_secs(2))).build().unwrap();
    let start = tokio::time::Instant::now();
    for _ in 0..5 {
        assert!(limiter.acquire("key").await.unwrap().is_allowed());
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_response_is_charged_only_if_the_request_would_have_been_served() {
    let limiter = shadow(Quota::per_hour(10)).build().unwrap();
    let layer = RateLimitLayer::new(limiter.clone(), Global).cost_by_response(|_: &Sent<'_>| 6);
    let app = app(layer);
    for remaining in [4, 0, 0] {
        let response = get(&app).await;
        assert_eq!(response.status(), StatusCode::OK);
        drop(response);
        assert_eq!(limiter.peek("global").await.unwrap().remaining(), remaining);
    }
    // The second was allowed, because one permit was left. The third would have been denied.
    let wait = limiter.peek("global").await.unwrap().reset_after();
    assert!(wait <= Duration::from_secs(12 * 360), "{wait:?}");
}

#[tokio::test]
async fn what_was_not_taken_is_not_given_back() {
    let tried = shadow(Quota::per_hour(1)).build().unwrap();
    let strict = Limiter::new(MemoryStore::new(), Quota::per_hour(1)).unwrap();
    tried.check("a").await.unwrap().ensure_allowed().unwrap();
    strict.check("b").await.unwrap().ensure_allowed().unwrap();
    let checks = BestEffortChecks::new().add(&tried, "a", 1).add(&strict, "b", 1);
    assert!(checks.check().await.unwrap().is_denied());
    assert_eq!(tried.peek("a").await.unwrap().remaining(), 0);
}

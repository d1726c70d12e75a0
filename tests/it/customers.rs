//! Checks with other numbers than those of the policy.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use fleetlimit::resolve::Extension;
use fleetlimit::{Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore, Source};
use futures_util::future::join_all;
use http::StatusCode;
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::common::{BOUND, Server};
use crate::exact::{test_limiter_builder, uncached};
use crate::log::Log;

const DAILY: Quota = Quota::per_day(10);

fn policy() -> Policy {
    Policy::new("api").quota("requests", DAILY)
}

#[tokio::test]
async fn a_hundred_customers_with_their_own_numbers_share_a_few_calls() {
    let server = Server::start().await;
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy());
    let customers: Vec<_> =
        (1..=100).map(|n| (n, limiter.with_quota(Quota::per_day(n)).unwrap())).collect();
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let before = server.command_stats().await;
    let checks = customers.iter().map(|(n, limiter)| limiter.check(format!("customer:{n}")));
    for (decision, (n, _)) in join_all(checks).await.into_iter().zip(&customers) {
        let decision = decision.unwrap();
        assert_eq!((decision.limit(), decision.remaining()), (*n, n - 1));
        assert_eq!(decision.quota_name(), "requests");
    }
    let after = server.command_stats().await;
    let calls = |stats: &std::collections::BTreeMap<String, u64>| {
        ["eval", "evalsha"].iter().filter_map(|name| stats.get(*name)).sum::<u64>()
    };
    // Quotas of two forms, and the first check alone.
    let calls = calls(&after) - calls(&before);
    assert!(calls <= 8, "{calls} calls for 100 customers");
}

#[tokio::test]
async fn new_numbers_keep_what_was_used_on_both_stores() {
    let server = Server::start().await;
    let on_redis = uncached(RedisStore::open(server.url()).unwrap(), policy());
    for limiter in [on_redis, uncached(MemoryStore::new(), policy())] {
        let of = |n| limiter.with_quota(Quota::per_day(n)).unwrap();
        assert_eq!(of(3).check_cost("acme", 3).await.unwrap().remaining(), 0);
        assert!(of(3).check("acme").await.unwrap().is_denied());
        assert_eq!(of(6).check("acme").await.unwrap().remaining(), 2);
        assert_eq!(limiter.check("acme").await.unwrap().remaining(), 5);
        of(3).reset("acme").await.unwrap();
        assert_eq!(limiter.check("acme").await.unwrap().remaining(), 9);
    }
}

#[tokio::test]
async fn concurrent_checks_of_a_key_with_different_numbers_admit_no_more_than_the_larger() {
    let server = Server::start().await;
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy());
    let numbers = [3, 5, 8].map(|n| limiter.with_quota(Quota::per_day(n)).unwrap());
    let checks = (0..60).map(|n| numbers[n % 3].check("acme"));
    let decisions = join_all(checks).await;
    let allowed = decisions.into_iter().filter(|decision| decision.as_ref().unwrap().is_allowed());
    assert_eq!(allowed.count(), 8);
}

#[tokio::test]
async fn a_reset_ends_cached_denials_under_all_numbers() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = test_limiter_builder(store, policy()).cache_denials(BOUND).build().unwrap();
    let of = |n| limiter.with_quota(Quota::per_day(n)).unwrap();
    for n in [1, 2] {
        of(n).charge("acme", 2).await.unwrap();
        assert!(of(n).check("acme").await.unwrap().is_denied());
        assert_eq!(of(n).check("acme").await.unwrap().source(), Source::Cached);
    }
    limiter.reset("acme").await.unwrap();
    for n in [1, 2] {
        assert_eq!(of(n).check_cost("acme", 0).await.unwrap().source(), Source::Store);
    }
    assert!(of(1).check("acme").await.unwrap().is_allowed());
}

#[test]
fn numbers_that_cannot_be_used_are_an_error_that_says_what_to_change() {
    let limiter = Limiter::new(MemoryStore::new(), policy()).unwrap();
    let error = limiter.with_quota(Quota::per_second(0)).unwrap_err().to_string();
    assert!(error.contains("use 1 or more"), "{error}");
    let other = Policy::new("other").quota("requests", DAILY);
    let error = limiter.with_policy(other).unwrap_err().to_string();
    assert!(error.contains("policy `other`") && error.contains("`api`"), "{error}");
    let several = Policy::new("two").quota("a", DAILY).quota("b", DAILY);
    let limiter = Limiter::new(MemoryStore::new(), several.clone()).unwrap();
    let error = limiter.with_quota(DAILY).unwrap_err().to_string();
    assert!(error.contains("use `with_policy`"), "{error}");
    assert!(limiter.with_policy(several).is_ok());
}

/// A row of a database.
#[derive(Clone)]
struct Account {
    id: u64,
    per_day: u64,
}

async fn respond(_: Request) -> Result<Response, BoxError> {
    Ok(StatusCode::OK.into_response())
}

#[tokio::test(start_paused = true)]
async fn a_layer_uses_the_numbers_of_each_request() {
    let limiter = Limiter::new(MemoryStore::new(), policy()).unwrap();
    let service = RateLimitLayer::new(limiter, Extension::map(|account: &Account| account.id))
        .quota_for(|parts| {
            let account = parts.extensions.get::<Account>()?;
            (account.per_day > 0).then(|| Quota::per_day(account.per_day))
        })
        .layer(service_fn(respond));
    for (id, per_day, limit) in [(1, 2, 2), (2, 50, 50), (3, 0, 10)] {
        let send = || {
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(Account { id, per_day });
            service.clone().oneshot(request)
        };
        for left in (0..limit).rev() {
            let response = send().await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let field = response.headers()["ratelimit"].to_str().unwrap();
            assert!(field.starts_with(&format!("\"requests\";r={left}")), "{field}");
        }
        let denied = send().await.unwrap();
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        let policy = denied.headers()["ratelimit-policy"].to_str().unwrap();
        assert_eq!(policy, format!("\"requests\";q={limit};w=86400"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_rows_with_invalid_numbers_can_be_found_among_many_and_the_policy_applies() {
    let (log, _guard) = Log::capture();
    let limiter = Limiter::new(MemoryStore::new(), policy()).unwrap();
    // Of 10,000 customers, three have numbers that are no quota.
    let is_invalid = |customer: u32| customer % 3_333 == 7;
    let service = RateLimitLayer::new(limiter, Extension::map(|customer: &u32| *customer))
        .quota_for(move |parts| {
            let customer = *parts.extensions.get::<u32>()?;
            Some(Quota::per_hour(if is_invalid(customer) { 0 } else { 1 }))
        })
        .layer(service_fn(respond));
    let send = async |customer: u32| {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(customer);
        service.clone().oneshot(request).await.unwrap().status()
    };
    for customer in 0..9_999 {
        assert_eq!(send(customer).await, StatusCode::OK);
    }
    for _ in 0..9 {
        assert_eq!(send(7).await, StatusCode::OK, "the policy has ten");
    }
    assert_eq!(send(7).await, StatusCode::TOO_MANY_REQUESTS);
    let events = log.events();
    assert_eq!(events.len(), 3, "{events:?}");
    for (event, customer) in events.iter().zip((0..9_999).filter(|id| is_invalid(*id))) {
        assert!(event.contains("ERROR") && event.contains("using the quota of the policy"));
        assert!(event.contains("0 permits"), "{event}");
        let digest = Key::from(customer).digest();
        assert!(event.contains(&format!("key=\"{digest}\"")), "{customer}: {event}");
    }
}

/// Its numbers may be wrong for everyone.
#[tokio::test(start_paused = true)]
async fn ever_more_keys_with_invalid_numbers_do_not_fill_the_log() {
    let (log, _guard) = Log::capture();
    let limiter = Limiter::new(MemoryStore::new(), policy()).unwrap();
    let service = RateLimitLayer::new(limiter, Extension::map(|customer: &u32| *customer))
        .quota_for(|_| Some(Quota::new(5, Duration::ZERO)))
        .layer(service_fn(respond));
    for customer in 0..1_000u32 {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(customer);
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(log.events().len(), 16);
    assert!(log.events()[0].contains("the period must be"), "{:?}", log.events());
}

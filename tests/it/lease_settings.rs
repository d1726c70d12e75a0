//! The setting of leases: what the docs of `LimiterBuilder::lease` say about errors, stores and capacities.

use std::num::NonZeroUsize;
use std::time::Duration;

use fleetlimit::{AnyStore, DividedStore, Limiter, MemoryStore, Policy, Quota, RedisStore, Source};

use crate::common::Server;
use crate::exact::test_limiter_builder;

const LEASE: Duration = Duration::from_millis(100);

/// Stores that need no server to be opened.
fn stores() -> Vec<AnyStore> {
    let redis = RedisStore::open("redis://127.0.0.1:1").unwrap();
    vec![MemoryStore::new().into(), AnyStore::from(redis)]
}

fn build(store: &AnyStore, quota: Quota, lease: Duration) -> Result<Limiter, String> {
    let limiter = Limiter::builder(store.clone(), quota).lease(lease).build();
    limiter.map_err(|error| error.to_string())
}

#[test]
fn a_quota_that_cannot_have_the_lease_is_an_error_in_each_store() {
    let second = Duration::from_secs(1);
    let too_long = [
        Quota::per_second(1_000).burst(199),
        Quota::per_second(1_000).burst(199).borrow_up_to(1_000),
        Quota::per_second(1_000).burst(199).interval_refill(),
        Quota::new(10, Duration::from_millis(199)).fixed_window(),
        Quota::new(10, Duration::from_millis(199)).calendar(),
    ];
    let without = [
        Quota::per_second(1_000).queue(second),
        Quota::per_second(1_000).sliding_window(4),
        Quota::per_second(1_000).approximate_sliding_window(),
    ];
    let half = [
        Quota::per_second(1_000).burst(200),
        Quota::per_second(1_000).burst(200).borrow_up_to(1_000),
        Quota::per_second(1_000).burst(200).interval_refill(),
        Quota::new(10, Duration::from_millis(200)).fixed_window(),
        Quota::new(10, Duration::from_millis(200)).calendar(),
    ];
    for store in stores() {
        for quota in too_long {
            let error = build(&store, quota, LEASE).unwrap_err();
            assert!(
                error.contains("use a shorter `lease`, or a larger `burst` if it has one"),
                "{quota}: {error}"
            );
        }
        for quota in without {
            let error = build(&store, quota, LEASE).unwrap_err();
            assert!(error.contains("an algorithm without leases"), "{quota}: {error}");
        }
        for quota in half {
            let limiter = build(&store, quota, LEASE).unwrap();
            // The running limiter keeps its quotas and its lease.
            for other in too_long.into_iter().chain(without) {
                assert!(limiter.update(other).is_err(), "{quota}, then {other}");
                assert!(limiter.with_quota(other).is_err(), "{quota}, with {other}");
            }
        }
    }
    let divided = DividedStore::new(0, NonZeroUsize::MIN).unwrap();
    assert!(Limiter::builder(divided, without[0]).lease(LEASE).build().is_err());
}

#[test]
fn limiters_of_a_policy_cannot_have_different_leases() {
    for store in stores() {
        let quota = Quota::per_second(1_000);
        let _limiter = build(&store, quota, LEASE).unwrap();
        build(&store, quota, LEASE).unwrap();
        let error = build(&store, quota, Duration::ZERO).unwrap_err();
        assert!(error.contains("with a lease of 100ms, not no lease"), "{error}");
    }
}

#[tokio::test]
async fn a_bucket_with_a_lease_reports_its_limit_and_what_is_really_left() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let policy = |name| Policy::new(name).quota("rate", Quota::per_second(1_000));
    let builder = |policy| test_limiter_builder(store.clone(), policy).lease(LEASE);
    let limiter = builder(policy("bucket")).build().unwrap();
    let full = limiter.peek("key").await.unwrap();
    assert_eq!((full.limit(), full.remaining()), (1_000, 900));
    let denied = limiter.check_cost("key", 901).await.unwrap();
    assert!(denied.exceeds_capacity() && denied.source() == Source::Quota, "{denied:?}");
    assert!(limiter.check_cost("key", 900).await.unwrap().is_allowed());

    let window = Policy::new("window").quota("rate", Quota::per_hour(1_000).fixed_window());
    let limiter = builder(window).build().unwrap();
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 1_000);
    assert!(limiter.check_cost("key", 1_000).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_store_in_memory_ignores_a_lease() {
    let quota = Quota::per_second(1_000);
    let limiter = Limiter::builder(MemoryStore::new(), quota).lease(LEASE).build().unwrap();
    let decision = limiter.check_cost("key", 1_000).await.unwrap();
    assert!(decision.is_allowed() && decision.source() == Source::Store, "{decision:?}");
}

//! The denials that a process decides itself: those that it caches, which a reset has to reach, and
//! those of a cost above the capacity.

use std::time::{Duration, Instant};

use fleetlimit::{
    Decision, FailureMode, Limiter, MemoryStore, Policy, Quota, QuotaStatus, RedisStore, Source,
};

use crate::common::{BOUND, Server};
use crate::exact::{test_limiter, test_limiter_builder, uncached};

const TEN_DAILY: Quota = Quota::per_day(1).burst(10);

fn policy(name: &'static str) -> Policy {
    Policy::new(name).quota("daily", Quota::per_day(1))
}

fn limiter(store: &RedisStore, name: &'static str, max_ttl: Duration) -> Limiter {
    test_limiter_builder(store.clone(), policy(name)).cache_denials(max_ttl).build().unwrap()
}

/// A reset discards the denials of one in a thousand keys, so these are many.
fn others() -> impl Iterator<Item = String> {
    (0..20).map(|n| format!("other{n}"))
}

async fn check(limiter: &Limiter, key: &str) -> (bool, Source) {
    let decision = limiter.check(key).await.unwrap();
    (decision.is_allowed(), decision.source())
}

/// A limiter looks in the cache only while a denial of its own may be there.
async fn deny(limiter: &Limiter, key: &str) {
    while check(limiter, key).await != CACHED {}
}

/// By check or by charge, all that is left or a part of it.
#[tokio::test]
async fn a_cached_denial_knows_what_this_process_has_taken_since() {
    let server = Server::start().await;
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), Quota::per_hour(10));
    for (key, is_charge, more, cached) in
        [("a", false, 5, true), ("b", false, 3, false), ("c", true, 5, true), ("d", true, 3, false)]
    {
        assert!(limiter.check_cost(key, 5).await.unwrap().is_allowed());
        let denied = limiter.check_cost(key, 8).await.unwrap();
        assert_eq!((denied.remaining(), denied.source()), (5, Source::Store));
        if is_charge {
            limiter.charge(key, more).await.unwrap();
        } else {
            assert!(limiter.check_cost(key, more).await.unwrap().is_allowed());
        }
        for source in [if cached { Source::Cached } else { Source::Store }, Source::Cached] {
            let denied = limiter.check_cost(key, 8).await.unwrap();
            assert!(denied.is_denied());
            assert_eq!((denied.remaining(), denied.source()), (5 - more, source), "{key}");
            // Six minutes for each permit. The clock of Redis goes on.
            let wait = Duration::from_secs(360 * (3 + more));
            let retry_after = denied.retry_after().unwrap();
            assert!(retry_after <= wait, "{key}: {retry_after:?}");
            assert!(retry_after > wait - Duration::from_secs(30), "{key}: {retry_after:?}");
        }
    }
}

const ALLOWED: (bool, Source) = (true, Source::Store);
const DENIED: (bool, Source) = (false, Source::Store);
const CACHED: (bool, Source) = (false, Source::Cached);

#[tokio::test]
async fn a_reset_ends_the_cached_denials_of_all_limiters_of_the_policy_and_no_others() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let (one, two) = (limiter(&store, "a", BOUND), limiter(&store, "a", BOUND));
    let resetting = uncached(store.clone(), policy("a"));
    let other_policy = limiter(&store, "b", BOUND);
    let keys = || others().chain(["key".to_owned()]);
    for (limiter, key) in keys().flat_map(|key| [(&one, key.clone()), (&other_policy, key)]) {
        assert_eq!(check(limiter, &key).await, ALLOWED);
        assert_eq!(check(limiter, &key).await, DENIED);
        assert_eq!(check(limiter, &key).await, CACHED);
    }
    deny(&two, "key").await;

    resetting.reset("key").await.unwrap();
    assert_eq!(check(&one, "key").await, ALLOWED);
    assert_eq!(check(&two, "key").await, DENIED);
    let mut cached = 0;
    for key in others() {
        cached += u32::from(check(&one, &key).await == CACHED);
    }
    assert!(cached >= 15, "{cached} of 20");

    for key in others() {
        resetting.reset(key.as_str()).await.unwrap();
    }
    let mut cached = 0;
    for key in keys() {
        cached += u32::from(check(&other_policy, &key).await == CACHED);
    }
    assert!(cached >= 15, "{cached} of 21");
}

#[tokio::test]
async fn a_cached_denial_of_any_quota_says_what_the_store_says() {
    let server = Server::start().await;
    let quotas = [
        "3/day",
        "3/day burst 5",
        "3/day borrow 2",
        "3/day burst 3 queue 1h",
        "3/day interval",
        "3/day fixed",
        "3/day calendar",
        "3/month calendar Europe/Berlin",
        "3/day sliding approximate",
        "3/day sliding 12",
    ];
    let named =
        |policy: Policy, n: usize| policy.quota(format!("q{n}"), quotas[n].parse().unwrap());
    let indices = || 0..quotas.len();
    let policy = || Policy::new("a");
    let second = || policy().quota("second", Quota::per_second(1_000_000));
    let policies = indices().map(|n| named(policy(), n));
    let policies = policies.chain(indices().map(|n| named(second(), n)));
    let policies = policies.chain([indices().fold(policy(), named)]);
    for (number, policy) in policies.enumerate() {
        let text = policy.quotas().map(|(_, quota)| quota.to_string()).collect::<Vec<_>>();
        let store = RedisStore::open(server.url()).unwrap().key_prefix(format!("{number}"));
        let limiter = test_limiter_builder(store.clone(), policy.clone()).cache_denials(BOUND);
        let (limiter, without) = (limiter.build().unwrap(), uncached(store, policy));
        let check = async |cost| limiter.check_cost("key", cost).await.unwrap();
        let mut start = Instant::now();
        while check(2).await.is_allowed() {
            start = Instant::now();
        }
        let cached = check(2).await;
        let stored = without.check_cost("key", 2).await.unwrap();
        let elapsed = start.elapsed();
        assert_eq!((cached.source(), stored.source()), (Source::Cached, Source::Store), "{text:?}");
        let standing = |decision: &Decision| {
            let of = |quota: QuotaStatus<'_>| {
                (quota.name().to_owned(), quota.remaining(), quota.is_violated())
            };
            decision.quotas().map(of).collect::<Vec<_>>()
        };
        assert_eq!(standing(&cached), standing(&stored), "{text:?}");
        let waits = |decision: &Decision| {
            let resets = decision.quotas().map(|quota| quota.reset_after());
            resets.chain(decision.retry_after()).collect::<Vec<_>>()
        };
        let (waits_cached, waits_stored) = (waits(&cached), waits(&stored));
        assert_eq!(waits_cached.len(), text.len() + 1);
        for (cached, stored) in waits_cached.iter().zip(&waits_stored) {
            let later = cached.saturating_sub(*stored);
            assert!(cached >= stored && later <= elapsed, "{cached:?} {stored:?} {text:?}");
        }
        assert_eq!(check(3).await.source(), Source::Cached, "{text:?}");
        assert_eq!(check(1).await.is_allowed(), cached.remaining() > 0, "{text:?}");
    }
}

#[tokio::test]
async fn the_same_key_under_another_policy_or_prefix_is_not_denied_by_the_cache() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    for (store, name) in [(&store, "a"), (&store, "b"), (&store.clone().key_prefix("p"), "a")] {
        let limiter = limiter(store, name, BOUND);
        deny(&limiter, "another").await;
        assert_eq!(check(&limiter, "key").await, ALLOWED);
        assert_eq!(check(&limiter, "key").await, DENIED);
        assert_eq!(check(&limiter, "key").await, CACHED);
    }
}

#[tokio::test]
async fn a_denial_by_old_numbers_is_not_used_again_when_they_return() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = limiter(&store, "a", BOUND);
    assert_eq!(check(&limiter, "key").await, ALLOWED);
    assert_eq!(check(&limiter, "key").await, DENIED);
    limiter.update(Policy::new("a").quota("daily", Quota::per_day(2))).unwrap();
    server.command(&["FLUSHALL"]).await;
    limiter.update(policy("a")).unwrap();
    deny(&limiter, "another").await;
    assert_eq!(check(&limiter, "key").await, ALLOWED);
}

#[tokio::test]
async fn a_cost_above_the_capacity_costs_no_round_trip_and_is_denied_in_an_outage_too() {
    let server = Server::start().await;
    let redis = test_limiter(RedisStore::open(server.url()).unwrap(), TEN_DAILY);
    let memory = test_limiter(MemoryStore::new(), TEN_DAILY);
    let decide = async |limiter: &Limiter, cost| limiter.check_cost("key", cost).await.unwrap();
    for limiter in [&redis, &memory] {
        assert!(decide(limiter, 4).await.is_allowed());
    }
    let before = server.command_stats().await;
    for cost in [11, 12, u64::MAX] {
        let denied = decide(&redis, cost).await;
        assert!(denied.exceeds_capacity() && denied.source() == Source::Quota, "{denied:?}");
        assert_eq!((denied.remaining(), denied.retry_after()), (10, None));
        assert_eq!(denied, decide(&memory, cost).await);
    }
    assert_eq!(server.command_stats().await, before);
    for limiter in [&redis, &memory] {
        assert_eq!(decide(limiter, 6).await.remaining(), 0, "nothing was charged");
    }
    server.stop();
    for failure_mode in [FailureMode::Open, FailureMode::Closed] {
        let store = RedisStore::open(server.url()).unwrap();
        let limiter =
            Limiter::builder(store, TEN_DAILY).failure_mode(failure_mode).build().unwrap();
        assert!(decide(&limiter, 11).await.is_denied(), "{failure_mode:?}");
    }
}

//! The denials that a process caches: limiters on one store share their memory, and a reset reaches
//! all that it concerns.

use std::time::Duration;

use tollgate::{Limiter, Policy, Quota, RedisStore, Source};

use crate::common::{BOUND, Server};
use crate::exact::{test_limiter_builder, uncached};

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

//! Leases: checks that a process decides from permits that it has taken from Redis in advance.

use std::time::{Duration, Instant};

use fleetlimit::{Decision, Limiter, Policy, Quota, RedisStore, Source};

use crate::common::Server;
use crate::exact::test_limiter_builder;

const LEASE: Duration = Duration::from_millis(100);

fn leased(store: &RedisStore, policy: impl Into<Policy>) -> Limiter {
    test_limiter_builder(store.clone(), policy).lease(LEASE).build().unwrap()
}

/// Checks until a lease decides.
async fn warm(limiter: &Limiter, key: &'static str) -> Decision {
    loop {
        let decision = limiter.check(key).await.unwrap();
        if decision.source() == Source::Lease {
            return decision;
        }
        assert!(decision.is_allowed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn nearly_all_checks_of_a_key_in_use_are_decided_by_leases() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = leased(&store, Quota::per_second(1_000));
    let start = Instant::now();
    let (mut checks, mut by_lease) = (0, 0);
    while start.elapsed() < Duration::from_secs(3) {
        let decision = limiter.check("key").await.unwrap();
        assert!(decision.is_allowed(), "{decision:?}");
        checks += 1;
        by_lease += u32::from(decision.source() == Source::Lease);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    println!("{by_lease} of {checks}");
    let _ = warm(&limiter, "other").await;
    let peek = limiter.peek("key").await.unwrap();
    println!("{peek:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let peek = limiter.peek("key").await.unwrap();
    println!("{peek:?}");
    assert!(by_lease * 10 >= checks * 9);
}

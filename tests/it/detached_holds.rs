//! Holds that belong to no process, on two handles that stand for two processes: what one has taken, the other gives
//! back, and nothing is given back twice.

use std::num::NonZeroUsize;
use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::internal::DetachedHold;
use fleetlimit::{
    AnyStore, Costs, FailureMode, Limiter, ManualClock, MemoryStore, Policy, Quota, RedisStore,
    Source,
};

use crate::common::{BOUND, CLOCK, ClockProxy, Cluster, NO_EXPIRY, Proxy, Server, wait_until};
use crate::exact::test_limiter;
use crate::holds::{policy, wait_until_held};

const MINUTE: Duration = Duration::from_secs(60);
/// In microseconds since 1970.
const START: u64 = 1_763_780_000_000_000;

async fn hold(limiter: &Limiter, cost: u64, lifetime: Duration) -> DetachedHold {
    let (decision, hold) = limiter.hold_detached("key", cost, lifetime).await.unwrap();
    assert!(decision.is_allowed());
    hold.unwrap()
}

fn attach(limiter: &Limiter, record: &[u64]) -> DetachedHold {
    limiter.attach("key", record).unwrap()
}

async fn is_allowed(limiter: &Limiter) -> bool {
    let (decision, hold) = limiter.hold_detached("key", 1, MINUTE).await.unwrap();
    assert_eq!(decision.is_allowed(), hold.is_some());
    decision.is_allowed()
}

async fn remaining(limiter: &Limiter, quota: &str) -> u64 {
    let peeked = limiter.peek("key").await.unwrap();
    peeked.quotas().find(|status| status.name() == quota).unwrap().remaining()
}

/// Two processes on the same servers.
async fn assert_any_process_ends_a_hold(stores: [RedisStore; 2]) {
    let [a, b] = stores.map(|store| test_limiter(store, policy(3)));
    wait_until("the servers reply", BOUND, async || a.peek("key").await.is_ok()).await;
    let records: Vec<_> =
        [hold(&a, 1, MINUTE).await, hold(&a, 1, MINUTE).await, hold(&b, 1, MINUTE).await]
            .iter()
            .map(DetachedHold::record)
            .collect();
    assert!(!is_allowed(&a).await && !is_allowed(&b).await);
    // Twice, by both.
    attach(&b, &records[0]).release().await.unwrap();
    attach(&a, &records[0]).release().await.unwrap();
    assert_eq!(remaining(&a, "held").await, 1);
    let mut extended = attach(&b, &records[1]);
    assert!(extended.extend(0).await.unwrap().is_allowed());
    assert_eq!((extended.permits(), remaining(&a, "held").await), (1, 1));
    attach(&a, &extended.record()).settle(1).await.unwrap();
    attach(&a, &records[2]).finish().await.unwrap();
    assert_eq!(remaining(&b, "held").await, 3);
}

#[tokio::test]
async fn a_hold_of_one_process_is_ended_by_another() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    assert_any_process_ends_a_hold([store(), store()]).await;
}

#[tokio::test]
async fn a_hold_of_one_process_is_ended_by_another_on_a_cluster() {
    let cluster = Cluster::start().await;
    let store = || RedisStore::open_cluster(cluster.urls()).unwrap();
    assert_any_process_ends_a_hold([store(), store()]).await;
}

/// As a client has it that did not get the reply to its last extension.
#[tokio::test]
async fn a_record_from_before_an_extension_ends_the_hold_too() {
    let server = Server::start().await;
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), with_tokens());
    for end in ["release", "settle", "finish"] {
        let mut extended = hold(&limiter, 1, MINUTE).await;
        let first = extended.record();
        for n in 0..3 {
            let more = extended.extend(Costs::new(0).with("held", 1)).await.unwrap();
            assert_eq!(more.is_allowed(), n == 0, "the limit is 2");
        }
        assert_eq!(remaining(&limiter, "held").await, 0);
        let first = attach(&limiter, &first);
        match end {
            "release" => first.release().await,
            "settle" => first.settle(7).await,
            _ => first.finish().await,
        }
        .unwrap();
        assert_eq!(remaining(&limiter, "held").await, 2, "{end}");
        // What comes too late is taken back.
        let late = extended.extend(1).await.unwrap();
        extended.retract(&late).await.unwrap();
        assert_eq!(remaining(&limiter, "held").await, 2, "{end}");
    }
    let left = remaining(&limiter, "tokens").await;
    assert!((992..995).contains(&left), "{left}");
}

/// The denial of a budget is known without a call, and a cost above the capacity, too.
#[tokio::test]
async fn an_extension_renews_the_hold_also_if_it_is_denied() {
    let server = Server::start().await;
    let tokens = policy(2).quota("tokens", Quota::per_day(1_000));
    let ([a, b], clock) = with_clock(&server, tokens).await;
    let mut held = hold(&a, 1_000, MINUTE).await;
    let mut now = START;
    for cost in [900, 5_000, 900] {
        now += MINUTE.as_micros() as u64 - 1;
        clock.set_time(now).await;
        assert!(held.extend(cost).await.unwrap().is_denied());
        assert_eq!(remaining(&b, "held").await, 1);
    }
}

/// A client repeats an extension whose reply is late, and the second one takes more.
#[tokio::test]
async fn a_call_that_is_late_does_not_undo_a_later_one_of_the_same_record() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let slow = RedisStore::open(proxy.url()).unwrap();
    let builder = Limiter::builder(slow, policy(3)).failure_mode(FailureMode::Closed);
    let slow = builder.timeout(Duration::from_millis(200)).build().unwrap();
    let fast = test_limiter(RedisStore::open(server.url()).unwrap(), policy(3));
    wait_until("it is connected", BOUND, async || slow.peek("key").await.is_ok()).await;
    let record = hold(&fast, 1, MINUTE).await.record();
    proxy.round_trip(Duration::from_secs(1));
    assert!(attach(&slow, &record).extend(0).await.is_err());
    let more = attach(&fast, &record).extend(Costs::new(0).with("held", 2)).await.unwrap();
    assert!(more.is_allowed());
    // Until the late call has arrived.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!is_allowed(&fast).await);
}

#[tokio::test]
async fn a_hold_that_was_taken_without_anybody_knowing_is_given_back() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    for mode in [FailureMode::Closed, FailureMode::Local, FailureMode::Open] {
        let store = RedisStore::open(proxy.url()).unwrap();
        // Two instances have no share of one permit for sure.
        let store = store.instances(NonZeroUsize::new(2).unwrap());
        let builder = Limiter::builder(store, policy(1)).failure_mode(mode);
        let limiter = builder.timeout(Duration::from_millis(200)).build().unwrap();
        wait_until("it is connected", BOUND, async || limiter.peek("key").await.is_ok()).await;
        let direct = test_limiter(RedisStore::open(server.url()).unwrap(), policy(1));
        proxy.delay(Duration::from_millis(400));
        let late = limiter.hold_detached("key", 1, 60 * MINUTE).await;
        proxy.delay(Duration::ZERO);
        if let Ok((_, Some(hold))) = late {
            // By the failure mode. The client knows of it, and ends it.
            let record = hold.record();
            let end = async || attach(&limiter, &record).release().await.is_ok();
            wait_until("it is ended", BOUND, end).await;
        }
        wait_until("nobody holds it", BOUND, async || remaining(&direct, "held").await == 1).await;
    }
}

#[tokio::test]
async fn a_rate_that_becomes_a_concurrent_quota_starts_full() {
    let server = Server::start().await;
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), with_tokens());
    let record = hold(&limiter, 500, MINUTE).await.record();
    let changed = Policy::new("exports").quota("tokens", Quota::concurrent(10));
    limiter.update(changed.quota("held", Quota::per_hour(10))).unwrap();
    let mut continued = attach(&limiter, &record);
    assert!(continued.extend(0).await.unwrap().is_allowed());
    assert_eq!((continued.permits(), remaining(&limiter, "tokens").await), (0, 10));
    attach(&limiter, &continued.record()).release().await.unwrap();
    assert_eq!(remaining(&limiter, "held").await, 10);
}

#[tokio::test]
async fn holds_and_detached_holds_of_a_key_have_one_limit() {
    let server = Server::start().await;
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), policy(2));
    let own = limiter.hold("key", 1).await.unwrap();
    let detached = hold(&limiter, 1, MINUTE).await;
    assert!(!is_allowed(&limiter).await);
    assert!(limiter.hold("key", 1).await.unwrap().decision().is_denied());
    drop(own);
    wait_until_held(&limiter, 1).await;
    detached.release().await.unwrap();
    assert_eq!(remaining(&limiter, "held").await, 2);
}

/// Two processes, and the clock of their server.
async fn with_clock(server: &Server, policy: Policy) -> ([Limiter; 2], ClockProxy) {
    let proxy = ClockProxy::start(server, &[CLOCK, NO_EXPIRY]).await;
    proxy.set_time(START).await;
    let limiters = [(); 2].map(|()| test_limiter(proxy.store("clock"), policy.clone()));
    (limiters, proxy)
}

#[tokio::test]
async fn a_hold_that_nobody_extends_ends_with_its_lifetime() {
    let server = Server::start().await;
    let ([a, b], clock) = with_clock(&server, policy(1)).await;
    let mut extended = attach(&a, &hold(&b, 1, MINUTE).await.record());
    let mut now = START;
    for _ in 0..3 {
        now += MINUTE.as_micros() as u64 - 1;
        clock.set_time(now).await;
        assert_eq!(remaining(&a, "held").await, 0);
        assert!(extended.extend(0).await.unwrap().is_allowed());
    }
    clock.set_time(now + MINUTE.as_micros() as u64).await;
    assert_eq!(remaining(&b, "held").await, 1);
}

#[tokio::test]
async fn the_lifetime_is_that_of_the_clock_of_a_store_in_memory() {
    let clock = ManualClock::new(UNIX_EPOCH + MINUTE);
    let store = MemoryStore::with_manual_clock(NonZeroUsize::MIN, clock.clone());
    let limiter = Limiter::new(store, policy(1)).unwrap();
    let _hold = hold(&limiter, 1, MINUTE).await;
    let end = clock.now() + MINUTE;
    clock.advance_to(end - Duration::from_micros(1));
    assert!(!is_allowed(&limiter).await);
    clock.advance_to(end);
    assert!(is_allowed(&limiter).await);
}

fn with_tokens() -> Policy {
    policy(2).quota("tokens", Quota::per_hour(1_000))
}

#[tokio::test]
async fn the_actual_cost_is_settled_by_another_process() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let [a, b] = [store(), store()].map(|store| test_limiter(store, with_tokens()));
    for (slices, actual, left) in [
        (vec![300, 200], 350, 650),
        (vec![100], 250, 400),
        (vec![50; 3], 0, 400),
        (vec![20; 20], 400, 0),
    ] {
        let mut record = hold(&a, slices[0], MINUTE).await.record();
        for slice in &slices[1..] {
            let mut extended = attach(&b, &record);
            assert!(extended.extend(*slice).await.unwrap().is_allowed());
            record = extended.record();
        }
        attach(&b, &record).settle(actual).await.unwrap();
        assert_eq!((remaining(&a, "tokens").await, remaining(&a, "held").await), (left, 2));
    }
}

/// A client could otherwise collect permits with holds that it keeps for long.
#[tokio::test]
async fn what_has_refilled_is_not_given_back_by_another_process() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let policy = || {
        Policy::new("p").quota("held", Quota::concurrent(1)).quota("tokens", Quota::per_second(10))
    };
    let [a, b] = [store(), store()].map(|store| test_limiter(store, policy()));
    let record = hold(&a, 10, MINUTE).await.record();
    wait_until("all have refilled", BOUND, async || remaining(&a, "tokens").await == 10).await;
    assert!(a.hold("key", Costs::new(10).with("held", 0)).await.unwrap().decision().is_allowed());
    attach(&b, &record).release().await.unwrap();
    assert!(remaining(&a, "tokens").await < 5);
}

#[tokio::test]
async fn a_hold_outlives_an_update_of_its_policy() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let [a, b] = [store(), store()].map(|store| test_limiter(store, with_tokens()));
    let record = hold(&a, 300, MINUTE).await.record();
    b.update(
        Policy::new("exports")
            .quota("tokens", Quota::per_hour(2_000))
            .quota("held", Quota::concurrent(5)),
    )
    .unwrap();
    assert_eq!((remaining(&b, "tokens").await, remaining(&b, "held").await), (1_700, 4));
    attach(&b, &record).settle(100).await.unwrap();
    assert_eq!((remaining(&b, "tokens").await, remaining(&b, "held").await), (1_900, 5));
}

#[tokio::test]
async fn while_redis_fails_holds_count_in_the_share_and_are_registered_when_they_are_extended() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let builder = Limiter::builder(store, with_tokens()).failure_mode(FailureMode::Local);
    let limiter = builder.timeout(Duration::from_millis(200)).build().unwrap();
    let before = hold(&limiter, 100, MINUTE).await;
    server.stop();
    let (decision, during) = limiter.hold_detached("key", 100, MINUTE).await.unwrap();
    assert_eq!((decision.source(), decision.is_allowed()), (Source::Local, true));
    let mut during = during.unwrap();
    // The other place is that of the first hold, which Redis may have lost with its data.
    assert!(!is_allowed(&limiter).await);
    server.restart().await;
    wait_until("Redis replies", BOUND, async || {
        let extended = during.extend(0).await.unwrap();
        extended.source() == Source::Store
    })
    .await;
    wait_until("what was taken locally is charged", BOUND, async || {
        remaining(&limiter, "tokens").await == 900
    })
    .await;
    assert_eq!(remaining(&limiter, "held").await, 1);
    assert!(attach(&limiter, &before.record()).extend(0).await.unwrap().is_allowed());
    assert_eq!(remaining(&limiter, "held").await, 0);
    during.release().await.unwrap();
    assert_eq!(remaining(&limiter, "held").await, 1);
}

#[tokio::test]
async fn what_is_no_record_is_no_hold() {
    let limiter = Limiter::new(MemoryStore::new(), with_tokens()).unwrap();
    let record = hold(&limiter, 1, MINUTE).await.record();
    for length in 0..11 {
        assert!(limiter.attach("key", &record[..length]).is_none(), "{length}");
    }
    assert!(limiter.attach("key", &[1, 1, 1, 1, u64::MAX]).is_none());
    for length in 11..record.len() {
        // Not all that was taken is known, but nothing panics.
        limiter.attach("key", &record[..length]).unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn no_more_clients_than_a_value_has_room_for_hold_permits_of_a_key() {
    const MOST: u64 = 1_024;
    let server = Server::start().await;
    let stores: [AnyStore; 2] =
        [RedisStore::open(server.url()).unwrap().into(), MemoryStore::new().into()];
    for store in stores {
        let limiter = test_limiter(store, policy(5_000));
        let mut holds = Vec::new();
        for _ in 0..MOST {
            holds.push(hold(&limiter, 1, MINUTE).await);
        }
        assert!(!is_allowed(&limiter).await);
        assert_eq!(remaining(&limiter, "held").await, 0);
        // One that holds some already may have more.
        let more = holds[7].extend(Costs::new(0).with("held", 2)).await.unwrap();
        assert_eq!((more.is_allowed(), more.remaining()), (true, 5_000 - MOST - 2));
        holds.pop().unwrap().release().await.unwrap();
        assert!(is_allowed(&limiter).await && !is_allowed(&limiter).await);
    }
}

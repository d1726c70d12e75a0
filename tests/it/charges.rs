//! Charges and credits: permits that are taken and given back without a check.

use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{
    BestEffortChecks, Costs, ErrorKind, FailureMode, Limiter, MemoryStore, Policy, Quota,
    RedisStore, Source, Store,
};
use tokio::task::JoinSet;

use crate::common::{BOUND, Clock, Cluster, Server, wait_until};
use crate::exact::{test_limiter, test_limiter_builder, uncached};
use crate::settlement::poll_once;

fn policy() -> Policy {
    Policy::new("test")
        .quota("requests", Quota::per_day(1_000))
        .quota("points", Quota::per_day(5_000).fixed_window())
}

async fn remaining(limiter: &Limiter, key: &str) -> Vec<u64> {
    let decision = limiter.peek(key).await.unwrap();
    decision.quotas().map(|quota| quota.remaining()).collect()
}

/// 200 tasks, each with a check, two equal charges, another one and a credit.
async fn adjust_concurrently(limiter: &Limiter, key: &'static str) {
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let points = |points| Costs::new(1).with("points", points);
            let (check, one, two, three) = tokio::join!(
                limiter.check(key),
                limiter.charge(key, points(7)),
                limiter.charge(key, points(7)),
                limiter.charge(key, 1),
            );
            assert!(check.unwrap().is_allowed());
            for result in [one, two, three] {
                result.unwrap();
            }
            limiter.credit(key, Costs::new(0).with("points", 3)).await.unwrap();
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_charges_and_credits_are_exact_and_share_calls() {
    let server = Server::start().await;
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy());
    assert_eq!(remaining(&limiter, "key").await, [1_000, 5_000]);
    adjust_concurrently(&limiter, "key").await;
    // Four of each, less 13 more points.
    assert_eq!(remaining(&limiter, "key").await, [200, 5_000 - 200 * 13]);
    let stats = server.command_stats().await;
    let calls = stats["evalsha"] + stats["eval"];
    assert!(calls < 400, "{calls} calls for 1,000 operations");
}

#[tokio::test]
async fn a_single_permit_is_given_back() {
    let server = Server::start().await;
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy());
    limiter.charge("key", 3).await.unwrap();
    limiter.credit("key", 1).await.unwrap();
    assert_eq!(remaining(&limiter, "key").await, [998, 4_998]);
}

/// The client, which decides by the value before, would say so anyway. The server has to agree.
#[tokio::test]
async fn nothing_is_lent_to_a_key_without_a_permit() {
    let server = Server::start().await;
    let quota = Quota::per_day(10).borrow_up_to(20);
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), quota);
    assert!(limiter.check_cost("key", 10).await.unwrap().is_allowed());
    assert!(limiter.check_cost("key", 5).await.unwrap().is_denied());
    let wait = limiter.peek("key").await.unwrap().refill_after();
    assert!(wait <= Duration::from_secs(86_400 / 10), "{wait:?}: it was charged");
}

/// The client would say so anyway, too.
#[tokio::test]
async fn the_server_repays_a_debt_with_all_permits_of_a_refill_that_the_bucket_does_not_hold() {
    const MINUTE: Duration = Duration::from_secs(60);
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    let quota = Quota::per_minute(30).burst(10).interval_refill();
    for (name, policy) in [
        ("alone", Policy::new("test").quota("q", quota)),
        ("with-others", policy().quota("q", quota)),
    ] {
        let limiter = uncached(clock.store(name), policy);
        limiter.charge("key", 55).await.unwrap();
        clock.advance(2 * MINUTE).await;
        assert!(limiter.check_cost("key", 10).await.unwrap().is_allowed(), "{name}");
        let last = remaining(&limiter, "key").await.pop();
        assert_eq!(last, Some(0), "{name}: it was charged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_and_credits_work_on_a_cluster() {
    let cluster = Cluster::start().await;
    let limiter = uncached(RedisStore::open_cluster(cluster.urls()).unwrap(), policy());
    for key in ["a", "b", "c", "d"] {
        adjust_concurrently(&limiter, key).await;
        assert_eq!(remaining(&limiter, key).await, [200, 5_000 - 200 * 13]);
    }
}

/// A window of another length is converted when it is charged, and a debt lasts until it is repaid.
#[tokio::test]
async fn a_debt_expires_when_it_is_repaid_and_a_credit_creates_no_key() {
    let server = Server::start().await;
    for quota in [
        Quota::per_minute(10),
        Quota::per_minute(10).borrow_up_to(3),
        Quota::per_minute(7).interval_refill(),
        Quota::per_minute(10).fixed_window(),
        Quota::per_minute(10).calendar(),
        Quota::per_minute(10).approximate_sliding_window(),
        Quota::per_minute(10).sliding_window(12),
    ] {
        let store = RedisStore::open(server.url()).unwrap();
        let prefix = quota.to_string().replace([' ', '/'], "-");
        let limiter = uncached(store.key_prefix(prefix.clone()), quota);
        limiter.credit("key", 5).await.unwrap();
        let name = format!("{prefix}:{{key}}:default:t2");
        assert_eq!(server.query::<i64>(&["EXISTS", &name]).await, 0, "{quota}");

        limiter.charge("key", 500).await.unwrap();
        let decision = limiter.check("key").await.unwrap();
        assert!(decision.is_denied(), "{quota}");
        let ttl = Duration::from_millis(server.query(&["PTTL", &name]).await);
        // The granule of the expiry is at most a few seconds here.
        let slack = Duration::from_secs(8);
        assert!(ttl + Duration::from_millis(2) > decision.reset_after(), "{quota}: {ttl:?}");
        assert!(ttl < decision.reset_after() + slack, "{quota}: {ttl:?} {decision:?}");

        limiter.credit("key", u64::MAX).await.unwrap();
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), quota.capacity(), "{quota}");
    }
}

#[tokio::test]
async fn a_credit_ends_the_cached_denial_of_the_key() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = test_limiter_builder(store, Quota::per_day(2)).cache_denials(BOUND).build();
    let limiter = limiter.unwrap();
    assert!(limiter.check_cost("key", 2).await.unwrap().is_allowed());
    assert!(limiter.check("key").await.unwrap().is_denied());
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Cached);
    limiter.credit("key", 1).await.unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_cached_denial_also_denies_a_check_that_is_charged_later() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = test_limiter_builder(store, Quota::per_day(2)).cache_denials(BOUND).build();
    let limiter = limiter.unwrap();
    limiter.charge("key", 3).await.unwrap();
    let later = || limiter.check_cost("key", Costs::new(0).charged_later());
    assert!(later().await.unwrap().is_denied());
    let cached = later().await.unwrap();
    assert_eq!((cached.is_denied(), cached.source()), (true, Source::Cached));
    // 1 of the debt, and the permit that is needed.
    let wait = cached.retry_after().unwrap();
    assert!(wait > Duration::from_secs(86_300) && wait <= Duration::from_secs(86_400));
    assert_eq!(limiter.check_cost("key", 0).await.unwrap().source(), Source::Store);
}

/// It is charged to the other quota.
#[tokio::test]
async fn a_check_that_is_charged_later_needs_only_one_permit() {
    let server = Server::start().await;
    let policy = Policy::new("test").quota("a", Quota::per_day(2)).quota("b", Quota::per_day(9));
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), policy);
    let costs = |a| Costs::new(1).with("a", a);
    let _ = limiter.check_cost("key", costs(1)).await.unwrap();
    assert_eq!(remaining(&limiter, "key").await, [1, 8]);
    let later = || costs(0).charged_later();
    assert!(limiter.check_cost("key", later()).await.unwrap().is_allowed());
    assert_eq!(remaining(&limiter, "key").await, [1, 7]);
    let _ = limiter.check_cost("key", costs(1)).await.unwrap();
    assert!(limiter.check_cost("key", later()).await.unwrap().is_denied());
    assert_eq!(remaining(&limiter, "key").await, [0, 6]);
}

/// Or it would pass those that wait for a permit.
#[tokio::test]
async fn a_check_that_is_charged_later_is_denied_where_others_wait() {
    let server = Server::start().await;
    let queue = Quota::per_minute(1).queue(Duration::from_secs(600));
    let policy = Policy::new("test").quota("a", queue).quota("b", Quota::per_day(9));
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy);
    limiter.charge("key", Costs::new(0).with("a", 1)).await.unwrap();
    let costs = |a| Costs::new(1).with("a", a);
    let reservation = limiter.reserve("key", costs(0).charged_later()).await.unwrap();
    assert!(reservation.decision().is_denied());
    assert_eq!(remaining(&limiter, "key").await, [0, 9]);
    let reservation = limiter.reserve("key", costs(1)).await.unwrap();
    assert!(reservation.decision().is_allowed());
    assert_eq!(remaining(&limiter, "key").await, [0, 8]);
}

#[tokio::test]
async fn a_charge_that_fails_is_an_error_in_any_failure_mode() {
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    for mode in [FailureMode::Open, FailureMode::Closed] {
        let limiter = test_limiter_builder(store.clone(), policy()).failure_mode(mode);
        let limiter = limiter.build().unwrap();
        let error = limiter.charge("key", 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(limiter.credit("key", 1).await.is_err());
    }
    let limiter = test_limiter(MemoryStore::new(), policy());
    let unknown = Costs::new(0).with("bytes", 1);
    for result in
        [limiter.charge("key", unknown.clone()).await, limiter.credit("key", unknown).await]
    {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnknownQuota);
    }
}

fn named(store: impl Store + Clone, limits: [u64; 3]) -> [Limiter; 3] {
    let mut names = ["user", "tenant", "global"].into_iter();
    limits.map(|n| {
        let name = names.next().unwrap();
        let quota = Quota::per_day(n).fixed_window();
        uncached(store.clone(), Policy::new(name).quota(name, quota))
    })
}

#[tokio::test(start_paused = true)]
async fn a_second_key_that_denies_gives_all_of_the_first_back_whatever_its_algorithm() {
    let quota = Quota::per_minute(10);
    for quota in [
        quota,
        quota.borrow_up_to(5),
        quota.interval_refill(),
        quota.fixed_window(),
        quota.calendar(),
        quota.approximate_sliding_window(),
        quota.sliding_window(6),
    ] {
        let start = UNIX_EPOCH + Duration::from_secs(600);
        let store = MemoryStore::starting_at(start);
        let first = Limiter::new(store.clone(), Policy::new("first").quota("q", quota)).unwrap();
        let other = Policy::new("second").quota("q", Quota::per_day(1).fixed_window());
        let second = Limiter::new(store, other).unwrap();
        second.charge("all", 1).await.unwrap();
        // Some were used in the window before.
        first.charge("key", 9).await.unwrap();
        tokio::time::advance(Duration::from_secs(65)).await;
        first.charge("key", 1).await.unwrap();
        let before = remaining(&first, "key").await;
        let checks = BestEffortChecks::new().add(&first, "key", 4);
        assert!(checks.add(&second, "all", 1).check().await.unwrap().is_denied());
        assert_eq!(remaining(&first, "key").await, before, "{quota}");
    }
}

fn checks([user, tenant, global]: &[Limiter; 3], cost: u64) -> BestEffortChecks {
    BestEffortChecks::new()
        .add(user, "user:7", cost)
        .add(tenant, "tenant:3", cost)
        .add(global, "all", cost)
}

async fn all_remaining([user, tenant, global]: &[Limiter; 3]) -> [u64; 3] {
    [
        remaining(user, "user:7").await[0],
        remaining(tenant, "tenant:3").await[0],
        remaining(global, "all").await[0],
    ]
}

#[tokio::test]
async fn keys_that_are_checked_together_get_their_permits_back_when_one_denies() {
    let memory = named(MemoryStore::new(), [10, 6, 5]);
    let cluster = Cluster::start().await;
    let redis = named(RedisStore::open_cluster(cluster.urls()).unwrap(), [10, 6, 5]);
    for limiters in [memory, redis] {
        let decision = checks(&limiters, 3).check().await.unwrap();
        assert_eq!((decision.quota_name(), decision.remaining()), ("global", 2));
        let denied = checks(&limiters, 3).check().await.unwrap();
        assert_eq!((denied.is_denied(), denied.quota_name()), (true, "global"));
        wait_until("the permits are given back", BOUND, async || {
            all_remaining(&limiters).await == [7, 3, 2]
        })
        .await;
        assert!(checks(&limiters, 7).check().await.unwrap().exceeds_capacity());
        wait_until("the permit of the user is given back", BOUND, async || {
            all_remaining(&limiters).await == [7, 3, 2]
        })
        .await;
    }
}

#[tokio::test]
async fn checks_together_that_are_cancelled_or_fail_give_permits_back() {
    let server = Server::start().await;
    let (memory, redis) = (MemoryStore::new(), RedisStore::open(server.url()).unwrap());
    let [user, tenant, _] = named(memory, [10, 6, 5]);
    let global = named(redis, [10, 6, 5])[2].clone();
    let limiters = [user, tenant, global];
    server.pause();
    let mut pending = Box::pin(checks(&limiters, 3).check());
    assert!(poll_once(&mut pending).await.is_none());
    assert_eq!(remaining(&limiters[0], "user:7").await, [7]);
    drop(pending);
    assert_eq!(remaining(&limiters[0], "user:7").await, [10]);
    assert_eq!(remaining(&limiters[1], "tenant:3").await, [6]);
    server.resume();

    server.stop();
    assert!(checks(&limiters, 3).check().await.is_err());
    assert_eq!(remaining(&limiters[0], "user:7").await, [10]);
}

#[tokio::test]
async fn nothing_to_check_is_allowed() {
    assert!(BestEffortChecks::new().check().await.unwrap().is_allowed());
}

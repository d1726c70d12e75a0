//! Leases: checks that a process decides from permits that it has taken from Redis in advance. Here each keeps its
//! meaning in combination with everything else that a limiter does; `leased_fleet` has several instances, and faults.

use std::future::{Future, poll_fn};
use std::num::NonZeroUsize;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::Body;
use fleetlimit::resolve::Global;
use fleetlimit::{
    BlockList, Costs, Decision, DividedStore, FailureMode, Limiter, LimiterBuilder, MemoryStore,
    Policy, Quota, RateLimitLayer, RedisStore, Source,
};
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::common::{BOUND, Proxy, Server, wait_until};
use crate::exact::test_limiter_builder;

/// In a lease of this length, this quota gains less than one permit.
const SLOW: Quota = Quota::per_day(50_000).burst(10_000);
const LONG: Duration = Duration::from_secs(1);

/// What the bucket in Redis holds with such leases.
const CAPACITY: u64 = 9_999;

fn store(server: &Server) -> RedisStore {
    RedisStore::open(server.url()).unwrap()
}

fn builder(server: &Server, policy: impl Into<Policy>, lease: Duration) -> LimiterBuilder {
    test_limiter_builder(store(server), policy).lease(lease)
}

fn leased(server: &Server, policy: impl Into<Policy>) -> Limiter {
    builder(server, policy, LONG).build().unwrap()
}

/// Returns what Redis has left of a key of a slow quota, with the permits that leases have.
async fn left(server: &Server, key: &'static str) -> u64 {
    let other = test_limiter_builder(store(server), SLOW).build().unwrap();
    other.peek(key).await.unwrap().remaining()
}

/// Checks until a lease decides. Returns that decision and the number of checks.
async fn warm(limiter: &Limiter, key: &'static str) -> (Decision, u64) {
    for checks in 1.. {
        let decision = limiter.check(key).await.unwrap();
        assert!(decision.is_allowed(), "{decision:?}");
        if decision.source() == Source::Lease {
            return (decision, checks);
        }
    }
    unreachable!()
}

async fn source(limiter: &Limiter, key: &'static str) -> Source {
    limiter.check(key).await.unwrap().source()
}

#[tokio::test]
async fn nearly_all_checks_of_a_key_in_use_are_decided_by_leases() {
    let server = Server::start().await;
    let limiter =
        builder(&server, Quota::per_second(1_000), Duration::from_millis(100)).build().unwrap();
    let (start, mut checks, mut by_lease) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_secs(2) {
        let decision = limiter.check("key").await.unwrap();
        assert!(decision.is_allowed(), "{decision:?}");
        checks += 1;
        by_lease += u32::from(decision.source() == Source::Lease);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert!(by_lease * 10 >= checks * 9, "{by_lease} of {checks}");
}

/// Or a window of a day would be used up by processes that are idle.
#[tokio::test]
async fn what_a_lease_has_not_used_is_given_back_when_it_ends() {
    let server = Server::start().await;
    for (name, quota) in [("bucket", SLOW), ("window", Quota::per_day(10_000).fixed_window())] {
        let policy = Policy::new(name).quota("quota", quota);
        let limiter = builder(&server, policy.clone(), Duration::from_millis(100)).build().unwrap();
        let (decision, checks) = warm(&limiter, "key").await;
        let (limit, other) = (decision.remaining() + checks, store(&server));
        let other = test_limiter_builder(other, policy).build().unwrap();
        let used = async || other.peek("key").await.unwrap();
        assert!(used().await.remaining() < used().await.limit() - checks, "nothing is leased");
        let given_back = async || used().await.remaining() == used().await.limit() - checks;
        wait_until("all is given back", BOUND, given_back).await;
        assert!(limit <= decision.limit(), "{decision:?}");
    }
}

#[tokio::test]
async fn numbers_count_what_the_own_lease_has_left_as_free_and_never_more_than_redis_could_grant() {
    let server = Server::start().await;
    let limiter = leased(&server, SLOW);
    let (decision, mut checks) = warm(&limiter, "key").await;
    assert_eq!(decision.remaining(), CAPACITY - checks);
    for _ in 0..3 {
        let decision = limiter.check("key").await.unwrap();
        checks += 1;
        assert_eq!(
            (decision.limit(), decision.remaining()),
            (10_000, CAPACITY - checks),
            "{decision:?}"
        );
        let peek = limiter.peek("key").await.unwrap();
        assert_eq!((peek.remaining(), peek.source()), (CAPACITY - checks, Source::Store));
    }
    // Others see it as used.
    assert!(left(&server, "key").await < 10_000 - checks);
}

#[tokio::test]
async fn a_reset_ends_own_leases_without_giving_back_and_those_of_others_end_within_a_lease() {
    let server = Server::start().await;
    let (own, other) = (leased(&server, SLOW), leased(&server, SLOW));
    let _ = warm(&own, "own").await;
    let _ = warm(&other, "other").await;
    let leased = Instant::now();
    own.reset("own").await.unwrap();
    own.reset("other").await.unwrap();
    assert_eq!(source(&own, "own").await, Source::Store);
    let by = source(&other, "other").await;
    assert!(by == Source::Lease || leased.elapsed() > LONG / 2, "{by:?}");
    let is_over = async || leased.elapsed() > LONG + LONG / 2;
    wait_until("the leases end", BOUND, is_over).await;
    assert_eq!(source(&other, "other").await, Source::Store);
    assert_eq!(left(&server, "own").await, 10_000 - 1, "what was reset is given back");
}

/// The reset makes the permits of a call that was sent before it free again, also when nobody waits for its reply.
#[tokio::test]
async fn a_reset_ends_leases_that_are_in_flight() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let limiter = test_limiter_builder(store, SLOW).lease(LONG).build().unwrap();
    let _ = warm(&limiter, "key").await;
    proxy.round_trip(Duration::from_millis(100));
    // The lease is used up while nothing else runs, so no reply can bring another one.
    let check = loop {
        let mut check = Box::pin(limiter.check("key"));
        if poll_fn(|cx| Poll::Ready(check.as_mut().poll(cx))).await.is_pending() {
            break check;
        }
    };
    let reset = tokio::time::timeout(Duration::from_millis(50), limiter.reset("key")).await;
    assert!(reset.is_err(), "{reset:?}");
    assert!(check.await.unwrap().is_allowed());
    proxy.round_trip(Duration::ZERO);
    assert_eq!(source(&limiter, "key").await, Source::Store);
}

#[tokio::test]
async fn an_update_ends_leases_and_gives_them_back() {
    let server = Server::start().await;
    let limiter = leased(&server, SLOW);
    let (_, checks) = warm(&limiter, "key").await;
    limiter.update(SLOW.burst(20_000)).unwrap();
    let decision = limiter.check("key").await.unwrap();
    assert_eq!((decision.source(), decision.limit()), (Source::Store, 20_000));
    let given_back = async || left(&server, "key").await == 10_000 - checks - 1;
    wait_until("the old lease is given back", BOUND, given_back).await;
    let error = limiter.update(Quota::per_second(100).burst(150)).unwrap_err().to_string();
    assert!(error.contains("use a shorter `lease`, or a larger `burst` if it has one"), "{error}");
}

/// As in a rolling deployment that introduces leases.
#[tokio::test]
async fn processes_with_and_without_leases_admit_at_most_the_rate_times_the_lease_more() {
    let server = Server::start().await;
    let (quota, lease) = (Quota::per_second(100).burst(100), Duration::from_millis(400));
    let with = builder(&server, quota, lease).build().unwrap();
    let without = test_limiter_builder(store(&server), quota).build().unwrap();
    let start = Instant::now();
    let mut admitted = 0;
    for round in 0.. {
        // One is used moderately, so that it has leases. The other takes everything.
        let limiter = if round % 8 == 0 { &with } else { &without };
        admitted += u64::from(limiter.check("key").await.unwrap().is_allowed());
        if round % 8 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let elapsed = start.elapsed();
        let most = 100.0 + 100.0 * (elapsed + lease).as_secs_f64() + 1.0;
        assert!(admitted as f64 <= most, "{admitted} of {most} in {elapsed:?}");
        if elapsed > Duration::from_secs(2) {
            break;
        }
    }
    assert!(admitted >= 250, "{admitted}");
}

#[tokio::test]
async fn a_lease_covers_all_quotas_of_a_policy() {
    let server = Server::start().await;
    let policy =
        Policy::new("two").quota("a", SLOW).quota("b", Quota::per_day(5_000).fixed_window());
    let limiter = leased(&server, policy);
    let costs = || Costs::new(1).with("b", 3);
    let mut checks = 0;
    for expected in [Source::Lease; 3] {
        while limiter.check_cost("key", costs()).await.unwrap().source() != expected {
            checks += 1;
        }
        checks += 1;
    }
    let remaining: Vec<_> =
        limiter.peek("key").await.unwrap().quotas().map(|quota| quota.remaining()).collect();
    assert_eq!(remaining, [CAPACITY - checks, 5_000 - 3 * checks]);
    // A quota that the checks in advance do not charge does not keep others from being decided.
    let only = limiter.check_cost("key", Costs::new(0).with("a", 1)).await.unwrap();
    assert!(only.is_allowed() && only.source() == Source::Lease, "{only:?}");
}

#[tokio::test]
async fn costs_above_one_are_decided_by_leases_and_those_above_the_lease_by_redis() {
    let server = Server::start().await;
    let limiter = leased(&server, SLOW);
    let (mut used, mut by_lease) = (0, 0);
    while by_lease < 3 {
        let decision = limiter.check_cost("key", 5).await.unwrap();
        by_lease += u64::from(decision.source() == Source::Lease);
        used += 5;
        assert_eq!(decision.remaining(), CAPACITY - used, "{decision:?}");
    }
    let large = limiter.check_cost("key", 4_000).await.unwrap();
    assert_eq!((large.is_allowed(), large.source()), (true, Source::Store));
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), CAPACITY - used - 4_000);
    // The burst as a whole is more than the bucket in Redis ever holds.
    let most = limiter.check_cost("key", 10_000).await.unwrap();
    assert!(most.exceeds_capacity() && most.source() == Source::Quota, "{most:?}");
}

#[tokio::test]
async fn charges_are_taken_from_leases_and_credits_go_to_them_first() {
    let server = Server::start().await;
    let limiter = leased(&server, SLOW);
    let (decision, _) = warm(&limiter, "key").await;
    let used = CAPACITY - decision.remaining();
    let left_before = left(&server, "key").await;
    limiter.charge("key", 1).await.unwrap();
    assert_eq!(left(&server, "key").await, left_before, "it was charged in Redis");
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), CAPACITY - used - 1);
    limiter.credit("key", 1).await.unwrap();
    assert_eq!(left(&server, "key").await, left_before, "it was given back in Redis");
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), CAPACITY - used);
    // More than the lease has, and more than was taken from it.
    limiter.charge("key", 1_000).await.unwrap();
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), CAPACITY - used - 1_000);
    limiter.credit("key", 1_000).await.unwrap();
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), CAPACITY - used);
}

#[tokio::test]
async fn responses_are_settled_with_leases() {
    let server = Server::start().await;
    let limiter = leased(&server, SLOW);
    let service =
        service_fn(async |_: Request<Body>| Ok::<_, BoxError>(Response::new(Body::from("four"))));
    let layer = RateLimitLayer::new(limiter.clone(), Global)
        .cost(|_| 2)
        .cost_by_response(|sent| sent.body_bytes);
    let service = layer.layer(service);
    for requests in 1..=30 {
        let response = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "four");
        let settled =
            async || limiter.peek("global").await.unwrap().remaining() == CAPACITY - 4 * requests;
        wait_until("the response is settled", BOUND, settled).await;
    }
}

#[tokio::test]
async fn other_quotas_of_single_checks_have_leases_of_their_own() {
    let server = Server::start().await;
    let limiter = leased(&server, SLOW);
    let large = || limiter.with_quota(SLOW.burst(20_000)).unwrap();
    let (decision, checks) = warm(&large(), "key").await;
    assert_eq!((decision.limit(), decision.remaining()), (20_000, 19_999 - checks));
    // The other numbers say nothing about this one, and what was used stays used.
    let small = limiter.check("key").await.unwrap();
    assert_eq!(small.source(), Source::Store);
    let given_back = async || left(&server, "key").await == 10_000 - checks - 1;
    wait_until("the lease of the other numbers is given back", BOUND, given_back).await;
    let error = limiter.with_quota(Quota::per_second(10)).unwrap_err().to_string();
    assert!(error.contains("more than half of its capacity of 10"), "{error}");
}

#[tokio::test]
async fn limits_that_are_not_enforced_have_leases_too() {
    let server = Server::start().await;
    let limiter = builder(&server, SLOW, LONG).enforce_for_percent(0.0).build().unwrap();
    let (decision, checks) = warm(&limiter, "key").await;
    assert!(!decision.is_enforced() && !decision.would_be_denied());
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), CAPACITY - checks);
    let denied = limiter.check_cost("key", CAPACITY).await.unwrap();
    assert!(denied.is_allowed() && denied.would_be_denied(), "{denied:?}");
}

#[tokio::test]
async fn denials_are_cached_with_leases_until_permits_come_back() {
    let server = Server::start().await;
    let limiter = builder(&server, SLOW, LONG).cache_denials(BOUND).build().unwrap();
    let (_, mut used) = warm(&limiter, "key").await;
    let denied = limiter.check_cost("key", CAPACITY).await.unwrap();
    assert_eq!((denied.is_denied(), denied.source()), (true, Source::Store));
    let denied = limiter.check_cost("key", CAPACITY).await.unwrap();
    assert_eq!((denied.is_denied(), denied.source()), (true, Source::Cached));
    // The lease is still there, and Redis still has the rest.
    let one = limiter.check("key").await.unwrap();
    assert!(one.is_allowed());
    used += 1;
    // The own lease ends, and with it the denial of what is free then.
    let allowed = async || limiter.check_cost("key", CAPACITY - used).await.unwrap().is_allowed();
    wait_until("all that is left is granted", BOUND, allowed).await;
    limiter.credit("key", 5_000).await.unwrap();
    assert!(limiter.check_cost("key", 5_000).await.unwrap().is_allowed());
}

#[tokio::test]
async fn checks_that_wait_take_from_leases_first() {
    let server = Server::start().await;
    let quota = Quota::per_second(20).burst(40);
    let limiter = leased(&server, quota);
    let (_, checks) = warm(&limiter, "key").await;
    let reserved = limiter.reserve("key", 1).await.unwrap();
    assert_eq!((reserved.decision().source(), reserved.delay()), (Source::Lease, Duration::ZERO));
    // The capacity is 20 less. Far beyond the burst they proceed at the rate.
    let start = Instant::now();
    for _ in 0..50 - checks {
        limiter.acquire("key").await.unwrap().ensure_allowed().unwrap();
    }
    let (took, most) = (start.elapsed(), Duration::from_secs(60) / 20);
    assert!(took >= Duration::from_millis(300) && took < 2 * most, "{took:?}");
}

#[tokio::test]
async fn in_an_outage_a_lease_is_valid_until_it_ends_and_then_the_failure_mode_decides() {
    let server = Server::start().await;
    let modes = [
        (FailureMode::Local, Some(Source::Local)),
        (FailureMode::Open, Some(Source::FailureMode)),
        (FailureMode::Closed, None),
    ];
    let limiters = modes.map(|(mode, _)| {
        let builder = Limiter::builder(store(&server), SLOW).failure_mode(mode).lease(LONG);
        builder.timeout(Duration::from_millis(500)).build().unwrap()
    });
    let mut ends = Vec::new();
    for limiter in &limiters {
        let _ = warm(limiter, "key").await;
        ends.push(Instant::now() + LONG);
    }
    server.stop();
    for ((limiter, end), (mode, after)) in limiters.iter().zip(ends).zip(modes) {
        let by_lease = limiter.check("key").await;
        if Instant::now() < end - LONG / 4 {
            assert_eq!(
                by_lease.map(|decision| decision.source()).ok(),
                Some(Source::Lease),
                "{mode:?}"
            );
        }
        let has_ended = async || {
            let source = limiter.check("key").await.ok().map(|decision| decision.source());
            assert!(
                source == Some(Source::Lease) && Instant::now() < end || source == after,
                "{mode:?}: {source:?}"
            );
            Instant::now() > end
        };
        wait_until("the lease ends", BOUND, has_ended).await;
    }
}

#[tokio::test]
async fn stores_that_decide_in_this_process_accept_leases_without_effect() {
    let divided = DividedStore::new(0, NonZeroUsize::new(2).unwrap()).unwrap();
    for limiter in [
        test_limiter_builder(MemoryStore::new(), SLOW).lease(LONG).build().unwrap(),
        test_limiter_builder(divided, SLOW).lease(LONG).build().unwrap(),
    ] {
        let first = limiter.check("key").await.unwrap();
        assert!(first.remaining() == 9_999 || first.remaining() == 4_999, "{first:?}");
        for _ in 0..20 {
            assert_eq!(source(&limiter, "key").await, Source::Store);
        }
    }
}

#[tokio::test]
async fn a_block_wins_over_a_lease_at_once() {
    let server = Server::start().await;
    let store = store(&server);
    let limiter =
        test_limiter_builder(store.clone(), Policy::new("api").quota("rate", SLOW)).lease(LONG);
    let limiter = limiter.build().unwrap();
    let _ = warm(&limiter, "key").await;
    BlockList::new(&store).block("api", "key", BOUND).await.unwrap();
    assert_eq!(source(&limiter, "key").await, Source::Blocked);
}

#[tokio::test]
async fn a_process_that_shuts_down_gives_its_leases_back_and_takes_no_more() {
    let server = Server::start().await;
    let store = store(&server);
    let limiter =
        test_limiter_builder(store.clone(), SLOW).lease(BOUND.min(Duration::from_secs(20)));
    let limiter = limiter.build().unwrap();
    let (_, checks) = warm(&limiter, "key").await;
    assert!(left(&server, "key").await < 10_000 - checks);
    store.shutdown().await;
    assert_eq!(left(&server, "key").await, 10_000 - checks);
    for _ in 0..20 {
        assert_eq!(source(&limiter, "key").await, Source::Store);
    }
    assert_eq!(left(&server, "key").await, 10_000 - checks - 20);
}

#[test]
fn leases_that_cannot_be_exact_are_errors_that_say_what_to_change() {
    let store = || RedisStore::open("redis://127.0.0.1:1").unwrap();
    let error = |quota: Quota, lease| {
        let limiter = Limiter::builder(store(), quota).lease(lease).build();
        limiter.map(drop).unwrap_err().to_string()
    };
    let too_long = error(Quota::per_second(1_000), Duration::from_millis(501));
    assert_eq!(
        too_long,
        "quota `default` gains 501 permits during a lease of 501ms, which is more than half of its capacity of \
         1000: use a shorter `lease`, or a larger `burst` if it has one"
    );
    assert!(error(Quota::per_hour(1), LONG).contains("more than half of its capacity of 1:"));
    for quota in [
        Quota::per_second(10).queue(LONG),
        Quota::per_minute(10).sliding_window(6),
        Quota::per_minute(10).approximate_sliding_window(),
    ] {
        let error = error(quota, LONG);
        assert!(
            error.contains("has an algorithm without leases: remove `lease`, or use"),
            "{error}"
        );
    }
    let fits = |quota: Quota, lease| Limiter::builder(store(), quota).lease(lease).build().is_ok();
    assert!(fits(Quota::per_second(1_000), Duration::from_millis(500)));
    assert!(
        fits(Quota::per_day(1).fixed_window(), LONG) && fits(Quota::per_day(1).calendar(), LONG)
    );
    assert!(
        fits(Quota::per_day(2).interval_refill(), LONG)
            && fits(Quota::per_day(2).borrow_up_to(5), LONG)
    );
    let store = store();
    let first = Limiter::builder(store.clone(), SLOW).lease(LONG).build().unwrap();
    let error = Limiter::new(store, SLOW).unwrap_err().to_string();
    assert!(
        error.contains("in use on this store with a lease of 1s, not no lease: give all"),
        "{error}"
    );
    drop(first);
}

//! Holds on a real Redis, with the faults that could lose a permit or count it twice. `held_fleet` has several
//! processes, and `concurrent` compares the scripts with a model.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use fleetlimit::{
    Costs, ErrorKind, FailureMode, Hold, Limiter, MemoryStore, Policy, Quota, RedisStore, Source,
};
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::common::{BOUND, Cluster, Proxy, Server, wait_until};
use crate::exact::test_limiter;

/// A short lifetime, so that permits are renewed in each test.
const HOLD_FOR: Duration = Duration::from_secs(1);

pub(crate) fn policy(limit: u64) -> Policy {
    Policy::new("exports").quota("held", Quota::concurrent(limit))
}

fn with_rate(limit: u64) -> Policy {
    policy(limit).quota("rate", Quota::per_day(1_000_000))
}

pub(crate) fn store(url: &str) -> RedisStore {
    RedisStore::open(url).unwrap().hold_for(HOLD_FOR)
}

/// A limiter whose checks fail soon after a call is lost.
fn impatient(store: RedisStore) -> Limiter {
    Limiter::builder(store, policy(9))
        .timeout(Duration::from_millis(100))
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap()
}

/// Returns how many permits are held by what Redis says.
async fn held(limiter: &Limiter) -> u64 {
    let peeked = limiter.peek("key").await.unwrap();
    let quota = peeked.quotas().find(|quota| quota.name() == "held").unwrap();
    quota.limit() - quota.remaining()
}

pub(crate) async fn wait_until_held(limiter: &Limiter, permits: u64) {
    let what = format!("{permits} are held");
    wait_until(&what, BOUND, async || held(limiter).await == permits).await;
}

/// Takes permits for a moment, over and over, and counts how many are held at a time.
async fn take_turns(
    limiter: Limiter,
    in_use: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    times: usize,
) {
    for _ in 0..times {
        let hold = limiter.hold("key", 1).await.unwrap();
        if hold.decision().is_allowed() {
            most.fetch_max(in_use.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::task::yield_now().await;
            in_use.fetch_sub(1, SeqCst);
        }
    }
}

async fn assert_exact(stores: &[RedisStore]) {
    let limiters: Vec<_> =
        stores.iter().map(|store| test_limiter(store.clone(), with_rate(10))).collect();
    let [in_use, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for limiter in &limiters {
        for _ in 0..32 {
            tasks.spawn(take_turns(limiter.clone(), in_use.clone(), most.clone(), 100));
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(most.load(SeqCst), 10);
    wait_until_held(&limiters[0], 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_are_held_than_the_limit_and_all_are_given_back() {
    let server = Server::start().await;
    let stores: Vec<_> = (0..3).map(|_| store(&server.url())).collect();
    assert_exact(&stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_are_held_on_a_cluster_than_the_limit_and_all_are_given_back() {
    let cluster = Cluster::start().await;
    let store = || RedisStore::open_cluster(cluster.urls()).unwrap().hold_for(HOLD_FOR);
    let stores: Vec<_> = (0..3).map(|_| store()).collect();
    wait_until("the cluster replies", BOUND, async || {
        let limiter = test_limiter(stores[0].clone(), with_rate(10));
        limiter.peek("key").await.is_ok()
    })
    .await;
    assert_exact(&stores).await;
}

/// Polls a future so often, and drops it.
async fn poll_times<F: Future>(future: F, times: usize) {
    let mut future = pin!(future);
    for _ in 0..times {
        let is_ready = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if is_ready {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_cancelled_at_any_time_holds_nothing() {
    let server = Server::start().await;
    for round_trip in [0, 1] {
        let proxy = Proxy::start(server.port()).await;
        proxy.round_trip(Duration::from_millis(round_trip));
        let limiter = test_limiter(store(&proxy.url()), policy(64));
        let kept = limiter.hold("key", 1).await.unwrap();
        for polls in 0..40 {
            let holds = (0..8).map(|_| poll_times(limiter.hold("key", 1), polls));
            join_all(holds).await;
            if polls % 4 == 0 {
                timeout(Duration::from_micros(500), limiter.hold("key", 1)).await.ok();
            }
        }
        wait_until_held(&limiter, 1).await;
        drop(kept);
        wait_until_held(&limiter, 0).await;
    }
}

/// Whichever it is: the call, or its reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_call_loses_no_permit_and_keeps_none() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = impatient(store(&proxy.url()));
    let observer = test_limiter(store(&server.url()), policy(9));
    wait_until("it connects", BOUND, async || limiter.peek("key").await.is_ok()).await;
    for kept in 1..=3u64 {
        let mut holds: Vec<Hold> = Vec::new();
        for _ in 0..kept {
            holds.push(limiter.hold("key", 1).await.unwrap());
        }
        for _ in 0..2 {
            proxy.disconnect_on_reply(1);
            assert!(limiter.hold("key", 1).await.is_err());
            wait_until_held(&observer, kept).await;
            wait_until("it connects", BOUND, async || limiter.peek("key").await.is_ok()).await;
        }
        // What is given back is lost.
        proxy.disconnect_on_reply(1);
        drop(holds);
        wait_until_held(&observer, 0).await;
        wait_until("it connects", BOUND, async || limiter.peek("key").await.is_ok()).await;
    }
}

/// It says that nothing is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_arrives_after_a_later_one_frees_nothing() {
    const LATE: Duration = Duration::from_secs(5);
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    // So long that nothing is renewed meanwhile.
    let store = |url: &str| store(url).hold_for(Duration::from_secs(600));
    let limiter = impatient(store(&proxy.url()));
    let observer = test_limiter(store(&server.url()), policy(9));
    wait_until("it connects", BOUND, async || limiter.peek("key").await.is_ok()).await;
    proxy.round_trip(2 * LATE);
    let sent = Instant::now();
    assert!(limiter.hold("key", 1).await.is_err());
    proxy.round_trip(Duration::ZERO);
    wait_until("it connects again", BOUND, async || limiter.peek("key").await.is_ok()).await;
    let holds: Vec<_> = join_all((0..3).map(|_| limiter.hold("key", 1))).await;
    assert!(holds.iter().all(|hold| hold.as_ref().unwrap().decision().is_allowed()));
    assert!(sent.elapsed() < LATE, "the late call has arrived already");
    // The late check is charged until the next call of its process.
    wait_until("the late call has arrived", BOUND, async || {
        let held = held(&observer).await;
        assert!((3..=4).contains(&held), "{held} are held");
        held == 4
    })
    .await;
    drop(holds);
    wait_until_held(&observer, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_are_held_for_long_are_renewed() {
    let server = Server::start().await;
    let (holder, observer) = (
        test_limiter(store(&server.url()), policy(9)),
        test_limiter(store(&server.url()), policy(9)),
    );
    let holds = [holder.hold("key", 1).await.unwrap(), holder.hold("key", 1).await.unwrap()];
    let start = Instant::now();
    while start.elapsed() < 3 * HOLD_FOR {
        assert_eq!(held(&observer).await, 2, "after {:?}", start.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    drop(holds);
    wait_until_held(&observer, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_lost_its_data_learns_what_is_held() {
    let server = Server::start().await;
    let limiter = test_limiter(store(&server.url()), policy(9));
    let observer = test_limiter(store(&server.url()), policy(9));
    let _holds = [limiter.hold("key", 1).await.unwrap(), limiter.hold("key", 1).await.unwrap()];
    server.query::<()>(&["FLUSHALL"]).await;
    wait_until_held(&observer, 2).await;
    // The next hold says so at once.
    server.query::<()>(&["FLUSHALL"]).await;
    let hold = limiter.hold("key", 1).await.unwrap();
    assert_eq!(hold.decision().remaining(), 6);
    limiter.reset("key").await.unwrap();
    wait_until_held(&observer, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_counts_what_it_holds_in_an_outage_and_says_so_afterwards() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = Limiter::builder(store(&proxy.url()), with_rate(5))
        .timeout(Duration::from_millis(200))
        .build()
        .unwrap();
    let observer = test_limiter(store(&server.url()), with_rate(5));
    wait_until("it connects", BOUND, async || limiter.peek("key").await.is_ok()).await;
    let mut holds = Vec::new();
    for _ in 0..3 {
        holds.push(limiter.hold("key", 1).await.unwrap());
    }
    proxy.refuse().await;
    proxy.disconnect_all().await;
    for is_allowed in [true, true, false, false] {
        let hold = limiter.hold("key", 1).await.unwrap();
        assert_eq!(hold.decision().source(), Source::Local);
        assert_eq!(hold.decision().is_allowed(), is_allowed, "{:?}", hold.decision());
        holds.push(hold);
    }
    // Meanwhile its permits end in Redis, and another takes them all.
    wait_until_held(&observer, 0).await;
    let others = join_all((0..4).map(|_| observer.hold("key", 1))).await;
    proxy.accept().await;
    wait_until("both are counted, above the limit", BOUND, async || {
        observer.hold("key", 1).await.unwrap().decision().is_denied()
            && limiter.peek("key").await.is_ok()
    })
    .await;
    drop(others);
    wait_until_held(&observer, 5).await;
    drop(holds);
    wait_until_held(&observer, 0).await;
    // What it took of the rate is charged.
    let rate = |peeked: fleetlimit::Decision| {
        peeked.quotas().find(|quota| quota.name() == "rate").unwrap().remaining()
    };
    let used = async || 1_000_000 - rate(observer.peek("key").await.unwrap());
    wait_until("the rate is charged", BOUND, async || used().await >= 9).await;
}

#[tokio::test]
async fn a_check_that_nobody_would_give_back_is_an_error() {
    let server = Server::start().await;
    let limiters = [
        test_limiter(store(&server.url()), with_rate(5)),
        test_limiter(MemoryStore::new(), with_rate(5)),
    ];
    for limiter in limiters {
        let errors = [
            limiter.check("key").await.unwrap_err(),
            limiter.check_cost("key", Costs::new(0).with("rate", 1)).await.unwrap_err(),
            limiter.acquire("key").await.unwrap_err(),
            limiter.reserve("key", 1).await.unwrap_err(),
            limiter.charge("key", Costs::new(1).with("held", 1)).await.unwrap_err(),
            limiter.credit("key", Costs::new(1).with("held", 1)).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NotHeld);
            assert!(error.to_string().contains("`Limiter::hold`"), "{error}");
        }
        limiter.charge("key", 3).await.unwrap();
        limiter.credit("key", 1).await.unwrap();
        let hold = limiter.hold("key", 10).await.unwrap();
        let remaining: Vec<_> = hold.decision().quotas().map(|quota| quota.remaining()).collect();
        assert_eq!(remaining, [4, 999_988], "a hold is one permit, whatever its cost");
        let unknown = limiter.hold("key", Costs::new(1).with("unknown", 1)).await;
        assert_eq!(unknown.unwrap_err().kind(), ErrorKind::UnknownQuota);
    }
}

#[tokio::test]
async fn a_hold_ends_once_and_settles_what_it_has_taken() {
    let server = Server::start().await;
    let limiters = [
        test_limiter(store(&server.url()), with_rate(5)),
        test_limiter(MemoryStore::new(), with_rate(5)),
    ];
    let left = async |limiter: &Limiter| -> Vec<u64> {
        limiter.peek("key").await.unwrap().quotas().map(|quota| quota.remaining()).collect()
    };
    for limiter in limiters {
        let mut expected = 1_000_000;
        for (end, used) in
            [("drop", 300), ("release", 0), ("settle less", 120), ("settle more", 900)]
        {
            let hold = limiter.hold("key", 100).await.unwrap();
            for _ in 0..2 {
                assert!(hold.extend(100).await.unwrap().is_allowed());
            }
            match end {
                "release" => (0..2).for_each(|_| hold.release()),
                "settle less" => hold.settle(120),
                "settle more" => hold.settle(900),
                _ => {}
            }
            if end != "drop" {
                assert_eq!(hold.extend(1).await.unwrap_err().kind(), ErrorKind::NotHeld);
                hold.settle(7);
            }
            drop(hold);
            expected -= used;
            wait_until(end, BOUND, async || left(&limiter).await == [5, expected]).await;
        }
    }
}

/// Otherwise giving back would free a permit that another holds.
#[tokio::test]
async fn a_reset_keeps_what_is_held() {
    let server = Server::start().await;
    let limiters = [
        test_limiter(store(&server.url()), with_rate(2)),
        test_limiter(MemoryStore::new(), with_rate(2)),
    ];
    for limiter in limiters {
        let first = limiter.hold("key", 500).await.unwrap();
        limiter.reset("key").await.unwrap();
        let rate = limiter.peek("key").await.unwrap().quotas().last().unwrap().remaining();
        assert_eq!(rate, 1_000_000);
        wait_until_held(&limiter, 1).await;
        let second = limiter.hold("key", 1).await.unwrap();
        assert!(second.decision().is_allowed());
        assert!(limiter.hold("key", 1).await.unwrap().decision().is_denied());
        drop(first);
        wait_until_held(&limiter, 1).await;
        drop(second);
        wait_until_held(&limiter, 0).await;
    }
}

/// The policies in force have quotas with other names, and other numbers.
#[tokio::test]
async fn what_is_held_before_an_update_is_given_back_after_it() {
    let server = Server::start().await;
    // Nothing refills.
    let daily = |limit| Quota::per_day(limit).fixed_window();
    let with_rate = || policy(5).quota("rate", daily(1_000_000));
    let limiters = [
        test_limiter(store(&server.url()), with_rate()),
        test_limiter(MemoryStore::new(), with_rate()),
    ];
    let observer = test_limiter(store(&server.url()), with_rate());
    for (is_memory, limiter) in limiters.into_iter().enumerate() {
        let observer = if is_memory == 1 { &limiter } else { &observer };
        let old = limiter.hold("key", 100).await.unwrap();
        let other = Policy::new("exports").quota("other", Quota::concurrent(3));
        limiter.update(other.quota("rate", daily(2_000_000))).unwrap();
        let new = limiter.hold("key", 1).await.unwrap();
        assert!(old.extend(50).await.unwrap().is_allowed());
        if is_memory == 0 {
            // Both are renewed.
            let start = Instant::now();
            while start.elapsed() < 2 * HOLD_FOR {
                assert_eq!(held(observer).await, 1, "after {:?}", start.elapsed());
                sleep(Duration::from_millis(20)).await;
            }
        }
        old.settle(30);
        limiter.update(with_rate()).unwrap();
        wait_until_held(observer, 0).await;
        drop(new);
        let rate =
            async || observer.peek("key").await.unwrap().quotas().last().unwrap().remaining();
        wait_until("the rate is settled", BOUND, async || rate().await == 999_969).await;
    }
}

/// Or a long stream would take more and more memory.
#[tokio::test]
async fn a_hold_that_is_extended_often_settles_what_it_has_taken() {
    let limiter = test_limiter(MemoryStore::new(), with_rate(5));
    let hold = limiter.hold("key", 1).await.unwrap();
    for _ in 0..500 {
        assert!(hold.extend(2).await.unwrap().is_allowed());
    }
    hold.settle(600);
    assert_eq!(limiter.peek("key").await.unwrap().quotas().last().unwrap().remaining(), 999_400);
}

#[test]
fn a_hold_outlives_its_runtime_and_is_given_back_without_one() {
    let start = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (other, observing) = (start(), start());
    let server = observing.block_on(Server::start());
    let limiter = test_limiter(store(&server.url()), policy(5));
    let hold = other.block_on(limiter.hold("key", 1)).unwrap();
    drop(other);
    let observer = test_limiter(store(&server.url()), policy(5));
    // Another runtime renews it.
    let second = observing.block_on(limiter.hold("key", 1)).unwrap();
    let is_renewed = async {
        let start = Instant::now();
        while start.elapsed() < 2 * HOLD_FOR {
            assert_eq!(held(&observer).await, 2);
            sleep(Duration::from_millis(20)).await;
        }
    };
    observing.block_on(is_renewed);
    thread::spawn(move || drop((hold, second))).join().unwrap();
    observing.block_on(wait_until_held(&observer, 0));
}

/// So long that a busy machine does not end it early.
const LEASE: Duration = Duration::from_secs(1);

fn leased(store: &RedisStore, limit: u64) -> Limiter {
    let builder = Limiter::builder(store.clone(), policy(limit)).timeout(BOUND);
    builder.failure_mode(FailureMode::Closed).lease(LEASE).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_lease_a_busy_key_takes_few_calls_and_permits_are_given_back_soon() {
    const TIMES: u64 = 500;
    let server = Server::start().await;
    let store = store(&server.url());
    let limiter = leased(&store, 1_000);
    let observer = test_limiter(self::store(&server.url()), policy(1_000));
    let calls = async || server.command_stats().await.get("get").copied().unwrap_or(0);
    let before = calls().await;
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut by_lease = 0;
            for _ in 0..TIMES {
                let hold = limiter.hold("key", 1).await.unwrap();
                assert!(hold.decision().is_allowed());
                by_lease += u64::from(hold.decision().source() == Source::Lease);
                tokio::task::yield_now().await;
            }
            by_lease
        });
    }
    let by_lease: u64 = tasks.join_all().await.into_iter().sum();
    let (all, calls) = (64 * TIMES, calls().await - before);
    assert!(by_lease * 10 > all * 9, "{by_lease} of {all}");
    assert!(calls * 10 < all, "{calls} calls for {all} holds");
    // What this process keeps is free for it.
    assert_eq!(held(&limiter).await, 0);
    wait_until_held(&observer, 0).await;

    let held = limiter.hold("key", 1).await.unwrap();
    drop(held);
    store.shutdown().await;
    assert_eq!(self::held(&observer).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_leases_no_more_are_held_than_the_limit() {
    let server = Server::start().await;
    let limiters: Vec<_> = (0..3).map(|_| leased(&store(&server.url()), 10)).collect();
    let [in_use, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for limiter in &limiters {
        for _ in 0..8 {
            tasks.spawn(take_turns(limiter.clone(), in_use.clone(), most.clone(), 500));
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert!(most.load(SeqCst) <= 10, "{most:?}");
    wait_until_held(&limiters[0], 0).await;
}

/// A process that is cut off does not know that others use them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lease_keeps_is_not_used_once_redis_may_have_freed_it() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let hold_for = 4 * HOLD_FOR;
    let limiter = Limiter::builder(store(&proxy.url()).hold_for(hold_for), policy(10))
        .timeout(Duration::from_millis(100))
        .failure_mode(FailureMode::Closed)
        .lease(LEASE)
        .build()
        .unwrap();
    wait_until("a permit is kept", BOUND, async || {
        let hold = limiter.hold("key", 1).await;
        hold.is_ok_and(|hold| hold.decision().source() == Source::Lease)
    })
    .await;
    proxy.refuse().await;
    proxy.disconnect_all().await;
    let cut_off = Instant::now();
    // Without a pause, so that it would never be given back.
    while limiter.hold("key", 1).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(cut_off.elapsed() < hold_for, "{:?}", cut_off.elapsed());
}

#[test]
fn a_concurrent_quota_among_others_has_no_lease() {
    let limiter = Limiter::builder(MemoryStore::new(), with_rate(5)).lease(LEASE).build();
    let error = limiter.unwrap_err().to_string();
    assert!(error.contains("only quota of its policy"), "{error}");
}

#[test]
fn a_policy_with_a_queue_and_a_concurrent_quota_is_an_error() {
    let policy = policy(5).quota("queue", Quota::per_second(1).queue(HOLD_FOR));
    let error = Limiter::new(MemoryStore::new(), policy).unwrap_err().to_string();
    assert!(error.contains("use a policy for each"), "{error}");
}

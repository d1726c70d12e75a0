//! A store that outlives runtimes, and one that several runtimes share: the end of one is no fault of Redis,
//! and costs the others nothing.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use deadpool_redis::Runtime as PoolRuntime;
use fleetlimit::{BlockList, FailureMode, Limiter, Quota, RedisStore, Source};
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use crate::common::{BOUND, Cluster, Sentinel, Server, wait_until};

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

const BURST: u64 = 50_000;

/// A permit returns after an hour. The timeout is long, so that no busy machine matters.
fn limiter(store: RedisStore) -> Limiter {
    let limiter = Limiter::builder(store, Quota::per_hour(1).burst(BURST));
    let limiter = limiter.failure_mode(FailureMode::Open).cache_denials(Duration::ZERO);
    limiter.timeout(Duration::from_secs(10)).build().unwrap()
}

/// Checks in many runtimes, one after the other. Their tasks are dropped when there is nothing to do and
/// when there is.
fn check_in_one_runtime_after_the_other(stores: Vec<RedisStore>) {
    for (number, store) in stores.into_iter().enumerate() {
        let limiter = limiter(store);
        for round in 0..30 {
            let runtime = if round % 2 == 0 { current_thread() } else { multi_thread() };
            runtime.block_on(async {
                let lone = limiter.check("lone").await.unwrap();
                assert_eq!(lone.source(), Source::Store, "store {number}, runtime {round}");
                for decision in join_all((0..20).map(|key| limiter.check(key))).await {
                    let source = decision.unwrap().source();
                    assert_eq!(source, Source::Store, "store {number}, runtime {round}");
                }
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.check("abandoned").await });
                tokio::task::yield_now().await;
            });
            if round % 3 == 0 {
                runtime.shutdown_background();
            }
        }
    }
}

#[test]
fn checks_in_one_runtime_after_the_other_are_all_decided_by_redis() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let config = deadpool_redis::Config::from_url(server.url());
    let pool = config.create_pool(Some(PoolRuntime::Tokio1)).unwrap();
    let two = RedisStore::open(server.url()).unwrap().connections(2.try_into().unwrap());
    let stores = vec![RedisStore::open(server.url()).unwrap(), two, RedisStore::from_pool(pool)];
    check_in_one_runtime_after_the_other(stores);
}

#[test]
fn checks_in_one_runtime_after_the_other_are_all_decided_by_a_cluster() {
    let servers = multi_thread();
    let cluster = servers.block_on(Cluster::start());
    check_in_one_runtime_after_the_other(vec![RedisStore::open_cluster(cluster.urls()).unwrap()]);
}

#[cfg(feature = "sentinel")]
#[test]
fn checks_in_one_runtime_after_the_other_are_all_decided_by_a_primary() {
    let servers = multi_thread();
    let sentinel = servers.block_on(Sentinel::start());
    let config = deadpool_redis::sentinel::Config::from_urls(
        sentinel.urls(),
        sentinel.service_name().into(),
        deadpool_redis::sentinel::SentinelServerType::Master,
    );
    let pool = config.create_pool(Some(PoolRuntime::Tokio1)).unwrap();
    let open = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    check_in_one_runtime_after_the_other(vec![open, RedisStore::from_pool(pool)]);
}

/// Keeps checking a key in several tasks of a runtime, until `done`. Returns how many checks were allowed.
fn check_until(runtime: &Runtime, limiter: &Limiter, key: &'static str, done: &AtomicBool) -> u64 {
    let check = async || {
        let mut allowed = 0;
        while !done.load(Relaxed) {
            let decision = limiter.check(key).await.unwrap();
            assert_eq!(decision.source(), Source::Store, "{key}");
            allowed += u64::from(decision.is_allowed());
        }
        allowed
    };
    runtime.block_on(join_all((0..8).map(|_| check()))).into_iter().sum()
}

fn drop_runtimes_under_load(store: RedisStore) {
    let (limiter, done) = (limiter(store), AtomicBool::new(false));
    let keys = ["current_thread", "multi_thread"];
    let counts = thread::scope(|scope| {
        let (limiter, done) = (&limiter, &done);
        let others = keys.map(|key| {
            let runtime = if key == "current_thread" { current_thread() } else { multi_thread() };
            scope.spawn(move || check_until(&runtime, limiter, key, done))
        });
        for round in 0..20 {
            let (runtime, checks) = (multi_thread(), Arc::new(AtomicU64::new(0)));
            for _ in 0..8 {
                let (limiter, checks) = (limiter.clone(), checks.clone());
                runtime.spawn(async move {
                    while limiter.check("dropped").await.unwrap().source() == Source::Store {
                        checks.fetch_add(1, Relaxed);
                    }
                });
            }
            let is_under_load = async || checks.load(Relaxed) >= 200;
            current_thread().block_on(wait_until("it is under load", BOUND, is_under_load));
            if round % 2 == 0 {
                runtime.shutdown_background();
            }
        }
        done.store(true, Relaxed);
        others.map(|other| other.join().unwrap())
    });
    for (key, allowed) in keys.into_iter().zip(counts) {
        let remaining = current_thread().block_on(limiter.peek(key)).unwrap().remaining();
        assert_eq!(BURST - remaining, allowed, "{key}: each is charged once");
    }
}

#[test]
fn a_runtime_that_is_dropped_under_load_costs_the_others_nothing() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    drop_runtimes_under_load(RedisStore::open(server.url()).unwrap());
}

#[test]
fn a_runtime_that_is_dropped_under_load_costs_the_others_nothing_on_a_cluster() {
    let servers = multi_thread();
    let cluster = servers.block_on(Cluster::start());
    drop_runtimes_under_load(RedisStore::open_cluster(cluster.urls()).unwrap());
}

/// A runtime that nobody polls, such as one that runs only during `block_on`.
#[test]
fn a_runtime_that_stands_still_delays_no_check_of_another() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let limiter = limiter(RedisStore::open(server.url()).unwrap());
    let (first, second) = (current_thread(), current_thread());
    for _ in 0..10 {
        for runtime in [&first, &second] {
            let checks = async { join_all((0..20).map(|key| limiter.check(key))).await };
            for decision in runtime.block_on(checks) {
                assert_eq!(decision.unwrap().source(), Source::Store);
            }
        }
    }
}

#[test]
fn the_connections_of_a_runtime_end_with_it() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let limiter = limiter(RedisStore::open(server.url()).unwrap());
    let clients = async || server.info("clients").await["connected_clients"].parse().unwrap();
    let before: usize = servers.block_on(clients());
    let runtimes: Vec<_> = (0..10).map(|_| multi_thread()).collect();
    for runtime in &runtimes {
        assert_eq!(runtime.block_on(limiter.check("key")).unwrap().source(), Source::Store);
    }
    assert!(servers.block_on(clients()) >= before + 10);
    drop(runtimes);
    let are_closed = async || clients().await <= before;
    servers.block_on(wait_until("the connections are closed", BOUND, are_closed));
}

/// How many instances are registered.
async fn instances(server: &Server) -> usize {
    let fields: Vec<String> = server.query(&["HKEYS", "fleetlimit:{fleet}"]).await;
    fields.iter().filter(|field| field.parse::<u64>().is_ok()).count()
}

#[test]
fn an_instance_whose_runtime_has_ended_registers_and_signs_off_in_another() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::new(store.clone(), Quota::per_second(1_000)).unwrap();
    let check_and_wait = || {
        let runtime = multi_thread();
        let _ = runtime.block_on(limiter.check("key")).unwrap();
        let is_registered = async || instances(&server).await == 1;
        runtime.block_on(wait_until("it is registered", BOUND, is_registered));
    };
    check_and_wait();
    servers.block_on(server.command(&["DEL", "fleetlimit:{fleet}"]));
    check_and_wait();
    current_thread().block_on(store.shutdown());
    assert_eq!(servers.block_on(instances(&server)), 0);
}

#[test]
fn blocks_are_read_in_another_runtime_once_that_of_the_reader_has_ended() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let list = || BlockList::new(&RedisStore::open(server.url()).unwrap());
    let (reader, writer) = (list(), list());
    for key in ["a", "b", "c"] {
        servers.block_on(writer.block("api", key, Duration::from_secs(3_600))).unwrap();
        let is_known = async || reader.get("api", &key.into()).is_some();
        multi_thread().block_on(wait_until("the block is known", BOUND, is_known));
    }
}

/// As one that the application keeps, and uses now and then.
#[test]
fn a_runtime_that_stands_still_does_not_keep_others_from_reading_blocks() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let list = || BlockList::new(&RedisStore::open(server.url()).unwrap());
    let (reader, writer) = (list(), list());
    let stands_still = current_thread();
    stands_still.block_on(async { reader.get("api", &"a".into()) });
    servers.block_on(writer.block("api", "a", Duration::from_secs(3_600))).unwrap();
    let is_known = async || reader.get("api", &"a".into()).is_some();
    multi_thread().block_on(wait_until("the block is known", BOUND, is_known));
}

/// Stops the server, and takes 10 permits of a key that are owed from then on.
async fn take_locally(server: &Server, limiter: &Limiter) {
    server.pause();
    wait_until("it decides locally, without a call", BOUND, async || {
        let start = Instant::now();
        let source = limiter.check_cost("other", 1).await.unwrap().source();
        source == Source::Local && start.elapsed() < Duration::from_millis(100)
    })
    .await;
    limiter.check_cost("key", 10).await.unwrap().ensure_allowed().unwrap();
}

/// Neither the open breaker of a runtime nor its charges are lost with it.
#[test]
fn an_outage_in_a_runtime_that_has_ended_is_over_for_the_next_one_and_paid_there() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_hour(1).burst(300));
    let limiter = limiter.timeout(Duration::from_millis(200)).build().unwrap();
    let first = multi_thread();
    first.block_on(async {
        let _ = limiter.check("key").await.unwrap();
        take_locally(&server, &limiter).await;
    });
    first.shutdown_background();
    server.resume();
    let second = multi_thread();
    let decision = second.block_on(limiter.check("key")).unwrap();
    assert_eq!((decision.source(), decision.remaining()), (Source::Store, 300 - 1 - 10 - 1));
}

/// A runtime that is polled once, and then not for a while, as one that runs only during `block_on`.
fn poll_once(runtime: &Runtime, future: impl Future) {
    let mut future = pin!(future);
    assert!(runtime.block_on(poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending()))));
}

#[test]
fn a_charge_on_a_runtime_that_stands_still_is_made_by_another_and_only_once() {
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_hour(1).burst(BURST));
    let limiter = limiter.timeout(Duration::from_millis(500)).build().unwrap();
    let first = multi_thread();
    first.block_on(async {
        let _ = limiter.check("key").await.unwrap();
        take_locally(&server, &limiter).await;
    });
    first.shutdown_background();
    server.resume();
    // It begins a charge, and does not send it.
    let stands_still = current_thread();
    poll_once(&stands_still, limiter.check("key"));
    let mut checks = 0;
    let remaining = |checks: &mut u64| {
        let decision = servers.block_on(limiter.check("key")).unwrap();
        *checks += u64::from(decision.source() == Source::Store);
        decision.remaining()
    };
    let start = Instant::now();
    while remaining(&mut checks) + checks != BURST - 1 - 10 {
        assert!(start.elapsed() < BOUND, "it is not charged");
    }
    let goes_on = async {
        for _ in 0..10 {
            let _ = limiter.check("another").await.unwrap();
        }
    };
    stands_still.block_on(goes_on);
    assert_eq!(remaining(&mut checks) + checks, BURST - 1 - 10);
}

#[test]
fn a_runtime_that_stands_still_does_not_keep_others_from_giving_places_back() {
    const DAY: Duration = Duration::from_secs(86_400);
    let servers = multi_thread();
    let server = servers.block_on(Server::start());
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_day(1).queue(100 * DAY));
    // A task is overdue after twice that.
    let limiter = limiter.timeout(Duration::from_secs(3)).cache_denials(Duration::ZERO);
    let limiter = limiter.build().unwrap();
    let reserve = async || limiter.reserve("key", 1).await.unwrap();
    let _used = servers.block_on(reserve());
    let stands_still = current_thread();
    stands_still.block_on(async { drop(reserve().await) });
    servers.block_on(wait_until("the place is given back", BOUND, async || {
        // It takes over the place, and gives up too.
        drop(reserve().await);
        limiter.peek("key").await.unwrap().reset_after() <= DAY
    }));
    drop(stands_still);
}

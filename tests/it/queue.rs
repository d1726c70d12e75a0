//! Checks that go out together get the decisions that they would have got alone.

use std::future::Future;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::{Builder, Runtime};
use tollgate::{ErrorKind, Limiter, RedisStore};

use crate::common::{BOUND, Proxy, Server, start, wait_until};
use crate::exact::{patient, uncached};
use crate::oracle::Oracle;

/// A permit in ten minutes: what is taken stays taken as long as a test runs.
const SLOW: Oracle = Oracle { permits: 1, micros: 600_000_000, burst: 300 };

fn limiter(url: String) -> Limiter {
    uncached(RedisStore::open(url).unwrap(), SLOW.quota())
}

fn name(key: &str) -> String {
    format!("tollgate:{{{key}}}:default:t1")
}

/// How many permits of a key are taken.
async fn taken(server: &Server, key: &str) -> i128 {
    let now = SLOW.ticks(server.time_micros().await);
    let debt = SLOW.full_at(server, &name(key)).await.map_or(0, |full_at| full_at - now);
    // The part that has refilled since is less than a permit.
    debt.div_euclid(SLOW.price(1)) + i128::from(debt.rem_euclid(SLOW.price(1)) > 0)
}

async fn calls(server: &Server, command: &str) -> u64 {
    server.command_stats().await.get(command).copied().unwrap_or(0)
}

fn samples<S: Strategy>(strategy: S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::new(Config::default());
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Random bursts of checks, each burst on its way before the first answer. The tests' own
/// arithmetic runs the checks of a key in the order in which they joined.
#[tokio::test]
async fn every_decision_in_a_batch_is_the_one_it_would_have_got_alone() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let cost = prop_oneof![3 => Just(1u64), 1 => 0..40u64, 1 => Just(301u64)];
    let bursts = prop::collection::vec((0..5usize, cost), 1..500);
    for (round, burst) in samples(bursts, 60).into_iter().enumerate() {
        let keys: Vec<String> = (0..5).map(|key| format!("{round}-{key}")).collect();
        let mut full_at = Vec::new();
        for key in &keys {
            assert!(limiter.check(key).await.unwrap().is_allowed());
            full_at.push(SLOW.full_at(&server, &name(key)).await.unwrap());
        }
        let checks: Vec<_> =
            burst.iter().map(|&(key, cost)| start(limiter.check_cost(&keys[key], cost))).collect();
        for (&(key, cost), check) in burst.iter().zip(checks) {
            let decision = check.await.unwrap();
            let charged = if decision.is_allowed() { SLOW.price(cost) } else { 0 };
            SLOW.verify(full_at[key], cost, &decision, full_at[key] + charged);
            full_at[key] += charged;
        }
        for (key, full_at) in keys.iter().zip(full_at) {
            assert_eq!(SLOW.full_at(&server, &name(key)).await, Some(full_at), "what Redis keeps");
        }
    }
    assert!(calls(&server, "evalsha").await < 60 * 5 + 60 * 8, "the bursts went out in batches");
}

#[tokio::test]
async fn ten_thousand_callers_of_a_hot_key_are_a_read_and_a_write_a_flush() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let before =
        [calls(&server, "evalsha").await, calls(&server, "get").await, calls(&server, "set").await];
    let checks: Vec<_> = (0..10_000).map(|_| start(limiter.check("hot"))).collect();
    let mut admitted = Vec::new();
    for (place, check) in checks.into_iter().enumerate() {
        if check.await.unwrap().is_allowed() {
            admitted.push(place);
        }
    }
    assert!(admitted.into_iter().eq(0..300), "the first come first");
    let flushes = calls(&server, "evalsha").await - before[0];
    assert!((10..=12).contains(&flushes), "1,024 checks a flush: {flushes}");
    assert_eq!(calls(&server, "get").await - before[1], flushes);
    assert_eq!(calls(&server, "set").await - before[2], 1, "the other flushes found nothing left");
}

#[tokio::test]
async fn a_flush_takes_no_more_than_128_keys_and_forgets_nobody() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let before = calls(&server, "evalsha").await;
    let checks: Vec<_> = (0..640u32).map(|key| start(limiter.check(key))).collect();
    for check in checks {
        let decision = check.await.unwrap();
        assert!(decision.is_allowed() && decision.remaining() == 299);
    }
    assert_eq!(calls(&server, "evalsha").await - before, 5);

    // Keys that are there are read together.
    let gets = calls(&server, "get").await;
    let checks: Vec<_> = (0..640u32).map(|key| start(limiter.check(key))).collect();
    for check in checks {
        assert_eq!(check.await.unwrap().remaining(), 298);
    }
    assert_eq!(calls(&server, "get").await, gets);
}

#[tokio::test]
async fn a_caller_that_goes_before_its_flush_is_not_charged() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let before = calls(&server, "evalsha").await;
    for _ in 0..100 {
        drop(start(limiter.check("gone")));
    }
    let stayed = start(limiter.check("stayed"));
    let gone = start(limiter.check("stayed"));
    drop(gone);
    assert_eq!(stayed.await.unwrap().remaining(), 299);
    assert_eq!(taken(&server, "gone").await, 0);
    assert_eq!(taken(&server, "stayed").await, 1);
    assert_eq!(calls(&server, "evalsha").await - before, 1);
}

/// Every permit is accounted for: given to a caller that stayed, or to one that left when its
/// check was on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_at_random_cost_at_most_their_own_permits() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    proxy.delay(Duration::from_millis(1));
    let limiter = limiter(proxy.url());
    for round in 0..20 {
        let key = format!("round{round}");
        let patience = prop_oneof![Just(None), (0..5_000u64).prop_map(Some)];
        let tasks: Vec<_> = samples(patience, 250)
            .into_iter()
            .map(|patience| {
                let (limiter, key) = (limiter.clone(), key.clone());
                tokio::spawn(async move {
                    let check = limiter.check(key);
                    match patience {
                        None => Some(check.await.unwrap().is_allowed()),
                        Some(micros) => {
                            let patience = Duration::from_micros(micros);
                            tokio::time::timeout(patience, check)
                                .await
                                .ok()
                                .map(|d| d.unwrap().is_allowed())
                        }
                    }
                })
            })
            .collect();
        let (mut admitted, mut left) = (0, 0);
        for task in tasks {
            match task.await.unwrap() {
                Some(allowed) => admitted += i128::from(allowed),
                None => left += 1,
            }
        }
        // Everything that was on its way has been decided when this, which goes behind it, is.
        limiter.peek(&key).await.unwrap().ensure_allowed().unwrap();
        limiter.peek(&key).await.unwrap().ensure_allowed().unwrap();
        let taken = taken(&server, &key).await;
        assert_eq!(admitted + left, 250, "fewer than the burst: nobody is denied");
        assert!(admitted <= taken && taken <= admitted + left, "{admitted} {taken} {left}");
    }
}

#[tokio::test]
async fn a_key_of_another_type_fails_alone() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    server.command(&["RPUSH", &name("list"), "x"]).await;
    let (list, before, after) = (
        start(limiter.check("list")),
        start(limiter.check("before")),
        start(limiter.check("after")),
    );
    let error = list.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert!(before.await.unwrap().is_allowed() && after.await.unwrap().is_allowed());
    assert_eq!(
        calls(&server, "eval").await + calls(&server, "evalsha").await,
        2,
        "NOSCRIPT and its EVAL"
    );
}

#[tokio::test]
async fn a_limiter_that_is_dropped_still_answers_its_callers() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let checks: Vec<_> = (0..200).map(|_| start(limiter.check("key"))).collect();
    drop(limiter);
    for check in checks {
        assert!(check.await.unwrap().is_allowed());
    }
    assert_eq!(taken(&server, "key").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_panics_takes_nobody_with_it() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let check = start(limiter.check("key"));
                assert!(n % 2 == 0, "a panic that the test wants");
                check.await.unwrap().is_allowed()
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += i128::from(task.await.unwrap_or(false));
    }
    assert_eq!(admitted, 25);
    assert!(limiter.check("key").await.unwrap().is_allowed());
    assert!(taken(&server, "key").await >= 26);
}

/// A limiter outlives the runtime that drove its connection, as one in a `static` does.
#[test]
fn a_runtime_that_shuts_down_leaves_nobody_hanging_and_no_dead_connection() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (servers, second): (Runtime, Runtime) = (runtime(), runtime());
    // On one thread, so that a flush has taken its check once the test has yielded.
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let server = servers.block_on(Server::start());
    let proxy = servers.block_on(Proxy::start(server.port()));
    let limiter = limiter(proxy.url());
    let check = |runtime: &Runtime| runtime.block_on(async { limiter.check("key").await });
    assert!(check(&first).unwrap().is_allowed());

    // Two flushes of the first runtime are in flight and silent, and a caller of the second waits.
    proxy.swallow(true);
    let in_flight = [(); 2].map(|()| {
        let check = {
            let _context = first.enter();
            start(limiter.check("key"))
        };
        first.block_on(tokio::task::yield_now());
        check
    });
    let waiting = {
        let _context = second.enter();
        start(limiter.check("key"))
    };
    first.shutdown_background();
    for check in in_flight.into_iter().chain([waiting]) {
        assert_eq!(bounded(&second, check).unwrap_err().kind(), ErrorKind::Unavailable);
    }
    proxy.swallow(false);
    servers.block_on(proxy.disconnect_all());
    second.block_on(wait_until(
        "the second runtime has a connection of its own",
        BOUND,
        async || limiter.check("key").await.is_ok(),
    ));
    assert!(check(&second).unwrap().is_allowed());
}

fn bounded<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { tokio::time::timeout(BOUND, future).await.expect("nobody hangs") })
}

#[tokio::test]
async fn in_steady_state_a_check_is_one_evalsha_and_nothing_else() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let before = server.command_stats().await;
    for _ in 0..100 {
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    }
    let mut grown = server.command_stats().await;
    grown.retain(|command, count| {
        *count -= before.get(command).copied().unwrap_or(0);
        *count > 0
    });
    // Those of the script itself are counted too.
    let expected = [("evalsha", 100), ("get", 100), ("set", 100), ("time", 100)];
    assert_eq!(grown, expected.map(|(command, count)| (command.to_owned(), count)).into());
}

#[test]
fn a_check_outside_a_runtime_is_an_error_and_no_panic() {
    let url = "redis://127.0.0.1:1";
    for store in [RedisStore::open(url), RedisStore::open_cluster([url])] {
        let check = patient(store.unwrap(), SLOW.quota()).check("key");
        let error = Builder::new_current_thread().build().unwrap().block_on(check).unwrap_err();
        assert!(error.to_string().contains("Tokio runtime"), "{error}");
    }
}

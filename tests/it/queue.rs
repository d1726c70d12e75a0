//! Batches: the decisions equal those of separate checks, and checks are cancelled and fail
//! independently.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use fleetlimit::{Decision, Error, ErrorKind, Limiter, Policy, Quota, RedisStore, Source};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::common::{BOUND, Proxy, Server, start, wait_until};
use crate::exact::{test_limiter, uncached};
use crate::oracle::{Oracle, State};

/// One permit refills in ten minutes, so that none refills while a test runs.
const SLOW: Oracle = Oracle { permits: 1, micros: 600_000_000, burst: 300 };

fn limiter(url: String) -> Limiter {
    uncached(RedisStore::open(url).unwrap(), SLOW.quota())
}

fn redis_key(key: &str) -> String {
    format!("fleetlimit:{{{key}}}:default:t2")
}

/// Returns how many permits of a key are consumed.
async fn consumed(server: &Server, key: &str) -> i128 {
    let now = SLOW.micros_to_ticks(server.time_micros().await);
    let debt = SLOW.full_at(server, &redis_key(key)).await.map_or(0, |full_at| full_at - now);
    // Rounds up, because less than a permit has refilled since.
    debt.div_euclid(SLOW.permits_to_ticks(1))
        + i128::from(debt.rem_euclid(SLOW.permits_to_ticks(1)) > 0)
}

async fn calls(server: &Server, command: &str) -> u64 {
    server.command_stats().await.get(command).copied().unwrap_or(0)
}

async fn allowed(checks: Vec<impl Future<Output = Result<Decision, Error>>>) -> u64 {
    let mut allowed = 0;
    for check in checks {
        allowed += u64::from(check.await.unwrap().is_allowed());
    }
    allowed
}

fn samples<S: Strategy>(strategy: S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::new(Config::default());
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Starts random bursts of checks. All checks of a burst start before the first reply. The oracle
/// verifies the checks of each key in the order in which they started.
#[tokio::test]
async fn batched_checks_get_the_same_decisions_as_separate_ones() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let cost = prop_oneof![3 => Just(1u64), 1 => 0..40u64, 1 => Just(301u64)];
    let bursts = prop::collection::vec((0..5usize, cost), 1..500);
    for (round, burst) in samples(bursts, 60).into_iter().enumerate() {
        let keys: Vec<String> = (0..5).map(|key| format!("{round}-{key}")).collect();
        let mut full_at = Vec::new();
        for key in &keys {
            assert!(limiter.check(key).await.unwrap().is_allowed());
            full_at.push(SLOW.full_at(&server, &redis_key(key)).await.unwrap());
        }
        let checks: Vec<_> =
            burst.iter().map(|&(key, cost)| start(limiter.check_cost(&keys[key], cost))).collect();
        for (&(key, cost), check) in burst.iter().zip(checks) {
            let decision = check.await.unwrap();
            assert_eq!(decision.source() == Source::Quota, cost > SLOW.burst);
            if decision.source() == Source::Quota {
                // Redis was not asked.
                continue;
            }
            let charged = if decision.is_allowed() { SLOW.permits_to_ticks(cost) } else { 0 };
            let state = |full_at| State { full_at, ..SLOW.full() };
            SLOW.verify(state(full_at[key]), cost, &decision, state(full_at[key] + charged));
            full_at[key] += charged;
        }
        for (key, full_at) in keys.iter().zip(full_at) {
            assert_eq!(
                SLOW.full_at(&server, &redis_key(key)).await,
                Some(full_at),
                "value in Redis"
            );
        }
    }
    assert!(calls(&server, "evalsha").await < 60 * 5 + 60 * 8, "the checks are sent in batches");
}

/// The first check of a batch that is allowed sets the bucket to the rate of its own revision. Less
/// than a permit refills during the test, so the decisions follow from counting permits.
#[tokio::test]
async fn batched_checks_after_another_revision_get_the_same_decisions_as_separate_ones() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let revisions = [
        SLOW,
        Oracle { permits: 1, micros: 3_600_000_000, burst: 500 },
        Oracle { permits: 7, micros: 86_400_000_000, burst: 20 },
    ];
    let limiters = revisions.map(|oracle| uncached(store(), oracle.quota()));
    let cost = prop_oneof![3 => Just(1u64), 1 => 0..40u64, 1 => Just(501u64)];
    let bursts = prop::collection::vec((0..5usize, cost), 1..300);
    let mut used = [0; 5];
    for (round, burst) in samples(bursts, 60).into_iter().enumerate() {
        if round % 10 == 0 {
            used = [0; 5];
        }
        let (limiter, limit) = (&limiters[round % 3], revisions[round % 3].burst);
        let key = |key: usize| format!("{}-{key}", round / 10);
        let checks: Vec<_> =
            burst.iter().map(|&(n, cost)| start(limiter.check_cost(key(n), cost))).collect();
        for (&(n, cost), check) in burst.iter().zip(checks) {
            let decision = check.await.unwrap();
            assert_eq!(decision.source() == Source::Quota, cost > limit);
            if decision.source() == Source::Quota {
                // Redis was not asked.
                continue;
            }
            let is_allowed = cost == 0 || used[n] + cost <= limit;
            used[n] += if is_allowed { cost } else { 0 };
            let found = (decision.is_allowed(), decision.remaining());
            assert_eq!(found, (is_allowed, limit.saturating_sub(used[n])), "{burst:?}");
        }
    }
}

/// Policies that share a call are those of one store, at rates of each kind. Two processes use
/// different revisions of them in turn. As above, the decisions follow from counting permits.
#[tokio::test]
async fn a_call_with_many_policies_decides_each_by_its_own_numbers() {
    let server = Server::start().await;
    let oracle = |permits, micros, burst| Oracle { permits, micros, burst };
    let revisions = [
        [
            SLOW,
            oracle(1, 3_600_000_000, 30),
            oracle(7, 86_400_000_000, 20),
            oracle(1, 864_000_000, 9),
        ],
        [oracle(3, 86_400_000_000, 90), oracle(1, 36_000_000_000, 99), SLOW, SLOW],
    ];
    let processes = revisions.map(|oracles| {
        let store = RedisStore::open(server.url()).unwrap();
        let limiter = |(n, oracle): (usize, Oracle)| {
            let policy = Policy::new(format!("policy-{n}")).quota("q", oracle.quota());
            uncached(store.clone(), policy)
        };
        oracles.into_iter().enumerate().map(limiter).collect::<Vec<_>>()
    });
    let cost = prop_oneof![3 => Just(1u64), 1 => 0..20u64];
    let bursts = prop::collection::vec((0..4usize, 0..3usize, cost), 1..200);
    let mut used = [[0; 3]; 4];
    for (round, burst) in samples(bursts, 60).into_iter().enumerate() {
        if round % 6 == 0 {
            used = Default::default();
        }
        let (limiters, oracles) = (&processes[round % 2], &revisions[round % 2]);
        let key = |key: usize| format!("{}-{key}", round / 6);
        // The check replaces it.
        let list = "fleetlimit:{list}:policy-2:t2";
        server.command(&["DEL", list]).await;
        server.command(&["RPUSH", list, "x"]).await;
        let list = start(limiters[2].check("list"));
        let check = |&(policy, n, cost): &(usize, usize, u64)| {
            start(limiters[policy].check_cost(key(n), cost))
        };
        let checks: Vec<_> = burst.iter().map(check).collect();
        for (&(policy, n, cost), check) in burst.iter().zip(checks) {
            let (decision, limit) = (check.await.unwrap(), oracles[policy].burst);
            if decision.source() == Source::Quota {
                assert!(cost > limit);
                continue;
            }
            let used = &mut used[policy][n];
            let is_allowed = cost == 0 || *used + cost <= limit;
            *used += if is_allowed { cost } else { 0 };
            let found = (decision.is_allowed(), decision.remaining());
            assert_eq!(found, (is_allowed, limit.saturating_sub(*used)), "{burst:?}");
        }
        assert_eq!(list.await.unwrap_err().kind(), ErrorKind::Server);
    }
}

/// Their checks are in one batch, which must not read the bucket once for both.
#[tokio::test]
async fn two_limiters_of_one_policy_name_admit_no_more_than_the_quota() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiters = [(); 2].map(|()| uncached(store.clone(), SLOW.quota()));
    limiters[0].check("first").await.unwrap().ensure_allowed().unwrap();
    let checks: Vec<_> = (0..400).map(|n| start(limiters[n % 2].check("key"))).collect();
    assert_eq!(allowed(checks).await, SLOW.burst);
}

/// As above, but the numbers differ, so one call has to follow the other.
#[tokio::test]
async fn checks_before_and_after_an_update_in_one_batch_admit_no_more_than_the_larger_quota() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.check("first").await.unwrap().ensure_allowed().unwrap();
    let larger = Oracle { burst: 310, ..SLOW };
    let mut checks: Vec<_> = (0..200).map(|_| start(limiter.check("key"))).collect();
    limiter.update(larger.quota()).unwrap();
    checks.extend((0..200).map(|_| start(limiter.check("key"))));
    assert_eq!(allowed(checks).await, larger.burst);
}

/// A call that did not run is sent again, with the source of its own script.
#[tokio::test]
async fn a_server_that_forgets_its_scripts_decides_the_checks_of_all_policies() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    // Rates of both forms, so that a batch needs several scripts.
    let rates = [SLOW, SLOW, Oracle { permits: 7, micros: 86_400_000_000, burst: 300 }];
    let limiters: Vec<_> = (0..3)
        .map(|n| {
            let policy = Policy::new(format!("policy-{n}")).quota("q", rates[n].quota());
            uncached(store.clone(), policy)
        })
        .collect();
    for used in 1..=20 {
        let checks: Vec<_> = limiters.iter().map(|limiter| start(limiter.check("key"))).collect();
        for check in checks {
            assert_eq!(check.await.unwrap().remaining(), SLOW.burst - used);
        }
        server.command(&["SCRIPT", "FLUSH"]).await;
    }
}

#[tokio::test]
async fn checks_of_a_hundred_policies_share_a_few_calls() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let other_form = Oracle { permits: 7, micros: 86_400_000_000, burst: SLOW.burst };
    let policy = |n| {
        let oracle = if n % 2 == 0 { SLOW } else { other_form };
        Policy::new(format!("policy-{n}")).quota("q", oracle.quota())
    };
    let limiters: Vec<_> = (0..100).map(|n| uncached(store.clone(), policy(n))).collect();
    limiters[0].check("first").await.unwrap().ensure_allowed().unwrap();
    let before = calls(&server, "evalsha").await + calls(&server, "eval").await;
    let checks: Vec<_> = limiters.iter().map(|limiter| start(limiter.check("key"))).collect();
    for check in checks {
        assert_eq!(check.await.unwrap().remaining(), SLOW.burst - 1);
    }
    let calls = calls(&server, "evalsha").await + calls(&server, "eval").await - before;
    assert!((1..=5).contains(&calls), "{calls} calls");
}

#[tokio::test]
async fn ten_thousand_checks_of_a_hot_key_cost_at_most_a_read_and_a_write_per_flush() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let before =
        [calls(&server, "evalsha").await, calls(&server, "get").await, calls(&server, "set").await];
    let checks: Vec<_> = (0..10_000).map(|_| start(limiter.check("hot"))).collect();
    let mut admitted = Vec::new();
    for (index, check) in checks.into_iter().enumerate() {
        if check.await.unwrap().is_allowed() {
            admitted.push(index);
        }
    }
    assert!(admitted.into_iter().eq(0..300), "checks are decided in the order of their start");
    let flushes = calls(&server, "evalsha").await - before[0];
    assert!((11..=13).contains(&flushes), "a flush carries up to 1,024 checks: {flushes} flushes");
    assert_eq!(calls(&server, "get").await - before[1], flushes);
    // The first check is alone, and goes out at once.
    assert_eq!(calls(&server, "set").await - before[2], 2, "only two flushes find permits");
}

#[tokio::test]
async fn a_flush_carries_at_most_128_keys_and_loses_no_check() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let before = calls(&server, "evalsha").await;
    let checks: Vec<_> = (0..640u32).map(|key| start(limiter.check(key))).collect();
    for check in checks {
        let decision = check.await.unwrap();
        assert!(decision.is_allowed() && decision.remaining() == 299);
    }
    // The first check is alone, and goes out at once.
    assert_eq!(calls(&server, "evalsha").await - before, 6);

    // Keys that exist are read together, with MGET.
    let gets = calls(&server, "get").await;
    let checks: Vec<_> = (0..640u32).map(|key| start(limiter.check(key))).collect();
    for check in checks {
        assert_eq!(check.await.unwrap().remaining(), 298);
    }
    assert_eq!(calls(&server, "get").await, gets + 1, "only the first check is alone");
}

#[tokio::test]
async fn a_check_cancelled_before_its_flush_is_not_charged() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let before = calls(&server, "evalsha").await;
    // A check that is alone goes out at its first poll. The others wait for it.
    let first = start(limiter.check("first"));
    for _ in 0..100 {
        drop(start(limiter.check("cancelled")));
    }
    let completed = start(limiter.check("completed"));
    let cancelled = start(limiter.check("completed"));
    drop(cancelled);
    first.await.unwrap().ensure_allowed().unwrap();
    assert_eq!(completed.await.unwrap().remaining(), 299);
    assert_eq!(consumed(&server, "cancelled").await, 0);
    assert_eq!(consumed(&server, "completed").await, 1);
    assert_eq!(calls(&server, "evalsha").await - before, 2);
}

/// Each consumed permit belongs to a check that completed, or to one that was cancelled after its
/// batch was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_cancelled_at_random_consume_at_most_their_own_permits() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    proxy.delay(Duration::from_millis(1));
    let limiter = limiter(proxy.url());
    for round in 0..20 {
        let key = format!("round{round}");
        let timeout = prop_oneof![Just(None), (0..5_000u64).prop_map(Some)];
        let tasks: Vec<_> = samples(timeout, 250)
            .into_iter()
            .map(|timeout| {
                let (limiter, key) = (limiter.clone(), key.clone());
                tokio::spawn(async move {
                    let check = limiter.check(key);
                    match timeout {
                        None => Some(check.await.unwrap().is_allowed()),
                        Some(micros) => {
                            let timeout = Duration::from_micros(micros);
                            tokio::time::timeout(timeout, check)
                                .await
                                .ok()
                                .map(|d| d.unwrap().is_allowed())
                        }
                    }
                })
            })
            .collect();
        let (mut admitted, mut cancelled) = (0, 0);
        for task in tasks {
            match task.await.unwrap() {
                Some(allowed) => admitted += i128::from(allowed),
                None => cancelled += 1,
            }
        }
        // When these are decided, so is every check that was sent before them.
        limiter.peek(&key).await.unwrap().ensure_allowed().unwrap();
        limiter.peek(&key).await.unwrap().ensure_allowed().unwrap();
        let consumed = consumed(&server, &key).await;
        assert_eq!(admitted + cancelled, 250, "no check is denied, because the burst is larger");
        assert!(
            admitted <= consumed && consumed <= admitted + cancelled,
            "{admitted} admitted, {cancelled} cancelled, {consumed} consumed"
        );
    }
}

#[tokio::test]
async fn a_redis_key_of_the_wrong_type_fails_only_its_own_checks() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    server.command(&["RPUSH", &redis_key("list"), "x"]).await;
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
        1,
        "a new connection brings the script along"
    );
}

#[tokio::test]
async fn a_strange_value_fails_neither_its_own_check_nor_the_others_of_its_batch() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let two = Policy::new("default").quota("a", SLOW.quota()).quota("b", SLOW.quota());
    let packed = Limiter::new(RedisStore::open(server.url()).unwrap(), two).unwrap();
    // The last ends with the digits of the rate.
    for value in ["", ",", "1,2", " 12345678901234567", "\n", "-", "!", "packed", "1000\0,1,068"] {
        server.command(&["FLUSHALL"]).await;
        match value {
            "packed" => assert!(packed.check("strange").await.unwrap().is_allowed()),
            _ => {
                server.command(&["SET", &redis_key("strange"), value, "EX", "9"]).await;
            }
        }
        assert_eq!(limiter.check_cost("used", 3).await.unwrap().remaining(), 297);
        let checks = ["fresh", "strange", "used"].map(|key| start(limiter.check(key)));
        let [fresh, strange, used] = checks;
        assert_eq!(fresh.await.unwrap().remaining(), 299, "{value:?}");
        assert!(strange.await.is_ok(), "{value:?}");
        assert_eq!(used.await.unwrap().remaining(), 296, "{value:?}");
    }
}

#[tokio::test]
async fn values_that_contain_a_comma_are_told_apart() {
    let server = Server::start().await;
    // As a double, this number has the bytes 42 2C, and then zeros. 2C is a comma.
    let quota = Quota::new(1, Duration::from_micros(7 << 33)).burst(300);
    let policy = Policy::new("two").quota("a", quota).quota("b", quota);
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy);
    for remaining in [299, 298] {
        for check in ["a", "b", "c"].map(|key| start(limiter.check(key))) {
            assert_eq!(check.await.unwrap().remaining(), remaining);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panicking_task_does_not_affect_the_checks_of_others() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let check = start(limiter.check("key"));
                assert!(n % 2 == 0, "this panic is intended");
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
    assert!(consumed(&server, "key").await >= 26);
}

/// A limiter can outlive the runtime that polls its connection, for example in a `static`.
#[test]
fn a_runtime_shutdown_leaves_no_hanging_check_and_no_dead_connection() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (servers, second): (Runtime, Runtime) = (runtime(), runtime());
    // It has a single thread, so that a flush has taken its check once the test has yielded.
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let server = servers.block_on(Server::start());
    let proxy = servers.block_on(Proxy::start(server.port()));
    let limiter = limiter(proxy.url());
    let check = |runtime: &Runtime| runtime.block_on(async { limiter.check("key").await });
    assert!(check(&first).unwrap().is_allowed());

    // Two flushes are in flight without a reply, and a check waits.
    proxy.swallow(true);
    let checks = [(); 3].map(|()| {
        let check = {
            let _context = first.enter();
            start(limiter.check("key"))
        };
        first.block_on(tokio::task::yield_now());
        check
    });
    first.shutdown_background();
    for check in checks {
        assert_eq!(
            block_on_with_timeout(&second, check).unwrap_err().kind(),
            ErrorKind::Unavailable
        );
    }
    proxy.swallow(false);
    assert!(check(&second).unwrap().is_allowed());
}

fn block_on_with_timeout<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { tokio::time::timeout(BOUND, future).await.expect("no check hangs") })
}

#[tokio::test]
async fn a_check_in_steady_state_is_a_single_evalsha() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let before = server.command_stats().await;
    for _ in 0..100 {
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    }
    let mut calls = server.command_stats().await;
    calls.retain(|command, count| {
        *count -= before.get(command).copied().unwrap_or(0);
        *count > 0
    });
    // The server also counts the commands of the script.
    let expected = [("evalsha", 100), ("get", 100), ("set", 100), ("time", 100)];
    assert_eq!(calls, expected.map(|(command, count)| (command.to_owned(), count)).into());
}

/// Spawning a task for each check would take longer than the rest.
#[tokio::test]
async fn a_caller_that_checks_again_at_once_needs_no_other_task() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let caller = tokio::spawn(async move {
        // The first makes the connection.
        for _ in 0..2 {
            limiter.check("key").await.unwrap().ensure_allowed().unwrap();
        }
        let before = tasks();
        let check = start(limiter.check("key"));
        assert_eq!(tasks(), before);
        check.await.unwrap().ensure_allowed().unwrap();
    });
    caller.await.unwrap();
}

/// A task that is woken while it runs is polled again, and may move to another thread for that.
#[tokio::test]
async fn a_lone_check_wakes_its_task_once() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let mut check = pin!(limiter.check("key"));
    let mut wakes = None;
    let decision = poll_fn(|cx| {
        let new = || Arc::new(Wakes { task: cx.waker().clone(), count: AtomicUsize::new(0) });
        let wakes = wakes.get_or_insert_with(new);
        check.as_mut().poll(&mut Context::from_waker(&wakes.clone().into()))
    });
    decision.await.unwrap().ensure_allowed().unwrap();
    assert_eq!(wakes.unwrap().count.load(Relaxed), 1);
}

struct Wakes {
    task: Waker,
    count: AtomicUsize,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Relaxed);
        self.task.wake_by_ref();
    }
}

/// As in a stream of checks whose consumer is busy: nobody reads the reply.
#[tokio::test]
async fn a_check_that_is_kept_without_polling_it_costs_no_connection() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let kept = start(limiter.check("key"));
    // Each is a sign of life after a silence, so that the connection has been silent for a second.
    wait_until("the server was asked", BOUND, async || calls(&server, "ping").await >= 5).await;
    kept.await.unwrap().ensure_allowed().unwrap();
}

#[test]
fn a_runtime_without_a_timer_is_enough() {
    let servers = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = servers.block_on(Server::start());
    let limiter = limiter(server.url());
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    assert!(runtime.block_on(limiter.check("key")).unwrap().is_allowed());
}

#[test]
fn a_runtime_without_drivers_is_an_error_and_not_a_panic() {
    let url = "redis://127.0.0.1:1";
    for store in [RedisStore::open(url), RedisStore::open_cluster([url])] {
        let limiter = test_limiter(store.unwrap(), SLOW.quota());
        let runtime = Builder::new_current_thread().build().unwrap();
        let error = runtime.block_on(limiter.check("key")).unwrap_err();
        assert!(error.to_string().contains("Tokio runtime"), "{error}");
    }
}

//! The circuit breaker: how soon a server that fails costs nothing, and is used again.

use std::cell::Cell;
use std::time::{Duration, Instant};

use fleetlimit::{FailureMode, Limiter, Quota, RedisStore, Source};

use crate::common::{BOUND, Cluster, Proxy, Server, wait_until};
use crate::log::Log;

const TIMEOUT: Duration = Duration::from_millis(50);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn limiter(url: String) -> Limiter {
    let store = RedisStore::open(url).unwrap();
    let builder = Limiter::builder(store, Quota::per_second(1_000_000));
    builder.failure_mode(FailureMode::Open).timeout(TIMEOUT).build().unwrap()
}

async fn is_decided(limiter: &Limiter) -> bool {
    limiter.check("key").await.unwrap().source() == Source::Store
}

async fn wait_until_decided(limiter: &Limiter) {
    wait_until("Redis decides", BOUND, async || is_decided(limiter).await).await;
}

async fn wait_until_open(limiter: &Limiter) {
    wait_until("the breaker opens", BOUND, async || {
        let start = Instant::now();
        !is_decided(limiter).await && start.elapsed() < TIMEOUT / 2
    })
    .await;
}

/// Checks one after another with a pause, and returns those that took longer than half a timeout: when
/// they started, and how long they took.
async fn slow_checks(
    limiter: &Limiter,
    pause: Duration,
    for_time: Duration,
) -> Vec<(Duration, Duration)> {
    let (start, mut slow) = (Instant::now(), Vec::new());
    while start.elapsed() < for_time {
        let started = Instant::now();
        let _ = limiter.check("key").await.unwrap();
        if started.elapsed() > TIMEOUT / 2 {
            slow.push((started - start, started.elapsed()));
        }
        tokio::time::sleep(pause).await;
    }
    slow
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_replies_late_costs_the_timeout_for_a_tenth_of_a_second() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    // One that is asked all the time, and one that is asked now and then.
    for pause in [MS, 120 * MS] {
        proxy.delay(MS);
        let limiter = limiter(proxy.url());
        wait_until_decided(&limiter).await;
        proxy.delay(200 * MS);
        let slow = slow_checks(&limiter, pause, 2 * SECOND).await;
        let late: Vec<_> = slow.iter().filter(|(started, _)| *started > 100 * MS).collect();
        assert!(!slow.is_empty() && late.is_empty(), "{slow:?}");
        proxy.delay(MS);
        let start = Instant::now();
        wait_until_decided(&limiter).await;
        assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_stopped_costs_the_timeout_for_a_tenth_of_a_second() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    wait_until_decided(&limiter).await;
    server.pause();
    let slow = slow_checks(&limiter, MS, 3 * SECOND).await;
    server.resume();
    let late: Vec<_> = slow.iter().filter(|(started, _)| *started > 100 * MS).collect();
    assert!(!slow.is_empty() && late.is_empty(), "{slow:?}");
    let start = Instant::now();
    wait_until_decided(&limiter).await;
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_breaker_answers_at_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(proxy.url());
    wait_until_decided(&limiter).await;
    proxy.swallow(true);
    wait_until_open(&limiter).await;
    let mut times = Vec::new();
    for key in 0..1_000u32 {
        let start = Instant::now();
        assert_eq!(limiter.check(key).await.unwrap().source(), Source::FailureMode);
        times.push(start.elapsed());
    }
    times.sort();
    assert!(times[990] < MS / 5, "{:?}", times[990]);
}

#[tokio::test]
async fn the_log_has_a_line_when_it_opens_and_one_when_it_closes() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(proxy.url());
    wait_until_decided(&limiter).await;
    let (log, _guard) = Log::capture();
    let lines = || {
        let is_its = |event: &String| event.contains("circuit breaker");
        log.events().into_iter().filter(is_its).collect::<Vec<_>>()
    };
    proxy.swallow(true);
    wait_until("the breaker opens", BOUND, async || {
        let _ = limiter.check("key").await.unwrap();
        !lines().is_empty()
    })
    .await;
    for _ in 0..100 {
        let _ = limiter.check("key").await.unwrap();
    }
    // Several probes.
    tokio::time::sleep(SECOND).await;
    proxy.swallow(false);
    wait_until_decided(&limiter).await;
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    let server =
        format!("server=\"{}\"", proxy.url().trim_start_matches("redis://").trim_end_matches('/'));
    for (line, parts) in lines.iter().zip([
        [
            &*server,
            "WARN fleetlimit: circuit breaker open",
            "did not reply in time",
            " late=",
            "opened=1",
        ],
        [&*server, "INFO fleetlimit: circuit breaker closed", "open_ms=", "refused=", ""],
    ]) {
        parts.iter().for_each(|part| assert!(line.contains(part), "{part}: {line}"));
    }
    let refused = lines[1].split("refused=").nth(1).unwrap();
    assert!(refused.trim().parse::<u32>().unwrap() >= 100, "{refused}");
}

#[tokio::test]
async fn a_redis_that_refuses_to_write_opens_it_until_it_writes_again() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    wait_until_decided(&limiter).await;
    let (log, _guard) = Log::capture();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    wait_until("the breaker opens", BOUND, async || {
        let _ = limiter.check("key").await.unwrap();
        log.events().iter().any(|event| event.contains("circuit breaker open"))
    })
    .await;
    let calls = server.command_stats().await["evalsha"];
    for _ in 0..1_000 {
        assert!(!is_decided(&limiter).await);
    }
    let calls = server.command_stats().await["evalsha"] - calls;
    assert!(calls < 20, "{calls} calls were sent");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let start = Instant::now();
    wait_until_decided(&limiter).await;
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_key_of_the_wrong_type_does_not_open_it() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    wait_until_decided(&limiter).await;
    for wrong in 0..500 {
        // Each fails only one check.
        server.command(&["RPUSH", &format!("fleetlimit:{{{wrong}}}:default:t2"), "x"]).await;
        assert_eq!(limiter.check(wrong).await.unwrap().source(), Source::FailureMode);
        assert!(is_decided(&limiter).await);
    }
}

/// All calls of the time are late, but the process itself is the reason.
#[tokio::test]
async fn a_process_that_was_blocked_does_not_blame_redis() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    wait_until_decided(&limiter).await;
    let (log, _guard) = Log::capture();
    for _ in 0..5 {
        let checks: Vec<_> = (0..20u32)
            .map(|key| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.check(key).await.unwrap().source() })
            })
            .collect();
        tokio::task::yield_now().await;
        std::thread::sleep(4 * TIMEOUT);
        for check in checks {
            check.await.unwrap();
        }
        for _ in 0..100 {
            assert!(is_decided(&limiter).await);
        }
    }
    assert!(!log.events().iter().any(|event| event.contains("breaker")), "{:#?}", log.events());
}

async fn assert_that_a_stopped_node_affects_only_its_own_keys(
    store: RedisStore,
    keys: u32,
    stop: impl Fn(),
    resume: impl Fn(),
) {
    let limiter = Limiter::builder(store, Quota::per_second(1_000_000))
        .failure_mode(FailureMode::Open)
        .build()
        .unwrap();
    // The decided ones of a check of each key, and those that took long.
    let last_undecided = Cell::new(Instant::now());
    let check_all = async || {
        let (mut decided, mut slow) = (0, 0);
        for key in 0..keys {
            let start = Instant::now();
            let decision = limiter.check(key).await.unwrap();
            if decision.source() == Source::Store {
                decided += 1;
            } else {
                last_undecided.set(start);
            }
            slow += u32::from(start.elapsed() > TIMEOUT / 2);
        }
        (decided, slow)
    };
    wait_until("all nodes decide", BOUND, async || check_all().await.0 == keys).await;
    stop();
    wait_until("the breaker of the node opens", BOUND, async || {
        let (decided, slow) = check_all().await;
        decided < keys && slow == 0
    })
    .await;
    // Checks only the stopped node's keys, for longer than a connection may stay silent.
    let mut keys_of_node = Vec::new();
    for key in 0..keys {
        if limiter.check(key).await.unwrap().source() != Source::Store {
            keys_of_node.push(key);
        }
    }
    let start = Instant::now();
    while start.elapsed() < SECOND {
        for &key in &keys_of_node {
            assert_ne!(limiter.check(key).await.unwrap().source(), Source::Store);
        }
        tokio::time::sleep(MS).await;
    }
    let mut all_slow = 0;
    for _ in 0..20 {
        let (decided, slow) = check_all().await;
        assert!((keys / 3..keys).contains(&decided), "{decided} of {keys}");
        all_slow += slow;
    }
    assert!(all_slow <= keys / 5, "{all_slow} of {} are slow", 20 * keys);
    resume();
    let start = Instant::now();
    wait_until("all nodes decide again", BOUND, async || check_all().await.0 == keys).await;
    // Up to the last undecided check, because a round over all keys takes a while too.
    let recovery = last_undecided.get().saturating_duration_since(start);
    assert!(recovery < SECOND, "{recovery:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_node_of_a_cluster_affects_only_its_own_keys() {
    let cluster = Cluster::proxied().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let swallow = |on| cluster.proxy(1).swallow(on);
    let (stop, resume) = (|| swallow(true), || swallow(false));
    assert_that_a_stopped_node_affects_only_its_own_keys(store, 1_000, stop, resume).await;
}

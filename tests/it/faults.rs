//! Redis unreachable, unresponsive, restarted or demoted: what a check returns, and how long the
//! recovery takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use deadpool_redis::Runtime;
use fleetlimit::{Decision, ErrorKind, FailureMode, Limiter, Quota, RedisStore, Source};
use futures_util::future::{join, join_all};

use crate::common::{BOUND, Proxy, Sentinel, Server, start, wait_until};
use crate::exact::{test_limiter, test_limiter_builder, uncached};
use crate::log::Log;

const TIMEOUT: Duration = Duration::from_millis(50);

/// What the scheduler of a busy machine may add to a timeout. It is less than the timeouts of the
/// Redis client, which are half a second and more, so the tests notice a wait for one of those.
const SLACK: Duration = Duration::from_millis(300);

fn fail_closed(url: String) -> Limiter {
    let store = RedisStore::open(url).unwrap();
    let builder = Limiter::builder(store, Quota::per_second(1_000_000));
    builder.failure_mode(FailureMode::Closed).build().unwrap()
}

async fn evalsha_calls(server: &Server) -> u64 {
    server.command_stats().await.get("evalsha").copied().unwrap_or(0)
}

/// Waits until checks succeed, and returns how long that took. After the first that does, what has failed
/// before can still open the breaker.
async fn wait_for_recovery(limiter: &Limiter) -> Duration {
    let start = Instant::now();
    let succeeds = async || limiter.check("recovery").await.is_ok();
    wait_until("checks succeed again", BOUND, async || succeeds().await && succeeds().await).await;
    start.elapsed()
}

#[tokio::test]
async fn an_unresponsive_redis_delays_checks_by_the_timeout_and_no_longer() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = fail_closed(proxy.url());
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    proxy.swallow(true);
    let started = Instant::now();
    // Two flushes are in flight, and the third check is queued behind them.
    let checks = ["a", "b", "c"].map(|key| start(limiter.check(key)));
    for check in checks {
        assert_eq!(check.await.unwrap_err().kind(), ErrorKind::Timeout);
    }
    let elapsed = started.elapsed();
    assert!(elapsed >= TIMEOUT && elapsed < TIMEOUT + SLACK, "{elapsed:?}");
    proxy.swallow(false);
    assert!(wait_for_recovery(&limiter).await < Duration::from_secs(1));
}

/// The test blocks its thread until the check has expired, and for longer than a connection may be
/// silent. Other checks share the connection, which is not the cause.
#[tokio::test]
async fn an_expired_check_is_not_sent_and_does_not_close_the_connection() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let quota = Quota::per_day(100);
    let limiter = test_limiter(store.clone(), quota);
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    // Longer than this thread may be suspended before the first check is sent.
    let timeout = Duration::from_millis(200);
    let short_timeout = test_limiter_builder(store, quota).timeout(timeout).build().unwrap();
    // Calls are written only after the block, and their replies come later still.
    proxy.round_trip(Duration::from_millis(40));
    // The first check is alone, and sent at once. The second one waits for its turn.
    let expired = [(); 2].map(|()| start(short_timeout.check("key")));
    // Long enough for the timer, which fires on another thread.
    std::thread::sleep(3 * timeout);
    for check in expired {
        assert_eq!(check.await.unwrap_err().kind(), ErrorKind::Timeout);
    }
    assert_eq!(limiter.check("key").await.unwrap().remaining(), 97);
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn the_longest_durations_do_not_panic() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_day(1))
        .timeout(Duration::MAX)
        .cache_denials(Duration::MAX)
        .build()
        .unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Cached);
    limiter.reset("key").await.unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_reset_whose_reply_is_lost_invalidates_the_cached_denial() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let limiter =
        test_limiter_builder(store, Quota::per_day(1)).cache_denials(BOUND).build().unwrap();
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    assert!(!limiter.check("key").await.unwrap().is_allowed());
    proxy.disconnect_on_reply(1);
    limiter.reset("key").await.unwrap_err();
    let mut decision = limiter.check("key").await;
    wait_until("the store decides again", BOUND, async || {
        if decision.is_err() {
            decision = limiter.check("key").await;
        }
        decision.is_ok()
    })
    .await;
    assert!(decision.unwrap().is_allowed());
}

#[tokio::test]
async fn the_failure_mode_decides_during_an_outage_and_is_named_as_the_source() {
    let limiter = fail_closed("redis://127.0.0.1:1".into());
    assert_eq!(limiter.check("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let quota = Quota::per_second(1_000_000);
    let local = Limiter::new(store.clone(), quota).unwrap();
    assert_eq!(local.check("key").await.unwrap().source(), Source::Local);
    let open = Limiter::builder(store, quota).failure_mode(FailureMode::Open).build().unwrap();
    let decision = open.check("key").await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.source(), Source::FailureMode);
    // The failure mode does not apply to `peek` and `reset`.
    assert_eq!(open.peek("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(open.reset("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn redis_may_start_after_the_service() {
    let server = Server::start().await;
    server.stop();
    let limiter = fail_closed(server.url());
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(limiter.check("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(start.elapsed() < TIMEOUT + SLACK);
    }
    server.restart().await;
    assert!(wait_for_recovery(&limiter).await < Duration::from_secs(1));
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
}

#[tokio::test]
async fn a_check_in_a_detected_outage_does_not_wait() {
    let limiter = fail_closed("redis://127.0.0.1:1".into());
    limiter.check("key").await.unwrap_err();
    // The limit is a twentieth of the time that 2,000 timeouts would take.
    let start = Instant::now();
    for _ in 0..2_000 {
        limiter.check("key").await.unwrap_err();
    }
    assert!(start.elapsed() < 2_000 * TIMEOUT / 20, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_check_whose_reply_is_lost_is_charged_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let limiter = test_limiter(store, Quota::per_hour(100));
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let before = evalsha_calls(&server).await;
    proxy.disconnect_on_reply(1);
    assert_eq!(limiter.check("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(proxy.disconnects_left(), 0);
    assert_eq!(evalsha_calls(&server).await - before, 1, "not sent again");
    wait_for_recovery(&limiter).await;
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 98, "charged once, not twice");
}

/// Concurrent checks of one key, none of which may fail.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<Decision>>>,
}

impl Load {
    fn start(limiter: &Limiter) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..16)
            .map(|_| {
                let (limiter, stop) = (limiter.clone(), stop.clone());
                tokio::spawn(async move {
                    let mut decisions = Vec::new();
                    while !stop.load(Relaxed) {
                        decisions.push(limiter.check("load").await.expect("no check fails"));
                    }
                    decisions
                })
            })
            .collect();
        Self { stop, tasks }
    }

    async fn finish(self) -> Vec<Decision> {
        self.stop.store(true, Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_under_load_fails_no_check_and_grants_no_permit_twice() {
    let server = Server::start().await;
    let limiter =
        test_limiter(RedisStore::open(server.url()).unwrap(), Quota::per_hour(1).burst(50_000));
    let load = Load::start(&limiter);
    for _ in 0..100 {
        server.command(&["SCRIPT", "FLUSH"]).await;
    }
    let decisions = load.finish().await;
    let admitted = decisions.iter().filter(|decision| decision.is_allowed()).count();
    let left = limiter.peek("load").await.unwrap().remaining();
    assert_eq!(admitted + left as usize, 50_000);
    assert!(server.command_stats().await["eval"] > 50, "the flushes removed the script");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_load_lets_no_check_exceed_the_timeout_and_is_over_within_a_second() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::new(store, Quota::per_second(1_000_000)).unwrap();
    limiter.check("warm").await.unwrap().ensure_allowed().unwrap();
    let slowest = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (limiter, stop, slowest) = (limiter.clone(), stop.clone(), slowest.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    let start = Instant::now();
                    assert!(
                        limiter.check("load").await.expect("the failure mode decides").is_allowed()
                    );
                    slowest.fetch_max(start.elapsed().as_millis() as u64, Relaxed);
                    // While the breaker is open, they would leave no core to anything else.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    server.stop();
    wait_until("the failure mode decides", BOUND, async || {
        limiter.check("probe").await.unwrap().source() == Source::Local
    })
    .await;
    server.restart().await;
    let restarted = Instant::now();
    wait_until("the store decides", BOUND, async || {
        limiter.check("probe").await.unwrap().source() == Source::Store
    })
    .await;
    assert!(restarted.elapsed() < Duration::from_secs(1), "{:?}", restarted.elapsed());
    stop.store(true, Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let slowest = Duration::from_millis(slowest.load(Relaxed));
    assert!(slowest < TIMEOUT + SLACK, "{slowest:?}");
}

/// A demoted primary still replies to PING. Only a write shows that it is a replica.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_keeps_the_connection_open_is_detected() {
    let sentinel = Sentinel::start().await;
    let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_hour(1_000))
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap();
    wait_for_recovery(&limiter).await;
    sentinel.failover().await;
    sentinel.demote().await;
    assert!(wait_for_recovery(&limiter).await < Duration::from_secs(1));
    let primary = sentinel.primary();
    let before = evalsha_calls(primary).await;
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    assert_eq!(evalsha_calls(primary).await, before + 1, "the promoted primary decides");
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_replaced_by_the_one_that_sentinel_reports() {
    let sentinel = Sentinel::start().await;
    let config = deadpool_redis::sentinel::Config::from_urls(
        sentinel.urls(),
        sentinel.service_name().into(),
        deadpool_redis::sentinel::SentinelServerType::Master,
    );
    let pool = config.create_pool(Some(Runtime::Tokio1)).unwrap();
    let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    let limiters = [RedisStore::from_pool(pool), store].map(|store| {
        let builder = Limiter::builder(store, Quota::per_hour(1_000));
        builder.failure_mode(FailureMode::Closed).build().unwrap()
    });
    for limiter in &limiters {
        wait_for_recovery(limiter).await;
    }
    sentinel.primary().stop();
    sentinel.wait_until_promoted().await;
    for limiter in &limiters {
        wait_for_recovery(limiter).await;
    }
}

/// An attempt to connect takes up to a second. Of four that begin at different times, one has most of
/// it left when the replica is promoted.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_to_connect_to_a_frozen_primary_ends_with_the_failover() {
    let sentinel = Sentinel::start().await;
    sentinel.primary().pause();
    let recovered = (0..4).map(async |number| {
        let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
        let limiter = Limiter::builder(store, Quota::per_hour(1_000));
        let limiter = limiter.failure_mode(FailureMode::Closed).build().unwrap();
        tokio::time::sleep(number * Duration::from_millis(250)).await;
        wait_for_recovery(&limiter).await;
        Instant::now()
    });
    let promoted = async {
        sentinel.wait_until_promoted().await;
        Instant::now()
    };
    let (recovered, promoted) = join(join_all(recovered), promoted).await;
    for time in recovered {
        let waited = time.saturating_duration_since(promoted);
        assert!(waited < Duration::from_millis(400), "{waited:?}");
    }
    sentinel.replica().resume();
}

/// All other lines name the service, of which an operator has to know the server.
#[cfg(feature = "sentinel")]
#[tokio::test]
async fn the_log_names_each_primary_of_a_service_once() {
    let (log, _guard) = Log::capture();
    let sentinel = Sentinel::start().await;
    let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_hour(1_000));
    let limiter = limiter.failure_mode(FailureMode::Closed).build().unwrap();
    let named = || format!("primary=\"127.0.0.1:{}\"", sentinel.primary().port());
    wait_for_recovery(&limiter).await;
    let first = named();
    // Another connection to the same one.
    sentinel.primary().command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    wait_for_recovery(&limiter).await;
    sentinel.primary().stop();
    sentinel.wait_until_promoted().await;
    wait_for_recovery(&limiter).await;
    let primaries = [first, named()];
    let lines = log.events();
    let lines: Vec<_> = lines.iter().filter(|line| line.contains("primary of a service")).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines.iter().zip(&primaries).all(|(line, primary)| line.contains(primary)),
        "{lines:?}"
    );
}

/// After a planned failover the old primary accepts writes for about ten seconds more. Two processes
/// check: one has a connection to the old primary, and one starts with the new primary.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_leaves_the_old_primary_within_two_seconds() {
    const RATE: u32 = 500;
    const OBSERVED: Duration = Duration::from_secs(5);
    const BOUND_OF_BOTH: Duration = Duration::from_secs(2);
    let sentinel = Sentinel::start().await;
    let limiter = || {
        let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
        uncached(store, Quota::per_second(RATE.into()).burst(10))
    };
    let count = |limiter: Limiter, stop: Arc<AtomicBool>, duration: Duration| async move {
        let (started, mut admitted) = (Instant::now(), 0);
        while !stop.load(Relaxed) && started.elapsed() < duration {
            let decision = limiter.check("key").await;
            admitted += u32::from(decision.is_ok_and(|decision| decision.is_allowed()));
            tokio::task::yield_now().await;
        }
        admitted
    };
    let (old, stop) = (limiter(), Arc::new(AtomicBool::new(false)));
    wait_for_recovery(&old).await;
    let started = Instant::now();
    let by_old = tokio::spawn(count(old, stop.clone(), BOUND));
    sentinel.failover().await;
    let by_new = tokio::spawn(count(limiter(), stop.clone(), OBSERVED)).await.unwrap();
    stop.store(true, Relaxed);
    let admitted = by_old.await.unwrap() + by_new;
    let elapsed = started.elapsed();
    let at_rate = |duration: Duration| f64::from(RATE) * duration.as_secs_f64();
    assert!(f64::from(admitted) > at_rate(elapsed) / 2., "the load is large enough: {admitted}");
    // Each primary has a bucket.
    assert!(f64::from(admitted) < 2. * 10. + at_rate(elapsed + BOUND_OF_BOTH), "{admitted}");
    let role: Vec<redis::Value> = sentinel.replica().query(&["ROLE"]).await;
    assert_eq!(role[0], redis::Value::BulkString(b"master".to_vec()), "nobody has demoted it");
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_sentinel_does_not_delay_a_new_connection() {
    let sentinel = Sentinel::start().await;
    let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    let limiter = test_limiter(store, Quota::per_hour(1_000_000));
    wait_for_recovery(&limiter).await;
    sentinel.sentinel(0).pause();
    for _ in 0..3 {
        sentinel.primary().command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        let started = Instant::now();
        // The first check may notice that the connection is closed.
        let _ = limiter.check("key").await;
        wait_for_recovery(&limiter).await;
        assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    }
    sentinel.sentinel(0).resume();
}

/// A store with several connections watches each sentinel once.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sentinels_are_watched_once_and_no_longer_than_the_store_lives() {
    let sentinel = Sentinel::start().await;
    let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    let store = store.connections(std::num::NonZeroUsize::new(3).unwrap());
    let limiter = test_limiter(store.clone(), Quota::per_hour(1_000_000));
    assert_eq!(sentinel.subscribers().await, 0, "nothing connects before the first check");
    // The runtime of the first connection ends, so another one has to watch.
    let short_lived = limiter.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            wait_for_recovery(&short_lived).await;
        });
    })
    .join()
    .unwrap();
    for _ in 0..3 {
        wait_for_recovery(&limiter).await;
    }
    wait_until("each sentinel is watched", BOUND, async || sentinel.subscribers().await == 3).await;
    drop((limiter, store));
    wait_until("no sentinel is watched", BOUND, async || sentinel.subscribers().await == 0).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_accepted_a_connection_and_was_silent_is_watched_again() {
    let sentinel = Sentinel::start().await;
    let proxy = Proxy::start(sentinel.sentinel(0).port()).await;
    let store = RedisStore::open_sentinel([proxy.url()], sentinel.service_name()).unwrap();
    let limiter = test_limiter(store, Quota::per_hour(1_000));
    wait_for_recovery(&limiter).await;
    wait_until("it is watched", BOUND, async || sentinel.subscribers().await == 1).await;
    proxy.swallow(true);
    proxy.disconnect_all().await;
    let before = proxy.accepted();
    wait_until("a second attempt", BOUND, async || proxy.accepted() >= before + 2).await;
    proxy.swallow(false);
    wait_until("it is watched again", BOUND, async || sentinel.subscribers().await == 1).await;
}

#[tokio::test]
async fn a_pool_of_one_connection_stays_available_to_the_application() {
    let server = Server::start().await;
    let mut config = deadpool_redis::Config::from_url(server.url());
    config.pool = Some(deadpool_redis::PoolConfig::new(1));
    let pool = config.create_pool(Some(Runtime::Tokio1)).unwrap();
    let limiter = test_limiter(RedisStore::from_pool(pool.clone()), Quota::per_hour(1_000));
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    // The application holds the pool's only connection while the limiter runs checks.
    let mut held =
        tokio::time::timeout(BOUND, pool.get()).await.expect("the slot is free").unwrap();
    for _ in 0..10 {
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    }
    let pong: String = redis::cmd("PING").query_async(&mut held).await.unwrap();
    assert_eq!(pong, "PONG");
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 989);
}

//! Redis away, silent, restarted, demoted: what callers get, and how soon it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use deadpool_redis::Runtime;
use tollgate::{Decision, ErrorKind, FailureMode, Limiter, Quota, RedisStore, Source};

use crate::common::{BOUND, Proxy, Sentinel, Server, start, wait_until};
use crate::exact::{patient, patient_builder};

const TIMEOUT: Duration = Duration::from_millis(50);

/// What the scheduler of a busy machine may add to a deadline. The other way to fail is a wait for
/// the client's own time-outs, which are half a second and more.
const SLACK: Duration = Duration::from_millis(300);

fn closed(url: String) -> Limiter {
    let store = RedisStore::open(url).unwrap();
    let builder = Limiter::builder(store, Quota::per_second(1_000_000));
    builder.failure_mode(FailureMode::Closed).build().unwrap()
}

async fn evalshas(server: &Server) -> u64 {
    server.command_stats().await.get("evalsha").copied().unwrap_or(0)
}

/// Waits until the store decides again, and returns how long that took.
async fn recovery(limiter: &Limiter) -> Duration {
    let start = Instant::now();
    wait_until("the store decides again", BOUND, async || limiter.check("recovery").await.is_ok())
        .await;
    start.elapsed()
}

#[tokio::test]
async fn a_silent_redis_costs_the_deadline_and_no_more() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = closed(proxy.url());
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    proxy.swallow(true);
    for _ in 0..5 {
        let began = Instant::now();
        // Three at once: two flushes in flight, and one that waits behind them.
        let checks = ["a", "b", "c"].map(|key| start(limiter.check(key)));
        for check in checks {
            assert_eq!(check.await.unwrap_err().kind(), ErrorKind::Timeout);
        }
        let took = began.elapsed();
        assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
    }
    proxy.swallow(false);
    assert!(recovery(&limiter).await < Duration::from_secs(1));
}

/// After a blocked runtime. The connection, which other checks share, is not to blame.
#[tokio::test]
async fn a_check_that_is_too_late_is_not_sent_and_does_not_close_the_connection() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let quota = Quota::per_second(1_000_000);
    let limiter = patient(store.clone(), quota);
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let timeout = Duration::from_millis(1);
    let hasty = patient_builder(store, quota).timeout(timeout).build().unwrap();
    let before = evalshas(&server).await;
    let late = start(hasty.check("key"));
    std::thread::sleep(timeout);
    assert_eq!(late.await.unwrap_err().kind(), ErrorKind::Timeout);
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    assert_eq!(evalshas(&server).await - before, 1);
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn a_time_without_end_is_no_panic() {
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
async fn a_reset_that_was_done_unheard_is_not_followed_by_a_remembered_denial() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let limiter = patient_builder(store, Quota::per_day(1)).cache_denials(BOUND).build().unwrap();
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    assert!(!limiter.check("key").await.unwrap().is_allowed());
    proxy.cut_replies(1);
    limiter.reset("key").await.unwrap_err();
    assert!(limiter.check("key").await.unwrap().is_allowed());
}

#[tokio::test]
async fn the_failure_mode_answers_and_says_so() {
    let limiter = closed("redis://127.0.0.1:1".into());
    assert_eq!(limiter.check("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let open = Limiter::new(store, Quota::per_second(1_000_000)).unwrap();
    let decision = open.check("key").await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.source(), Source::FailureMode);
    // A bucket that cannot be seen is an error in either mode.
    assert_eq!(open.peek("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(open.reset("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn redis_may_come_up_after_the_service() {
    let server = Server::start().await;
    server.stop();
    let limiter = closed(server.url());
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(limiter.check("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(start.elapsed() < TIMEOUT + SLACK);
    }
    server.restart().await;
    assert!(recovery(&limiter).await < Duration::from_secs(1));
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
}

#[tokio::test]
async fn an_outage_costs_a_check_no_wait() {
    let limiter = closed("redis://127.0.0.1:1".into());
    limiter.check("key").await.unwrap_err();
    // Far more than can be done if each attempted a connection, or waited for its deadline.
    let start = Instant::now();
    for _ in 0..2_000 {
        limiter.check("key").await.unwrap_err();
    }
    assert!(start.elapsed() < 2_000 * TIMEOUT / 20, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_reply_cut_off_after_the_commit_is_charged_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap();
    let limiter = patient(store, Quota::per_hour(100));
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let before = evalshas(&server).await;
    proxy.cut_replies(1);
    assert_eq!(limiter.check("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(proxy.cuts_left(), 0);
    assert_eq!(evalshas(&server).await - before, 1, "not sent again");
    recovery(&limiter).await;
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 98, "charged once, not twice");
}

/// Load that must not fail, counted until it is told to stop.
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
                        decisions.push(limiter.check("load").await.expect("no request fails"));
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
async fn script_flush_under_load_fails_nothing_and_gives_nothing_twice() {
    let server = Server::start().await;
    let limiter = patient(RedisStore::open(server.url()).unwrap(), Quota::per_day(1).burst(50_000));
    let load = Load::start(&limiter);
    for _ in 0..100 {
        server.command(&["SCRIPT", "FLUSH"]).await;
    }
    let decisions = load.finish().await;
    let admitted = decisions.iter().filter(|decision| decision.is_allowed()).count();
    let left = limiter.peek("load").await.unwrap().remaining();
    assert_eq!(admitted + left as usize, 50_000);
    assert!(server.command_stats().await["eval"] > 50, "the flushes were felt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_load_is_answered_by_the_failure_mode_on_time_and_over_within_a_second() {
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
                        limiter.check("load").await.expect("answered by the mode").is_allowed()
                    );
                    slowest.fetch_max(start.elapsed().as_millis() as u64, Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    server.stop();
    wait_until("the mode answers", BOUND, async || {
        limiter.check("probe").await.unwrap().source() == Source::FailureMode
    })
    .await;
    server.restart().await;
    let back = Instant::now();
    wait_until("the store answers", BOUND, async || {
        limiter.check("probe").await.unwrap().source() == Source::Store
    })
    .await;
    assert!(back.elapsed() < Duration::from_secs(1), "{:?}", back.elapsed());
    stop.store(true, Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let slowest = Duration::from_millis(slowest.load(Relaxed));
    assert!(slowest < TIMEOUT + SLACK, "{slowest:?}");
}

/// A demoted primary answers PING like any other; only a write shows what it is.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_keeps_the_connection_is_noticed() {
    let sentinel = Sentinel::start().await;
    let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_hour(1_000))
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap();
    recovery(&limiter).await;
    sentinel.failover().await;
    sentinel.demote().await;
    assert!(recovery(&limiter).await < Duration::from_secs(1));
    let primary = sentinel.primary();
    let before = evalshas(primary).await;
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    assert_eq!(evalshas(primary).await, before + 1, "decided by the primary that was promoted");
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_left_for_the_one_that_sentinel_names() {
    let sentinel = Sentinel::start().await;
    let config = deadpool_redis::sentinel::Config::from_urls(
        sentinel.urls(),
        sentinel.service_name().into(),
        deadpool_redis::sentinel::SentinelServerType::Master,
    );
    let pool = config.create_pool(Some(Runtime::Tokio1)).unwrap();
    let limiter = Limiter::builder(RedisStore::from_pool(pool), Quota::per_hour(1_000))
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap();
    recovery(&limiter).await;
    sentinel.primary().stop();
    sentinel.promoted().await;
    recovery(&limiter).await;
}

#[tokio::test]
async fn a_pool_of_one_that_the_application_uses_too_is_not_starved() {
    let server = Server::start().await;
    let mut config = deadpool_redis::Config::from_url(server.url());
    config.pool = Some(deadpool_redis::PoolConfig::new(1));
    let pool = config.create_pool(Some(Runtime::Tokio1)).unwrap();
    let limiter = patient(RedisStore::from_pool(pool.clone()), Quota::per_hour(1_000));
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    // The application holds the pool's only connection while the limiter goes on.
    let mut held =
        tokio::time::timeout(BOUND, pool.get()).await.expect("the place is free").unwrap();
    for _ in 0..10 {
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    }
    let pong: String = redis::cmd("PING").query_async(&mut held).await.unwrap();
    assert_eq!(pong, "PONG");
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 989);
}

#[tokio::test]
async fn a_full_redis_is_an_error_of_the_store_and_no_permit() {
    let server = Server::with_args(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).await;
    let limiter = patient(RedisStore::open(server.url()).unwrap(), Quota::per_hour(10));
    let error = limiter.check("key").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert!(error.to_string().contains("OOM"), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(limiter.check("key").await.unwrap().remaining(), 9);
}

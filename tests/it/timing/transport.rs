//! Delay, stalls, overload and blocked threads: checks are decided by Redis whenever it replies in
//! time, and no check depends on the timeout or the thread of another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fleetlimit::{Decision, FailureMode, Limiter, Quota, RedisStore, Source};
use tokio::runtime::{Builder, Runtime};

use crate::common::{BOUND, Proxy, Server, decided, load, wait_until};
use crate::log::Log;

const TIMEOUT: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);

fn limiter(store: &RedisStore, name: &'static str) -> fleetlimit::LimiterBuilder {
    let quota = Quota::per_second(1_000_000);
    let policy = fleetlimit::Policy::new(name).quota("rate", quota);
    Limiter::builder(store.clone(), policy).failure_mode(FailureMode::Open)
}

/// A server behind a proxy that delays replies. They run on a runtime of their own, which blocked
/// tests do not block.
pub(super) struct Remote {
    server: Server,
    pub(super) proxy: Proxy,
    runtime: Option<Runtime>,
}

impl Remote {
    pub(super) fn start(round_trip: Duration) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (server, proxy) = runtime.block_on(async {
            let server = Server::start().await;
            let proxy = Proxy::start(server.port()).await;
            proxy.delay(round_trip);
            (server, proxy)
        });
        Self { server, proxy, runtime: Some(runtime) }
    }

    pub(super) fn store(&self) -> RedisStore {
        RedisStore::open(self.proxy.url()).unwrap()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) fn multi_thread(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

#[test]
fn a_stall_costs_only_the_checks_that_it_outlasts() {
    let remote = Remote::start(Duration::from_millis(10));
    multi_thread(2).block_on(async {
        let limiter = limiter(&remote.store(), "default").build().unwrap();
        assert!(decided(&load(&limiter, 500, SECOND).await, Instant::now() - SECOND / 2) > 0.99);
        let stall = async {
            remote.server.pause();
            tokio::time::sleep(Duration::from_millis(300)).await;
            remote.server.resume();
            Instant::now()
        };
        let (outcomes, end) = tokio::join!(load(&limiter, 2_000, 3 * SECOND), stall);
        assert!(outcomes.iter().any(|outcome| !outcome.is_decided), "there was a stall");
        assert!(decided(&outcomes, end + SECOND) > 0.99);
        assert_eq!(remote.proxy.accepted(), 1, "the connection works");
    });
}

#[test]
fn a_cold_start_far_from_redis_succeeds() {
    for (round_trip, timeout, per_second) in
        [(30, 50, 200), (30, 50, 2_000), (80, 100, 200), (80, 100, 2_000)]
    {
        let remote = Remote::start(Duration::from_millis(round_trip));
        multi_thread(2).block_on(async {
            let timeout = Duration::from_millis(timeout);
            let limiter = limiter(&remote.store(), "default").timeout(timeout).build().unwrap();
            let start = Instant::now();
            let outcomes = load(&limiter, per_second, 2 * SECOND).await;
            let share = decided(&outcomes, start + SECOND / 2);
            assert!(share >= 0.99, "{round_trip} ms, {per_second}/s: {share}");
            assert_eq!(remote.proxy.accepted(), 1);
        });
    }
}

/// As after a failover to another zone, while the load goes on. The queue is never idle.
#[test]
fn a_round_trip_that_changes_under_load_is_learned_within_two_seconds() {
    for round_trips in [[0, 20], [0, 10], [30, 1]] {
        let remote = Remote::start(Duration::from_millis(round_trips[0]));
        multi_thread(2).block_on(async {
            let limiter = limiter(&remote.store(), "default").build().unwrap();
            let change = async {
                tokio::time::sleep(SECOND).await;
                remote.proxy.delay(Duration::from_millis(round_trips[1]));
                Instant::now()
            };
            let (outcomes, changed) = tokio::join!(load(&limiter, 3_000, 5 * SECOND), change);
            let share = decided(&outcomes, changed + 2 * SECOND);
            assert!(share >= 0.99, "{round_trips:?} ms: {share}");
            assert_eq!(remote.proxy.accepted(), 1, "the connection works");
        });
    }
}

#[test]
fn a_limiter_with_a_shorter_timeout_does_not_affect_its_neighbor() {
    let remote = Remote::start(Duration::from_millis(10));
    multi_thread(2).block_on(async {
        let store = remote.store();
        let (patient, hasty) = (limiter(&store, "patient"), limiter(&store, "hasty"));
        let patient = patient.build().unwrap();
        let hasty = hasty.timeout(Duration::from_millis(3)).build().unwrap();
        patient.check("warm").await.unwrap().ensure_allowed().unwrap();
        let start = Instant::now();
        let (decisions, others) =
            tokio::join!(load(&patient, 500, 2 * SECOND), load(&hasty, 200, 2 * SECOND));
        assert!(decided(&decisions, start + SECOND / 2) > 0.99);
        assert_eq!(decided(&others, start), 0.0);
        assert_eq!(remote.proxy.accepted(), 1);
    });
}

#[test]
fn several_connections_are_all_made_used_and_replaced() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let store = remote.store().connections(3.try_into().unwrap());
        let limiter = limiter(&store, "default").timeout(BOUND).build().unwrap();
        for expected in [3, 6] {
            // One check after the other, which a single connection could serve.
            wait_until("all connections are made", BOUND, async || {
                let _ = limiter.check("key").await.unwrap();
                remote.proxy.accepted() == expected
            })
            .await;
            let calls = async || {
                let clients: String = remote.server.query(&["CLIENT", "LIST"]).await;
                let used = clients.lines().filter(|client| client.contains(" cmd=evalsha "));
                used.count()
            };
            wait_until("all connections are used", BOUND, async || {
                let _ = limiter.check("key").await.unwrap();
                calls().await == 3
            })
            .await;
            remote.proxy.disconnect_all().await;
        }
    });
}

#[test]
fn ten_thousand_tasks_share_one_connection() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let limiter = limiter(&remote.store(), "default").timeout(BOUND);
        // So that a failure says why.
        let limiter = limiter.failure_mode(FailureMode::Closed).build().unwrap();
        let tasks = (0..10_000u32).map(|key| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..3 {
                    limiter.check(key).await.unwrap().ensure_allowed().unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(remote.proxy.accepted(), 1);
    });
}

/// A second timer that is set once per timeout would make some checks take twice as long.
#[test]
fn a_silent_redis_costs_each_check_its_own_timeout() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let limiter = limiter(&remote.store(), "default").build().unwrap();
        limiter.check("warm").await.unwrap().ensure_allowed().unwrap();
        remote.proxy.swallow(true);
        let outcomes = load(&limiter, 1_000, Duration::from_millis(400)).await;
        let late = outcomes.iter().filter(|outcome| outcome.took > TIMEOUT * 3 / 2).count();
        assert!(outcomes.iter().all(|outcome| !outcome.is_decided));
        assert_eq!(late, 0, "of {}", outcomes.len());
    });
}

/// Handlers that hash passwords block their workers, at first the one that has just read a reply.
#[test]
fn handlers_that_block_their_worker_do_not_delay_the_checks_of_others() {
    let remote = Remote::start(Duration::from_millis(1));
    multi_thread(4).block_on(async {
        let limiter = limiter(&remote.store(), "default").build().unwrap();
        limiter.check("warm").await.unwrap().ensure_allowed().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let blocking = {
            let (limiter, done) = (limiter.clone(), done.clone());
            tokio::spawn(async move {
                while !done.load(Relaxed) {
                    let _ = limiter.check("login").await.unwrap();
                    thread::sleep(Duration::from_millis(200));
                }
            })
        };
        let outcomes = load(&limiter, 1_000, 5 * SECOND).await;
        done.store(true, Relaxed);
        blocking.await.unwrap();
        let lost = outcomes.iter().filter(|outcome| !outcome.is_decided).count();
        assert!(lost * 1_000 <= outcomes.len(), "{lost} of {}", outcomes.len());
    });
}

/// A program that calls `block_on` for each check. Those that are refused return at once, so the other
/// tasks of the runtime never run.
struct Blocking {
    runtime: Runtime,
    limiter: Limiter,
}

impl Blocking {
    fn new(limiter: fleetlimit::LimiterBuilder) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, limiter: limiter.build().unwrap() }
    }

    fn check(&self) -> Decision {
        self.runtime.block_on(self.limiter.check("key")).unwrap()
    }

    fn check_until_decided(&self) -> Decision {
        let start = Instant::now();
        loop {
            let decision = self.check();
            if decision.source() == Source::Store {
                return decision;
            }
            assert!(start.elapsed() < BOUND, "Redis is not used");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn check_until_refused(&self) {
        let is_refused = |_| {
            let start = Instant::now();
            self.check().source() != Source::Store && start.elapsed() < TIMEOUT / 2
        };
        assert!((0..100).any(is_refused), "the breaker does not open");
    }
}

#[test]
fn a_program_that_blocks_on_each_check_notices_that_redis_works_again() {
    let remote = Remote::start(Duration::ZERO);
    let program = Blocking::new(limiter(&remote.store(), "default"));
    let _ = program.check_until_decided();
    let (log, _guard) = Log::capture();
    remote.proxy.swallow(true);
    program.check_until_refused();
    remote.proxy.swallow(false);
    let _ = program.check_until_decided();
    let lines = |text: &str| log.events().iter().filter(|event| event.contains(text)).count();
    assert_eq!((lines("circuit breaker open"), lines("circuit breaker closed")), (1, 1));
}

#[test]
fn a_program_that_blocks_on_each_check_charges_what_it_took_locally_first() {
    let remote = Remote::start(Duration::ZERO);
    let limiter = Limiter::builder(remote.store(), Quota::per_day(200)).timeout(TIMEOUT);
    let program = Blocking::new(limiter);
    let _ = program.check_until_decided();
    remote.server.stop();
    program.check_until_refused();
    while program.check().is_allowed() {}
    let runtime = remote.runtime.as_ref().unwrap();
    runtime.block_on(remote.server.restart());
    // It forgot the first check.
    assert_eq!(program.check_until_decided().remaining(), 0);
}

/// Two tasks make a check, block, and then await it.
#[test]
fn a_check_that_is_not_polled_delays_nobody() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(4).block_on(async {
        let limiter = limiter(&remote.store(), "default").build().unwrap();
        limiter.check("warm").await.unwrap().ensure_allowed().unwrap();
        let (has_started, mut started) = tokio::sync::mpsc::channel(2);
        let blocking: Vec<_> = (0..2)
            .map(|_| {
                let (limiter, has_started) = (limiter.clone(), has_started.clone());
                tokio::spawn(async move {
                    let check = limiter.check("key");
                    has_started.send(()).await.unwrap();
                    thread::sleep(Duration::from_millis(480));
                    check.await.unwrap()
                })
            })
            .collect();
        for _ in 0..2 {
            started.recv().await.unwrap();
        }
        for outcome in load(&limiter, 200, Duration::from_millis(200)).await {
            assert!(outcome.is_decided && outcome.took < TIMEOUT, "{:?}", outcome.took);
        }
        for task in blocking {
            task.await.unwrap().ensure_allowed().unwrap();
        }
    });
}

#[test]
fn calls_that_fail_do_not_cause_a_storm_of_connections() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        remote.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
        let limiter = limiter(&remote.store(), "default").build().unwrap();
        let stop = Instant::now() + 2 * SECOND;
        let tasks: Vec<_> = (0..8)
            .map(|key| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    while Instant::now() < stop {
                        assert_ne!(limiter.check(key).await.unwrap().source(), Source::Store);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let connections = remote.proxy.accepted();
        assert!((4..=20).contains(&connections), "{connections} in 2 s");

        remote.server.command(&["REPLICAOF", "NO", "ONE"]).await;
        let promoted = Instant::now();
        wait_until("Redis decides", BOUND, async || {
            limiter.check("key").await.unwrap().source() == Source::Store
        })
        .await;
        assert!(promoted.elapsed() < SECOND, "{:?}", promoted.elapsed());
    });
}

#[test]
fn connections_that_are_cut_after_each_request_are_not_replaced_without_a_pause() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let limiter = limiter(&remote.store(), "default").build().unwrap();
        limiter.check("warm").await.unwrap().ensure_allowed().unwrap();
        remote.proxy.disconnect_on_reply(usize::MAX);
        let stop = Instant::now() + 2 * SECOND;
        while Instant::now() < stop {
            let _ = limiter.check("key").await.unwrap();
        }
        let connections = remote.proxy.accepted();
        assert!((3..=20).contains(&connections), "{connections} in 2 s");
    });
}

#[test]
fn a_connection_that_the_server_closes_while_idle_is_replaced_before_the_next_check() {
    let remote = Remote::start(Duration::from_millis(20));
    multi_thread(2).block_on(async {
        let store = remote.store();
        let patient = limiter(&store, "patient").timeout(BOUND).build().unwrap();
        let limiter = limiter(&store, "default").build().unwrap();
        for round in 0..5 {
            // It has worked for a while.
            let stable = Instant::now() + Duration::from_millis(550);
            while Instant::now() < stable {
                patient.check("key").await.unwrap().ensure_allowed().unwrap();
            }
            remote.proxy.disconnect_all().await;
            wait_until("there is another connection", BOUND, async || {
                remote.proxy.accepted() == round + 2
            })
            .await;
            // It is ready.
            patient.peek("key").await.unwrap().ensure_allowed().unwrap();
            assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
        }
    });
}

#[cfg(feature = "deadpool")]
#[test]
fn a_pool_that_the_application_keeps_busy_does_not_delay_checks_in_an_outage() {
    use deadpool_redis::{Config, PoolConfig, Runtime as PoolRuntime};

    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let mut config = Config::from_url(remote.proxy.url());
        config.pool = Some(PoolConfig::new(2));
        let pool = config.create_pool(Some(PoolRuntime::Tokio1)).unwrap();
        let limiter = limiter(&RedisStore::from_pool(pool.clone()), "default").build().unwrap();
        limiter.check("warm").await.unwrap().ensure_allowed().unwrap();
        let _held = (pool.get().await.unwrap(), pool.get().await.unwrap());
        remote.server.stop();
        let mut outcomes = Vec::new();
        let start = Instant::now();
        while start.elapsed() < 2 * SECOND {
            let started = Instant::now();
            assert_eq!(limiter.check("key").await.unwrap().source(), Source::FailureMode);
            outcomes.push((started, started.elapsed()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let later = outcomes.iter().filter(|(started, _)| *started > start + SECOND);
        let slowest = later.map(|(_, took)| *took).max().unwrap();
        assert!(slowest < TIMEOUT / 2, "{slowest:?}");
    });
}

//! How soon a new process decides by Redis, where a handshake takes longer than a check may.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tollgate::{FailureMode, Limiter, Quota, RedisStore, Source};

use crate::certificates::Authority;
use crate::common::{Proxy, Server};
use crate::trust::trusting;

const ROUND_TRIP: Duration = Duration::from_millis(30);
const TIMEOUT: Duration = Duration::from_millis(50);
/// Checks that start in this time may fail.
const START: Duration = Duration::from_secs(1);
/// How long all checks are counted, in seconds.
const MEASURED: usize = 2;

/// Starts checks at a constant rate, however many are pending. Returns how many of those in each
/// second after the start Redis decided, of how many.
async fn run(limiter: Limiter, per_second: u32) -> [(u32, u32); MEASURED] {
    let decided: Arc<[AtomicU32; MEASURED]> = Arc::default();
    let mut total = [0; MEASURED];
    let mut checks = Vec::new();
    let mut tick = interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let started = Instant::now();
    let mut due = 0;
    loop {
        tick.tick().await;
        let elapsed = started.elapsed();
        let second = elapsed.checked_sub(START).map(|measured| measured.as_secs() as usize);
        if second.is_some_and(|second| second >= MEASURED) {
            break;
        }
        let until = (elapsed.as_secs_f64() * f64::from(per_second)) as u32;
        for n in due..until {
            if let Some(second) = second {
                total[second] += 1;
            }
            let (limiter, decided) = (limiter.clone(), decided.clone());
            checks.push(tokio::spawn(async move {
                let decision = limiter.check(format!("key {n}")).await.unwrap();
                if let Some(second) = second
                    && decision.source() == Source::Store
                {
                    decided[second].fetch_add(1, SeqCst);
                }
            }));
        }
        due = until;
    }
    for check in checks {
        check.await.unwrap();
    }
    std::array::from_fn(|second| (decided[second].load(SeqCst), total[second]))
}

async fn assert_starts(per_second: u32) {
    let authority = Authority::new();
    let server = Server::with_tls::<&str>(&authority.server("127.0.0.1"), &[]).await;
    let proxy = Proxy::start(server.port()).await;
    proxy.round_trip(ROUND_TRIP);
    let url = format!("rediss://127.0.0.1:{}", proxy.port());
    let store = RedisStore::open(trusting(url, &authority, None)).unwrap();
    let limiter = Limiter::builder(store, Quota::per_second(10))
        .timeout(TIMEOUT)
        .failure_mode(FailureMode::Open)
        .build()
        .unwrap();
    for (decided, total) in run(limiter, per_second).await {
        assert!(total >= per_second / 2, "only {total} checks were measured");
        // A machine that pauses for 30 ms makes checks late. A start that fails makes all of them late.
        assert!(decided >= total / 4 * 3, "Redis decided {decided} of {total} checks");
    }
    assert_eq!(proxy.accepted(), 1, "the connection was replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_start_with_a_slow_handshake_succeeds_at_200_checks_per_second() {
    assert_starts(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_start_with_a_slow_handshake_succeeds_at_2000_checks_per_second() {
    assert_starts(2_000).await;
}

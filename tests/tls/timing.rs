//! How soon a new process decides by Redis, where a handshake takes longer than a check may. Each
//! test runs alone, as those of `tests/it/timing/`.

use std::time::{Duration, Instant};

use fleetlimit::{FailureMode, Limiter, Quota, RedisStore};

use crate::certificates::Authority;
use crate::common::{Proxy, Server, decided, load};
use crate::trust::trusting;

const ROUND_TRIP: Duration = Duration::from_millis(30);
const TIMEOUT: Duration = Duration::from_millis(50);
/// Checks that start in this time may fail.
const START: Duration = Duration::from_secs(1);
/// For how long checks are counted that start afterwards.
const MEASURED: Duration = Duration::from_secs(2);

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
    let start = Instant::now();
    let outcomes = load(&limiter, per_second, START + MEASURED).await;
    let share = decided(&outcomes, start + START);
    // Whether the start was late, or something paused later.
    let undecided = outcomes.iter().filter(|outcome| !outcome.is_decided);
    let last = undecided.map(|outcome| outcome.started - start).max();
    assert!(share >= 0.99, "Redis decided {share} of the checks, and not the one at {last:?}");
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

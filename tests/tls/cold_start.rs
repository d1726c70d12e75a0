//! How soon a new process decides by Redis, where a handshake takes longer than a check may.

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
/// For how long checks are counted that start afterwards.
const MEASURED: Duration = Duration::from_secs(2);
/// A pause of the machine that can make a check late.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts checks at a constant rate, however many are pending. Returns how many of those after the
/// start Redis decided, of how many, without those during which the machine paused.
async fn run(limiter: Limiter, per_second: u32) -> (usize, usize) {
    let (mut checks, mut pauses) = (Vec::new(), Vec::new());
    let mut tick = interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let started = Instant::now();
    let (mut due, mut last) = (0, Duration::ZERO);
    while last < START + MEASURED + TIMEOUT {
        tick.tick().await;
        let elapsed = started.elapsed();
        if elapsed - last > PAUSE {
            pauses.push(last..elapsed);
        }
        last = elapsed;
        let until = (elapsed.as_secs_f64() * f64::from(per_second)) as u32;
        for n in due..until {
            let limiter = limiter.clone();
            let check = tokio::spawn(async move {
                limiter.check(format!("key {n}")).await.unwrap().source() == Source::Store
            });
            checks.push((elapsed, check));
        }
        due = until;
    }
    let (mut decided, mut total) = (0, 0);
    for (start, check) in checks {
        let is_decided = check.await.unwrap();
        let is_paused =
            pauses.iter().any(|pause| start < pause.end && pause.start < start + TIMEOUT);
        if (START..START + MEASURED).contains(&start) && !is_paused {
            decided += usize::from(is_decided);
            total += 1;
        }
    }
    (decided, total)
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
    let (decided, total) = run(limiter, per_second).await;
    assert!(total >= per_second as usize / 2, "only {total} checks were measured");
    assert!(decided * 100 >= total * 99, "Redis decided {decided} of {total} checks");
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

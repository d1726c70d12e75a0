//! How long holds take: a hold may have to wait for the call of its key before its own.

use std::time::{Duration, Instant};

use fleetlimit::{FailureMode, Limiter, Source};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::{BOUND, Proxy, Server, wait_until};
use crate::holds::{policy, store, wait_until_held};

/// A hold waits for the call before its own, and then for its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_a_busy_key_are_decided_by_redis_at_any_round_trip() {
    let server = Server::start().await;
    for round_trip in [1, 10, 40].map(Duration::from_millis) {
        let proxy = Proxy::start(server.port()).await;
        proxy.round_trip(round_trip);
        let limiter = Limiter::builder(store(&proxy.url()), policy(1_000))
            .timeout(round_trip * 3 + Duration::from_millis(100))
            .build()
            .unwrap();
        wait_until("it connects", BOUND, async || limiter.peek("key").await.is_ok()).await;
        let mut tasks = JoinSet::new();
        for number in 0..64 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                // They arrive at any time of a call.
                sleep(round_trip * number / 64).await;
                let (mut by_store, start) = (0, Instant::now());
                for _ in 0..20 {
                    let hold = limiter.hold("key", 1).await.unwrap();
                    by_store += usize::from(hold.decision().source() == Source::Store);
                    sleep(round_trip / 4).await;
                }
                (by_store, start.elapsed())
            });
        }
        let results = tasks.join_all().await;
        let by_store: usize = results.iter().map(|(by_store, _)| by_store).sum();
        assert!(by_store * 100 >= 64 * 20 * 99, "{by_store} of 1280 at {round_trip:?}");
        let slowest = results.iter().map(|(_, took)| *took).max().unwrap();
        assert!(slowest < round_trip * 20 * 3 + Duration::from_secs(1), "{slowest:?}");
        wait_until_held(&limiter, 0).await;
    }
}

/// A check that has to wait for the call before its own would otherwise take twice as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hold_takes_longer_than_its_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let server = Server::start().await;
    let limiter = Limiter::builder(store(&server.url()), policy(500))
        .timeout(TIMEOUT)
        .failure_mode(FailureMode::Closed)
        .build()
        .unwrap();
    wait_until("it connects", BOUND, async || limiter.peek("key").await.is_ok()).await;
    server.pause();
    let mut holds = JoinSet::new();
    for _ in 0..20 {
        let limiter = limiter.clone();
        holds.spawn(async move {
            let start = Instant::now();
            let hold = limiter.hold("key", 1).await;
            (start.elapsed(), hold.map(drop))
        });
        sleep(Duration::from_millis(10)).await;
    }
    while let Some(hold) = holds.join_next().await {
        let (took, result) = hold.unwrap();
        assert!(result.is_err());
        assert!(took < TIMEOUT + TIMEOUT / 2, "{took:?}");
    }
    server.resume();
    wait_until("it is used again", BOUND, async || limiter.hold("key", 1).await.is_ok()).await;
    wait_until_held(&limiter, 0).await;
}

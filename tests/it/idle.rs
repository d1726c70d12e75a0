//! Redis was restarted while the process was idle. The checks of the next burst are decided by Redis.

use std::time::{Duration, Instant};

use fleetlimit::{FailureMode, Limiter, Quota, RedisStore, Source};
use futures_util::future::join_all;

use crate::common::{BOUND, Cluster, Sentinel, Server, wait_until};

const MODES: [FailureMode; 3] = [FailureMode::Closed, FailureMode::Open, FailureMode::Local];
const BURSTS: [usize; 4] = [1, 2, 10, 50];

/// How long a connection has to work until it is replaced without a check when it ends.
const STABLE: Duration = Duration::from_millis(600);

/// Returns the sources of checks that start at once, or their errors.
async fn burst(limiter: &Limiter, checks: usize) -> Vec<Result<Source, String>> {
    let decisions = join_all((0..checks).map(|key| limiter.check(key))).await;
    let source = |decision: Result<fleetlimit::Decision, fleetlimit::Error>| match decision {
        Ok(decision) => Ok(decision.source()),
        Err(error) => Err(error.to_string()),
    };
    decisions.into_iter().map(source).collect()
}

fn is_decided(sources: &[Result<Source, String>]) -> bool {
    sources.iter().all(|source| *source == Ok(Source::Store))
}

/// A store for each failure mode and size of the burst. The servers are restarted once for all.
async fn restart_while_idle(stores: &[&dyn Fn() -> RedisStore], restart: impl AsyncFnOnce()) {
    let mut limiters = Vec::new();
    for (number, store) in stores.iter().enumerate() {
        for mode in MODES {
            for checks in BURSTS {
                let limiter = Limiter::builder(store(), Quota::per_second(1_000_000));
                let limiter = limiter.failure_mode(mode).timeout(Duration::from_secs(10));
                limiters.push((number, mode, checks, limiter.build().unwrap()));
            }
        }
    }
    let start = Instant::now();
    wait_until("all connections are stable", BOUND, async || {
        for (.., limiter) in &limiters {
            assert!(is_decided(&burst(limiter, 50).await));
        }
        start.elapsed() >= STABLE
    })
    .await;
    restart().await;
    for (number, mode, checks, limiter) in &limiters {
        let sources = burst(limiter, *checks).await;
        assert!(is_decided(&sources), "store {number}, {mode:?}, {checks} checks: {sources:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_after_a_restart_while_idle_is_decided_by_redis() {
    let server = Server::start().await;
    let one = || RedisStore::open(server.url()).unwrap();
    let two = || one().connections(2.try_into().unwrap());
    restart_while_idle(&[&one, &two], async || {
        server.stop();
        server.restart().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_after_a_restart_while_idle_is_decided_by_the_node_of_a_cluster() {
    let cluster = Cluster::start().await;
    let store = || RedisStore::open_cluster(cluster.urls()).unwrap();
    restart_while_idle(&[&store], async || {
        cluster.node(0).stop();
        cluster.node(0).restart().await;
        cluster.wait_until_consistent().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_decided_by_a_node_that_was_replaced_and_promoted_again_while_idle() {
    let cluster = Cluster::with_replica().await;
    let store = || RedisStore::open_cluster(cluster.urls()).unwrap();
    restart_while_idle(&[&store], async || {
        cluster.node(0).stop();
        cluster.wait_until_promoted(cluster.replica()).await;
        cluster.restore_first_node().await;
    })
    .await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_after_a_failover_while_idle_is_decided_by_the_new_primary() {
    let sentinel = Sentinel::start().await;
    let store = || RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    restart_while_idle(&[&store], async || {
        sentinel.primary().stop();
        sentinel.wait_until_promoted().await;
    })
    .await;
}

//! Redis decides again after a fault, with every kind of store, also if the fault was there before the
//! first reply.

use std::slice;
use std::time::{Duration, Instant};

use fleetlimit::{Limiter, Quota, RedisStore, Source};

use crate::common::{BOUND, Cluster, Sentinel, Server, wait_until};

/// Longer than any timeout of the store.
const FAULT: Duration = Duration::from_secs(2);

/// Within which all stores recover. With Sentinel, from the promotion on.
const SOON: Duration = Duration::from_secs(1);

fn limiter(store: RedisStore) -> Limiter {
    Limiter::new(store, Quota::per_second(1_000_000)).unwrap()
}

async fn wait_for_redis(limiters: &[Limiter], what: &str) {
    for (number, limiter) in limiters.iter().enumerate() {
        wait_until(&format!("{what}: Redis decides for store {number}"), BOUND, async || {
            limiter.check("key").await.unwrap().source() == Source::Store
        })
        .await;
    }
}

/// The stores are new, or have had a reply, when the fault begins. At its end Redis works again.
async fn recover(
    stores: impl Fn() -> Vec<RedisStore>,
    mut begin: impl AsyncFnMut(),
    mut end: impl AsyncFnMut(),
    mut restore: impl AsyncFnMut(),
) {
    for is_new in [false, true] {
        let limiters: Vec<_> = stores().into_iter().map(limiter).collect();
        if !is_new {
            wait_for_redis(&limiters, "before").await;
        }
        begin().await;
        let checking = async {
            loop {
                for limiter in &limiters {
                    let _ = limiter.check("key").await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(FAULT, checking).await;
        end().await;
        let ended = Instant::now();
        wait_for_redis(&limiters, if is_new { "new" } else { "after" }).await;
        assert!(ended.elapsed() < SOON, "new: {is_new}, {:?}", ended.elapsed());
        restore().await;
    }
}

async fn single(begin: impl Fn(&Server), end: impl AsyncFn(&Server)) {
    let server = Server::start().await;
    let pool = || {
        let config = deadpool_redis::Config::from_url(server.url());
        config.create_pool(Some(deadpool_redis::Runtime::Tokio1)).unwrap()
    };
    let stores = || {
        let two = RedisStore::open(server.url()).unwrap().connections(2.try_into().unwrap());
        vec![RedisStore::open(server.url()).unwrap(), two, RedisStore::from_pool(pool())]
    };
    let end = async || end(&server).await;
    recover(stores, async || begin(&server), end, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_frozen_decides_again() {
    single(Server::pause, async |server| server.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_decides_again() {
    single(Server::stop, async |server| server.restart().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_delays_few_checks_and_decides_again() {
    let server = Server::with_slow_load().await;
    let limiter = limiter(RedisStore::open(server.url()).unwrap());
    wait_for_redis(slice::from_ref(&limiter), "before").await;
    server.restart().await;
    let (mut checks, mut delayed) = (0, 0);
    let checking = async {
        loop {
            let start = Instant::now();
            let _ = limiter.check("key").await.unwrap();
            checks += 1;
            delayed += u32::from(start.elapsed() > Duration::from_millis(25));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let is_loaded = async || server.info("persistence").await["loading"] == "0";
    tokio::select! {
        () = wait_until("the data is loaded", BOUND, is_loaded) => {}
        () = checking => {}
    }
    let loaded = Instant::now();
    wait_for_redis(slice::from_ref(&limiter), "after").await;
    assert!(loaded.elapsed() < SOON, "{:?}", loaded.elapsed());
    assert!(10 * delayed < checks, "{delayed} of {checks} were delayed");
}

async fn cluster(begin: impl Fn(&Server), end: impl AsyncFn(&Server)) {
    let cluster = Cluster::start().await;
    let owner = cluster.slot_owner(cluster.slot_of("{key}").await).await;
    let node = cluster.node(owner);
    let stores = || vec![RedisStore::open_cluster(cluster.urls()).unwrap()];
    let end = async || {
        end(node).await;
        cluster.wait_until_consistent().await;
    };
    recover(stores, async || begin(node), end, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_that_was_frozen_decides_again() {
    cluster(Server::pause, async |server| server.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_that_was_killed_decides_again() {
    cluster(Server::stop, async |server| server.restart().await).await;
}

#[cfg(feature = "sentinel")]
async fn sentinel(begin: impl Fn(&Server), end: impl AsyncFn(&Server)) {
    let sentinel = Sentinel::start().await;
    let stores = || {
        let config = deadpool_redis::sentinel::Config::from_urls(
            sentinel.urls(),
            sentinel.service_name().into(),
            deadpool_redis::sentinel::SentinelServerType::Master,
        );
        let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1)).unwrap();
        let store = || RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
        vec![store(), store().connections(2.try_into().unwrap()), RedisStore::from_pool(pool)]
    };
    // The old primary returns before the next fault, and follows the one that was promoted.
    let restore = async || {
        end(sentinel.replica()).await;
        sentinel.wait_until_replicated().await;
    };
    let promoted = async || sentinel.wait_until_promoted().await;
    let begin = async || begin(sentinel.primary());
    recover(stores, begin, promoted, restore).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_frozen_is_replaced() {
    sentinel(Server::pause, async |server| server.resume()).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_killed_is_replaced() {
    sentinel(Server::stop, async |server| server.restart().await).await;
}

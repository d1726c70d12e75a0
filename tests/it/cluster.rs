//! A cluster of three primaries: redirections, the migration of slots, and failures of single
//! shards.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fleetlimit::{FailureMode, Key, Limiter, Quota, RedisStore};

use crate::common::{BOUND, Cluster, Server, start, wait_until};
use crate::exact::test_limiter;

const HOURLY: Quota = Quota::per_hour(1).burst(50_000);

fn redis_key(key: impl std::fmt::Display) -> String {
    format!("fleetlimit:{{{key}}}:default:t2")
}

/// Returns a key whose bucket is on the given node.
async fn key_on(cluster: &Cluster, node: usize) -> u32 {
    for key in 0.. {
        let slot = cluster.slot_of(&redis_key(key)).await;
        if cluster.slot_owner(slot).await == node {
            return key;
        }
    }
    unreachable!()
}

/// Returns a key of each node, once all of them are decided.
async fn decided_key_of_each_node(cluster: &Cluster, limiter: &Limiter) -> Vec<u32> {
    let mut keys = Vec::new();
    for node in 0..3 {
        keys.push(key_on(cluster, node).await);
    }
    for &key in &keys {
        wait_until("each shard replies", BOUND, async || limiter.check(key).await.is_ok()).await;
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrating_a_slot_under_load_fails_no_check_and_grants_no_permit_twice() {
    migrate_under_load(&Cluster::start().await).await;
}

async fn migrate_under_load(cluster: &Cluster) {
    let limiter = test_limiter(RedisStore::open_cluster(cluster.urls()).unwrap(), HOURLY);
    let key = key_on(cluster, 0).await;
    let slot = cluster.slot_of(&redis_key(key)).await;
    limiter.check(key).await.unwrap().ensure_allowed().unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (limiter, stop) = (limiter.clone(), stop.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                while !stop.load(Relaxed) {
                    let decision = limiter.check(key).await.expect("no check fails");
                    admitted += u64::from(decision.is_allowed());
                }
                admitted
            })
        })
        .collect();
    let has_run = async |at_least: u64| {
        let mut calls = 0;
        for n in 0..3 {
            calls += cluster.node(n).command_stats().await.get("evalsha").copied().unwrap_or(0);
        }
        calls >= at_least
    };
    // The slot returns to its first node. The phases are: the key is still at the source, it has
    // moved to the target (ASK), and the slot has a new owner (MOVED).
    let mut calls = 0;
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        for phase in 0..3 {
            match phase {
                0 => cluster.begin_migration(slot, from, to).await,
                1 => cluster.move_keys(slot, from, to).await,
                _ => cluster.finish_migration(slot, from, to).await,
            }
            calls += 50;
            wait_until("scripts run in this phase", BOUND, async || has_run(calls).await).await;
        }
    }
    stop.store(true, Relaxed);
    let mut admitted = 1;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    let left = limiter.peek(key).await.unwrap().remaining();
    assert_eq!(admitted + left, 50_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unresponsive_shard_delays_and_fails_only_its_own_keys() {
    let cluster = Cluster::proxied().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let timeout = Duration::from_millis(200);
    let limiter = Limiter::builder(store, HOURLY)
        .failure_mode(FailureMode::Closed)
        .timeout(timeout)
        .build()
        .unwrap();
    let keys = decided_key_of_each_node(&cluster, &limiter).await;
    cluster.proxy(2).swallow(true);
    for _ in 0..5 {
        let unresponsive = start(limiter.check(keys[2]));
        let started = Instant::now();
        for &key in &keys[..2] {
            limiter.check(key).await.expect("the other shards reply").ensure_allowed().unwrap();
        }
        assert!(started.elapsed() < timeout, "{:?}", started.elapsed());
        unresponsive.await.unwrap_err();
    }
    cluster.proxy(2).swallow(false);
    let start = Instant::now();
    wait_until("the shard replies again", BOUND, async || limiter.check(keys[2]).await.is_ok())
        .await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

/// The slot is moving to a node that does not reply, so each check of its key is redirected there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirected_call_does_not_hold_up_the_node_that_redirects() {
    let cluster = Cluster::proxied().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let timeout = Duration::from_millis(300);
    let limiter = Limiter::builder(store, HOURLY)
        .failure_mode(FailureMode::Closed)
        .timeout(timeout)
        .build()
        .unwrap();
    let moving = key_on(&cluster, 0).await;
    let mut staying = moving + 1;
    while cluster.slot_owner(cluster.slot_of(&redis_key(staying)).await).await != 0 {
        staying += 1;
    }
    for key in [moving, staying] {
        wait_until("the shard replies", BOUND, async || limiter.check(key).await.is_ok()).await;
    }
    let slot = cluster.slot_of(&redis_key(moving)).await;
    cluster.begin_migration(slot, 0, 1).await;
    cluster.move_keys(slot, 0, 1).await;
    cluster.proxy(1).swallow(true);
    let stop = Instant::now() + Duration::from_secs(2);
    let redirected: Vec<_> = (0..8)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut failed = 0;
                while Instant::now() < stop {
                    failed += u32::from(limiter.check(moving).await.is_err());
                    // While the breaker is open, they would leave no core to anything else.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                failed
            })
        })
        .collect();
    while Instant::now() < stop {
        let started = Instant::now();
        limiter.check(staying).await.expect("its node replies").ensure_allowed().unwrap();
        assert!(started.elapsed() < timeout / 2, "{:?}", started.elapsed());
    }
    for task in redirected {
        assert!(task.await.unwrap() > 0, "the other node does not reply");
    }
}

/// The first calls go to one node, which redirects them to the owners of their slots.
#[tokio::test]
async fn an_unresponsive_shard_fails_only_its_own_keys_before_the_slots_are_known() {
    let cluster = Cluster::proxied().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let limiter = Limiter::builder(store, HOURLY)
        .failure_mode(FailureMode::Closed)
        .timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let mut keys = Vec::new();
    for node in 0..3 {
        keys.push(key_on(&cluster, node).await);
    }
    cluster.proxy(2).swallow(true);
    let checks: Vec<_> = keys.iter().map(|&key| start(limiter.check(key))).collect();
    for (node, check) in checks.into_iter().enumerate() {
        assert_eq!(check.await.is_ok(), node != 2, "node {node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_reconnects_to_a_restarted_shard() {
    let cluster = Cluster::start().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let builder = Limiter::builder(store, HOURLY).failure_mode(FailureMode::Closed);
    let limiter = builder.timeout(Duration::from_millis(500)).build().unwrap();
    let (dead, alive) = (key_on(&cluster, 1).await, key_on(&cluster, 0).await);
    for key in [dead, alive] {
        wait_until("each shard replies", BOUND, async || limiter.check(key).await.is_ok()).await;
    }
    cluster.node(1).stop();
    let start = Instant::now();
    limiter.check(dead).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    limiter.check(alive).await.expect("the other shards reply").ensure_allowed().unwrap();
    cluster.node(1).restart().await;
    cluster.wait_until_consistent().await;
    wait_until("the shard replies again", BOUND, async || limiter.check(dead).await.is_ok()).await;
}

#[tokio::test]
async fn keys_with_arbitrary_bytes_have_separate_buckets() {
    let cluster = Cluster::start().await;
    let limiter = test_limiter(
        RedisStore::open_cluster(cluster.urls()).unwrap(),
        Quota::per_day(1).burst(10),
    );
    let mut keys: Vec<Key> =
        ["", "{", "}", "{}", "}{", "{a}", "a", "%", "#", "\0", "\r\n", " ", "ä"]
            .map(Key::from)
            .into();
    keys.extend(
        [vec![0xff; 8192], vec![b'{'; 8192], vec![0; 1], vec![0; 2], vec![0xc3, 0x28]]
            .map(Key::from),
    );
    for (n, key) in keys.iter().enumerate() {
        let decision = limiter.check_cost(key, n as u64 % 9 + 1).await.unwrap();
        // The list has the key "\0" twice.
        if !matches!(key.as_bytes(), [0]) || n == 9 {
            assert_eq!(decision.remaining(), 9 - n as u64 % 9, "{key:?} shares a bucket");
        }
    }
}

#[tokio::test]
async fn keys_are_spread_evenly_over_the_shards() {
    let cluster = Cluster::start().await;
    let limiter = test_limiter(RedisStore::open_cluster(cluster.urls()).unwrap(), HOURLY);
    let checks: Vec<_> = (0..3_000u32)
        .map(|n| start(limiter.check(format!("10.0.{}.{}", n / 256, n % 256))))
        .collect();
    for check in checks {
        check.await.unwrap().ensure_allowed().unwrap();
    }
    let mut shards = BTreeMap::new();
    let mut slots = HashMap::<u16, u32>::new();
    for n in 0..3 {
        let redis_keys: Vec<String> = cluster.node(n).query(&["KEYS", "*"]).await;
        shards.insert(n, redis_keys.len());
        for redis_key in redis_keys.iter().step_by(10) {
            *slots.entry(cluster.slot_of(redis_key).await).or_default() += 1;
        }
    }
    // 130 is five standard deviations for 3,000 keys on three shards.
    assert!(shards.values().all(|keys| keys.abs_diff(1_000) < 130), "{shards:?}");
    assert!(
        slots.values().all(|&keys| keys < 5),
        "a slot has too many keys: is the hash tag the same for several?"
    );
}

#[tokio::test]
async fn checks_of_one_key_are_batched_on_a_cluster() {
    let cluster = Cluster::start().await;
    let limiter = test_limiter(RedisStore::open_cluster(cluster.urls()).unwrap(), HOURLY);
    limiter.check("hot").await.unwrap().ensure_allowed().unwrap();
    let checks: Vec<_> = (0..2_000).map(|_| start(limiter.check("hot"))).collect();
    for check in checks {
        assert!(check.await.unwrap().is_allowed());
    }
    let mut calls = 0;
    for n in 0..3 {
        calls += cluster.node(n).command_stats().await.get("evalsha").copied().unwrap_or(0);
    }
    assert!(calls <= 1 + 3, "a call carries up to 1,024 checks: {calls} calls");
    assert_eq!(limiter.peek("hot").await.unwrap().remaining(), 50_000 - 2_001);
}

#[tokio::test]
async fn the_documented_permissions_are_sufficient_on_a_cluster() {
    let cluster = Cluster::start().await;
    for n in 0..3 {
        let of_cluster = ["+cluster|slots", "+cluster|nodes", "+asking"];
        let commands = [&Server::REQUIRED_COMMANDS[..], &of_cluster].concat();
        cluster.node(n).grant(&commands).await;
    }
    let urls =
        cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://fleetlimit:secret@"));
    let limiter = test_limiter(RedisStore::open_cluster(urls).unwrap(), HOURLY);
    for key in 0..20u32 {
        limiter.check(key).await.unwrap().ensure_allowed().unwrap();
        limiter.reset(key).await.unwrap();
    }
    let slot = cluster.slot_of(&redis_key(7)).await;
    let owner = cluster.slot_owner(slot).await;
    cluster.begin_migration(slot, owner, (owner + 1) % 3).await;
    cluster.move_keys(slot, owner, (owner + 1) % 3).await;
    assert!(limiter.check(7u32).await.unwrap().is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_on_the_cluster_bus_does_not_hide_a_promotion() {
    let cluster = Cluster::with_replica().await;
    fail_over_behind_an_isolated_node(&cluster, cluster.urls()).await;
}

/// Without configuration epochs the majority of the nodes decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_does_not_hide_a_promotion_if_cluster_nodes_is_not_permitted() {
    let cluster = Cluster::with_replica().await;
    let commands = [&Server::REQUIRED_COMMANDS[..], &["+cluster|slots", "+asking"]].concat();
    for node in [cluster.node(0), cluster.node(1), cluster.node(2), cluster.replica()] {
        node.grant(&commands).await;
    }
    let urls = cluster.urls().into_iter();
    let urls = urls.map(|url| url.replace("redis://", "redis://fleetlimit:secret@")).collect();
    fail_over_behind_an_isolated_node(&cluster, urls).await;
}

/// All nodes of the list are reachable, and the first one still considers itself the owner.
async fn fail_over_behind_an_isolated_node(cluster: &Cluster, urls: Vec<String>) {
    let store = RedisStore::open_cluster(urls).unwrap();
    let limiter = Limiter::builder(store, HOURLY)
        .failure_mode(FailureMode::Closed)
        .timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    let keys = decided_key_of_each_node(cluster, &limiter).await;
    cluster.isolate_first_node().await;
    let promoted = Instant::now();
    wait_until("the old owner notices that it is cut off", BOUND, async || {
        let get = ["GET", &redis_key(keys[0])];
        cluster.node(0).try_query::<Option<String>>(&get).await.is_err()
    })
    .await;
    wait_until("the promoted replica decides", BOUND, async || {
        limiter.check(keys[0]).await.is_ok()
    })
    .await;
    assert!(promoted.elapsed() < Duration::from_secs(2), "{:?}", promoted.elapsed());
    let calls = async || {
        let stats = cluster.replica().command_stats().await;
        ["eval", "evalsha"]
            .map(|command| stats.get(command).copied().unwrap_or(0))
            .iter()
            .sum::<u64>()
    };
    let before = calls().await;
    for _ in 0..100 {
        for &key in &keys {
            assert!(limiter.check(key).await.expect("no shard fails any more").is_allowed());
        }
    }
    assert_eq!(calls().await - before, 100);
}

/// As behind NAT: redirections and the slots name ports only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirections_without_a_host_are_followed() {
    let cluster = Cluster::start().await;
    // Before Redis 7, nodes name themselves by their addresses only.
    if !cluster.node(0).has_setting("cluster-preferred-endpoint-type").await {
        return;
    }
    for n in 0..3 {
        let set = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"];
        cluster.node(n).command(&set).await;
    }
    migrate_under_load(&cluster).await;
}

/// The nodes are configured to announce host names but have none, so they name each other `?`.
#[tokio::test]
async fn nodes_that_do_not_know_their_names_are_found_by_asking_them() {
    let cluster = Cluster::start().await;
    // Before Redis 7, nodes name themselves by their addresses only.
    if !cluster.node(0).has_setting("cluster-preferred-endpoint-type").await {
        return;
    }
    let mut keys = Vec::new();
    for n in 0..3 {
        let set = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"];
        cluster.node(n).command(&set).await;
        keys.push(key_on(&cluster, n).await);
    }
    let limiter = test_limiter(RedisStore::open_cluster(cluster.urls()).unwrap(), HOURLY);
    for &key in &keys {
        assert!(limiter.check(key).await.expect("another node is asked").is_allowed());
    }
    let redirections = async || {
        let mut count = 0;
        for n in 0..3 {
            let errors = cluster.node(n).info("errorstats").await;
            count += errors
                .get("errorstat_MOVED")
                .map_or(0, |errors| errors.trim_start_matches("count=").parse::<u64>().unwrap());
        }
        count
    };
    wait_until("no call is redirected any more", BOUND, async || {
        let before = redirections().await;
        for &key in &keys {
            limiter.check(key).await.expect("the owner decides").ensure_allowed().unwrap();
        }
        redirections().await == before
    })
    .await;
}

#[tokio::test]
async fn the_debug_output_of_a_cluster_store_is_short_once_the_slots_are_known() {
    let cluster = Cluster::start().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let limiter = test_limiter(store.clone(), Quota::per_hour(10));
    for key in 0..100u32 {
        limiter.check(key).await.unwrap().ensure_allowed().unwrap();
    }
    for text in [format!("{store:?}"), format!("{limiter:?}")] {
        assert!(text.len() < 500, "{} bytes", text.len());
    }
}

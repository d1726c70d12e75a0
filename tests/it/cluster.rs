//! A cluster of three primaries: redirections, slots, and shards that fail by themselves.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use deadpool_redis::Runtime;
use tollgate::{FailureMode, Key, Limiter, Quota, RedisStore};

use crate::common::{BOUND, Cluster, Server, start, wait_until};
use crate::exact::patient;

const DAILY: Quota = Quota::per_day(1).burst(50_000);

fn name(key: impl std::fmt::Display) -> String {
    format!("tollgate:{{{key}}}:default:t1")
}

/// A caller whose bucket is on the given node.
async fn caller_on(cluster: &Cluster, node: usize) -> u32 {
    for caller in 0.. {
        let slot = cluster.slot_of(&name(caller)).await;
        if cluster.slot_owner(slot).await == node {
            return caller;
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_migrates_under_load_fails_nothing_and_gives_nothing_twice() {
    let cluster = Cluster::start().await;
    let limiter = patient(RedisStore::open_cluster(cluster.urls()).unwrap(), DAILY);
    let caller = caller_on(&cluster, 0).await;
    let slot = cluster.slot_of(&name(caller)).await;
    limiter.check(caller).await.unwrap().ensure_allowed().unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (limiter, stop) = (limiter.clone(), stop.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                while !stop.load(Relaxed) {
                    let decision = limiter.check(caller).await.expect("no request fails");
                    admitted += u64::from(decision.is_allowed());
                }
                admitted
            })
        })
        .collect();
    let decided = async |at_least: u64| {
        let mut evalshas = 0;
        for n in 0..3 {
            evalshas += cluster.node(n).command_stats().await.get("evalsha").copied().unwrap_or(0);
        }
        evalshas >= at_least
    };
    // There and back again, with checks in every phase: of a key that is still here, of one that
    // is there already (ASK), and of one whose slot has a new owner (MOVED).
    let mut checks = 0;
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        for phase in 0..3 {
            match phase {
                0 => cluster.begin_migration(slot, from, to).await,
                1 => cluster.move_keys(slot, from, to).await,
                _ => cluster.finish_migration(slot, from, to).await,
            }
            checks += 50;
            wait_until("checks are decided in this phase", BOUND, async || decided(checks).await)
                .await;
        }
    }
    stop.store(true, Relaxed);
    let mut admitted = 1;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    let left = limiter.peek(caller).await.unwrap().remaining();
    assert_eq!(admitted + left, 50_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_shard_delays_and_fails_its_own_callers_only() {
    let cluster = Cluster::proxied().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let deadline = Duration::from_millis(200);
    let limiter = Limiter::builder(store, DAILY)
        .failure_mode(FailureMode::Closed)
        .timeout(deadline)
        .build()
        .unwrap();
    let mut callers = Vec::new();
    for node in 0..3 {
        callers.push(caller_on(&cluster, node).await);
    }
    for &caller in &callers {
        wait_until("every shard answers", BOUND, async || limiter.check(caller).await.is_ok())
            .await;
    }
    cluster.proxy(2).swallow(true);
    for _ in 0..5 {
        let silent = start(limiter.check(callers[2]));
        let began = Instant::now();
        for &caller in &callers[..2] {
            limiter.check(caller).await.expect("the other shards answer").ensure_allowed().unwrap();
        }
        assert!(began.elapsed() < deadline, "{:?}", began.elapsed());
        silent.await.unwrap_err();
    }
    cluster.proxy(2).swallow(false);
    let start = Instant::now();
    wait_until("the shard is back", BOUND, async || limiter.check(callers[2]).await.is_ok()).await;
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// The first calls go to one node, and from there to where their slots are.
#[tokio::test]
async fn a_silent_shard_fails_its_own_callers_only_before_the_slots_are_known() {
    let cluster = Cluster::proxied().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let limiter = Limiter::builder(store, DAILY)
        .failure_mode(FailureMode::Closed)
        .timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let mut callers = Vec::new();
    for node in 0..3 {
        callers.push(caller_on(&cluster, node).await);
    }
    cluster.proxy(2).swallow(true);
    let checks: Vec<_> = callers.iter().map(|&caller| start(limiter.check(caller))).collect();
    for (node, check) in checks.into_iter().enumerate() {
        assert_eq!(check.await.is_ok(), node != 2, "of node {node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_restarts_comes_back_by_itself() {
    let cluster = Cluster::start().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let limiter = Limiter::builder(store, DAILY).failure_mode(FailureMode::Closed).build().unwrap();
    let (dead, alive) = (caller_on(&cluster, 1).await, caller_on(&cluster, 0).await);
    for caller in [dead, alive] {
        wait_until("every shard answers", BOUND, async || limiter.check(caller).await.is_ok())
            .await;
    }
    cluster.node(1).stop();
    let start = Instant::now();
    limiter.check(dead).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    limiter.check(alive).await.expect("the other shards answer").ensure_allowed().unwrap();
    cluster.node(1).restart().await;
    cluster.settled().await;
    wait_until("the shard decides again", BOUND, async || limiter.check(dead).await.is_ok()).await;
}

#[tokio::test]
async fn a_pool_of_cluster_connections_works_too() {
    let cluster = Cluster::start().await;
    let config = deadpool_redis::cluster::Config::from_urls(cluster.urls());
    let pool = config.create_pool(Some(Runtime::Tokio1)).unwrap();
    let limiter = patient(RedisStore::from_pool(pool), DAILY);
    for caller in 0..50u32 {
        assert_eq!(limiter.check(caller).await.unwrap().remaining(), 49_999);
    }
}

#[tokio::test]
async fn callers_with_any_bytes_have_a_bucket_each_and_a_slot_each() {
    let cluster = Cluster::start().await;
    let limiter =
        patient(RedisStore::open_cluster(cluster.urls()).unwrap(), Quota::per_day(1).burst(10));
    let mut callers: Vec<Key> =
        ["", "{", "}", "{}", "}{", "{a}", "a", "%", "#", "\0", "\r\n", " ", "ä"]
            .map(Key::from)
            .into();
    callers.extend(
        [vec![0xff; 8192], vec![b'{'; 8192], vec![0; 1], vec![0; 2], vec![0xc3, 0x28]]
            .map(Key::from),
    );
    for (n, caller) in callers.iter().enumerate() {
        let decision = limiter.check_cost(caller, n as u64 % 9 + 1).await.unwrap();
        if !matches!(caller.as_bytes(), [0]) || n == 9 {
            assert_eq!(decision.remaining(), 9 - n as u64 % 9, "{caller:?} is met by another");
        }
    }
}

#[tokio::test]
async fn callers_are_spread_over_the_shards_evenly() {
    let cluster = Cluster::start().await;
    let limiter = patient(RedisStore::open_cluster(cluster.urls()).unwrap(), DAILY);
    let checks: Vec<_> = (0..3_000u32)
        .map(|n| start(limiter.check(format!("10.0.{}.{}", n / 256, n % 256))))
        .collect();
    for check in checks {
        check.await.unwrap().ensure_allowed().unwrap();
    }
    let mut shards = BTreeMap::new();
    let mut slots = HashMap::<u16, u32>::new();
    for n in 0..3 {
        let keys: Vec<String> = cluster.node(n).query(&["KEYS", "*"]).await;
        shards.insert(n, keys.len());
        for key in keys.iter().step_by(10) {
            *slots.entry(cluster.slot_of(key).await).or_default() += 1;
        }
    }
    // Five standard deviations of 3,000 callers on three shards.
    assert!(shards.values().all(|keys| keys.abs_diff(1_000) < 130), "{shards:?}");
    assert!(
        slots.values().all(|&callers| callers < 5),
        "a slot with many callers: a constant in the tag?"
    );
}

#[tokio::test]
async fn checks_of_one_caller_go_out_together_on_a_cluster() {
    let cluster = Cluster::start().await;
    let limiter = patient(RedisStore::open_cluster(cluster.urls()).unwrap(), DAILY);
    limiter.check("hot").await.unwrap().ensure_allowed().unwrap();
    let checks: Vec<_> = (0..2_000).map(|_| start(limiter.check("hot"))).collect();
    for check in checks {
        assert!(check.await.unwrap().is_allowed());
    }
    let mut calls = 0;
    for n in 0..3 {
        calls += cluster.node(n).command_stats().await.get("evalsha").copied().unwrap_or(0);
    }
    assert!(calls <= 1 + 3, "1,024 checks a call: {calls}");
    assert_eq!(limiter.peek("hot").await.unwrap().remaining(), 50_000 - 2_001);
}

#[tokio::test]
async fn the_documented_rights_are_enough_on_a_cluster() {
    let cluster = Cluster::start().await;
    for n in 0..3 {
        let commands = [&Server::NEEDED[..], &["+cluster|slots", "+asking"]].concat();
        cluster.node(n).grant(&commands).await;
    }
    let urls =
        cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://tollgate:secret@"));
    let limiter = patient(RedisStore::open_cluster(urls).unwrap(), DAILY);
    for caller in 0..20u32 {
        limiter.check(caller).await.unwrap().ensure_allowed().unwrap();
        limiter.reset(caller).await.unwrap();
    }
    let slot = cluster.slot_of(&name(7)).await;
    let owner = cluster.slot_owner(slot).await;
    cluster.begin_migration(slot, owner, (owner + 1) % 3).await;
    cluster.move_keys(slot, owner, (owner + 1) % 3).await;
    assert!(limiter.check(7u32).await.unwrap().is_allowed());
}

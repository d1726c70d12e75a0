//! Redis grants exactly the permits of the quota, however many instances check it.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fleetlimit::{
    Decision, FailureMode, Limiter, LimiterBuilder, MemoryStore, Policy, Quota, RedisStore, Source,
    Store,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::common::{Cluster, Server};
use crate::oracle::{Oracle, State};

/// Returns a limiter that fails closed, with a timeout that is long enough for a busy machine.
pub(crate) fn test_limiter(store: impl Store, policy: impl Into<Policy>) -> Limiter {
    test_limiter_builder(store, policy).build().unwrap()
}

/// Like [`test_limiter`], but every check goes to the store.
pub(crate) fn uncached(store: impl Store, policy: impl Into<Policy>) -> Limiter {
    test_limiter_builder(store, policy).cache_denials(Duration::ZERO).build().unwrap()
}

pub(crate) fn test_limiter_builder(store: impl Store, policy: impl Into<Policy>) -> LimiterBuilder {
    Limiter::builder(store, policy)
        .timeout(Duration::from_secs(10))
        .failure_mode(FailureMode::Closed)
}

/// Checks one key continuously from 64 tasks, until the server's clock has advanced by `span`. Each
/// store stands for an instance. Asserts that the granted permits are exactly the burst plus the
/// rate times the time on that clock.
async fn assert_exact_under_load(stores: Vec<RedisStore>, server: &Server, span: Duration) {
    let oracle = Oracle { permits: 50, micros: 1_000_000, burst: 20 };
    let limiters: Vec<Limiter> =
        stores.into_iter().map(|store| uncached(store, oracle.quota())).collect();
    for limiter in &limiters {
        limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    }

    let before = server.time_micros().await;
    assert!(limiters[0].check("hot").await.unwrap().is_allowed());
    let after = server.time_micros().await;

    let (admitted, stop) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let limiter = limiters[n % limiters.len()].clone();
            let (admitted, stop) = (admitted.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let decision = limiter.check("hot").await.unwrap();
                    admitted.fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                }
            })
        })
        .collect();
    while server.time_micros().await < before + span.as_micros() as u64 {}
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let full_at = oracle.full_at(server, "fleetlimit:{hot}:default:t2").await.unwrap();
    let end = oracle.micros_to_ticks(server.time_micros().await);

    // The bucket was never full after the first permit. So the time from the first permit until the
    // bucket is full is the refill time of all granted permits. One more or less would change it by
    // 20 ms.
    let first = full_at - oracle.permits_to_ticks(admitted.load(Ordering::Relaxed).into());
    let (before, after) = (oracle.micros_to_ticks(before), oracle.micros_to_ticks(after));
    assert!(
        before <= first && first <= after,
        "the first permit was granted {} to {} us ago, not {}",
        end - after,
        end - before,
        end - first,
    );
    assert!(full_at <= end + oracle.capacity(), "more was granted than the bucket holds");
    assert!(full_at > end, "the load left the bucket full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_on_one_redis_admit_exactly_the_quota() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let connections = NonZeroUsize::new(3).unwrap();
    assert_exact_under_load(
        vec![store(), store(), store().connections(connections)],
        &server,
        Duration::from_secs(3),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_on_a_cluster_admit_exactly_the_quota() {
    let cluster = Cluster::start().await;
    let store = || RedisStore::open_cluster(cluster.urls()).unwrap();
    let slot = cluster.slot_of("fleetlimit:{hot}:default:t2").await;
    let owner = cluster.node(cluster.slot_owner(slot).await);
    assert_exact_under_load(vec![store(), store(), store()], owner, Duration::from_secs(3)).await;
}

/// Two revisions of a quota check one key continuously, as during a deployment, until the server's
/// clock has advanced by two seconds. Returns the granted permits, and that time in seconds.
async fn saturate(server: &Server, revisions: [Quota; 2]) -> (f64, f64) {
    let limiters = revisions
        .map(|quota| uncached(RedisStore::open(server.url()).unwrap(), quota))
        .map(|limiter| (limiter.clone(), limiter));
    let admitted = Arc::new(AtomicU32::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    limiters[0].0.reset("hot").await.unwrap();
    let before = server.time_micros().await;
    let tasks = limiters.into_iter().flat_map(|(one, other)| [one, other]).map(|limiter| {
        let (admitted, stop) = (admitted.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let decision = limiter.check("hot").await.unwrap();
                admitted.fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    while server.time_micros().await < before + 2_000_000 {}
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let span = (server.time_micros().await - before) as f64 / 1e6;
    (admitted.load(Ordering::Relaxed).into(), span)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_revisions_in_use_at_once_admit_no_more_than_the_larger_quota() {
    let server = Server::start().await;
    for [old, new] in [
        [Quota::per_second(10).burst(20), Quota::per_second(20).burst(20)],
        [Quota::per_second(10).burst(1_000), Quota::per_second(10).burst(100)],
        [Quota::per_second(3).burst(5), Quota::per_second(7).burst(5)],
        // The smaller one doubts what the larger one has used.
        [Quota::per_second(10).burst(60), Quota::per_second(20).burst(10)],
        [Quota::per_second(20).burst(60), Quota::per_second(10).burst(10)],
    ] {
        let (admitted, span) = saturate(&server, [old, new]).await;
        let [least, most] = [u64::min, u64::max];
        let bound = most(old.capacity(), new.capacity()) as f64
            + most(old.permits(), new.permits()) as f64 * span;
        // The quotas are per second. The last permit may be just ahead.
        let least = least(old.permits(), new.permits()) as f64 * span
            + least(old.capacity(), new.capacity()) as f64
            - 1.0;
        assert!(least <= admitted && admitted <= bound, "{least} {admitted} {bound}");
    }
}

/// Quotas that are used in turn on one bucket, and the checks: the index of a quota, and a cost.
#[derive(Clone, Debug)]
struct Case {
    revisions: Vec<Oracle>,
    checks: Vec<(usize, u64)>,
}

/// Generates rates that fit in three digits and others, up to the largest numbers. A permit refills
/// in at least ten minutes, so that no key expires before the test reads it.
fn quotas() -> impl Strategy<Value = Oracle> {
    let permits = prop_oneof![Just(1u64), Just(3), Just(7), 1..=1_000_000u64];
    let micros = prop_oneof![
        Just(60_000_000u64),
        Just(3_600_000_000),
        Just(86_400_000_000),
        1..=100_000_000_000u64,
        1..=1u64 << 52,
    ];
    let burst = prop_oneof![1..=20u64, 1_000..=2_000_000u64];
    let oracle = (permits, micros, burst).prop_map(|(permits, micros, burst)| Oracle {
        permits,
        micros,
        burst,
    });
    oracle.prop_filter("refills too fast, or is too large to represent exactly", |oracle| {
        oracle.permits_to_ticks(1) >= oracle.micros_to_ticks(600_000_000)
            && Limiter::new(MemoryStore::new(), oracle.quota()).is_ok()
    })
}

/// Generates cases with one, two or three revisions of a quota.
fn cases() -> impl Strategy<Value = Case> {
    prop::collection::vec(quotas(), 1..=3).prop_flat_map(|revisions| {
        let burst = revisions.iter().map(|oracle| oracle.burst).max().unwrap_or(1);
        let cost =
            prop_oneof![4 => 0..=3u64, 1 => 0..=burst.saturating_add(1), 1 => Just(u64::MAX)];
        let checks = prop::collection::vec((0..revisions.len(), cost), 1..20);
        (0.0..=1.0f64, checks).prop_map(move |(first, mut checks)| {
            let (revision, cost) = &mut checks[0];
            *cost = ((revisions[*revision].burst as f64 * first) as u64).max(1);
            Case { revisions: revisions.clone(), checks }
        })
    })
}

/// Runs a case on Redis, and verifies each decision against the value in Redis. Returns the
/// decisions, each with the microseconds since the first one on the server's clock: until one doubts what
/// a larger burst has used, which memory, whose clock never steps back, has no need to.
async fn decide_on_redis(server: &Server, prefix: &str, case: &Case) -> Vec<(u64, Decision)> {
    let limiters = case.revisions.iter().map(|oracle| {
        // A store of its own, as in another process.
        let store = RedisStore::open(server.url()).unwrap().key_prefix(prefix);
        uncached(store, oracle.quota())
    });
    let limiters: Vec<Limiter> = limiters.collect();
    let redis_key = format!("{prefix}:{{key}}:default:t2");
    let mut found = case.revisions[case.checks[0].0].full();
    let (mut start, mut decisions, mut is_doubted) = (None, Vec::new(), false);
    for &(revision, cost) in &case.checks {
        let oracle = case.revisions[revision];
        let decision = limiters[revision].check_cost("key", cost).await.unwrap();
        let after = State::read(server, &redis_key).await.unwrap();
        assert_eq!(decision.source() == Source::Quota, cost > oracle.burst);
        if decision.source() == Source::Quota {
            // Redis was not asked, so the decision has no time.
            assert_eq!(after, found);
            let elapsed = decisions.last().map_or(0, |(elapsed, _)| *elapsed);
            if !is_doubted {
                decisions.push((elapsed, decision));
            }
            continue;
        }
        let now = oracle.verify(found, cost, &decision, after);
        is_doubted |= after.empty_at.is_some();
        if !is_doubted {
            decisions.push((now - *start.get_or_insert(now), decision));
        }
        found = after;
    }
    decisions
}

/// Generates so many random values.
pub(crate) fn sample<T: Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    generate(TestRunner::new(sample_config()), strategy, count)
}

/// Generates so many values, which are the same in each run.
pub(crate) fn fixed_sample<T: Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    generate(TestRunner::new_with_rng(sample_config(), rng), strategy, count)
}

fn sample_config() -> Config {
    // The number of rejects of all values together.
    Config { max_local_rejects: u32::MAX, ..Config::default() }
}

fn generate<T: Debug>(
    mut runner: TestRunner,
    strategy: impl Strategy<Value = T>,
    count: usize,
) -> Vec<T> {
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// A runtime whose clock moves only when a test advances it.
pub(crate) fn paused_runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

/// Compares three implementations: the script, whose state is in Redis; the client, which replays
/// it; and the memory store, on a paused clock that is set to the times of the other two.
#[test]
fn redis_the_client_and_the_memory_store_make_the_same_decisions() {
    let real = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = real.block_on(Server::start());
    let (mut compared, mut doubted) = (0, 0);
    for (n, case) in sample(cases(), 300).iter().enumerate() {
        let decisions = real.block_on(decide_on_redis(&server, &format!("case{n}"), case));
        compared += decisions.len();
        doubted += case.checks.len() - decisions.len();
        paused_runtime().block_on(async {
            let limiter = Limiter::new(MemoryStore::new(), case.revisions[0].quota()).unwrap();
            let start = tokio::time::Instant::now();
            for (&(revision, cost), (at, expected)) in case.checks.iter().zip(decisions) {
                // Unlike a timer, which has milliseconds, `advance` is exact to the microsecond.
                tokio::time::advance(Duration::from_micros(at) - start.elapsed()).await;
                limiter.update(case.revisions[revision].quota()).unwrap();
                assert_eq!(limiter.check_cost("key", cost).await.unwrap(), expected, "{case:?}");
            }
        });
    }
    assert!(compared > doubted && doubted > 100, "{compared} {doubted}");
}

//! Checks that complete at once, again and again: other tasks of the runtime run, too.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use axum::body::Body;
use fleetlimit::resolve::Global;
use fleetlimit::{
    BestEffortChecks, BlockList, FailureMode, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    RedisStore, Source,
};
use http::{Request, Response};
use tokio::runtime::{Builder, Runtime};
use tower::{Service, ServiceBuilder, service_fn};

use crate::common::{BOUND, Server, wait_until};
use crate::exact::test_limiter_builder;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Occupies both workers with tasks that do nothing but this. The runtime still fires a timer, and can be shut
/// down.
fn starves_nobody<F>(
    what: &str,
    runtime: Runtime,
    operation: impl Fn() -> F + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (operation, stop) = (Arc::new(operation), Arc::new(AtomicBool::new(false)));
    let (running, are_running) = mpsc::channel();
    for _ in 0..2 {
        let (operation, stop, running) = (operation.clone(), stop.clone(), running.clone());
        runtime.spawn(async move {
            running.send(()).unwrap();
            while !stop.load(Relaxed) {
                operation().await;
            }
        });
    }
    let (fired, has_fired) = mpsc::channel();
    for _ in 0..2 {
        are_running.recv_timeout(BOUND).unwrap();
    }
    runtime.spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        fired.send(()).unwrap();
    });
    let has_fired = has_fired.recv_timeout(BOUND).is_ok();
    let start = Instant::now();
    runtime.shutdown_timeout(BOUND);
    let is_shut_down = start.elapsed() < BOUND;
    // Otherwise the tasks would outlive the test.
    stop.store(true, Relaxed);
    assert_eq!((has_fired, is_shut_down), (true, true), "{what}");
}

fn memory(quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), quota).unwrap()
}

#[test]
fn checks_in_memory_do_not_starve_other_tasks() {
    for (what, quota, cost) in [
        ("allowed", Quota::per_second(1_000_000_000), 1),
        ("denied", Quota::per_day(1), 1),
        ("above the capacity", Quota::per_day(1), 2),
    ] {
        let limiter = memory(quota);
        starves_nobody(what, runtime(), move || {
            let limiter = limiter.clone();
            async move { drop(limiter.check_cost("key", cost).await.unwrap()) }
        });
    }
}

type Operation = fn(Limiter) -> Pin<Box<dyn Future<Output = ()> + Send>>;

#[test]
fn no_other_operation_in_memory_starves_other_tasks() {
    let operations: [(&str, Operation); 8] = [
        ("peek", |limiter| Box::pin(async move { drop(limiter.peek("key").await.unwrap()) })),
        ("reset", |limiter| Box::pin(async move { limiter.reset("key").await.unwrap() })),
        ("charge", |limiter| Box::pin(async move { limiter.charge("key", 1).await.unwrap() })),
        ("credit", |limiter| Box::pin(async move { limiter.credit("key", 1).await.unwrap() })),
        ("acquire", |limiter| Box::pin(async move { drop(limiter.acquire("key").await.unwrap()) })),
        ("reserve", |limiter| {
            Box::pin(async move { drop(limiter.reserve("key", 2).await.unwrap()) })
        }),
        ("best effort", |limiter| {
            Box::pin(async move {
                drop(BestEffortChecks::new().add(&limiter, "key", 1).check().await.unwrap());
            })
        }),
        ("block", |_| {
            Box::pin(async {
                let list = BlockList::new(&MemoryStore::new());
                list.block("policy", "key", Duration::from_secs(1)).await.unwrap();
            })
        }),
    ];
    for (what, operation) in operations {
        // Without a queue, no call waits for a permit.
        let policy = Policy::new("p").quota("q", Quota::per_day(1).fixed_window());
        let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
        starves_nobody(what, runtime(), move || operation(limiter.clone()));
    }
}

#[test]
fn requests_that_a_layer_denies_do_not_starve_other_tasks() {
    let layer = RateLimitLayer::new(memory(Quota::per_day(1)), Global);
    let inner =
        service_fn(|_: Request<Body>| ready(Ok::<_, Infallible>(Response::new(Body::empty()))));
    let service = ServiceBuilder::new().layer(layer).service(inner);
    starves_nobody("denied", runtime(), move || {
        let response = service.clone().call(Request::new(Body::empty()));
        async move { drop(response.await.unwrap()) }
    });
}

#[test]
fn cached_denials_do_not_starve_other_tasks() {
    let servers = runtime();
    let server = servers.block_on(Server::start());
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_day(1)).cache_denials(YEAR).build().unwrap();
    let runtime = runtime();
    let is_cached = async || limiter.check("key").await.unwrap().source() == Source::Cached;
    runtime.block_on(wait_until("a denial is cached", BOUND, is_cached));
    starves_nobody("cached", runtime, move || {
        let limiter = limiter.clone();
        async move { drop(limiter.check("key").await.unwrap()) }
    });
}

#[test]
fn checks_in_an_outage_do_not_starve_other_tasks() {
    let servers = runtime();
    for mode in [FailureMode::Local, FailureMode::Open, FailureMode::Closed] {
        let server = servers.block_on(Server::start());
        let store = RedisStore::open(server.url()).unwrap();
        let builder = test_limiter_builder(store, Quota::per_second(1_000_000));
        let limiter = builder.failure_mode(mode).build().unwrap();
        let runtime = runtime();
        runtime.block_on(limiter.check("key")).unwrap().ensure_allowed().unwrap();
        server.stop();
        let fails = async || match limiter.check("key").await {
            Ok(decision) => decision.source() != Source::Store,
            Err(_) => true,
        };
        runtime.block_on(wait_until("the outage is noticed", BOUND, fails));
        starves_nobody(&format!("{mode:?}"), runtime, move || {
            let limiter = limiter.clone();
            async move { drop(limiter.check("key").await) }
        });
    }
}

/// The checks of a task go to Redis together, although they are more than Tokio lets a task complete in a row.
#[tokio::test]
async fn many_checks_of_one_task_are_not_split_into_calls_by_its_budget() {
    let server = Server::start().await;
    let limiter =
        Limiter::builder(RedisStore::open(server.url()).unwrap(), Quota::per_second(1_000_000))
            .timeout(BOUND)
            .build()
            .unwrap();
    let check = |_| limiter.check("key");
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let before = calls(&server).await;
    for decision in futures_util::future::join_all((0..1_000).map(check)).await {
        assert_eq!(decision.unwrap().source(), Source::Store);
    }
    let calls = calls(&server).await - before;
    // The first check is sent alone, and the others meanwhile wait together.
    assert!(calls <= 3, "{calls} calls for 1,000 checks");
}

async fn calls(server: &Server) -> u64 {
    let stats = server.command_stats().await;
    ["eval", "evalsha"].iter().filter_map(|name| stats.get(*name)).sum()
}

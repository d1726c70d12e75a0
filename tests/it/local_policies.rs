//! Every policy on every kind of server while Redis fails: two instances enforce half of each limit,
//! and Redis is charged for it afterwards.

use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use fleetlimit::resolve::Global;
use fleetlimit::{
    Costs, Decision, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore, Source,
};
use http::{Response, StatusCode};
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::common::{BOUND, Cluster, Sentinel, Server, wait_until};
use crate::local::{instances_of, wait_until_agreed};
use crate::log::Log;

const INSTANCES: usize = 2;

/// They refill by less than a permit while a test runs.
const POLICIES: [&[&str]; 9] = [
    &["60/h"],
    &["60/h burst 30"],
    &["60/h borrow 20"],
    &["60/h interval"],
    &["60/h fixed"],
    &["60/month calendar Europe/Berlin"],
    &["60/30day sliding approximate"],
    &["60/30day sliding 12"],
    &["60/h sliding 12", "40/day fixed", "1000/month calendar"],
];

fn policy(name: impl Into<String>, quotas: &[&str]) -> Policy {
    let named = quotas.iter().enumerate().map(|(n, text)| (format!("q{n}"), text.parse().unwrap()));
    let policy = Policy::new(name.into());
    named.fold(policy, |policy, (name, quota): (String, Quota)| policy.quota(name, quota))
}

/// Without sending the check.
async fn is_decided_locally(limiter: &Limiter, key: &str) -> bool {
    let start = Instant::now();
    let source = limiter.check(key.to_owned()).await.unwrap().source();
    source == Source::Local && start.elapsed() < Duration::from_millis(20)
}

async fn wait_until_local(limiters: &[Limiter], key: &str) {
    for limiter in limiters {
        wait_until("it decides locally", BOUND, async || is_decided_locally(limiter, key).await)
            .await;
    }
}

fn limiters(fleet: &[(RedisStore, Limiter)]) -> Vec<Limiter> {
    fleet.iter().map(|(_, limiter)| limiter.clone()).collect()
}

/// How many checks of a key are allowed, all of which are decided locally.
async fn taken(limiter: &Limiter, key: &str, checks: u32) -> u64 {
    let mut allowed = 0;
    for _ in 0..checks {
        let decision = limiter.check(key.to_owned()).await.unwrap();
        assert_eq!(decision.source(), Source::Local, "{key}");
        allowed += u64::from(decision.is_allowed());
    }
    allowed
}

/// What Redis says, once it replies and the condition holds.
async fn wait_for_redis(limiter: &Limiter, key: &str, is_charged: impl Fn(&Decision) -> bool) {
    wait_until(&format!("{key} is charged"), BOUND, async || {
        limiter.peek(key.to_owned()).await.is_ok_and(|decision| is_charged(&decision))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_is_divided_in_an_outage_and_charged_after_it() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let fleet = instances_of(store, Quota::per_hour(60), INSTANCES).await;
    let of_policy = |store: &RedisStore| {
        let policies = POLICIES.iter().enumerate();
        let limiters = policies.map(|(n, quotas)| {
            Limiter::new(store.clone(), policy(format!("p{n}"), quotas)).unwrap()
        });
        limiters.collect::<Vec<_>>()
    };
    let instances: Vec<_> = fleet.iter().map(|(store, _)| of_policy(store)).collect();
    wait_until_agreed(&server, INSTANCES).await;
    server.pause();
    wait_until_local(&limiters(&fleet), "warm").await;
    let mut full = Vec::new();
    for (n, quotas) in POLICIES.iter().enumerate() {
        let whole = Limiter::new(MemoryStore::new(), policy("whole", quotas)).unwrap();
        full.push(whole.peek("key").await.unwrap().remaining());
        let mut most = 0;
        while whole.check("key").await.unwrap().is_allowed() {
            most += 1;
        }
        for instance in &instances {
            assert_eq!(taken(&instance[n], "exhausted", 100).await, most / 2, "{quotas:?}");
            assert_eq!(taken(&instance[n], "used", 10).await, 10, "{quotas:?}");
        }
    }
    server.resume();
    for (limiter, full) in instances[0].iter().zip(full) {
        wait_for_redis(limiter, "exhausted", Decision::is_denied).await;
        wait_for_redis(limiter, "used", |decision| decision.remaining() + 20 == full).await;
    }
}

/// As in a deployment, or for customers with quotas of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_change_in_an_outage_are_divided_and_forgive_nothing() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let fleet = instances_of(store, Quota::per_hour(60), INSTANCES).await;
    wait_until_agreed(&server, INSTANCES).await;
    server.pause();
    wait_until_local(&limiters(&fleet), "warm").await;
    for (_, limiter) in &fleet {
        let customer = limiter.with_quota(Quota::per_hour(20)).unwrap();
        assert_eq!(taken(&customer, "customer", 50).await, 10);
        assert_eq!(taken(limiter, "used", 50).await, 30);
        assert_eq!(taken(limiter, "half", 15).await, 15);
        limiter.update(Quota::per_hour(120)).unwrap();
        assert_eq!(taken(limiter, "used", 100).await, 30);
        assert_eq!(taken(limiter, "half", 100).await, 45);
        assert_eq!(taken(limiter, "new", 100).await, 60);
        limiter.update(Quota::per_hour(20)).unwrap();
        assert_eq!(taken(limiter, "new", 50).await, 0);
        assert_eq!(taken(limiter, "newer", 50).await, 10);
    }
    let limiter = &fleet[0].1;
    let customer = limiter.with_quota(Quota::per_hour(20)).unwrap();
    for (_, limiter) in &fleet {
        limiter.update(Quota::per_hour(120)).unwrap();
    }
    server.resume();
    for key in ["used", "half", "new"] {
        wait_for_redis(limiter, key, Decision::is_denied).await;
    }
    wait_for_redis(limiter, "newer", |decision| decision.remaining() == 100).await;
    wait_for_redis(&customer, "customer", Decision::is_denied).await;
}

/// Windows that start in an outage are not those of Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_in_a_window_that_has_ended_is_not_charged() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let fleet = instances_of(store, Quota::per_hour(60), 1).await;
    let (store, last) = &fleet[0];
    let of_policy = |name: &'static str, quota: &str| {
        Limiter::new(store.clone(), policy(name, &[quota])).unwrap()
    };
    let short =
        ["10/s fixed", "10/s sliding approximate", "10/s sliding 10", "10/s interval", "10/s"];
    let names = ["fixed", "approximate", "sliding", "interval", "bucket"];
    let short: Vec<_> =
        names.iter().zip(short).map(|(name, quota)| of_policy(name, quota)).collect();
    wait_until_agreed(&server, 1).await;
    server.pause();
    wait_until_local(std::slice::from_ref(last), "warm").await;
    for limiter in &short {
        assert_eq!(taken(limiter, "key", 10).await, 10);
    }
    // Two windows, so that the sliding ones have forgotten them, too.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(taken(last, "key", 7).await, 7);
    server.resume();
    // Debts are charged in the order in which they were made.
    wait_for_redis(last, "key", |decision| decision.remaining() == 53).await;
    for (limiter, name) in short.iter().zip(names) {
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), 10, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_node_of_a_cluster_leaves_the_keys_of_the_others_to_redis() {
    let cluster = Cluster::start().await;
    let store = || RedisStore::open_cluster(cluster.urls()).unwrap();
    let fleet = instances_of(store, Quota::per_hour(60), INSTANCES).await;
    // It also holds the key of the fleet.
    let stopped = cluster.slot_owner(cluster.slot_of("{fleet}").await).await;
    wait_until_agreed(cluster.node(stopped), INSTANCES).await;
    let mut keys = [const { Vec::new() }; 2];
    for n in 0..20 {
        let key = format!("k{n}");
        let owner = cluster.slot_owner(cluster.slot_of(&format!("{{{key}}}")).await).await;
        keys[usize::from(owner == stopped)].push(key);
    }
    let [others, of_stopped] = keys;
    // So that no check of a busy machine is late.
    let patient = |store: &RedisStore| {
        let builder = Limiter::builder(store.clone(), Quota::per_hour(60));
        builder.timeout(Duration::from_millis(500)).build().unwrap()
    };
    let limiters: Vec<_> = fleet.iter().map(|(store, _)| patient(store)).collect();
    // Connected to all nodes.
    for limiter in &limiters {
        for key in &others {
            wait_until("Redis decides", BOUND, async || {
                limiter.check_cost(key.clone(), 0).await.unwrap().source() == Source::Store
            })
            .await;
        }
    }
    cluster.node(stopped).pause();
    wait_until_local(&limiters, &of_stopped[0]).await;
    for limiter in &limiters {
        assert_eq!(taken(limiter, &of_stopped[1], 100).await, 30);
        for key in &others {
            let decision = limiter.check_cost(key.clone(), 30).await.unwrap();
            assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Store), "{key}");
        }
    }
    cluster.node(stopped).resume();
    wait_for_redis(&limiters[0], &of_stopped[1], Decision::is_denied).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_during_a_failover_is_charged_on_the_new_primary() {
    let sentinel = Sentinel::start().await;
    let store = || RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    let fleet = instances_of(store, Quota::per_day(60), INSTANCES).await;
    wait_until_agreed(sentinel.primary(), INSTANCES).await;
    for (_, limiter) in &fleet {
        limiter.check_cost("key", 20).await.unwrap().ensure_allowed().unwrap();
        assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    }
    for (_, limiter) in &fleet {
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), 18);
    }
    wait_until("the replica has the bucket", BOUND, async || {
        let get = ["GET", "fleetlimit:{key}:default:t2"];
        let value = sentinel.primary().try_query::<Vec<u8>>(&get).await.unwrap();
        sentinel.replica().try_query::<Vec<u8>>(&get).await.is_ok_and(|copy| copy == value)
    })
    .await;
    sentinel.primary().pause();
    wait_until_local(&limiters(&fleet), "warm").await;
    for (_, limiter) in &fleet {
        assert_eq!(taken(limiter, "key", 50).await, 9);
    }
    sentinel.wait_until_promoted().await;
    for (_, limiter) in &fleet {
        wait_for_redis(limiter, "key", Decision::is_denied).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_in_an_outage_share_the_rate() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let quota = "20/s burst 2 queue 30s".parse().unwrap();
    let fleet = instances_of(store, quota, INSTANCES).await;
    wait_until_agreed(&server, INSTANCES).await;
    server.pause();
    wait_until_local(&limiters(&fleet), "warm").await;
    let start = Instant::now();
    let calls = limiters(&fleet).into_iter().map(|limiter| {
        tokio::spawn(async move {
            for _ in 0..11 {
                let decision = limiter.acquire("key").await.unwrap();
                assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
            }
            start.elapsed()
        })
    });
    for call in calls.collect::<Vec<_>>() {
        // At a tenth of a second per call, the first of which does not wait.
        let elapsed = call.await.unwrap().as_secs_f64();
        assert!((0.95..2.0).contains(&elapsed), "{elapsed}");
    }
    server.resume();
}

/// Also more than its share, and by an instance that has no share of another quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_charged_in_an_outage_is_charged_on_redis_in_full() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let fleet = instances_of(store, Quota::per_hour(60), 3).await;
    let of_policy = |(store, _): &(RedisStore, _)| {
        Limiter::new(store.clone(), policy("bytes", &["2/h", "10000/day fixed"])).unwrap()
    };
    let instances: Vec<_> = fleet.iter().map(of_policy).collect();
    wait_until_agreed(&server, 3).await;
    server.pause();
    wait_until_local(&limiters(&fleet), "warm").await;
    for (instance, bytes) in instances.iter().zip([8_000, 100, 100]) {
        instance.charge("key", Costs::new(0).with("q1", bytes)).await.unwrap();
    }
    server.resume();
    wait_for_redis(&instances[0], "key", |decision| {
        decision.quotas().any(|quota| quota.name() == "q1" && quota.remaining() == 1_800)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_by_response_are_charged_in_an_outage_and_after_it() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let fleet = instances_of(store, Quota::per_hour(60), 1).await;
    let limiter = &fleet[0].1;
    wait_until_agreed(&server, 1).await;
    server.pause();
    wait_until_local(std::slice::from_ref(limiter), "warm").await;
    let layer =
        RateLimitLayer::new(limiter.clone(), Global).cost_by_response(|sent| sent.body_bytes);
    let service = layer.layer(service_fn(async |_: Request| {
        Ok::<_, BoxError>(Response::new(Body::from(vec![0; 25])))
    }));
    // A response is charged soon after its end.
    let mut served = 0;
    wait_until("the responses have used up the limit", BOUND, async || {
        let response = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        let is_served = response.status() == StatusCode::OK;
        to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
        served += u32::from(is_served);
        !is_served
    })
    .await;
    assert!((3..=4).contains(&served), "{served}");
    server.resume();
    let missing = (25 * served - 60) * Duration::from_secs(60);
    wait_for_redis(limiter, "global", |decision| decision.retry_after() > Some(missing)).await;
}

#[tokio::test]
async fn an_instance_registers_with_the_documented_permissions_and_says_if_it_cannot() {
    let server = Server::start().await;
    let url = format!("redis://fleetlimit:secret@127.0.0.1:{}/", server.port());
    server.grant(&[&Server::REQUIRED_COMMANDS[..], &Server::FLEET_COMMANDS].concat()).await;
    let store = || RedisStore::open(url.as_str()).unwrap();
    let (log, _guard) = Log::capture();
    let _fleet = instances_of(store, Quota::per_hour(60), 1).await;
    wait_until_agreed(&server, 1).await;
    let cannot_register =
        || log.events().iter().any(|event| event.contains("this instance cannot register"));
    assert!(!cannot_register(), "{:?}", log.events());
    // It may check, but not register.
    server.command(&["ACL", "SETUSER", "fleetlimit", "resetkeys", "~fleetlimit:{warm}*"]).await;
    let _other = instances_of(store, Quota::per_hour(60), 1).await;
    wait_until("it is logged", BOUND, async || cannot_register()).await;
    server.command(&["ACL", "SETUSER", "fleetlimit", "~*"]).await;
    let registers = || log.events().iter().any(|event| event.contains("has registered again"));
    wait_until("that it registers is logged", BOUND, async || registers()).await;
}

#[tokio::test]
async fn an_instance_that_cannot_register_for_a_while_says_why() {
    let (log, _guard) = Log::capture();
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let limiter = Limiter::new(store, Quota::per_hour(40)).unwrap();
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let lines = || {
        let mut events = log.events();
        events.retain(|event| event.contains("this instance cannot register"));
        events
    };
    wait_until("it is logged", BOUND, async || !lines().is_empty()).await;
    let lines = lines();
    assert!(lines[0].contains("missed=5") && lines[0].contains("127.0.0.1:1"), "{lines:?}");
    assert!(lines[0].to_lowercase().contains("connection refused"), "{lines:?}");
}

#[tokio::test]
async fn an_instance_that_has_not_registered_says_how_many_it_assumes() {
    let nowhere = || RedisStore::open("redis://127.0.0.1:1").unwrap();
    for (store, instances) in [(nowhere(), 1), (nowhere().instances(4.try_into().unwrap()), 4)] {
        let (log, _guard) = Log::capture();
        let limiter = Limiter::new(store, Quota::per_hour(40)).unwrap();
        let share = 40 / instances;
        limiter.check_cost("key", share).await.unwrap().ensure_allowed().unwrap();
        assert!(limiter.check("key").await.unwrap().is_denied());
        let line = || log.events().into_iter().find(|line| line.contains("has not registered yet"));
        wait_until("it is logged", BOUND, async || line().is_some()).await;
        let line = line().unwrap();
        assert!(line.contains(&format!("instances={instances}")), "{line}");
        assert!(line.contains("set `RedisStore::instances`"), "what to change: {line}");
    }
}

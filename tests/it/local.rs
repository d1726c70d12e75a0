//! Limits while Redis fails: each instance enforces its part, and together they enforce the whole.

use std::time::{Duration, Instant};

use tollgate::{Limiter, Quota, RedisStore, Source};

use crate::common::{BOUND, Proxy, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Stores that register as instances of their own.
async fn fleet(server: &Server, quota: Quota, instances: usize) -> Vec<(RedisStore, Limiter)> {
    fleet_at(server, &server.url(), 1, quota, instances).await
}

async fn fleet_at(
    server: &Server,
    url: &str,
    connections: usize,
    quota: Quota,
    instances: usize,
) -> Vec<(RedisStore, Limiter)> {
    let fleet: Vec<_> = (0..instances)
        .map(|_| {
            let store = RedisStore::open(url).unwrap();
            let store = store.connections(connections.try_into().unwrap());
            let limiter = Limiter::new(store.clone(), quota).unwrap();
            (store, limiter)
        })
        .collect();
    for (_, limiter) in &fleet {
        assert_eq!(limiter.check("warm").await.unwrap().source(), Source::Store);
    }
    wait_until_agreed(server, instances).await;
    fleet
}

/// Waits until all instances know that there are so many.
pub(crate) async fn wait_until_agreed(server: &Server, instances: usize) {
    wait_until("the fleet has agreed", BOUND, async || {
        let Ok(text) = server.try_query::<String>(&["GET", "tollgate:{fleet}"]).await else {
            return false;
        };
        let fleet: serde_json::Value = serde_json::from_str(&text).unwrap();
        let plan = fleet["plan"].as_object().map_or(0, |plan| plan.len());
        fleet["number"] == fleet["agreed_number"] && plan == instances
    })
    .await;
    // They register again, and hear that all know the plan.
    tokio::time::sleep(5 * SECOND / 2).await;
}

/// Checks at these rates, one per instance, and returns what was admitted from now on until the end.
async fn admitted(fleet: &[(RedisStore, Limiter)], per_second: &[u32], time: Duration) -> [u64; 2] {
    let start = Instant::now();
    let tasks: Vec<_> = fleet
        .iter()
        .zip(per_second)
        .map(|((_, limiter), per_second)| {
            let (limiter, pause) = (limiter.clone(), SECOND / *per_second);
            tokio::spawn(async move {
                let (mut tick, mut admitted) = (tokio::time::interval(pause), [0, 0]);
                while start.elapsed() < time {
                    tick.tick().await;
                    let decision = limiter.check("key").await.unwrap();
                    if decision.is_allowed() {
                        admitted[usize::from(decision.source() == Source::Local)] += 1;
                    }
                }
                admitted
            })
        })
        .collect();
    let mut sum = [0, 0];
    for task in tasks {
        let admitted = task.await.unwrap();
        (0..2).for_each(|index| sum[index] += admitted[index]);
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_admits_the_limit_in_an_outage_and_no_more() {
    let server = Server::start().await;
    let fleet = fleet(&server, Quota::per_second(50), 3).await;
    // Demand is observed before.
    for rates in [[100, 100, 100], [300, 100, 100]] {
        admitted(&fleet, &rates, 5 * SECOND).await;
        server.pause();
        let start = Instant::now();
        let [_, local] = admitted(&fleet, &rates, 4 * SECOND).await;
        let most = 50.0 + 50.0 * start.elapsed().as_secs_f64();
        server.resume();
        assert!(local as f64 <= most, "{local} of {most}");
        assert!(local as f64 >= most / 2.0, "{local} of {most}");
        let start = Instant::now();
        wait_until("Redis decides", BOUND, async || {
            fleet[0].1.check("key").await.unwrap().source() == Source::Store
        })
        .await;
        assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_below_the_number_of_instances_is_neither_zero_nor_that_number() {
    let server = Server::start().await;
    let fleet = fleet(&server, Quota::per_hour(2), 3).await;
    server.pause();
    for key in 0..20u32 {
        let mut admitted = 0;
        for _ in 0..3 {
            for (_, limiter) in &fleet {
                admitted += u32::from(limiter.check(key).await.unwrap().is_allowed());
            }
        }
        assert_eq!(admitted, 2, "key {key}");
    }
    server.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_key_stays_exhausted_when_redis_fails() {
    let server = Server::start().await;
    let fleet = fleet(&server, Quota::per_hour(300), 3).await;
    let [_, (_, first), (_, second)] = &fleet[..] else { panic!() };
    first.check_cost("key", 240).await.unwrap().ensure_allowed().unwrap();
    // All instances that check the key know.
    assert_eq!(second.peek("key").await.unwrap().remaining(), 60);
    server.pause();
    for limiter in [first, second] {
        let mut admitted = 0;
        for _ in 0..50 {
            admitted += u32::from(limiter.check("key").await.unwrap().is_allowed());
        }
        assert_eq!(admitted, 20);
    }
    server.resume();
    // What was taken locally is charged, once. A few checks were sent before, and run now.
    wait_until("the permits are charged", BOUND, async || {
        first.peek("key").await.is_ok_and(|decision| decision.remaining() <= 20)
    })
    .await;
    tokio::time::sleep(SECOND).await;
    let remaining = first.peek("key").await.unwrap().remaining();
    assert!((10..=20).contains(&remaining), "{remaining}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_signs_off_leaves_its_part_to_the_others() {
    let server = Server::start().await;
    let mut fleet = fleet(&server, Quota::per_hour(30), 2).await;
    let (store, _) = fleet.pop().unwrap();
    store.shutdown().await;
    wait_until_agreed(&server, 1).await;
    server.pause();
    let decision = fleet[0].1.check_cost("key", 30).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
    server.resume();
}

#[tokio::test]
async fn instances_that_never_saw_redis_divide_by_the_number_that_they_expect() {
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let store = store.instances(4.try_into().unwrap());
    let limiter = Limiter::new(store, Quota::per_hour(40)).unwrap();
    let decision = limiter.check_cost("key", 10).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
    assert!(limiter.check("key").await.unwrap().is_denied());
}

#[tokio::test]
async fn a_service_registry_knows_of_instances_that_redis_does_not() {
    let server = Server::start().await;
    let instances = fleet(&server, Quota::per_hour(60), 1).await;
    let new = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let late = (new.clone(), Limiter::new(new, Quota::per_hour(60)).unwrap());
    server.stop();
    let mut admitted = 0;
    for (store, limiter) in instances.iter().chain([&late]) {
        store.set_instances(3.try_into().unwrap());
        while limiter.check("key").await.unwrap().is_allowed() {
            admitted += 1;
        }
    }
    assert_eq!(admitted, 2 * 20);
}

/// Registers as the instance would, and returns the two numbers and both plans.
async fn register(server: &Server, id: u64, weight: u64, known: u64) -> (u64, u64, String, String) {
    let script = include_str!("../../lua/fleet.lua");
    let numbers = [id, weight, known, 10_000].map(|number| number.to_string());
    let mut command = vec!["EVAL", script, "1", "tollgate:{fleet}"];
    command.extend(numbers.iter().map(String::as_str));
    server.query(&command).await
}

#[tokio::test]
async fn a_fleet_that_redis_forgot_is_not_agreed_at_once() {
    let server = Server::start().await;
    let (number, agreed, plan, of_agreed) = register(&server, 7, 100, 40).await;
    assert_eq!((number, agreed, &*plan, &*of_agreed), (41, 40, "7 100", ""));
    // It knows the plan, but others may be about to return.
    let (number, agreed, _, of_agreed) = register(&server, 7, 100, 41).await;
    assert_eq!((number, agreed, &*of_agreed), (41, 40, ""));
    let (number, agreed, plan, _) = register(&server, 8, 300, 0).await;
    assert_eq!((number, agreed), (42, 40));
    assert!(plan == "7 100 8 300" || plan == "8 300 7 100", "{plan}");
    // Noise of the demand is no reason for another plan before this one is agreed.
    assert_eq!(register(&server, 7, 1_000, 42).await.0, 42);
    // One leaves.
    assert_eq!(register(&server, 8, 0, 42).await.0, 43);
}

#[tokio::test]
async fn garbage_in_the_key_of_the_fleet_is_replaced() {
    let server = Server::start().await;
    let of = |instances: &str, plan: &str, number: &str| {
        format!(
            r#"{{"instances":{instances},"plan":{plan},"agreed":{{}},"number":{number},"agreed_number":1,"created":1,"planned":1}}"#
        )
    };
    let garbage = [
        "x".to_owned(),
        "[]".into(),
        "{}".into(),
        "7".into(),
        of("[]", "[]", "0.5"),
        of("{}", "{}", "1e300"),
        of("{}", "{}", "-1"),
        of("{}", r#"{"x":5}"#, "1"),
        of("{}", r#"{"7":0.5}"#, "1"),
        of("{}", r#"{"7":"5"}"#, "1"),
        of(r#"{"8":[1,1]}"#, "{}", "1"),
        of(r#"{"8":{}}"#, "{}", "1"),
        of(r#"{"8":7}"#, "{}", "1"),
    ];
    for text in garbage {
        server.command(&["SET", "tollgate:{fleet}", &text]).await;
        let (number, _, plan, _) = register(&server, 7, 100, 40).await;
        assert_eq!((number, &*plan), (41, "7 100"), "{text}");
        assert!(server.query::<i64>(&["PTTL", "tollgate:{fleet}"]).await > 0, "{text}");
        server.command(&["DEL", "tollgate:{fleet}"]).await;
    }
    server.command(&["RPUSH", "tollgate:{fleet}", "x"]).await;
    assert_eq!(register(&server, 7, 100, 40).await.0, 41);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_repaid_starts_from_its_standing_in_the_next_outage() {
    let server = Server::start().await;
    let fleet = fleet(&server, Quota::per_hour(300), 1).await;
    let limiter = &fleet[0].1;
    // Without sending the check.
    let is_open = async || {
        let start = Instant::now();
        let is_local = limiter.check("other").await.unwrap().source() == Source::Local;
        is_local && start.elapsed() < Duration::from_millis(20)
    };
    server.pause();
    wait_until("it decides locally", BOUND, is_open).await;
    assert!(limiter.check_cost("key", 10).await.unwrap().is_allowed());
    server.resume();
    wait_until("the permits are charged", BOUND, async || {
        limiter.peek("key").await.is_ok_and(|decision| decision.remaining() <= 290)
    })
    .await;
    limiter.check_cost("key", 280).await.unwrap().ensure_allowed().unwrap();
    server.pause();
    wait_until("it decides locally", BOUND, is_open).await;
    let decision = limiter.check_cost("key", 50).await.unwrap();
    assert!(decision.is_denied() && decision.source() == Source::Local, "{decision:?}");
    // More than its part may fit when Redis is back.
    assert!(!decision.exceeds_capacity() && decision.retry_after().is_some());
    server.resume();
}

async fn comes_and_goes(connections: usize) {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let fleet = fleet_at(&server, &proxy.url(), connections, Quota::per_second(50), 3).await;
    let start = Instant::now();
    let cut = async {
        while start.elapsed() < 4 * SECOND {
            proxy.disconnect_all().await;
            tokio::time::sleep(SECOND / 10).await;
        }
    };
    let (_, [by_redis, local]) = tokio::join!(cut, admitted(&fleet, &[200; 3], 4 * SECOND));
    let limit = 50.0 + 50.0 * start.elapsed().as_secs_f64();
    assert!(by_redis > 20 && local > 20, "{by_redis} {local}");
    // As documented: a burst more than the limit, however often Redis goes away.
    assert!((by_redis + local) as f64 <= limit + 50.0, "{by_redis} {local} of {limit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_and_goes_does_not_double_the_limit() {
    comes_and_goes(1).await;
}

/// The order of calls on two connections is not known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_and_goes_on_two_connections_does_not_double_the_limit() {
    comes_and_goes(2).await;
}

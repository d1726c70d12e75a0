//! Keys that are blocked in all processes.

use std::num::NonZeroUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use fleetlimit::resolve::Global;
use fleetlimit::{
    BestEffortChecks, BlockList, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore,
    Policy, Quota, RateLimitLayer, RedisStore, Source, Store,
};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use redis::Value;
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::common::{BOUND, Cluster, Server, wait_until};
use crate::exact::test_limiter;

const HOUR: Duration = Duration::from_secs(3_600);

fn keys(list: &BlockList) -> Vec<(String, Key)> {
    let mut keys: Vec<_> =
        list.list().into_iter().map(|blocked| (blocked.policy, blocked.key)).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn other_processes_know_of_a_block_and_of_its_end() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let (one, other) = (BlockList::new(&store()), BlockList::new(&store()));
    let key = Key::from("203.0.113.7");
    assert_eq!(other.get("api", &key), None);
    one.block("api", &key, HOUR).await.unwrap();
    let remaining = one.get("api", &key).expect("it is blocked at once");
    assert!(remaining <= HOUR && remaining > HOUR - Duration::from_secs(60), "{remaining:?}");
    wait_until("it is known", BOUND, async || other.get("api", &key).is_some()).await;
    assert_eq!(other.get("search", &key), None, "only for this policy");
    assert_eq!(other.get("api", &"203.0.113.70".into()), None);

    one.unblock("api", &key).await.unwrap();
    assert_eq!(one.get("api", &key), None);
    wait_until("it is known", BOUND, async || other.get("api", &key).is_none()).await;

    one.block("api", &key, Duration::from_millis(300)).await.unwrap();
    wait_until("it is known", BOUND, async || one.get("api", &key).is_none()).await;
    assert!(one.list().is_empty());
}

/// The list belongs to the key prefix.
#[tokio::test]
async fn a_block_holds_for_clones_of_the_store_with_other_settings() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let other =
        store.clone().local_keys(NonZeroUsize::new(9).unwrap()).instances(NonZeroUsize::MIN);
    let limiter = Limiter::new(other, Policy::new("api").quota("a", Quota::per_hour(10))).unwrap();
    BlockList::new(&store).block("api", "a", HOUR).await.unwrap();
    assert_eq!(limiter.check("a").await.unwrap().source(), Source::Blocked);
    assert!(limiter.check("b").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_process_that_starts_can_read_the_list_before_its_first_request() {
    let server = Server::start().await;
    let list = || BlockList::new(&RedisStore::open(server.url()).unwrap());
    list().block("api", "a", HOUR).await.unwrap();
    let new = list();
    new.refresh().await.unwrap();
    // From then on it knows what others change, without a request.
    list().block("api", "b", HOUR).await.unwrap();
    let reads = async || server.command_stats().await.get("eval").copied().unwrap_or_default();
    let before = reads().await;
    wait_until("it has read the list again", BOUND, async || reads().await >= before + 2).await;
    server.stop();
    assert!(new.get("api", &"a".into()).is_some());
    assert!(new.get("api", &"b".into()).is_some());

    assert!(new.refresh().await.unwrap_err().is_transient());
    assert!(new.get("api", &"a".into()).is_some(), "what is known stays known");
    let in_memory = BlockList::new(&MemoryStore::new());
    in_memory.block("api", "a", HOUR).await.unwrap();
    in_memory.refresh().await.unwrap();
    assert!(in_memory.get("api", &"a".into()).is_some());
}

#[tokio::test]
async fn a_redis_key_of_the_wrong_type_does_not_keep_operators_from_blocking() {
    let server = Server::start().await;
    let list = BlockList::new(&RedisStore::open(server.url()).unwrap());
    list.block("api", "a", HOUR).await.unwrap();
    let [redis_key]: [String; 1] = server.query(&["KEYS", "*"]).await;
    server.command(&["SET", &redis_key, "x"]).await;
    list.block("api", "b", HOUR).await.unwrap();
    assert!(list.get("api", &"b".into()).is_some());
}

#[tokio::test]
async fn a_block_goes_on_while_redis_is_gone_and_a_change_fails() {
    let server = Server::start().await;
    let list = BlockList::new(&RedisStore::open(server.url()).unwrap());
    let key = Key::from("a");
    list.block("api", &key, HOUR).await.unwrap();
    server.stop();
    assert!(list.unblock("api", &key).await.unwrap_err().is_transient());
    assert!(list.get("api", &key).is_some());
}

#[tokio::test]
async fn every_key_is_listed_as_it_was_blocked() {
    let server = Server::start().await;
    let stores = [
        BlockList::new(&MemoryStore::new()),
        BlockList::new(&RedisStore::open(server.url()).unwrap()),
    ];
    for list in stores {
        let long = Key::from("x".repeat(1_000));
        let expected: Vec<_> = [Key::from(""), Key::from([0, b',', 255, b'\r', b'\n']), long]
            .into_iter()
            .map(|key| ("api".to_owned(), key))
            .collect();
        for (policy, key) in &expected {
            list.block(policy, key, HOUR).await.unwrap();
        }
        let mut sorted = expected.clone();
        sorted.sort();
        assert_eq!(keys(&list), sorted);
        assert!(expected.iter().all(|(policy, key)| list.get(policy, key).is_some()));
    }
}

#[tokio::test]
async fn a_list_that_is_full_says_so_and_a_time_without_an_end_is_rejected() {
    let server = Server::start().await;
    let stores = [
        BlockList::new(&MemoryStore::new()),
        BlockList::new(&RedisStore::open(server.url()).unwrap()),
    ];
    for list in stores {
        for key in 0..1_000 {
            list.block("api", key, HOUR).await.unwrap();
        }
        let error = list.block("api", "one more", HOUR).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.to_string().contains("1000 keys are blocked already"), "{error}");
        list.block("api", 7, 2 * HOUR).await.unwrap();
        for time in [Duration::ZERO, Duration::MAX] {
            let error = list.block("api", 7, time).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected);
        }
    }
}

#[tokio::test]
async fn a_block_list_works_on_a_cluster() {
    let cluster = Cluster::start().await;
    let store = || RedisStore::open_cluster(cluster.urls()).unwrap();
    let store = || store().connections(NonZeroUsize::MIN).key_prefix("app");
    let (one, other) = (BlockList::new(&store()), BlockList::new(&store()));
    one.block("api", "a", HOUR).await.unwrap();
    assert_eq!(other.get("api", &"a".into()), None);
    wait_until("it is known", BOUND, async || other.get("api", &"a".into()).is_some()).await;
}

#[tokio::test]
async fn the_list_expires_with_its_last_block() {
    let server = Server::start().await;
    let list = BlockList::new(&RedisStore::open(server.url()).unwrap());
    list.block("api", "a", 2 * HOUR).await.unwrap();
    list.block("api", "b", HOUR).await.unwrap();
    let millis = async || match server.command(&["PTTL", "fleetlimit:{blocked}"]).await {
        Value::Int(millis) => millis,
        other => panic!("{other:?}"),
    };
    assert!((7_100_000..=7_200_000).contains(&millis().await));
    list.unblock("api", "a").await.unwrap();
    assert!((3_500_000..=3_600_000).contains(&millis().await));
}

/// Redis 7.2 and later write the multiples of a hundred million as `2e+8`.
#[tokio::test]
async fn a_block_can_end_at_any_millisecond() {
    const ROUND: u128 = 100_000_000;
    let server = Server::start().await;
    let list = BlockList::new(&RedisStore::open(server.url()).unwrap());
    let since_1970 = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let end = (since_1970() / ROUND + 2) * ROUND;
    // Each ends about a quarter of a millisecond later than the one before, so one of them ends then.
    for quarter in 0..200 {
        let time = Duration::from_millis((end - since_1970()) as u64 + quarter / 4 - 25);
        list.block("api", quarter, time).await.unwrap();
    }
    assert_eq!(list.list().len(), 200);
}

#[tokio::test]
async fn the_documented_permissions_suffice() {
    let server = Server::start().await;
    let of_lists =
        ["+zadd", "+zrem", "+zcard", "+zscore", "+zrange", "+zremrangebyscore", "+pexpireat"];
    server.grant(&[&Server::REQUIRED_COMMANDS[..], &of_lists].concat()).await;
    let url = format!("redis://fleetlimit:secret@127.0.0.1:{}/", server.port());
    let list = BlockList::new(&RedisStore::open(url).unwrap());
    list.block("api", "a", HOUR).await.unwrap();
    list.unblock("api", "a").await.unwrap();
    assert!(list.list().is_empty());
}

fn is_blocked(decision: &Decision) -> bool {
    decision.source() == Source::Blocked
}

/// Of each operation that takes permits. A block must not cost the key its permits either.
async fn assert_denies_a_blocked_key_and_no_other(store: impl Store + Clone) {
    let policy = |name: &'static str| Policy::new(name).quota("hourly", Quota::per_hour(10));
    let limiter = test_limiter(store.clone(), policy("api"));
    let other_policy = test_limiter(store.clone(), policy("other"));
    let queue = Quota::per_hour(1).queue(HOUR);
    let queue = test_limiter(store.clone(), Policy::new("queue").quota("hourly", queue));
    let list = BlockList::new(&store);
    for policy in ["api", "queue"] {
        list.block(policy, "blocked", HOUR).await.unwrap();
    }

    let costs = [0, 1, 100].map(|cost| limiter.check_cost("blocked", cost));
    let mut denials = futures_util::future::try_join_all(costs).await.unwrap();
    denials.push(limiter.acquire("blocked").await.unwrap());
    denials.push(queue.acquire("blocked").await.unwrap());
    denials.push(queue.reserve("blocked", 1).await.unwrap().wait().await);
    let checks = BestEffortChecks::new().add(&other_policy, "blocked", 1);
    denials.push(checks.add(&limiter, "blocked", 1).check().await.unwrap());
    for denial in denials {
        assert!(denial.is_denied() && is_blocked(&denial), "{denial:?}");
        let wait = denial.retry_after().expect("the block ends");
        assert!(wait <= HOUR && wait > HOUR - Duration::from_secs(60), "{wait:?}");
        assert!(denial.quotas().all(|quota| !quota.is_violated()), "{denial:?}");
        assert_eq!(denial.ensure_allowed().unwrap_err().kind(), ErrorKind::Denied);
    }
    limiter.check("another").await.unwrap().ensure_allowed().unwrap();
    other_policy.check("blocked").await.unwrap().ensure_allowed().unwrap();
    assert_eq!(limiter.peek("blocked").await.unwrap().remaining(), 10, "nothing was taken");

    list.unblock("api", "blocked").await.unwrap();
    assert_eq!(limiter.check("blocked").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn a_limiter_denies_a_blocked_key_and_no_other() {
    let server = Server::start().await;
    let in_redis = RedisStore::open(server.url()).unwrap();
    let checked = async {
        assert_denies_a_blocked_key_and_no_other(MemoryStore::new()).await;
        assert_denies_a_blocked_key_and_no_other(in_redis).await;
    };
    tokio::time::timeout(BOUND, checked).await.expect("a blocked key waits for a permit");
}

/// An operator has chosen the key. It is not a limit that is tried out.
#[tokio::test]
async fn a_block_is_enforced_where_the_limit_is_not() {
    let store = MemoryStore::new();
    let limiter = Limiter::builder(store.clone(), Quota::per_hour(10)).enforce_for_percent(0.0);
    let limiter = limiter.build().unwrap();
    BlockList::new(&store).block("default", "key", HOUR).await.unwrap();
    let denial = limiter.check("key").await.unwrap();
    assert!(denial.is_denied() && denial.is_enforced() && is_blocked(&denial), "{denial:?}");
}

/// Otherwise whoever overloads Redis lifts the blocks.
#[tokio::test]
async fn blocks_of_another_process_are_enforced_and_go_on_while_redis_is_gone() {
    let server = Server::start().await;
    let operator = BlockList::new(&RedisStore::open(server.url()).unwrap());
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::builder(store.clone(), Quota::per_hour(1_000))
        .failure_mode(FailureMode::Open)
        .build()
        .unwrap();
    BlockList::new(&store).refresh().await.unwrap();
    operator.block("default", "key", HOUR).await.unwrap();
    wait_until("it is enforced", BOUND, async || is_blocked(&limiter.check("key").await.unwrap()))
        .await;

    server.stop();
    let denial = limiter.check("key").await.unwrap();
    assert!(denial.is_denied() && is_blocked(&denial), "{denial:?}");
    let other = limiter.check("other").await.unwrap();
    assert!(other.is_allowed() && !is_blocked(&other), "{other:?}");
}

/// A queue hands its free places to requests before it looks at anything else.
#[tokio::test]
async fn a_layer_responds_to_a_blocked_key_at_once_and_does_not_say_why() {
    for quota in [Quota::per_hour(10), Quota::per_hour(1).queue(HOUR)] {
        let store = MemoryStore::new();
        let limiter = Limiter::new(store.clone(), quota).unwrap();
        BlockList::new(&store).block("default", "global", HOUR).await.unwrap();
        let service = service_fn(async |_: Request<Body>| {
            Ok::<_, BoxError>(Response::new(Body::from("served")))
        });
        let layer = RateLimitLayer::new(limiter, Global).retry_jitter(Duration::ZERO);
        let response = layer.layer(service).oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{quota}");
        let (parts, body) = response.into_parts();
        assert_eq!(parts.headers["retry-after"], "3600", "{quota}");
        assert_eq!(parts.headers["cache-control"], "no-store");
        for name in ["ratelimit", "ratelimit-policy"] {
            assert!(!parts.headers.contains_key(name), "{quota}: {name}");
        }
        let body = body.collect().await.unwrap().to_bytes();
        let expected = r#"{"type":"about:blank","title":"Too Many Requests","status":429}"#;
        assert_eq!(str::from_utf8(&body).unwrap(), expected, "{quota}");
    }
}

/// Those who do not use block lists need no permissions for them, and Redis has no work.
#[tokio::test]
async fn the_list_is_not_read_in_a_process_that_has_none() {
    let server = Server::start().await;
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), Quota::per_hour(10));
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let is_read = async || server.command_stats().await.contains_key("zrange");
    assert!(!is_read().await);
    // The first use of a list starts to read it, also if checks go on before it has been read.
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = test_limiter(store.clone(), Quota::per_hour(10));
    assert_eq!(BlockList::new(&store).get("default", &"key".into()), None);
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    wait_until("it is read", BOUND, is_read).await;
}

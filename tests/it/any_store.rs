//! One program, whose configuration says where the buckets are.

use std::sync::Arc;

use fleetlimit::{
    AnyStore, BlockList, Limiter, Limiters, MemoryStore, Policy, PolicySet, Quota, Source, Store,
};

use crate::common::{BOUND, Cluster, Sentinel, Server, wait_until};

/// Without a `match` for the kind of store.
async fn takes_one_of_two(url: &str) -> AnyStore {
    let store = AnyStore::open(url).unwrap_or_else(|error| panic!("{url}: {error}"));
    let policy = Policy::new("p").quota("q", Quota::per_day(2));
    let limiter = Limiter::builder(store.clone(), policy).timeout(BOUND).build().unwrap();
    let decision = limiter.check("key").await.unwrap();
    assert_eq!((decision.remaining(), decision.source()), (1, Source::Store), "{url}");
    store
}

/// The hosts of these URLs, as a URL for all of them lists them.
fn hosts(urls: Vec<String>) -> String {
    let host =
        |url: &String| url.strip_prefix("redis://").unwrap().trim_end_matches('/').to_owned();
    urls.iter().map(host).collect::<Vec<_>>().join(",")
}

#[tokio::test]
async fn the_url_decides_whether_buckets_are_in_memory_or_in_redis() {
    let server = Server::start().await;
    takes_one_of_two("memory:").await;
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await, 0);
    let port = server.port();
    takes_one_of_two(&format!("redis://127.0.0.1:{port}/0")).await;
    takes_one_of_two(&format!("valkey://127.0.0.1:{port}/1")).await;
    for database in ["0", "1"] {
        let info = server.info("keyspace").await;
        assert!(info.contains_key(&format!("db{database}")), "{info:?}");
    }
}

#[tokio::test]
async fn a_url_can_name_a_socket() {
    let server = Server::launch(|port, dir| {
        let socket = dir.join("socket").to_str().unwrap().to_owned();
        let mut args = Server::options(port, dir);
        args.extend(["--unixsocket".into(), socket]);
        args
    })
    .await;
    let socket = server.dir().join("socket");
    takes_one_of_two(&format!("redis+unix://{}", socket.display())).await;
    assert!(server.query::<u64>(&["DBSIZE"]).await > 0);
}

#[tokio::test]
async fn a_url_names_several_nodes_of_a_cluster() {
    let cluster = Cluster::start().await;
    let url = format!("redis+cluster://{}", hosts(cluster.urls()));
    takes_one_of_two(&url).await;
}

#[tokio::test]
async fn a_url_names_the_service_that_sentinels_monitor() {
    let sentinel = Sentinel::start().await;
    let (hosts, service) = (hosts(sentinel.urls()), sentinel.service_name());
    takes_one_of_two(&format!("redis+sentinel://{hosts}/{service}/0")).await;
}

#[tokio::test]
async fn settings_of_redis_apply_whichever_store_it_is() {
    let server = Server::start().await;
    for url in ["memory:", &server.url()] {
        let store = AnyStore::open(url).unwrap().map_redis(|redis| redis.key_prefix("api"));
        let limiter = Limiter::builder(store, Quota::per_day(2)).timeout(BOUND).build().unwrap();
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    }
    let keys: Vec<String> = server.query(&["KEYS", "*{key}*"]).await;
    assert_eq!(keys, ["api:{key}:default:t2"]);
}

#[tokio::test]
async fn a_store_behind_a_pointer_shares_its_buckets_and_policies() {
    let memory = MemoryStore::new();
    let store: Arc<dyn Store> = Arc::new(memory.clone());
    let policy = |n| Policy::new("p").quota("q", Quota::per_day(n));
    let limiters = [
        Limiter::new(store.clone(), policy(3)).unwrap(),
        Limiters::new(store.clone(), PolicySet::new()).unwrap().limiter(policy(3)).unwrap(),
        Limiter::new(AnyStore::from(memory), policy(3)).unwrap(),
    ];
    for (limiter, left) in limiters.iter().zip([2, 1, 0]) {
        assert_eq!(limiter.check("key").await.unwrap().remaining(), left);
    }
    let error = Limiter::new(store.clone(), policy(4)).unwrap_err().to_string();
    assert!(error.contains("is in use on this store"), "{error}");
    BlockList::new(&store).block("p", "key", BOUND).await.unwrap();
    assert!(BlockList::new(&store).get("p", &"key".into()).is_some());
}

/// Otherwise the other instances would leave its share unused.
#[tokio::test]
async fn the_store_of_a_url_deregisters_at_the_end() {
    let server = Server::start().await;
    let store = takes_one_of_two(&server.url()).await;
    let instances = async || {
        let fields: Vec<String> = server.query(&["HKEYS", "fleetlimit:{fleet}"]).await;
        fields.iter().filter(|field| field.parse::<u64>().is_ok()).count()
    };
    wait_until("the instance is registered", BOUND, async || instances().await == 1).await;
    store.shutdown().await;
    assert_eq!(instances().await, 0);
}

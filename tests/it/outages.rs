//! Outages of all kinds: while one lasts, checks are decided in time, and by a share of the limit. Soon
//! after it, Redis decides again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fleetlimit::{Limiter, Policy, Quota, RedisStore, Source};

use crate::common::{BOUND, Cluster, Proxy, Server, wait_until};
use crate::exact::uncached;

const TIMEOUT: Duration = Duration::from_millis(50);
/// What the scheduler of a busy machine may add.
const SLACK: Duration = Duration::from_millis(300);
const SECOND: Duration = Duration::from_secs(1);

fn limiter(url: String) -> Limiter {
    Limiter::new(RedisStore::open(url).unwrap(), Quota::per_second(1_000_000)).unwrap()
}

async fn wait_for(source: Source, limiter: &Limiter) -> Duration {
    let start = Instant::now();
    wait_until(&format!("the source is {source:?}"), BOUND, async || {
        limiter.check("key").await.unwrap().source() == source
    })
    .await;
    start.elapsed()
}

/// Checks of several tasks, none of which may fail, be denied, or take much longer than the timeout.
struct Load {
    stop: Arc<AtomicBool>,
    slowest: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(limiter: &Limiter) -> Self {
        let (stop, slowest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let task = |number: u32| {
            let (limiter, stop, slowest) = (limiter.clone(), stop.clone(), slowest.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    let start = Instant::now();
                    assert!(limiter.check(number).await.unwrap().is_allowed());
                    slowest.fetch_max(start.elapsed().as_millis() as u64, Relaxed);
                    // While the breaker is open, they would leave no core to anything else.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        };
        let tasks = (0..8).map(task).collect();
        Self { stop, slowest, tasks }
    }

    async fn finish(self) {
        self.stop.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let slowest = Duration::from_millis(self.slowest.load(Relaxed));
        assert!(slowest < TIMEOUT + SLACK, "{slowest:?}");
    }
}

async fn survives(limiter: &Limiter, begin: impl AsyncFnOnce(), end: impl AsyncFnOnce()) {
    wait_for(Source::Store, limiter).await;
    let load = Load::start(limiter);
    begin().await;
    wait_for(Source::Local, limiter).await;
    end().await;
    let recovery = wait_for(Source::Store, limiter).await;
    assert!(recovery < SECOND, "{recovery:?}");
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_silent_and_no_error_ever_arrives() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(proxy.url());
    survives(&limiter, async || proxy.swallow(true), async || proxy.swallow(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_slower_than_the_timeout() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(proxy.url());
    let slow = async || proxy.delay(4 * TIMEOUT);
    survives(&limiter, slow, async || proxy.delay(Duration::ZERO)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_end_in_the_middle() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(proxy.url());
    survives(&limiter, async || proxy.truncate(true), async || proxy.truncate(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_are_garbage() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(proxy.url());
    survives(&limiter, async || proxy.garble(true), async || proxy.garble(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_paused() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let pause = async || {
        server.command(&["CLIENT", "PAUSE", "600"]).await;
    };
    // The reply to any command shows that the pause is over.
    let wait = async || {
        server.command(&["PING"]).await;
    };
    survives(&limiter, pause, wait).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_killed_again_and_again() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    wait_for(Source::Store, &limiter).await;
    let load = Load::start(&limiter);
    for _ in 0..20 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        wait_for(Source::Store, &limiter).await;
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_set_that_the_service_does_not_have() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    // The connection of the test keeps its rights.
    let connection = crate::common::connect(&server.url()).await.unwrap();
    let query = async |args: &[&str]| {
        let mut command = redis::Cmd::new();
        args.iter().for_each(|arg| {
            command.arg(arg);
        });
        command.query_async::<redis::Value>(&mut connection.clone()).await.unwrap();
    };
    let set = async || {
        query(&["CONFIG", "SET", "requirepass", "secret"]).await;
        query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    };
    survives(&limiter, set, async || query(&["CONFIG", "SET", "requirepass", ""]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_are_revoked() {
    let server = Server::start().await;
    server.grant(&Server::REQUIRED_COMMANDS).await;
    let limiter = limiter(format!("redis://fleetlimit:secret@127.0.0.1:{}/", server.port()));
    let revoke = async || {
        server.command(&["ACL", "SETUSER", "fleetlimit", "-evalsha", "-eval"]).await;
    };
    let grant = async || {
        server.command(&["ACL", "SETUSER", "fleetlimit", "+evalsha", "+eval"]).await;
    };
    survives(&limiter, revoke, grant).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_full_and_refuses_writes() {
    let server = Server::start().await;
    let limiter = limiter(server.url());
    let set = async |memory: &str| {
        server.command(&["CONFIG", "SET", "maxmemory", memory]).await;
    };
    survives(&limiter, async || set("1").await, async || set("0").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_full_and_evicts_buckets() {
    let server = Server::with_args(&["--maxmemory-policy", "allkeys-lru"]).await;
    let limiter = uncached(RedisStore::open(server.url()).unwrap(), Quota::per_hour(5));
    let _ = limiter.check("key").await.unwrap();
    let used: u64 = server.info("memory").await["used_memory"].parse().unwrap();
    let memory = (used + 500_000).to_string();
    server.command(&["CONFIG", "SET", "maxmemory", &memory]).await;
    // A bucket of which one permit is used is a new one.
    let (mut admitted, mut buckets) = (1, 1);
    for flood in 0..20_000u32 {
        let decision = limiter.check(flood).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Store));
        if flood % 100 == 0 {
            let decision = limiter.check("key").await.unwrap();
            admitted += u64::from(decision.is_allowed());
            buckets += u64::from(decision.remaining() == 4);
        }
    }
    let evicted: u64 = server.info("stats").await["evicted_keys"].parse().unwrap();
    assert!(evicted > 1_000, "{evicted}");
    assert!(admitted <= 5 * buckets, "{admitted} of {buckets} buckets");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_of_a_cluster_is_killed() {
    let cluster = Cluster::start().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let limiter = Limiter::new(store, Quota::per_second(1_000_000)).unwrap();
    wait_for(Source::Store, &limiter).await;
    let owner = cluster.slot_owner(cluster.slot_of("fleetlimit:{key}:default:t2").await).await;
    let kill = async || cluster.node(owner).stop();
    let restart = async || {
        cluster.node(owner).restart().await;
        cluster.wait_until_consistent().await;
    };
    survives(&limiter, kill, restart).await;
}

/// As behind an address that follows the primary. The demoted one keeps its connections, and replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_fails_over_to_a_replica() {
    let primary = Server::start().await;
    let port = primary.port().to_string();
    let replica = Server::with_args(&["--replicaof", "127.0.0.1", &port]).await;
    wait_until("the replica has the primary's data", BOUND, async || {
        replica.info("replication").await["master_link_status"] == "up"
    })
    .await;
    let proxy = Proxy::start(primary.port()).await;
    let limiter = limiter(proxy.url());
    let role = async |server: &Server| server.info("replication").await["role"].clone();
    let fail_over = async || {
        primary.command(&["FAILOVER"]).await;
        wait_until("the replica is promoted", BOUND, async || role(&replica).await == "master")
            .await;
    };
    survives(&limiter, fail_over, async || proxy.retarget(replica.port())).await;
    assert_eq!((&*role(&primary).await, &*role(&replica).await), ("slave", "master"));
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
}

/// So it does not matter what the clock of an instance says. (Except for the windows of a calendar:
/// Redis decides with its clock which one applies.)
#[tokio::test]
async fn a_call_does_not_depend_on_the_clock_of_the_instance() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let quotas = [
        "9/s",
        "9/s interval",
        "9/s fixed",
        "9/s sliding approximate",
        "9/s sliding 4",
        "9/s queue 9s",
    ];
    let quotas = quotas.map(|text| text.parse::<Quota>().unwrap());
    let policy = |n: usize| Policy::new(format!("p{n}")).quota("rate", quotas[n]);
    let limiters: Vec<_> = (0..quotas.len()).map(|n| uncached(store.clone(), policy(n))).collect();
    // The first calls load scripts and register the instance.
    for limiter in &limiters {
        let _ = limiter.check("key").await.unwrap();
    }
    // All calls are slower than that, so all are logged.
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await;
    for _ in 0..2 {
        for limiter in &limiters {
            let _ = limiter.check("key").await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log: Vec<Vec<redis::Value>> = server.query(&["SLOWLOG", "GET", "128"]).await;
    let calls: Vec<String> = log
        .iter()
        .map(|entry| format!("{:?}", entry[3]))
        .filter(|call| call.to_lowercase().contains("evalsha"))
        .collect();
    assert_eq!(calls.len(), 2 * limiters.len(), "{calls:?}");
    let (second, first) = calls.split_at(limiters.len());
    assert_eq!(first, second, "a call depends on the time");
}

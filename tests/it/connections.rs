//! How connections are made and replaced: the protocol, credentials, idle connections, and names that
//! move.

use std::error::Error as StdError;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[cfg(feature = "sentinel")]
use fleetlimit::SentinelService;
use fleetlimit::{ErrorKind, Limiter, Quota, RedisCredentials, RedisServer, RedisStore, Source};

#[cfg(feature = "sentinel")]
use crate::common::Sentinel;
use crate::common::{BOUND, Cluster, Proxy, Server, wait_until};
use crate::exact::{test_limiter, uncached};
use crate::log::Log;

const DAILY: Quota = Quota::per_day(1_000_000);

/// The clients of a server, except the one that asks.
async fn clients(server: &Server) -> Vec<String> {
    let clients: String = server.query(&["CLIENT", "LIST"]).await;
    // Redis 6.2 does not tell which command of `CLIENT` was the last one, and a store has sent others.
    let asks = |client: &str| {
        client.contains(" cmd=client|list ")
            || client.contains(" cmd=client ") && client.contains(" user=default ")
    };
    clients.lines().filter(|client| !asks(client)).map(str::to_owned).collect()
}

/// Waits until the connections of these clients are older than half a second. The end of a younger one may
/// be the sign of a lasting fault.
async fn wait_until_stable(server: &Server) {
    // The server counts the ends of seconds.
    let is_young = |client: &String| [" age=0 ", " age=1 "].iter().any(|age| client.contains(age));
    wait_until("the connections are older than a second", BOUND, async || {
        let clients = clients(server).await;
        !clients.is_empty() && !clients.iter().any(is_young)
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_knows_no_hello_works_with_the_protocol_of_the_url() {
    let server = Server::with_args(&["--rename-command", "HELLO", ""]).await;
    let resp2 = format!("{}?protocol=resp2", server.url());
    let stores = [
        RedisStore::open(resp2.as_str()).unwrap(),
        RedisStore::open(resp2.clone()).unwrap().connections(2.try_into().unwrap()),
    ];
    for store in stores {
        let decision = test_limiter(store, DAILY).check("key").await.unwrap();
        assert_eq!(decision.source(), Source::Store);
    }
    // Without a protocol the error says what to do.
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), DAILY);
    let error = limiter.check("key").await.unwrap_err();
    assert!(error.to_string().contains("add `?protocol=resp2` to its URL"), "{error}");
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("HELLO") || cause.contains("resp3"), "{cause}");
}

/// Without published messages they are asked once a second.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_speak_resp2_are_watched_too() {
    let sentinel = Sentinel::start().await;
    let urls = sentinel.urls().into_iter().map(|url| format!("{url}?protocol=resp2"));
    let store = RedisStore::open_sentinel(urls, sentinel.service_name()).unwrap();
    let limiter = uncached(store, DAILY);
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    let old = sentinel.primary().port();
    sentinel.failover().await;
    assert_ne!(sentinel.primary().port(), old);
    // Nobody has demoted the old primary, so only the sentinels know.
    wait_until("the new primary is used", BOUND, async || {
        let _ = limiter.check("key").await;
        sentinel.primary().command_stats().await.contains_key("evalsha")
    })
    .await;
    assert_eq!(sentinel.subscribers().await, 0);
}

/// Each server accepts only its own password.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_passwords_of_sentinels_and_primary_may_differ() {
    let sentinel = Sentinel::start().await;
    sentinel
        .primary()
        .grant(&[&Server::REQUIRED_COMMANDS[..], &["+role", "+select"]].concat())
        .await;
    for n in 0..3 {
        let user = ["ACL", "SETUSER", "watcher", "on", ">other", "resetchannels", "-@all"];
        let rights = ["+sentinel", "+subscribe", "&+switch-master"];
        sentinel.sentinel(n).command(&[user.as_slice(), &rights].concat()).await;
    }
    let urls = || sentinel.urls().into_iter().map(|url| url.replace("://", "://watcher:other@"));
    let service = SentinelService::new(sentinel.service_name());
    let primary = "redis://fleetlimit:secret@primary.invalid/3";
    let store = RedisStore::open_sentinel(urls(), service.clone().primary(primary)).unwrap();
    let limiter = test_limiter(store, DAILY);
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    let keyspace = sentinel.primary().info("keyspace").await;
    assert!(keyspace.contains_key("db3"), "{keyspace:?}");
    wait_until("the sentinels are watched", BOUND, async || sentinel.subscribers().await == 3)
        .await;
    // With the user of the sentinels for the primary too, this is not possible.
    let store = RedisStore::open_sentinel(urls(), service).unwrap();
    let error = test_limiter(store, DAILY).check("key").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
}

/// A secret that rotates, as an agent writes it, and a server that takes it from there.
#[derive(Clone, Default)]
struct Secret(Arc<Mutex<Option<String>>>);

impl Secret {
    fn set(&self, password: &str) {
        *self.0.lock().unwrap() = Some(password.to_owned());
    }

    fn applied_to(&self, url: String) -> RedisServer {
        let secret = self.0.clone();
        RedisServer::from(url).credentials(move || {
            let password = secret.lock().unwrap().clone();
            async move {
                let password = password.ok_or(io::Error::other("no secret yet"))?;
                Ok::<_, io::Error>(RedisCredentials::new("fleetlimit", password))
            }
        })
    }
}

/// Replaces the password of the user `fleetlimit`, and closes its connections, as some services do.
async fn rotate(server: &Server, password: &str) {
    let user = ["ACL", "SETUSER", "fleetlimit", "resetpass", &format!(">{password}")];
    server.command(&user).await;
    server.command(&["CLIENT", "KILL", "USER", "fleetlimit"]).await;
}

async fn connected(server: &Server) -> usize {
    clients(server).await.iter().filter(|client| client.contains("user=fleetlimit ")).count()
}

/// Rotates the password several times. No check is lost, because the closed connection is replaced before
/// the next check.
async fn assert_follows_rotations(
    store: RedisStore,
    servers: &[&Server],
    secret: &Secret,
    passwords: &[&str],
) {
    let limiter = uncached(store, DAILY);
    let check_all = async || {
        // Enough keys to reach each node of a cluster.
        for key in (0..30).map(|n| format!("key {n}")) {
            assert_eq!(limiter.check(&key).await.unwrap().source(), Source::Store);
        }
    };
    check_all().await;
    for password in passwords {
        let mut before = Vec::new();
        for server in servers {
            wait_until_stable(server).await;
            before.push(connected(server).await);
            // The secret is in place first: between the two, a new connection could not log in.
            secret.set(password);
            rotate(server, password).await;
        }
        wait_until("all connections are made again", BOUND, async || {
            for (server, before) in servers.iter().zip(&before) {
                if connected(server).await < *before {
                    return false;
                }
            }
            true
        })
        .await;
        check_all().await;
    }
}

/// What a user of all kinds of servers may do.
fn permissions() -> Vec<&'static str> {
    let others = ["+role", "+ping", "+cluster", "+asking"];
    [&Server::REQUIRED_COMMANDS[..], &others].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_rotates_costs_no_check() {
    let (server, secret) = (Server::start().await, Secret::default());
    server.grant(&permissions()).await;
    secret.set("secret");
    let store = RedisStore::open(secret.applied_to(server.url())).unwrap();
    assert_follows_rotations(store, &[&server], &secret, &["second", "third", "fourth"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_rotates_costs_no_check_on_a_cluster() {
    let (cluster, secret) = (Cluster::start().await, Secret::default());
    let nodes = [0, 1, 2].map(|n| cluster.node(n));
    for node in nodes {
        node.grant(&permissions()).await;
    }
    secret.set("secret");
    let seeds = cluster.urls().into_iter().map(|url| secret.applied_to(url));
    let store = RedisStore::open_cluster(seeds).unwrap();
    // Connections to seeds that were made again are not used, and would not be made a second time.
    assert_follows_rotations(store, &nodes, &secret, &["second"]).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_rotates_costs_no_check_through_sentinel() {
    let (sentinel, secret) = (Sentinel::start().await, Secret::default());
    sentinel.primary().grant(&permissions()).await;
    secret.set("secret");
    let primary = secret.applied_to("redis://primary.invalid".into());
    let service = SentinelService::new(sentinel.service_name()).primary(primary);
    let store = RedisStore::open_sentinel(sentinel.urls(), service).unwrap();
    assert_follows_rotations(store, &[sentinel.primary()], &secret, &["second", "third"]).await;
}

#[tokio::test]
async fn a_provider_of_credentials_that_fails_is_named_and_asked_again() {
    let (server, secret) = (Server::start().await, Secret::default());
    server.grant(&permissions()).await;
    let limiter = test_limiter(RedisStore::open(secret.applied_to(server.url())).unwrap(), DAILY);
    let error = limiter.check("key").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.to_string(), "the provider of credentials for Redis failed");
    assert_eq!(error.source().unwrap().to_string(), "no secret yet");
    secret.set("secret");
    wait_until("the provider is asked again", BOUND, async || limiter.check("key").await.is_ok())
        .await;
}

/// A keepalive for tests. The gateway has forgotten connections that are idle for longer.
const KEEPALIVE: Duration = Duration::from_millis(50);

/// Nothing tells the store that its connections are dead, except that they do not reply.
async fn assert_replaces_dead_connections(store: RedisStore, proxies: &[&Proxy]) {
    let limiter = uncached(store.keepalive(KEEPALIVE), DAILY);
    let check_all = async || {
        for key in (0..30).map(|n| format!("key {n}")) {
            assert_eq!(limiter.check(&key).await.unwrap().source(), Source::Store);
        }
    };
    check_all().await;
    let before: Vec<_> = proxies.iter().map(|proxy| proxy.accepted()).collect();
    for proxy in proxies {
        proxy.forget_connections();
    }
    wait_until("the dead connections are replaced", BOUND, async || {
        proxies.iter().zip(&before).all(|(proxy, before)| proxy.accepted() >= 2 * *before)
    })
    .await;
    check_all().await;
}

#[tokio::test]
async fn a_connection_that_died_silently_while_idle_is_replaced_before_a_check_needs_it() {
    let server = Server::start().await;
    for protocol in ["resp2", "resp3"] {
        let proxy = Proxy::start(server.port()).await;
        let store = RedisStore::open(format!("{}?protocol={protocol}", proxy.url())).unwrap();
        assert_replaces_dead_connections(store, &[&proxy]).await;
    }
    let proxy = Proxy::start(server.port()).await;
    let config = deadpool_redis::Config::from_url(proxy.url());
    let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1)).unwrap();
    assert_replaces_dead_connections(RedisStore::from_pool(pool), &[&proxy]).await;
}

#[tokio::test]
async fn connections_to_a_cluster_that_died_silently_are_replaced_before_a_check_needs_them() {
    let cluster = Cluster::proxied().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let proxies = [0, 1, 2].map(|n| cluster.proxy(n));
    assert_replaces_dead_connections(store, &proxies).await;
}

async fn pings(server: &Server) -> u64 {
    server.command_stats().await.get("ping").copied().unwrap_or(0)
}

#[tokio::test]
async fn only_an_idle_connection_is_pinged() {
    let server = Server::start().await;
    let keepalive = Duration::from_millis(500);
    let store = RedisStore::open(server.url()).unwrap().keepalive(keepalive);
    let limiter = uncached(store, DAILY);
    let (started, mut last, mut idle) = (Instant::now(), Instant::now(), 0);
    while started.elapsed() < 3 * keepalive {
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
        // A busy machine may suspend the test.
        idle += u64::from(last.elapsed() >= keepalive / 2);
        last = Instant::now();
    }
    let while_busy = pings(&server).await;
    assert!(while_busy <= idle, "{while_busy}");
    wait_until("it is pinged while it is idle", BOUND, async || {
        pings(&server).await > while_busy + 1
    })
    .await;
    // Those of the test may not have ended yet.
    wait_until("the store has one connection", BOUND, async || clients(&server).await.len() == 1)
        .await;
}

#[tokio::test]
async fn a_user_who_may_not_ping_keeps_the_idle_connection() {
    let server = Server::start().await;
    server.grant(&Server::REQUIRED_COMMANDS).await;
    let url = server.url().replace("://", "://fleetlimit:secret@");
    let limiter = uncached(RedisStore::open(url).unwrap().keepalive(KEEPALIVE), DAILY);
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    let rejected = async || {
        let stats = server.info("commandstats").await;
        let of_ping =
            stats.get("cmdstat_ping").and_then(|stat| stat.split("rejected_calls=").nth(1));
        of_ping.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0_u64)
    };
    wait_until("some pings are refused", BOUND, async || rejected().await >= 3).await;
    let id = async || {
        let clients = clients(&server).await;
        clients.first().and_then(|client| client.split(' ').next().map(str::to_owned))
    };
    let before = id().await;
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    assert!(before.is_some() && before == id().await);
}

/// With RESP3 the store notices it at once.
#[tokio::test]
async fn an_idle_connection_with_resp2_that_the_server_closed_is_replaced() {
    let server = Server::start().await;
    let store = RedisStore::open(format!("{}?protocol=resp2", server.url())).unwrap();
    let limiter = uncached(store.keepalive(KEEPALIVE), DAILY);
    limiter.check("key").await.unwrap().ensure_allowed().unwrap();
    wait_until_stable(&server).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    wait_until("it is made again", BOUND, async || !clients(&server).await.is_empty()).await;
    assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
}

/// A maximum age for tests.
const AGE: Duration = Duration::from_millis(100);

async fn connections_received(servers: &[&Server]) -> u64 {
    let mut count = 0;
    for server in servers {
        count += server.info("stats").await["total_connections_received"].parse::<u64>().unwrap();
    }
    count
}

/// Checks from many tasks, until the condition holds. None may fail.
async fn check_until(limiter: &Limiter, what: &str, condition: impl AsyncFnMut() -> bool) {
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..20)
        .map(|task| {
            let (limiter, stop) = (limiter.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    for key in (0..5).map(|n| format!("key {task} {n}")) {
                        assert_eq!(limiter.check(&key).await.unwrap().source(), Source::Store);
                    }
                }
            })
        })
        .collect();
    wait_until(what, BOUND, condition).await;
    stop.store(true, Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
}

/// A connection of each server is replaced several times while calls are in flight.
async fn assert_replaces_old_connections(store: RedisStore, servers: &[&Server]) {
    let limiter = uncached(store.max_connection_age(AGE), DAILY);
    let before = connections_received(servers).await;
    let count = servers.len() as u64;
    // Looking is a connection, too.
    let mut looked = 0;
    check_until(&limiter, "the connections are replaced several times", async || {
        looked += count;
        connections_received(servers).await > before + looked + 10 * count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_old_connections_costs_no_check() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    assert_replaces_old_connections(store(), &[&server]).await;
    assert_replaces_old_connections(store().connections(3.try_into().unwrap()), &[&server]).await;
    let config = deadpool_redis::Config::from_url(server.url());
    let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1)).unwrap();
    assert_replaces_old_connections(RedisStore::from_pool(pool), &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_old_connections_costs_no_check_on_a_cluster() {
    let cluster = Cluster::start().await;
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    assert_replaces_old_connections(store, &[0, 1, 2].map(|n| cluster.node(n))).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_old_connections_costs_no_check_through_sentinel() {
    let sentinel = Sentinel::start().await;
    let store = RedisStore::open_sentinel(sentinel.urls(), sentinel.service_name()).unwrap();
    assert_replaces_old_connections(store, &[sentinel.primary()]).await;
}

/// New connections lead to another server, and the old server still works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_moves_is_followed_without_losing_a_check() {
    let (blue, green) = (Server::start().await, Server::start().await);
    let proxy = Proxy::start(blue.port()).await;
    // So that calls are in flight when the connection is replaced.
    proxy.delay(Duration::from_millis(10));
    let store = RedisStore::open(proxy.url()).unwrap().max_connection_age(AGE);
    let limiter = uncached(store, DAILY);
    check_until(&limiter, "the first server is used", async || {
        blue.command_stats().await.contains_key("evalsha")
    })
    .await;
    proxy.retarget(green.port());
    check_until(&limiter, "the second server is used, and only that", async || {
        green.command_stats().await.contains_key("evalsha") && clients(&blue).await.is_empty()
    })
    .await;
    // The next one is there for a moment, too.
    wait_until("old connections are closed", BOUND, async || clients(&green).await.len() == 1)
        .await;
}

#[tokio::test]
async fn an_old_connection_that_cannot_be_replaced_is_used_for_longer() {
    let (log, _guard) = Log::capture();
    let (server, locked) = (Server::start().await, Server::start().await);
    locked.command(&["CONFIG", "SET", "requirepass", "secret"]).await;
    let replica =
        Server::with_args(&["--replicaof", "127.0.0.1", &server.port().to_string()]).await;
    wait_until("the replica is synchronized", BOUND, async || {
        replica.info("replication").await["master_link_status"] == "up"
    })
    .await;
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::open(proxy.url()).unwrap().max_connection_age(AGE);
    let limiter = uncached(store, DAILY);
    check_until(&limiter, "the server is used", async || proxy.accepted() >= 1).await;
    let warnings = || {
        let lines = log.events();
        lines.into_iter().filter(|line| line.contains("cannot be replaced")).collect::<Vec<_>>()
    };
    let expect_warning = async |reason: &str| {
        let before = warnings().len();
        check_until(&limiter, "it cannot be replaced", async || warnings().len() > before + 1)
            .await;
        let last = warnings().pop().unwrap();
        assert!(last.contains(reason) && last.contains("WARN fleetlimit"), "{last}");
    };
    proxy.refuse().await;
    expect_warning("Connection refused").await;
    // The name leads to a server that takes connections, and decides nothing.
    proxy.retarget(locked.port());
    proxy.accept().await;
    expect_warning("NOAUTH").await;
    // It leads to a replica, as the name of an old primary does after a switch to another.
    proxy.retarget(replica.port());
    expect_warning("read only replica").await;
    proxy.retarget(server.port());
    let before = proxy.accepted();
    check_until(&limiter, "it is replaced", async || proxy.accepted() > before + 2).await;
}

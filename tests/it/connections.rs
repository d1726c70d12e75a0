//! How connections are made and replaced: the protocol, credentials, idle connections, and names that
//! move.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "sentinel")]
use fleetlimit::SentinelService;
use fleetlimit::{ErrorKind, Quota, RedisCredentials, RedisServer, RedisStore, Source};

#[cfg(feature = "sentinel")]
use crate::common::Sentinel;
use crate::common::{BOUND, Cluster, Server, wait_until};
use crate::exact::{test_limiter, uncached};

const DAILY: Quota = Quota::per_day(1_000_000);

/// The clients of a server that have a name or a user of this kind in `CLIENT LIST`.
async fn clients(server: &Server, having: &str) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST"]).await;
    clients.lines().filter(|client| client.contains(having)).count()
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
    assert_eq!(clients(sentinel.primary(), "lib-name=redis-rs").await, 1);
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
    let decision = test_limiter(store, DAILY).check("key").await.unwrap();
    assert_eq!(decision.source(), Source::Store);
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
    clients(server, "user=fleetlimit ").await
}

/// Those that are older than a second: the end of a younger one may be the sign of a lasting fault.
async fn stable(server: &Server) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST"]).await;
    let of_user = clients.lines().filter(|client| client.contains("user=fleetlimit "));
    of_user.filter(|client| !client.contains("age=0 ")).count()
}

/// Rotates the password several times. No check is lost, because the closed connection is replaced before
/// the next check.
async fn assert_follows_rotations(store: RedisStore, servers: &[&Server], secret: &Secret) {
    let limiter = uncached(store, DAILY);
    let check_all = async || {
        // Enough keys to reach each node of a cluster.
        for key in (0..30).map(|n| format!("key {n}")) {
            assert_eq!(limiter.check(&key).await.unwrap().source(), Source::Store);
        }
    };
    check_all().await;
    for password in ["second", "third", "fourth"] {
        let mut before = Vec::new();
        for server in servers {
            wait_until("the connections count as stable", BOUND, async || {
                connected(server).await == stable(server).await
            })
            .await;
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
    assert_follows_rotations(store, &[&server], &secret).await;
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
    assert_follows_rotations(RedisStore::open_cluster(seeds).unwrap(), &nodes, &secret).await;
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
    assert_follows_rotations(store, &[sentinel.primary()], &secret).await;
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

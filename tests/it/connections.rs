//! How connections are made and replaced: the protocol, credentials, idle connections, and names that
//! move.

use std::error::Error as StdError;
use std::time::Duration;

#[cfg(feature = "sentinel")]
use fleetlimit::SentinelService;
use fleetlimit::{ErrorKind, Quota, RedisStore, Source};

#[cfg(feature = "sentinel")]
use crate::common::Sentinel;
use crate::common::{BOUND, Server, wait_until};
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

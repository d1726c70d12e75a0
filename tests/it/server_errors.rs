//! A server that replies with an error: whether a check may be repeated, and whether the store looks
//! for another server.

use std::error::Error as _;
use std::fs;
use std::net::Ipv4Addr;

use fleetlimit::{Error, ErrorKind, Limiter, Policy, Quota, RedisStore, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::common::{BOUND, Proxy, Server, start, wait_until};
use crate::exact::test_limiter;
use crate::log::Log;
use crate::one_endpoint::parse;

fn limiter(url: String) -> Limiter {
    test_limiter(RedisStore::open(url).unwrap(), Quota::per_hour(10))
}

/// The text of the server. The Redis client writes some codes in its own way: `BusyLoading`.
fn text(error: &Error) -> String {
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    format!("{error}: {source}").to_uppercase()
}

/// Asserts that the server replied with an error that names `what`.
async fn assert_fails(limiter: &Limiter, what: &str, is_transient: bool) {
    let error = limiter.check("key").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server, "{}", text(&error));
    assert_eq!(error.is_transient(), is_transient, "{}", text(&error));
    assert!(text(&error).contains(what), "{}", text(&error));
    assert!(!text(&error).contains("@USER_SCRIPT: "), "{}", text(&error));
}

/// Asserts that a check which failed with a transient error succeeds later, and that no check before
/// it was charged.
async fn assert_passes(limiter: &Limiter) {
    wait_until("a check succeeds again", BOUND, async || limiter.check("key").await.is_ok()).await;
    // What has failed before can still open the breaker.
    let mut peeked = None;
    wait_until("the breaker is closed", BOUND, async || {
        peeked = limiter.peek("key").await.ok();
        peeked.is_some()
    })
    .await;
    let decision = peeked.unwrap();
    assert_eq!((decision.remaining(), decision.source()), (9, Source::Store));
}

#[tokio::test]
async fn out_of_memory_passes_and_charges_nothing() {
    let server = Server::with_args(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).await;
    let limiter = limiter(server.url());
    assert_fails(&limiter, "OOM", true).await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_passes(&limiter).await;
}

#[tokio::test]
async fn a_failed_snapshot_passes() {
    let server = Server::with_args(&["--save", "3600", "1000000"]).await;
    let in_the_way = server.obstruct_snapshots();
    server.save("err").await;
    let limiter = limiter(server.url());
    // The first goes alone, the others in one call. The text of the error has a comma.
    for check in ["a", "b", "c"].map(|key| start(limiter.check(key))) {
        let error = text(&check.await.unwrap_err());
        assert!(error.contains("MISCONF"), "{error}");
    }
    assert_fails(&limiter, "MISCONF", true).await;
    fs::remove_dir_all(&in_the_way).unwrap();
    server.save("ok").await;
    assert_passes(&limiter).await;
}

#[tokio::test]
async fn too_few_replicas_pass() {
    let server = Server::with_args(&["--min-replicas-to-write", "1"]).await;
    let limiter = limiter(server.url());
    assert_fails(&limiter, "NOREPLICAS", true).await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    assert_passes(&limiter).await;
}

#[tokio::test]
async fn a_busy_script_passes() {
    let server = Server::with_args(&["--lua-time-limit", "1"]).await;
    let limiter = limiter(server.url());
    let _ = limiter.peek("key").await.unwrap();
    let endless = server.try_query::<()>(&["EVAL", "while true do end", "0"]);
    let test = async {
        wait_until("the script is too slow", BOUND, async || {
            let ping = server.try_query::<String>(&["PING"]).await;
            ping.is_err_and(|error| error.code() == Some("BUSY"))
        })
        .await;
        assert_fails(&limiter, "BUSY", true).await;
        server.command(&["SCRIPT", "KILL"]).await;
        // Or a script of fleetlimit may be too slow, if the machine suspends the server meanwhile.
        wait_until("the limit is normal", BOUND, async || {
            server.try_query::<()>(&["CONFIG", "SET", "lua-time-limit", "5000"]).await.is_ok()
        })
        .await;
        assert_passes(&limiter).await;
    };
    let (killed, ()) = tokio::join!(endless, test);
    killed.unwrap_err();
}

#[tokio::test]
async fn a_server_that_loads_its_data_passes() {
    let server = Server::with_slow_load().await;
    server.restart().await;
    let limiter = limiter(server.url());
    assert_fails(&limiter, "LOADING", true).await;
    assert_passes(&limiter).await;
}

#[tokio::test]
async fn a_cluster_without_the_slot_passes() {
    let server = Server::with_args(&["--cluster-enabled", "yes"]).await;
    let limiter = limiter(server.url());
    assert_fails(&limiter, "CLUSTERDOWN", true).await;
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let add = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    server.command(&add.collect::<Vec<_>>()).await;
    assert_passes(&limiter).await;
}

/// Like a primary after a failover: it replies to PING, so only a new connection leads elsewhere.
async fn assert_leaves(server: &Server, what: &str) {
    let proxy = Proxy::start(server.port()).await;
    let limiter = limiter(proxy.url());
    let _ = limiter.peek("key").await.unwrap();
    // A primary that does not exist.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_fails(&limiter, what, true).await;
    wait_until("the store connects again", BOUND, async || {
        assert_fails(&limiter, what, true).await;
        proxy.accepted() > 1
    })
    .await;
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    assert_passes(&limiter).await;
}

#[tokio::test]
async fn a_read_only_replica_is_left_and_passes() {
    assert_leaves(&Server::start().await, "READONLY").await;
}

#[tokio::test]
async fn a_stale_replica_is_left_and_passes() {
    // Redis 6.2 says MASTERDOWN, and later servers `on a stale replica`.
    let server = Server::with_args(&["--replica-serve-stale-data", "no"]).await;
    assert_leaves(&server, "").await;
}

#[tokio::test]
async fn missing_permissions_and_a_wrong_type_do_not_pass() {
    let server = Server::start().await;
    let url = server.url();
    let limited = limiter(url.clone());
    limited.check("key").await.unwrap().ensure_allowed().unwrap();
    let [redis_key]: [String; 1] = server.query(&["KEYS", "*"]).await;
    server.command(&["DEL", &redis_key]).await;
    server.command(&["RPUSH", &redis_key, "1"]).await;
    assert_fails(&limited, "WRONGTYPE", false).await;

    let url = url.replace("redis://", "redis://fleetlimit:secret@");
    let limited = limiter(url.clone());
    server.grant(&["+evalsha", "+eval", "+time"]).await;
    assert_fails(&limited, "", false).await;
    server.grant(&["+time"]).await;
    assert_fails(&limited, "", false).await;
    let wrong_password = limiter(url.replace("secret", "wrong"));
    assert_fails(&wrong_password, "", false).await;
}

/// Starts a server that replies so to all scripts. Returns its URL.
async fn replies_to_scripts(reply: String) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("redis://{}/?protocol=resp2", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let reply = reply.clone();
            tokio::spawn(async move {
                let mut received = Vec::new();
                while let Ok(1..) = client.read_buf(&mut received).await {
                    while let Some((command, length)) = parse(&received) {
                        received.drain(..length);
                        let is_script = command[0].starts_with(b"EVAL");
                        let reply = if is_script { &*reply } else { "+OK\r\n" };
                        client.write_all(reply.as_bytes()).await.unwrap_or(());
                    }
                }
            });
        }
    });
    url
}

/// A server can write as much as it likes, and each check may log it.
#[tokio::test]
async fn an_error_of_a_megabyte_is_neither_kept_nor_logged_whole() {
    let long = "x".repeat(1_000_000);
    for reply in [
        format!("-ERR {long}\r\n"),
        format!("-MOVED 5 {long}:7000\r\n"),
        // The error of a single key.
        format!("${}\r\n!ERR {long}\r\n", long.len() + 5),
    ] {
        let (log, _guard) = Log::capture();
        let store = RedisStore::open(&*replies_to_scripts(reply).await).unwrap();
        let closed = test_limiter(store.clone(), Quota::per_hour(10));
        let policy = Policy::new("local").quota("permits", Quota::per_hour(10));
        let local = Limiter::new(store, policy).unwrap();
        for key in ["a", "b"] {
            let error = closed.check(key).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Server);
            assert!(text(&error).len() < 1_000, "{} bytes", text(&error).len());
            assert!(format!("{error:?}").len() < 1_000, "{} bytes", format!("{error:?}").len());
            assert_eq!(local.check(key).await.unwrap().source(), Source::Local);
        }
        wait_until("the registration fails", BOUND, async || {
            log.events().iter().any(|line| line.contains("cannot register"))
        })
        .await;
        for line in log.events() {
            assert!(line.len() < 1_500, "{} bytes", line.len());
        }
    }
}

//! The test servers and the proxy. If they did not cause the faults that they promise, the other
//! tests would prove nothing.

use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisResult, ServerErrorKind, Value, cmd};
use tokio::time::timeout;

use crate::common::{BOUND, Cluster, Proxy, Sentinel, Server, connect, wait_until};

/// A server on this machine replies in less time.
const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

async fn increment(connection: &mut MultiplexedConnection) -> RedisResult<u64> {
    cmd("INCR").arg("n").query_async(connection).await
}

async fn gets_no_reply(connection: &mut MultiplexedConnection) -> bool {
    timeout(REPLY_TIMEOUT, increment(connection)).await.is_err()
}

fn is_alive(pid: u32) -> bool {
    let found = Command::new("sh").args(["-c", &format!("kill -0 {pid}")]).output();
    found.unwrap().status.success()
}

#[tokio::test]
async fn servers_share_no_data() {
    let (one, other) = (Server::start().await, Server::start().await);
    one.command(&["SET", "k", "v"]).await;
    assert_eq!(other.command(&["GET", "k"]).await, Value::Nil);
}

#[tokio::test]
async fn another_port_is_used_if_the_first_is_taken() {
    let taken = Server::start().await;
    let is_first = AtomicBool::new(true);
    let server = Server::launch(|port, dir| {
        let is_first = is_first.swap(false, SeqCst);
        Server::options(if is_first { taken.port() } else { port }, dir)
    })
    .await;
    assert_ne!(server.port(), taken.port());
    assert_eq!(server.info("server").await["tcp_port"], server.port().to_string());
}

#[tokio::test]
async fn a_stopped_server_refuses_connections_and_restarts_empty_on_the_same_port() {
    let server = Server::start().await;
    let mut connection = connect(&server.url()).await.unwrap();
    increment(&mut connection).await.unwrap();

    server.stop();
    assert!(increment(&mut connection).await.unwrap_err().is_io_error());
    assert!(connect(&server.url()).await.unwrap_err().is_connection_refusal());

    server.restart().await;
    assert_eq!(server.query::<u64>(&["INCR", "n"]).await, 1);
}

#[tokio::test]
async fn a_paused_server_does_not_reply_until_it_is_resumed() {
    let server = Server::start().await;
    let mut connection = connect(&server.url()).await.unwrap();
    server.pause();
    assert!(gets_no_reply(&mut connection).await);
    server.resume();
    // The server also runs the command that it received while it was paused.
    assert_eq!(increment(&mut connection).await.unwrap(), 2);
}

#[tokio::test]
async fn a_panicking_test_leaves_no_process_and_no_directory() {
    let server = Server::start().await;
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    assert!(is_alive(pid));
    server.pause();
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(move || {
        let _server = server;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

#[tokio::test]
async fn options_are_passed_to_the_server() {
    let server = Server::with_args(&["--maxmemory", "3mb"]).await;
    let maximum = server.query::<(String, u64)>(&["CONFIG", "GET", "maxmemory"]).await;
    assert_eq!(maximum.1, 3 * 1024 * 1024);
}

#[tokio::test]
async fn command_stats_count_only_the_commands_of_the_test() {
    let server = Server::start().await;
    assert!(server.command_stats().await.is_empty());
    server.command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"]).await;
    server.command(&["EVAL", "return 1", "0"]).await;
    let stats = server.command_stats().await;
    let expected = [("eval", 2), ("get", 1)];
    assert!(stats.iter().map(|(name, &calls)| (name.as_str(), calls)).eq(expected), "{stats:?}");
}

#[tokio::test]
async fn time_micros_advances_in_microseconds() {
    let server = Server::start().await;
    let before = (server.time_micros().await, Instant::now());
    wait_until("2 ms have passed", BOUND, async || before.1.elapsed().as_micros() > 2_000).await;
    let elapsed = server.time_micros().await - before.0;
    assert!((2_000..30_000_000).contains(&elapsed), "{elapsed}");
}

#[tokio::test]
#[should_panic(expected = "condition not met within 20ms: it returns")]
async fn wait_until_panics_if_its_condition_hangs() {
    wait_until("it returns", Duration::from_millis(20), async || std::future::pending().await)
        .await;
}

#[tokio::test]
async fn a_cluster_spreads_the_slots_and_reports_their_owners() {
    let cluster = Cluster::start().await;
    for (slot, owner) in [(0, 0), (5_461, 0), (5_462, 1), (10_923, 1), (10_924, 2), (16_383, 2)] {
        assert_eq!(cluster.slot_owner(slot).await, owner, "{slot}");
    }
    let slot = cluster.slot_of("{a}").await;
    let owner = cluster.slot_owner(slot).await;
    for n in 0..3 {
        let set = cluster.node(n).try_query::<()>(&["SET", "{a}", "1"]).await;
        assert_eq!(set.is_ok(), n == owner, "{n}: {set:?}");
    }
}

#[tokio::test]
async fn a_slot_migrates_with_its_keys_in_separate_steps() {
    let cluster = Cluster::start().await;
    let slot = cluster.slot_of("{a}").await;
    let from = cluster.slot_owner(slot).await;
    let to = (from + 1) % 3;
    let (source, target) = (cluster.node(from), cluster.node(to));
    for n in 0..250 {
        let set = ["SET".into(), format!("{{a}}{n}").into_bytes(), vec![0xff, 0, b'\n']];
        source.command(&set).await;
    }

    cluster.begin_migration(slot, from, to).await;
    assert_eq!(source.query::<Vec<u8>>(&["GET", "{a}0"]).await, [0xff, 0, b'\n']);
    let missing = source.try_query::<Value>(&["GET", "{a}none"]).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Server(ServerErrorKind::Ask));
    assert_eq!(cluster.slot_owner(slot).await, from);

    cluster.move_keys(slot, from, to).await;
    let moved = source.try_query::<Value>(&["GET", "{a}0"]).await.unwrap_err();
    assert_eq!(moved.kind(), ErrorKind::Server(ServerErrorKind::Ask));

    cluster.finish_migration(slot, from, to).await;
    assert_eq!(target.query::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).await, 250);
    assert_eq!(target.query::<Vec<u8>>(&["GET", "{a}249"]).await, [0xff, 0, b'\n']);
    let moved = source.try_query::<Value>(&["GET", "{a}0"]).await.unwrap_err();
    assert_eq!(moved.kind(), ErrorKind::Server(ServerErrorKind::Moved));
    assert_eq!(cluster.slot_owner(slot).await, to);
    cluster.wait_until_consistent().await;

    cluster.migrate_slot(slot, to, from).await;
    assert_eq!(source.query::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).await, 250);
}

#[tokio::test]
async fn a_restarted_cluster_node_keeps_its_slots() {
    let cluster = Cluster::start().await;
    cluster.node(1).restart().await;
    cluster.wait_until_consistent().await;
    assert_eq!(cluster.slot_owner(8_000).await, 1);
}

#[tokio::test]
async fn a_node_that_is_cut_off_on_the_bus_still_replies_and_does_not_learn_of_the_promotion() {
    let cluster = Cluster::with_replica().await;
    cluster.isolate_first_node().await;
    let role: Vec<redis::Value> = cluster.replica().query(&["ROLE"]).await;
    assert_eq!(role[0], redis::Value::BulkString(b"master".to_vec()));
    assert_eq!(cluster.slot_owner(0).await, 0, "according to the node that was cut off");
}

#[tokio::test]
async fn a_proxied_cluster_redirects_clients_to_its_proxies() {
    let cluster = Cluster::proxied().await;
    let slot = cluster.slot_of("n").await;
    let owner = cluster.slot_owner(slot).await;
    let other = cluster.node((owner + 1) % 3);
    let redirection = other.try_query::<Value>(&["INCR", "n"]).await.unwrap_err();
    let (address, _) = redirection.redirect_node().unwrap();
    assert_eq!(format!("redis://{address}/"), cluster.urls()[owner]);

    let mut connection = connect(&cluster.urls()[owner]).await.unwrap();
    assert_eq!(increment(&mut connection).await.unwrap(), 1);
    cluster.proxy(owner).swallow(true);
    assert!(gets_no_reply(&mut connection).await);
    cluster.wait_until_consistent().await;
}

#[tokio::test]
async fn a_requested_failover_promotes_the_replica() {
    let sentinel = Sentinel::start().await;
    let (old, new) = (sentinel.primary().port(), sentinel.replica().port());
    sentinel.primary().command(&["SET", "k", "v"]).await;
    let mut connection = connect(&sentinel.primary().url()).await.unwrap();
    increment(&mut connection).await.unwrap();
    sentinel.failover().await;
    assert_eq!((sentinel.primary().port(), sentinel.replica().port()), (new, old));
    assert_eq!(sentinel.primary().query::<String>(&["GET", "k"]).await, "v");

    sentinel.demote().await;
    let rejected = increment(&mut connection).await.unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly));
}

#[tokio::test]
async fn a_stopped_primary_is_replaced() {
    let sentinel = Sentinel::start().await;
    let new = sentinel.replica().port();
    sentinel.primary().stop();
    sentinel.wait_until_promoted().await;
    assert_eq!(sentinel.primary().port(), new);
    sentinel.primary().command(&["SET", "k", "v"]).await;
}

#[tokio::test]
async fn a_connection_that_has_lost_data_in_the_proxy_gets_no_more_replies() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let mut old = connect(&proxy.url()).await.unwrap();
    assert_eq!(increment(&mut old).await.unwrap(), 1);

    proxy.swallow(true);
    assert!(gets_no_reply(&mut old).await);
    assert!(gets_no_reply(&mut connect(&proxy.url()).await.unwrap()).await);

    proxy.swallow(false);
    assert!(gets_no_reply(&mut old).await);
    assert_eq!(increment(&mut connect(&proxy.url()).await.unwrap()).await.unwrap(), 2);
    assert_eq!(proxy.accepted(), 3);
}

#[tokio::test]
async fn a_disconnect_on_reply_happens_after_the_command_has_run() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let mut connection = connect(&proxy.url()).await.unwrap();
    proxy.disconnect_on_reply(1);
    assert!(increment(&mut connection).await.unwrap_err().is_connection_dropped());
    assert_eq!(proxy.disconnects_left(), 0);
    assert_eq!(increment(&mut connect(&proxy.url()).await.unwrap()).await.unwrap(), 2);
}

#[tokio::test]
async fn a_proxy_that_refuses_connections_keeps_the_open_ones() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let mut connection = connect(&proxy.url()).await.unwrap();
    assert_eq!(increment(&mut connection).await.unwrap(), 1);
    proxy.refuse().await;
    assert!(connect(&proxy.url()).await.unwrap_err().is_connection_refusal());
    assert_eq!(increment(&mut connection).await.unwrap(), 2);
    proxy.accept().await;
    assert_eq!(increment(&mut connect(&proxy.url()).await.unwrap()).await.unwrap(), 3);
}

#[tokio::test]
async fn disconnect_all_closes_the_connections_and_new_ones_are_accepted() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let mut one = connect(&proxy.url()).await.unwrap();
    let mut other = one.clone();
    assert_eq!(increment(&mut one).await.unwrap(), 1);
    proxy.disconnect_all().await;
    assert!(increment(&mut other).await.unwrap_err().is_io_error());
    assert_eq!(increment(&mut connect(&proxy.url()).await.unwrap()).await.unwrap(), 2);
}

#[tokio::test]
async fn each_reply_is_delayed_and_the_delays_overlap() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let connection = connect(&proxy.url()).await.unwrap();
    let delay = Duration::from_millis(100);
    proxy.delay(delay);
    let started = Instant::now();
    let calls = (0..50).map(|_| {
        let mut connection = connection.clone();
        tokio::spawn(async move {
            increment(&mut connection).await.unwrap();
            started.elapsed()
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let latency = call.await.unwrap();
        assert!((delay..25 * delay).contains(&latency), "{latency:?}");
    }
}

#[tokio::test]
async fn a_round_trip_takes_its_time_and_hardly_more_and_keeps_the_order() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    let round_trip = Duration::from_millis(30);
    proxy.round_trip(round_trip);
    let started = Instant::now();
    let mut connection = connect(&proxy.url()).await.unwrap();
    assert_eq!(increment(&mut connection).await.unwrap(), 1);
    assert!(started.elapsed() >= 2 * round_trip, "the connection was made at once");

    // On a busy machine some take longer, but not all. Timers of whole milliseconds would add at
    // least 2 ms.
    let mut shortest = Duration::MAX;
    for n in 2..22 {
        let started = Instant::now();
        assert_eq!(increment(&mut connection).await.unwrap(), n);
        assert!(started.elapsed() >= round_trip, "{:?}", started.elapsed());
        shortest = shortest.min(started.elapsed());
    }
    assert!(shortest < round_trip + Duration::from_micros(1_800), "{shortest:?}");

    let started = Instant::now();
    let calls = (0..50).map(|_| {
        let mut connection = connection.clone();
        tokio::spawn(async move { increment(&mut connection).await.unwrap() })
    });
    for (n, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), 22 + n as u64);
    }
    assert!(started.elapsed() < 10 * round_trip, "the round trips do not overlap");
}

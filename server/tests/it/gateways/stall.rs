//! Envoy in front of a server that does not run for a while.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::Client;

use crate::common::{Gateway, Server};

const CLIENTS: usize = 100;
/// A client of each sends so many requests one after the other, so that Envoy cancels its checks again and again.
const ROUNDS: usize = 3;

/// The local ports of the established connections to this port.
fn connections(port: u16) -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lines = lines.filter(|fields| fields[2].ends_with(&remote) && fields[3] == "01");
    lines.map(|fields| fields[1].to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn a_stall_does_not_close_the_connections_of_envoy() {
    let server = Server::with_domain(
        "domain: app\ndescriptors: [{ key: remote_address, rate_limit: { unit: year, requests_per_unit: 1000000 } }]",
        "",
    );
    let envoy = Gateway::envoy(&server);
    let client = Client::new();
    let get = || async { client.get(envoy.url()).send().await.unwrap() };
    // With the header of a check that was answered.
    assert!(get().await.headers().contains_key("ratelimit"));
    let before = connections(server.grpc.port());
    assert!(!before.is_empty());
    server.signal("STOP");
    join_all((0..CLIENTS).map(|_| async {
        for _ in 0..ROUNDS {
            get().await;
        }
    }))
    .await;
    server.signal("CONT");
    assert!(get().await.headers().contains_key("ratelimit"));
    assert!(connections(server.grpc.port()).is_superset(&before));
}

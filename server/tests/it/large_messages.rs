//! Large messages of some gateways, and the checks of others.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;

use crate::common::{Redis, Server, request};
use crate::memory::{Hostile, begin, connect, message};

const CONNECTIONS: usize = 4;
const IN_FLIGHT: usize = 50;
const CHECKS: usize = 65;

/// The checks that were decided without Redis.
async fn decided_locally(server: &Server) -> u64 {
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    let decisions = metrics.lines().filter(|line| line.starts_with("fleetlimit_decisions_total{"));
    let local = decisions.filter(|line| line.contains("=\"local\""));
    local.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_do_not_push_the_checks_of_other_gateways_into_local_mode() {
    let redis = Redis::start().await;
    let server = Server::with_domain(
        "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1000000 } }]",
        &format!("store: {{ redis: '{}' }}\nchecks: {{ timeout: 1s }}", redis.url()),
    );
    let value = "x".repeat(50);
    // Entries of two bytes, descriptors of two bytes, and as many of both as are allowed.
    let many_entries = request("d", &[&[("", ""); 130_000]]);
    let many_descriptors = request("d", &vec![&[][..]; 130_000]);
    let allowed = request("d", &vec![&[("key", &*value); 64][..]; 64]);
    for hostile in [many_entries, many_descriptors, allowed] {
        let hostile = Hostile::new(message(&hostile).freeze());
        assert!((240_000..262_144).contains(&hostile.body.len()), "{}", hostile.body.len());
        let before = decided_locally(&server).await;
        let is_done = AtomicBool::new(false);
        let flood = join_all((0..CONNECTIONS).map(|_| async {
            let requests = connect(&server, 65_535).await;
            let send = || async {
                while !is_done.load(Ordering::Relaxed) {
                    // It may be refused.
                    let _ = begin(&requests, &hostile).await.0.await;
                }
            };
            join_all((0..IN_FLIGHT).map(|_| send())).await;
        }));
        let checks = async {
            let mut client = server.client().await;
            for _ in 0..CHECKS {
                client.ask("d", &[("user", "ada")]).await;
            }
            is_done.store(true, Ordering::Relaxed);
        };
        tokio::join!(flood, checks);
        let local = decided_locally(&server).await - before;
        println!("{local} of {CHECKS} were decided locally");
        assert_eq!(local, 0, "of {CHECKS}");
    }
}

//! Copies of the server behind one Redis.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use futures_util::future::join_all;

use crate::common::{Client, Redis, Server};

const SETTINGS: &str = "
policies: { day: { requests: 100/day } }
domains: [d.yaml]
checks: { timeout: 4s }
";
const DOMAIN: &str = "domain: d\ndescriptors: [{ key: user, policy: day }]";

fn copy(redis: &Redis) -> Server {
    let files = crate::common::Files::new(&[("settings.yaml", SETTINGS), ("d.yaml", DOMAIN)]);
    // The files are read before the server listens.
    Server::start(&files.path("settings.yaml"), &[("REDIS_URL", &redis.url())])
}

async fn admitted(clients: &[Client], checks: usize) -> usize {
    let checks = (0..checks).map(|n| {
        let mut client = clients[n % clients.len()].clone();
        async move { client.ask("d", &[("user", "ada")]).await.overall_code() }
    });
    join_all(checks).await.iter().filter(|code| **code == Code::Ok).count()
}

#[tokio::test]
async fn copies_share_the_limit_and_a_killed_one_loses_nothing() {
    let redis = Redis::start().await;
    let (mut first, second) = (copy(&redis), copy(&redis));
    let clients = [first.client().await, second.client().await];
    assert_eq!(admitted(&clients, 60).await, 60);
    first.kill();
    assert_eq!(admitted(&clients[1..], 100).await, 40);
    let third = copy(&redis);
    assert_eq!(admitted(&[third.client().await], 5).await, 0);
}

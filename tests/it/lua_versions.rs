//! Servers with other versions of Lua than that of Redis: Dragonfly and Garnet have 5.4.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetlimit::{BlockList, RedisStore};

use crate::common::Server;
use crate::{mixes, state, time_travel};

#[test]
fn scripts_call_and_reply_the_same_under_every_version_of_lua_for_any_mix_of_quotas() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::with_every_lua());
    mixes::compare(&runtime, &server, 60);
}

#[tokio::test]
async fn scripts_call_and_reply_the_same_under_every_version_of_lua_at_any_time() {
    time_travel::compare(&Server::with_every_lua().await, 60).await;
}

#[tokio::test]
async fn corrupt_values_are_repaired_under_every_version_of_lua() {
    state::repair_invalid_values(&Server::with_every_lua().await).await;
}

/// The number of variables and registers is limited.
#[tokio::test]
async fn the_largest_scripts_run_under_every_version_of_lua() {
    state::run_the_largest_policies(&Server::with_every_lua().await).await;
}

#[tokio::test]
async fn shares_follow_the_demand_under_every_version_of_lua() {
    const SCRIPT: &str = include_str!("../../lua/fleet.lua");
    const KEY: &str = "fleet";

    let server = Server::with_every_lua().await;
    let ids: Vec<u64> = (1..=7).map(|n| n * 1_234_567_890_123_456_789).collect();
    let register = async |id: u64, weight: u64, known: u64| {
        let args = [id, weight, known, 300_000].map(|number| number.to_string());
        let call = ["EVAL", SCRIPT, "1", KEY].into_iter().chain(args.iter().map(String::as_str));
        let call: Vec<_> = call.collect();
        let (known, _, plan, _) = server.query::<(u64, u64, String, String)>(&call).await;
        (known, plan)
    };
    let demand = [100, 137, 174, 211, 248, 285, 322];
    let mut known = 0;
    for weights in [[100; 7], demand] {
        for (id, weight) in ids.iter().zip(weights) {
            (known, _) = register(*id, weight, known).await;
        }
    }
    let mut plan = String::new();
    for _ in 0..3 {
        // Until all know the plan, it follows no demand. So it follows only here, at a scan that sees all of it.
        let state = format!("{known} {known} 0 0 0");
        server.command(&["HSET", KEY, "state", &state]).await;
        (known, plan) = register(ids[0], demand[0], known).await;
    }
    let planned: BTreeMap<u64, u64> = plan
        .split(' ')
        .collect::<Vec<_>>()
        .chunks(2)
        .map(|pair| (pair[0].parse().unwrap(), pair[1].parse().unwrap()))
        .collect();
    let planned: Vec<_> = ids.iter().map(|id| planned[id]).collect();
    assert_eq!(planned, demand);
}

#[tokio::test]
async fn keys_are_blocked_under_every_version_of_lua() {
    let server = Server::with_every_lua().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let (one, other) = (BlockList::new(&store()), BlockList::new(&store()));
    let hour = Duration::from_secs(3_600);
    for key in ["a", "b", "b"] {
        one.block("api", key, hour).await.unwrap();
    }
    one.unblock("api", "a").await.unwrap();
    other.refresh().await.unwrap();
    assert_eq!(other.get("api", &"a".into()), None);
    let remaining = other.get("api", &"b".into()).unwrap();
    assert!(remaining <= hour && remaining > hour - Duration::from_secs(60), "{remaining:?}");
}

//! Redis Cluster and Sentinel as stores, and a Redis that is gone.

use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::json;
use tokio::time::sleep;
use tonic::Code as Grpc;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::common::{FREE_PORTS, Files, PATIENCE, Redis, Server, request, until};
use crate::redis_servers::{Cluster, Sentinel};

const DOMAIN: &str = "
domain: d
descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 3 } }]
";

/// Two instances that share this store.
fn instances(store: &str) -> [Server; 2] {
    let settings = format!("store: {store}\nchecks: {{ timeout: 4s, failure_mode: closed }}");
    [(); 2].map(|()| Server::with_domain(DOMAIN, &settings))
}

fn list(urls: &[String]) -> String {
    format!("[{}]", urls.join(", "))
}

#[tokio::test]
async fn instances_share_limits_on_a_cluster() {
    let cluster = Cluster::start().await;
    let instances = instances(&format!("{{ cluster: {} }}", list(&cluster.urls())));
    let mut clients = [instances[0].client().await, instances[1].client().await];
    // Enough keys for every node to have some.
    for user in 0..12 {
        let user = format!("user-{user}");
        let mut codes = Vec::new();
        for n in 0..4 {
            codes.push(clients[n % 2].ask("d", &[("user", &user)]).await.overall_code());
        }
        assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit], "{user}");
    }
}

#[tokio::test]
async fn a_reload_opens_no_second_store() {
    let redis = Redis::start().await;
    let [server, _] = instances(&format!("{{ redis: '{}' }}", redis.url()));
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("user", "ada")]).await.overall_code(), Code::Ok);
    server.signal("HUP");
    let log = server.lines_until("configuration reloaded");
    assert!(!log.iter().any(|line| line.contains("several stores")), "{log:?}");
}

/// For a proxy that does not refuse calls with several keys, as a cluster does.
#[tokio::test]
async fn with_one_key_per_call_no_call_is_for_keys_of_several_servers() {
    let redis = Redis::with_all_slots().await;
    let store = format!("{{ redis: '{}', one_key_per_call: true }}", redis.url());
    let [server, _] = instances(&store);
    let client = server.client().await;
    let codes = (0..100).map(|user: u32| {
        let mut client = client.clone();
        async move { client.ask("d", &[("user", &user.to_string())]).await.overall_code() }
    });
    assert_eq!(join_all(codes).await, [Code::Ok; 100]);
    let errors = redis.info("errorstats").await;
    assert!(!errors.contains_key("errorstat_CROSSSLOT"), "{errors:?}");
}

#[tokio::test]
async fn instances_share_limits_through_a_failover_of_sentinel() {
    let sentinel = Sentinel::start().await;
    let (urls, service) = (list(&sentinel.urls()), sentinel.service_name());
    let instances = instances(&format!("{{ sentinel: {{ urls: {urls}, service: {service} }} }}"));
    let mut clients = [instances[0].client().await, instances[1].client().await];
    for client in &mut clients {
        assert_eq!(client.ask("d", &[("user", "ada")]).await.overall_code(), Code::Ok);
    }
    sentinel.failover().await;
    // Stops the old primary, which would answer until the sentinels demote it.
    sentinel.replica().stop();
    let mut codes = Vec::new();
    for client in &mut clients {
        until(async || match client.send(request("d", &[&[("user", "ada")]])).await {
            Ok(response) => {
                codes.push(response.overall_code());
                true
            }
            Err(_) => false,
        })
        .await;
    }
    assert_eq!(codes, [Code::Ok, Code::OverLimit]);
}

#[tokio::test]
async fn without_redis_the_failure_mode_answers() {
    let redis = Redis::start().await;
    let server = |failure_mode: &str| {
        let settings = format!(
            "store: {{ redis: '{}', key_prefix: {failure_mode} }}\nchecks: {{ timeout: 1s, failure_mode: {failure_mode} }}\n\
             policies: {{ day: {{ requests: 1/day }} }}",
            redis.url()
        );
        Server::with_domain(DOMAIN, &settings)
    };
    let (closed, open, local) = (server("closed"), server("open"), server("local"));
    for server in [&closed, &open, &local] {
        let response = server.client().await.ask("d", &[("user", "bob")]).await;
        assert_eq!(response.overall_code(), Code::Ok);
    }
    redis.stop();
    for (server, allowed) in [(&closed, 0), (&open, 5), (&local, 3)] {
        let mut client = server.client().await;
        let mut codes = Vec::new();
        for _ in 0..5 {
            let response = client.send(request("d", &[&[("user", "ada")]])).await;
            codes.push(response.map(|response| response.overall_code()).map_err(|e| e.code()));
        }
        let is_allowed = |code: &&_| **code == Ok(Code::Ok);
        assert_eq!(codes.iter().filter(is_allowed).count(), allowed, "{codes:?}");
        let rest = if allowed == 0 { Err(Grpc::Unavailable) } else { Ok(Code::OverLimit) };
        assert!(codes[allowed..].iter().all(|code| *code == rest), "{codes:?}");

        let mut returned = request("d", &[&[("user", "eve")]]);
        returned.descriptors[0].is_negative_hits = true;
        let is_answered = client.send(returned).await.is_ok();
        assert_eq!(is_answered, allowed > 0, "hits given back");

        let auth = reqwest::Client::new().get(server.http("/auth?policy=day"));
        let response = auth.header("x-forwarded-for", "192.0.2.1").send().await.unwrap();
        let expected = if allowed == 0 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        assert_eq!(response.status(), expected);
        let check = reqwest::Client::new().post(server.http("/v1/check"));
        let response = check.json(&json!({ "policy": "day", "key": "ada" })).send().await.unwrap();
        assert_eq!(response.status(), expected);
        let ready = async || reqwest::get(server.http("/readyz")).await.unwrap().status();
        until(async || ready().await == expected).await;
    }
}

/// Envoy lets a request pass whose check fails. So a client must not get there by sending another
/// descriptor, whose check does.
#[tokio::test]
async fn a_request_that_is_denied_anyway_does_not_fail_with_another_check() {
    let redis = Redis::start().await;
    let domain = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: never, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: a, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: b, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: tokens, count_denied: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let settings = format!(
        "store: {{ redis: '{}' }}\nchecks: {{ timeout: 1s, failure_mode: closed }}\nallow: [friend]\ndeny: [foe]",
        redis.url()
    );
    let server = Server::with_domain(domain, &settings);
    let mut client = server.client().await;
    client.ask("d", &[("user", "ada")]).await;
    redis.stop();
    let (user, other) = ([("user", "ada")], [("user", "bob")]);
    for (keys, expected) in [
        (&[&user[..], &[("never", "x")]][..], Ok([Code::Unknown, Code::OverLimit])),
        (&[&user, &[("user", "foe")]], Ok([Code::Unknown, Code::OverLimit])),
        // Two hits are more than the limit, whatever the store says.
        (&[&user, &[("tokens", "x")]], Ok([Code::Unknown, Code::OverLimit])),
        (&[&user, &other], Err(Grpc::Unavailable)),
        // One of these is enough, and it may be the one that is unknown.
        (&[&[("a", "x")], &[("b", "x")]], Err(Grpc::Unavailable)),
    ] {
        let mut request = request("d", keys);
        request.hits_addend = 2;
        let answer = client.send(request).await.map_err(|status| status.code());
        let codes = answer.map(|response| {
            assert_eq!(response.overall_code(), Code::OverLimit, "{keys:?}");
            [0, 1].map(|index: usize| response.statuses[index].code())
        });
        assert_eq!(codes, expected, "{keys:?}");
    }
    let quotas: [&[_]; 2] = [&[("a", "friend")], &[("a", "x")]];
    let allowed = client.send(request("d", &quotas)).await.unwrap();
    assert_eq!(allowed.overall_code(), Code::Ok, "one of the quotas is enough");
}

#[tokio::test]
async fn a_store_that_cannot_be_used_is_reported_at_the_start() {
    let redis = Redis::start().await;
    let _: () = redis.query(&["CONFIG", "SET", "requirepass", "secret"]).await;
    for failure_mode in ["open", "local", "closed"] {
        let server = Server::with_settings(&format!(
            "{{ store: {{ redis: '{}' }}, checks: {{ failure_mode: {failure_mode} }}, policies: {{ a: {{ q: 1/s }} }} }}",
            redis.url()
        ));
        let line = server.wait_for_line("the store cannot be used");
        assert!(line.contains("ERROR") && line.contains("NOAUTH"), "{line}");
    }
}

/// Two instances with this environment.
fn instances_of(env: &[(&str, &str)]) -> [Server; 2] {
    let settings = ("FLEETLIMIT_SETTINGS", "policies: { a: { q: 3/day } }");
    let checks = [("FLEETLIMIT_TIMEOUT", "4s"), ("FLEETLIMIT_FAILURE_MODE", "closed"), settings];
    let env = [env, &FREE_PORTS, &checks].concat();
    [(); 2].map(|()| Server::with_env(&env))
}

#[tokio::test]
async fn a_cluster_and_sentinels_can_be_given_in_the_environment() {
    let (cluster, sentinel) = (Cluster::start().await, Sentinel::start().await);
    let (nodes, sentinels) = (cluster.urls().join(","), sentinel.urls().join(","));
    for instances in [
        instances_of(&[("REDIS_CLUSTER", &nodes)]),
        instances_of(&[
            ("REDIS_SENTINEL", &sentinels),
            ("REDIS_SENTINEL_SERVICE", sentinel.service_name()),
        ]),
    ] {
        let mut allowed = Vec::new();
        for n in 0..4 {
            let check = reqwest::Client::new().post(instances[n % 2].http("/v1/check"));
            let response =
                check.json(&json!({ "policy": "a", "key": "ada" })).send().await.unwrap();
            allowed.push(response.json::<serde_json::Value>().await.unwrap()["allowed"].clone());
        }
        assert_eq!(allowed, [true, true, true, false]);
    }
}

#[tokio::test]
async fn a_block_is_in_force_on_other_instances_and_ends() {
    let redis = Redis::start().await;
    let settings =
        format!("{{ store: {{ redis: '{}' }}, policies: {{ a: {{ q: 900/s }} }} }}", redis.url());
    let instances = [(); 2].map(|()| Server::with_settings(&settings));
    let block = reqwest::Client::new().post(instances[0].admin("/api/block"));
    let body = json!({ "policy": "a", "key": "ada", "seconds": 4 });
    assert_eq!(block.json(&body).send().await.unwrap().status(), StatusCode::NO_CONTENT);
    let is_allowed = async || {
        let check = reqwest::Client::new().post(instances[1].http("/v1/check"));
        let response = check.json(&json!({ "policy": "a", "key": "ada" })).send().await.unwrap();
        response.json::<serde_json::Value>().await.unwrap()["allowed"] == true
    };
    until(async || !is_allowed().await).await;
    until(is_allowed).await;
}

#[tokio::test]
async fn a_block_is_in_force_from_the_first_request_of_an_instance() {
    let redis = Redis::start().await;
    let settings =
        format!("{{ store: {{ redis: '{}' }}, policies: {{ a: {{ q: 900/s }} }} }}", redis.url());
    let first = Server::with_settings(&settings);
    let block = reqwest::Client::new().post(first.admin("/api/block"));
    let body = json!({ "policy": "a", "key": "ada", "seconds": 3_600 });
    assert_eq!(block.json(&body).send().await.unwrap().status(), StatusCode::NO_CONTENT);
    let new = Server::with_settings(&settings);
    let check = reqwest::Client::new().post(new.http("/v1/check"));
    let response = check.json(&json!({ "policy": "a", "key": "ada" })).send().await.unwrap();
    assert_eq!(response.json::<serde_json::Value>().await.unwrap()["source"], "block");
}

#[tokio::test]
async fn an_instance_is_ready_while_any_node_of_a_cluster_answers() {
    let cluster = Cluster::start().await;
    cluster.serve_without_all_nodes().await;
    let settings = format!(
        "store: {{ cluster: {} }}\nchecks: {{ timeout: 1s, failure_mode: closed }}\n\
         policies: {{ a: {{ q: 9/s }} }}",
        list(&cluster.urls())
    );
    let server = Server::with_settings(&settings);
    let is_ready =
        async || reqwest::get(server.http("/readyz")).await.unwrap().status().is_success();
    until(is_ready).await;
    let are_answered = async || {
        for key in 0..20 {
            let check = reqwest::Client::new().post(server.http("/v1/check"));
            let response = check.json(&json!({ "policy": "a", "key": key.to_string() })).send();
            if !response.await.unwrap().status().is_success() {
                return false;
            }
        }
        true
    };
    for stopped in 0..3 {
        cluster.node(stopped).pause();
        until(async || !are_answered().await).await;
        // The store is asked in this time.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            assert!(is_ready().await, "without node {stopped}");
            sleep(Duration::from_millis(50)).await;
        }
        cluster.node(stopped).resume();
        until(are_answered).await;
    }
    for node in 0..3 {
        cluster.node(node).pause();
    }
    until(async || !is_ready().await).await;
}

async fn check(server: &Server) -> serde_json::Value {
    let check = reqwest::Client::new().post(server.http("/v1/check"));
    let response = check.json(&json!({ "policy": "a", "key": "ada" })).send().await.unwrap();
    response.json().await.unwrap()
}

#[tokio::test]
async fn the_store_has_as_many_connections_as_configured() {
    for connections in [1, 3] {
        let redis = Redis::start().await;
        let server = Server::with_settings(&format!(
            "store: {{ redis: '{}', connections: {connections} }}\npolicies: {{ a: {{ q: 9/s }} }}",
            redis.url()
        ));
        let mut most = 0;
        until(async || {
            check(&server).await;
            let clients: String = redis.query(&["CLIENT", "LIST"]).await;
            // One of them lists the others.
            most = most.max(clients.lines().count() - 1);
            most == connections
        })
        .await;
        for _ in 0..20 {
            check(&server).await;
        }
        let clients: String = redis.query(&["CLIENT", "LIST"]).await;
        assert_eq!(clients.lines().count() - 1, connections);
    }
}

#[tokio::test]
async fn before_redis_was_reached_an_instance_has_its_share_of_those_configured() {
    for (instances, share) in [(1, 8), (4, 2)] {
        let redis = Redis::start().await;
        redis.stop();
        let server = Server::with_settings(&format!(
            "store: {{ redis: '{}', instances: {instances} }}\npolicies: {{ a: {{ q: 8/day }} }}",
            redis.url()
        ));
        let mut allowed = 0;
        for _ in 0..20 {
            let decision = check(&server).await;
            assert_eq!(decision["source"], "local");
            allowed += u64::from(decision["allowed"] == true);
        }
        assert_eq!(allowed, share, "of {instances}");
    }
}

#[tokio::test]
async fn denials_are_known_without_a_call_for_as_long_as_configured() {
    for (time, most) in [("0s", 20), ("1h", 0)] {
        let redis = Redis::start().await;
        let server = Server::with_settings(&format!(
            "store: {{ redis: '{}' }}\nchecks: {{ timeout: 4s, cache_denials: {time} }}\n\
             policies: {{ a: {{ q: 1/day }} }}",
            redis.url()
        ));
        let calls = async || redis.command_stats().await.get("evalsha").copied().unwrap_or(0);
        assert_eq!(check(&server).await["allowed"], true);
        assert_eq!(check(&server).await["allowed"], false);
        let before = calls().await;
        for _ in 0..20 {
            assert_eq!(check(&server).await["allowed"], false);
        }
        assert_eq!(calls().await - before, most, "{time}");
    }
}

/// Anyone may send these requests.
#[tokio::test]
async fn probes_make_no_calls_to_the_store() {
    let redis = Redis::start().await;
    let server = Server::with_settings(&format!(
        "store: {{ redis: '{}' }}\nchecks: {{ failure_mode: closed }}\n\
         policies: {{ a: {{ q: 9/s }} }}",
        redis.url()
    ));
    let start = Instant::now();
    for _ in 0..200 {
        assert!(reqwest::get(server.http("/readyz")).await.unwrap().status().is_success());
    }
    let calls = redis.command_stats().await.get("evalsha").copied().unwrap_or(0);
    // The service itself asks once per second, and at the start.
    assert!(calls < 10 + 2 * start.elapsed().as_secs(), "{calls} calls");
}

#[tokio::test]
async fn health_checks_over_grpc_follow_the_store_as_readyz_does() {
    let redis = Redis::start().await;
    let server = |failure_mode: &str| {
        let checks = format!("checks: {{ timeout: 1s, failure_mode: {failure_mode} }}");
        Server::with_domain(DOMAIN, &format!("store: {{ redis: '{}' }}\n{checks}", redis.url()))
    };
    let servers = [(server("closed"), true), (server("open"), false), (server("local"), false)];
    let services = ["", "envoy.service.ratelimit.v3.RateLimitService"];
    let (closed, _) = &servers[0];
    let mut health = closed.health().await;
    let mut watches = Vec::new();
    for service in services {
        let request = HealthCheckRequest { service: service.to_owned() };
        watches.push(health.watch(request).await.unwrap().into_inner());
    }
    for round in 0..3 {
        match round {
            0 => {}
            1 => redis.stop(),
            _ => redis.restart().await,
        }
        let is_up = round != 1;
        let expected = if is_up { ServingStatus::Serving } else { ServingStatus::NotServing };
        for watch in &mut watches {
            let change = tokio::time::timeout(PATIENCE, watch.message()).await;
            let status = change.expect("no change is reported").unwrap().unwrap().status();
            assert_eq!(status, expected);
        }
        for (server, is_closed) in &servers {
            let is_ready = is_up || !is_closed;
            let ready = reqwest::get(server.http("/readyz")).await.unwrap().status();
            assert_eq!(ready.is_success(), is_ready);
            for service in services {
                let request = HealthCheckRequest { service: service.to_owned() };
                let reply = server.health().await.check(request).await.unwrap();
                let is_serving = reply.get_ref().status() == ServingStatus::Serving;
                assert_eq!(is_serving, is_ready);
            }
        }
    }
}

async fn is_decided(server: &Server) -> bool {
    let check = reqwest::Client::new().post(server.http("/v1/check"));
    let response = check.json(&json!({ "policy": "a", "key": "ada" })).send().await.unwrap();
    response.status().is_success()
}

#[tokio::test]
async fn a_password_that_rotates_in_its_file_needs_no_restart() {
    let redis = Redis::start().await;
    let set_password = async |password: &str| {
        let user = ["ACL", "SETUSER", "app", "on", "resetpass", password, "~*", "+@all"];
        redis.query::<()>(&user).await;
    };
    set_password(">first").await;
    let files = Files::new(&[("password", "first\n")]);
    let server = Server::with_settings(&format!(
        "store: {{ redis: 'redis://app@127.0.0.1:{}', password_file: {:?} }}\n\
         checks: {{ timeout: 4s, failure_mode: closed }}\npolicies: {{ a: {{ q: 900/s }} }}",
        redis.port(),
        files.path("password"),
    ));
    until(async || is_decided(&server).await).await;
    files.write("password", "second\r\n");
    set_password(">second").await;
    redis.query::<()>(&["CLIENT", "KILL", "USER", "app"]).await;
    until(async || is_decided(&server).await).await;
}

#[tokio::test]
async fn the_primary_of_sentinels_may_have_its_own_login() {
    let sentinel = Sentinel::start().await;
    sentinel
        .primary()
        .query::<()>(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"])
        .await;
    sentinel.primary().query::<()>(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]).await;
    let server = Server::with_settings(&format!(
        "store: {{ sentinel: {{ urls: {}, service: {}, primary: 'redis://app:secret@primary' }} }}\n\
         checks: {{ timeout: 4s, failure_mode: closed }}\npolicies: {{ a: {{ q: 900/s }} }}",
        list(&sentinel.urls()),
        sentinel.service_name(),
    ));
    until(async || is_decided(&server).await).await;
}

/// Others may do what the test itself does, but not what the store does.
async fn admit_only_users_with_a_password(sentinel: &Sentinel) {
    for n in 0..sentinel.urls().len() {
        sentinel.sentinel(n).query::<()>(&["ACL", "SETUSER", "default", "-sentinel"]).await;
    }
    sentinel.primary().query::<()>(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]).await;
}

#[tokio::test]
async fn passwords_of_sentinels_and_of_the_primary_rotate_in_files_of_their_own() {
    let sentinel = Sentinel::start().await;
    let set_password = async |server: &Redis, password: &str| {
        let user = ["ACL", "SETUSER", "app", "on", "resetpass", password, "~*", "&*", "+@all"];
        server.query::<()>(&user).await;
    };
    let set_passwords = async |of_sentinels: &str, of_primary: &str| {
        for n in 0..sentinel.urls().len() {
            set_password(sentinel.sentinel(n), of_sentinels).await;
        }
        set_password(sentinel.primary(), of_primary).await;
    };
    set_passwords(">sentinels-1", ">primary-1").await;
    admit_only_users_with_a_password(&sentinel).await;
    let files = Files::new(&[("sentinels", "sentinels-1\n"), ("primary", "primary-1\n")]);
    let urls: Vec<_> =
        sentinel.urls().iter().map(|url| url.replace("redis://", "redis://app@")).collect();
    let server = Server::with_settings(&format!(
        "store: {{ sentinel: {{ urls: {}, service: {}, password_file: {:?} }}, password_file: {:?} }}\n\
         checks: {{ timeout: 4s, failure_mode: closed }}\npolicies: {{ a: {{ q: 900/s }} }}",
        list(&urls),
        sentinel.service_name(),
        files.path("sentinels"),
        files.path("primary"),
    ));
    until(async || is_decided(&server).await).await;
    files.write("sentinels", "sentinels-2");
    files.write("primary", "primary-2");
    set_passwords(">sentinels-2", ">primary-2").await;
    for n in 0..sentinel.urls().len() {
        sentinel.sentinel(n).query::<()>(&["CLIENT", "KILL", "USER", "app"]).await;
    }
    sentinel.primary().query::<()>(&["CLIENT", "KILL", "USER", "app"]).await;
    until(async || is_decided(&server).await).await;
}

/// As they do if there is one password for everything.
#[tokio::test]
async fn the_password_file_of_sentinels_is_that_of_the_primary_too_unless_that_has_another() {
    let sentinel = Sentinel::start().await;
    let user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"];
    for n in 0..sentinel.urls().len() {
        sentinel.sentinel(n).query::<()>(&user).await;
    }
    sentinel.primary().query::<()>(&user).await;
    admit_only_users_with_a_password(&sentinel).await;
    let files = Files::new(&[("password", "secret")]);
    let urls: Vec<_> =
        sentinel.urls().iter().map(|url| url.replace("redis://", "redis://app@")).collect();
    let server = Server::with_settings(&format!(
        "store: {{ sentinel: {{ urls: {}, service: {}, password_file: {:?} }} }}\n\
         checks: {{ timeout: 4s, failure_mode: closed }}\npolicies: {{ a: {{ q: 900/s }} }}",
        list(&urls),
        sentinel.service_name(),
        files.path("password"),
    ));
    until(async || is_decided(&server).await).await;
}

//! The admin API.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

use crate::common::{FREE_PORTS, Files, Redis, Server, until};

const SETTINGS: &str = "policies: { search: { hour: 5/h } }";

async fn post(server: &Server, path: &str, body: Value) -> Response {
    Client::new().post(server.admin(path)).json(&body).send().await.unwrap()
}

async fn get(server: &Server, path: &str) -> Value {
    let response = Client::new().get(server.admin(path)).send().await.unwrap();
    response.json().await.unwrap()
}

async fn check(server: &Server, policy: &str, key: &str) {
    let body = json!({ "policy": policy, "key": key });
    Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
}

async fn remaining(server: &Server) -> u64 {
    let target = json!({ "policy": "search", "key": "ada" });
    let decision: Value = post(server, "/api/peek", target).await.json().await.unwrap();
    decision["remaining"].as_u64().unwrap()
}

#[tokio::test]
async fn operators_look_at_keys_and_change_them() {
    let server = Server::with_settings(SETTINGS);
    assert_eq!(remaining(&server).await, 5);
    let adjust = |cost: u64| json!({ "policy": "search", "key": "ada", "cost": cost });
    assert_eq!(post(&server, "/api/charge", adjust(4)).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(remaining(&server).await, 1);
    assert_eq!(post(&server, "/api/credit", adjust(2)).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(remaining(&server).await, 3);
    let target = json!({ "policy": "search", "key": "ada" });
    assert_eq!(post(&server, "/api/reset", target).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(remaining(&server).await, 5);
    let unknown = json!({ "policy": "serch", "key": "ada" });
    assert_eq!(post(&server, "/api/peek", unknown).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn charging_one_quota_leaves_the_others_as_they_are() {
    let server = Server::with_settings("policies: { upload: { files: 10/day, bytes: 1000/day } }");
    let key = json!({ "policy": "upload", "key": "ada" });
    let adjust = |path, more: Value| {
        let mut body = key.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(&server, path, body)
    };
    let left = async || {
        let body: Value = post(&server, "/api/peek", key.clone()).await.json().await.unwrap();
        let quotas = body["quotas"].as_array().unwrap().clone();
        quotas.iter().map(|quota| quota["remaining"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let bytes = json!({ "costs": { "bytes": 600 } });
    assert_eq!(adjust("/api/charge", bytes).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(left().await, [10, 400]);
    let both = json!({ "cost": 1, "costs": { "bytes": 100 } });
    assert_eq!(adjust("/api/charge", both).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(left().await, [9, 300]);
    let bytes = json!({ "costs": { "bytes": 700 } });
    assert_eq!(adjust("/api/credit", bytes).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(left().await, [9, 1_000]);
    for (wrong, status) in [
        (json!({}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({ "costs": { "bites": 1 } }), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(adjust("/api/charge", wrong).await.status(), status);
    }
}

#[tokio::test]
async fn policies_and_denied_keys_are_listed() {
    let server = Server::with_settings("policies: { search: { hour: 5/h }, login: { hour: 1/h } }");
    for (policy, checks) in [("search", 8), ("login", 3)] {
        for _ in 0..checks {
            check(&server, policy, "ada").await;
        }
    }
    let status = async || get(&server, "/api/status").await;
    let first = status().await;
    assert_eq!((&first["store"], &first["failure_mode"]), (&json!("memory"), &json!("local")));
    assert_eq!(first["degraded"], Value::Null);
    assert_eq!(
        first["policies"],
        json!([
            {
                "name": "search", "quotas": [{ "name": "hour", "quota": "5/h" }], "is_shadow": false,
                "allowed": 5, "denied": 3, "would_be_denied": 0,
                "local": 0, "unchecked": 0, "failed": 0, "held": null,
            },
            {
                "name": "login", "quotas": [{ "name": "hour", "quota": "1/h" }], "is_shadow": false,
                "allowed": 1, "denied": 2, "would_be_denied": 0,
                "local": 0, "unchecked": 0, "failed": 0, "held": null,
            },
        ])
    );
    let denied = json!([
        { "policy": "search", "key": "ada", "count": 3 },
        { "policy": "login", "key": "ada", "count": 2 },
    ]);
    until(async || status().await["denied"]["keys"] == denied).await;
    until(async || status().await["denied"]["keys"] == json!([])).await;
}

#[tokio::test]
async fn a_policy_with_its_numbers_in_the_requests_is_not_listed_with_others() {
    let server = Server::with_domain("domain: d\ndescriptors: [{ key: user }]", "");
    let status = Client::new().get(server.admin("/api/status")).send().await.unwrap();
    let status: Value = status.json().await.unwrap();
    assert!(status["policies"][0]["name"].as_str().unwrap().contains("override"), "{status}");
    assert_eq!(status["policies"][0]["quotas"], json!([]));
    let policy = &status["policies"][0]["name"];
    for (call, body, expected) in [
        ("peek", json!({ "policy": policy, "key": "k" }), StatusCode::BAD_REQUEST),
        ("charge", json!({ "policy": policy, "key": "k", "cost": 5 }), StatusCode::BAD_REQUEST),
        ("reset", json!({ "policy": policy, "key": "k" }), StatusCode::NO_CONTENT),
    ] {
        let url = server.admin(&format!("/api/{call}"));
        let response = Client::new().post(url).json(&body).send().await.unwrap();
        assert_eq!(response.status(), expected, "{call}");
    }
}

#[tokio::test]
async fn in_shadow_mode_the_status_counts_what_would_have_been_denied() {
    let domain = "domain: d\ndescriptors: [{ key: user, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }]";
    let server = Server::with_domain(domain, "");
    for _ in 0..5 {
        let response = server.client().await.ask("d", &[("user", "ada")]).await;
        assert_eq!(response.overall_code(), Code::Ok);
    }
    let response = Client::new().get(server.admin("/api/status")).send().await.unwrap();
    let status: Value = response.json().await.unwrap();
    let policies = status["policies"].as_array().unwrap();
    let policy = policies.iter().find(|policy| policy["is_shadow"] == true).unwrap();
    let counts = ["allowed", "denied", "would_be_denied"].map(|count| policy[count].as_u64());
    assert_eq!(counts, [Some(2), Some(0), Some(3)]);
    until(async || {
        let history = get(&server, "/api/history").await;
        let samples = history["samples"].as_array().unwrap();
        let counts = ["allowed", "denied", "would_be_denied"].map(|count| total(samples, count));
        counts == [2, 0, 3]
    })
    .await;
}

/// Adds a field of all samples.
fn total(samples: &[Value], field: &str) -> u64 {
    samples.iter().map(|sample| sample[field].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn policies_and_quotas_are_in_the_order_of_the_file() {
    let names = ["z", "m", "a", "q", "b", "y"];
    let quotas: Vec<_> = names.iter().map(|name| format!("{name}: 1/h")).collect();
    let policies: Vec<_> =
        names.iter().map(|name| format!("{name}: {{ {} }}", quotas.join(", "))).collect();
    let settings = format!("policies: {{ {} }}\ndomains: [d.yaml]", policies.join(", "));
    let limits = ["k", "c"].map(|key| {
        format!("- {{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n")
    });
    let domain = format!("domain: d\ndescriptors:\n{}", limits.concat());
    let server = Server::with_files(&[("settings.yaml", &settings), ("d.yaml", &domain)]);
    let status = get(&server, "/api/status").await;
    let of = |list: &Value| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let listed = of(&status["policies"]);
    assert_eq!(listed[..6], names);
    assert_eq!(listed[6..8], ["d.c", "d.k"], "those of domains have no order");
    for policy in 0..6 {
        assert_eq!(of(&status["policies"][policy]["quotas"]), names);
    }
}

#[tokio::test]
async fn the_history_has_what_was_checked_before_anyone_asked() {
    let before = now();
    let server = Server::with_settings("policies: { search: { hour: 5/h }, login: { hour: 1/h } }");
    for (policy, checks) in [("search", 8), ("login", 3)] {
        for _ in 0..checks {
            check(&server, policy, "ada").await;
        }
    }
    let block = json!({ "policy": "search", "key": "eve", "seconds": 60 });
    assert_eq!(post(&server, "/api/block", block).await.status(), StatusCode::NO_CONTENT);
    check(&server, "search", "eve").await;
    until(async || {
        let history = get(&server, "/api/history").await;
        let samples = history["samples"].as_array().unwrap();
        let counts = ["allowed", "denied", "would_be_denied", "local", "unchecked", "failed"];
        counts.map(|count| total(samples, count)) == [6, 6, 0, 0, 0, 0]
    })
    .await;
    let history = get(&server, "/api/history").await;
    assert_eq!(history["seconds"], 5);
    for sample in history["samples"].as_array().unwrap() {
        let time = sample["time"].as_f64().unwrap();
        assert!((before..=now()).contains(&time), "{sample}");
        assert!(sample["seconds"].as_f64().unwrap() >= 5.0, "{sample}");
        let is_idle = total(std::slice::from_ref(sample), "allowed") == 0;
        if is_idle {
            continue;
        }
        let [p50, p99] = ["p50", "p99"].map(|time| sample[time].as_f64().unwrap());
        assert!(p50 > 0.0 && p50 <= p99 && p99 < 10.0, "{sample}");
    }
    let started = get(&server, "/api/status").await["started"].as_f64().unwrap();
    assert!((before..=now()).contains(&started), "{started}");
}

fn now() -> f64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    time.unwrap().as_secs_f64()
}

#[tokio::test]
async fn the_status_says_how_and_since_when_checks_are_decided_without_the_store() {
    for (mode, count) in [("local", "local"), ("open", "unchecked"), ("closed", "failed")] {
        let settings = format!(
            "store: {{ redis: 'redis://127.0.0.1:1' }}\nchecks: {{ failure_mode: {mode} }}\n\
             policies: {{ search: {{ second: 1000/s }}, pool: {{ running: 2 concurrent }}, new: {{ day: 1/day }} }}\n\
             holds: {{ secret: h0ld-0123456789ab }}\nshadow: [new]"
        );
        let server = Server::with_settings(&settings);
        let (before, status) = (now(), async || get(&server, "/api/status").await);
        // Nothing fails to be limited, because the policy is in shadow mode.
        check(&server, "new", "ada").await;
        until(async || {
            let history = get(&server, "/api/history").await;
            total(history["samples"].as_array().unwrap(), "allowed") == 1
        })
        .await;
        assert_eq!(status().await["degraded"], Value::Null, "{mode}");
        let of_shadow = if mode == "local" { "local" } else { "unchecked" };
        assert_eq!(status().await["policies"][2][of_shadow], 1, "{mode}");

        check(&server, "search", "ada").await;
        let hold = json!({ "policy": "pool", "key": "ada" });
        Client::new().post(server.http("/v1/hold")).json(&hold).send().await.unwrap();
        until(async || status().await["degraded"][count] == 2).await;
        let status = status().await;
        let degraded = &status["degraded"];
        for other in ["store", "local", "unchecked", "failed"] {
            assert_eq!(degraded[other], if other == count { 2 } else { 0 }, "{mode}: {degraded}");
        }
        let [since, last] = ["since", "last"].map(|time| degraded[time].as_f64().unwrap());
        // A second begins before the test does.
        assert!(before - 1.0 < since && since < last && last <= now(), "{degraded}");
        for policy in 0..2 {
            assert_eq!(status["policies"][policy][count], 1, "{mode}: {status}");
        }
        until(async || {
            let history = get(&server, "/api/history").await;
            total(history["samples"].as_array().unwrap(), count) == 2
        })
        .await;
    }
}

#[tokio::test]
async fn once_the_store_decides_again_the_status_says_so() {
    let redis = Redis::start().await;
    let settings = "policies: { search: { second: 1000/s } }\nchecks: { timeout: 1s }";
    let files = Files::new(&[("settings.yaml", settings)]);
    let server = Server::start(&files.path("settings.yaml"), &[("REDIS_URL", &redis.url())]);
    let degraded = async || {
        check(&server, "search", "ada").await;
        get(&server, "/api/status").await["degraded"].clone()
    };
    assert_eq!(degraded().await, Value::Null);
    redis.pause();
    until(async || degraded().await["local"].as_u64() > Some(0)).await;
    redis.resume();
    until(async || degraded().await["store"].as_u64() > Some(0)).await;
    until(async || degraded().await.is_null()).await;
}

async fn config(server: &Server) -> Value {
    let request = Client::new().get(server.admin("/api/config")).bearer_auth("t0p-0123456789ab");
    request.send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn the_active_configuration_is_shown_as_a_whole() {
    let settings = "
store: { max_keys: 1000 }
checks: { timeout: 20ms, failure_mode: open }
resource_limits: { descriptors: 3 }
shutdown: { delay: 1s }
policies: { search: { hour: 5/h } }
auth: { policy: search, key_header: X-Api-Key, trusted_proxies: [10.0.0.0/8] }
domains: [d.yaml]
allow: [friend]
deny: [203.0.113.0/24]
";
    let domain = "
domain: d
descriptors:
  - key: path
    value: /v1/*
    descriptors:
      - { key: user, rate_limit: { unit: day, requests_per_unit: 7, name: users } }
  - { key: api_key, policy: search, count_denied: true }
";
    let env = [
        ("FLEETLIMIT_ADMIN_TOKEN", "t0p-0123456789ab"),
        ("FLEETLIMIT_HOLDS_SECRET", "h0ld-0123456789ab"),
        ("FLEETLIMIT_TIMEOUT", "30ms"),
    ];
    let files = Files::new(&[("settings.yaml", settings), ("d.yaml", domain)]);
    let server = Server::start(&files.path("settings.yaml"), &env);
    let shown = config(&server).await;
    assert_eq!(
        shown["settings"],
        json!({
            "listen": {
                "grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "admin": "127.0.0.1:0",
                "metrics": null, "metrics_path": "/metrics",
            },
            "store": {
                "redis": null, "cluster": [], "sentinel": null, "tls": null,
                "key_prefix": null, "connections": null, "instances": null, "max_keys": 1000,
                "password_file": null, "max_connection_age": null, "keepalive": null,
                "one_key_per_call": false,
            },
            "checks": { "timeout": "30ms", "failure_mode": "open", "cache_denials": "1s", "near_limit_ratio": 0.8 },
            "resource_limits": {
                "connections": 4096, "streams": 1024, "header_bytes": 65536,
                "request_bytes": 262144, "descriptors": 3, "entries": 64, "request_timeout": "5s",
                "idle_timeout": "1m 15s", "handshake_timeout": "10s", "connections_per_address": null,
                "connection_age": "1h",
            },
            "shutdown": { "delay": "1s", "timeout": "10s" },
            "tls": null,
            "xds": null,
            "otlp": null,
            "http": { "token": null },
            "envoy": {
                "shadow_mode": false, "quota_mode": false, "merge_domains": false, "headers": null,
                "count_denied": null,
            },
            "admin": { "token": "(hidden)" },
            "holds": { "secret": "(hidden)" },
            "auth": {
                "policy": "search", "policy_header": null, "key_header": "x-api-key",
                "gateways": ["127.0.0.0/8", "::1/128"], "trusted_proxies": ["10.0.0.0/8"],
                "ipv4_prefix": 32, "ipv6_prefix": 64,
            },
            "policies": { "search": { "hour": "5/h" } },
            "shadow": [],
            "domains": ["d.yaml"],
            "allow": ["friend"],
            "deny": ["203.0.113.0/24"],
        })
    );
    let limit = json!({ "unit": "day", "requests_per_unit": 7, "name": "users" });
    let user = json!({ "key": "user", "rate_limit": limit });
    assert_eq!(
        shown["domains"],
        json!([{
            "domain": "d",
            "descriptors": [
                { "key": "path", "value": "/v1/*", "descriptors": [user] },
                { "key": "api_key", "policy": "search", "count_denied": true },
            ],
        }])
    );

    // What is shown is what is in effect, not what a restart would apply.
    let restart_needed = async || {
        let status = Client::new()
            .get(server.admin("/api/status"))
            .bearer_auth("t0p-0123456789ab")
            .send()
            .await;
        status.unwrap().json::<Value>().await.unwrap()["restart_needed"].clone()
    };
    assert_eq!(restart_needed().await, json!([]));
    let changed = settings.replace("descriptors: 3", "descriptors: 4, streams: 7");
    files.write("settings.yaml", &changed.replace("max_keys: 1000", "max_keys: 5"));
    let reloaded = Client::new()
        .post(server.admin("/api/reload"))
        .bearer_auth("t0p-0123456789ab")
        .send()
        .await;
    assert_eq!(reloaded.unwrap().status(), StatusCode::NO_CONTENT);
    let shown = &config(&server).await["settings"];
    assert_eq!(shown["resource_limits"]["descriptors"], 4);
    assert_eq!(shown["resource_limits"]["streams"], 1024);
    assert_eq!(shown["store"]["max_keys"], 1000);
    assert_eq!(restart_needed().await, json!(["store", "resource_limits"]));
}

#[tokio::test]
async fn a_reload_that_leaves_the_failure_mode_no_time_to_answer_is_rejected() {
    let files = Files::new(&[("settings.yaml", SETTINGS)]);
    let server = Server::start(&files.path("settings.yaml"), &[]);
    // A restart would be fine, but a reload does not change the limits.
    let changed = "checks: { timeout: 8s }\nresource_limits: { request_timeout: 10s }";
    files.write("settings.yaml", &format!("{SETTINGS}\n{changed}"));
    let reloaded = Client::new().post(server.admin("/api/reload")).send().await.unwrap();
    assert_eq!(reloaded.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let text = reloaded.text().await.unwrap();
    assert!(text.contains("checks.timeout") && text.contains("stays 5s"), "{text}");
}

#[tokio::test]
async fn no_secret_is_in_what_the_api_shows() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = issued.signing_key.serialize_pem();
    let stores = [
        "redis: 'redis://ada:s3cret@127.0.0.1:1/0'",
        "cluster: ['redis://:s3cret@127.0.0.1:1', 'redis://:s3cret@127.0.0.1:2']",
        "sentinel: { urls: ['redis://:s3cret@127.0.0.1:1'], service: main }",
    ];
    for store in stores {
        let files = Files::new(&[("server.pem", &issued.cert.pem()), ("server.key", &key)]);
        let [certificate, key] = ["server.pem", "server.key"].map(|name| files.path(name));
        let settings = format!(
            "{SETTINGS}\nstore: {{ {store} }}\nadmin: {{ token: t0p-0123456789ab }}\n\
             tls: {{ certificate: {certificate:?}, key: {key:?} }}"
        );
        files.write("settings.yaml", &settings);
        let server = Server::start(&files.path("settings.yaml"), &[]);
        for path in ["/api/config", "/api/status", "/metrics", "/"] {
            let request = Client::new().get(server.admin(path)).bearer_auth("t0p-0123456789ab");
            let text = request.send().await.unwrap().text().await.unwrap();
            for secret in ["s3cret", "ada", "t0p", "PRIVATE KEY"] {
                assert!(!text.contains(secret), "{path} shows {secret}: {text}");
            }
        }
        let shown = &config(&server).await["settings"];
        assert!(shown["store"].to_string().contains("redis://127.0.0.1:1"), "{shown}");
        assert_eq!(shown["tls"]["key"], json!(key));
    }
    let server =
        Server::with_settings(&format!("{{ {SETTINGS}, admin: {{ token: t0p-0123456789ab }} }}"));
    let status = Client::new().get(server.admin("/api/config")).send().await.unwrap().status();
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_blocked_key_is_denied_everywhere_until_it_is_unblocked() {
    let settings =
        "policies: { search: { hour: 5/h } }\nauth: { policy: search }\ndomains: [d.yaml]";
    let domain = "domain: d\ndescriptors: [{ key: user, policy: search }]";
    let server = Server::with_files(&[("settings.yaml", settings), ("d.yaml", domain)]);
    let mut client = server.client().await;
    for key in ["192.0.2.1", "user|192.0.2.1"] {
        let block = json!({ "policy": "search", "key": key, "seconds": 60 });
        assert_eq!(post(&server, "/api/block", block).await.status(), StatusCode::NO_CONTENT);
    }
    let target = json!({ "policy": "search", "key": "192.0.2.1" });
    let peeked: Value = post(&server, "/api/peek", target).await.json().await.unwrap();
    let seconds = peeked["blocked"].as_u64().unwrap();
    assert!((55..=60).contains(&seconds), "{peeked}");
    assert_eq!(peeked["remaining"], 5, "of the policy");
    let auth = async || {
        let request = Client::new().get(server.http("/auth"));
        request.header("x-forwarded-for", "192.0.2.1").send().await.unwrap()
    };
    let denied = auth().await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let retry_after = denied.headers()["retry-after"].to_str().unwrap().parse();
    assert!((55..=60).contains(&retry_after.unwrap()), "{denied:?}");
    let body = json!({ "policy": "search", "key": "192.0.2.1" });
    let check = Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
    let decision: Value = check.json().await.unwrap();
    assert_eq!((&decision["allowed"], &decision["source"]), (&json!(false), &json!("block")));
    let response = client.ask("d", &[("user", "192.0.2.1")]).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    let status = Client::new().get(server.admin("/api/status")).send().await.unwrap();
    let mut status: Value = status.json().await.unwrap();
    for blocked in status["blocked"].as_array_mut().unwrap() {
        let seconds = blocked["seconds"].take().as_u64().unwrap();
        assert!((55..=60).contains(&seconds), "{seconds}");
    }
    assert_eq!(
        status["blocked"],
        json!([
            { "policy": "search", "key": "192.0.2.1", "seconds": null },
            { "policy": "search", "key": "user|192.0.2.1", "seconds": null },
        ])
    );
    assert_eq!(post(&server, "/api/unblock", body).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(auth().await.status(), StatusCode::OK);
    for wrong in [json!({ "policy": "search", "key": "a", "seconds": 0 }), json!({})] {
        assert!(post(&server, "/api/block", wrong).await.status().is_client_error());
    }
}

#[tokio::test]
async fn any_key_can_be_named_as_it_is_shown_or_by_its_parts() {
    let settings = "policies: { search: { hour: 1/h } }\n\
                    auth: { policy: search, key_header: x-api-key }\n\
                    deny: [foe]\nallow: ['a|b']";
    let server = Server::with_settings(settings);
    let auth = async |key: &str| {
        let request = Client::new().get(server.http("/auth"));
        request.header("x-api-key", key.as_bytes()).send().await.unwrap().status()
    };
    let long = "k".repeat(200);
    for (value, shown) in [
        ("o'brien jürgen", Some("x-api-key|o'brien jürgen")),
        ("c|d", Some(r"x-api-key|c\|d")),
        (&long, None),
    ] {
        let target = |key: &Value| json!({ "policy": "search", "key": key, "seconds": 60 });
        let parts = json!(["x-api-key", value]);
        let blocked = post(&server, "/api/block", target(&parts)).await;
        assert_eq!(blocked.status(), StatusCode::NO_CONTENT);
        assert_eq!(auth(value).await, StatusCode::TOO_MANY_REQUESTS, "{value}");
        let status = Client::new().get(server.admin("/api/status")).send().await.unwrap();
        let status: Value = status.json().await.unwrap();
        let key = match shown {
            Some(shown) => {
                assert_eq!(status["blocked"][0]["key"], shown);
                json!(shown)
            }
            None => parts,
        };
        let target = json!({ "policy": "search", "key": key });
        let unblocked = post(&server, "/api/unblock", target.clone()).await;
        assert_eq!(unblocked.status(), StatusCode::NO_CONTENT);
        assert_eq!(auth(value).await, StatusCode::OK, "{value}");
        assert_eq!(auth(value).await, StatusCode::TOO_MANY_REQUESTS, "{value}");
        assert_eq!(post(&server, "/api/reset", target).await.status(), StatusCode::NO_CONTENT);
        assert_eq!(auth(value).await, StatusCode::OK, "{value}");
    }
    for (key, list) in [("x-api-key|foe", "deny"), ("a|b", "allow")] {
        let target = json!({ "policy": "search", "key": key });
        let peeked: Value = post(&server, "/api/peek", target).await.json().await.unwrap();
        assert_eq!(peeked["listed"], list, "{key}");
    }
    let target = json!({ "policy": "search", "key": 7 });
    assert_eq!(post(&server, "/api/peek", target).await.status(), StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn the_api_needs_the_token_and_probes_do_not() {
    let settings = format!("{{ {SETTINGS}, admin: {{ token: s3cret-0123456789 }} }}");
    let server = Server::with_settings(&settings);
    let get = async |path: &str, token: Option<&str>| {
        let mut request = Client::new().get(server.admin(path));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.unwrap().status()
    };
    for path in ["/api/status", "/api/history"] {
        assert_eq!(get(path, None).await, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(get("/api/status", Some("s3cret-012345678")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(get("/api/status", Some("s3cret-0123456789")).await, StatusCode::OK);
    for path in ["/healthz", "/readyz", "/metrics", "/", "/page.js", "/actions.js"] {
        assert_eq!(get(path, None).await, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_page_of_another_site_cannot_use_the_api_through_a_browser() {
    let server = Server::with_settings(SETTINGS);
    let get = async |name: &str, value: &str| {
        let request = Client::new().get(server.admin("/api/status")).header(name, value);
        request.send().await.unwrap().status()
    };
    assert_eq!(get("origin", "http://evil.example").await, StatusCode::FORBIDDEN);
    // Of a page in a sandbox.
    assert_eq!(get("origin", "null").await, StatusCode::FORBIDDEN);
    // A name of the attacker that points to this machine.
    assert_eq!(get("host", "evil.example:6070").await, StatusCode::FORBIDDEN);
    assert_eq!(get("host", "localhost:6070@evil.example").await, StatusCode::FORBIDDEN);
    assert_eq!(get("host", "[::1]").await, StatusCode::OK);
    assert_eq!(get("host", "localhost:6070").await, StatusCode::OK);
    assert_eq!(get("origin", &format!("http://{}", server.admin)).await, StatusCode::OK);
}

/// Values of descriptors are in the metrics.
#[tokio::test]
async fn a_page_of_another_site_cannot_read_metrics_although_they_need_no_token() {
    let token = "s3cret-0123456789";
    let settings = format!("{{ {SETTINGS}, admin: {{ token: {token} }} }}");
    let local = Server::with_settings(&settings);
    let env = [("FLEETLIMIT_SETTINGS", settings.as_str()), ("FLEETLIMIT_ADMIN", "0.0.0.0:0")];
    let open = Server::with_env(&[&FREE_PORTS[..2], &env].concat());
    let get = async |server: &Server, name: &str, value: &str| {
        let url = format!("http://127.0.0.1:{}/metrics", server.admin.port());
        Client::new().get(url).header(name, value).send().await.unwrap().status()
    };
    for server in [&local, &open] {
        assert_eq!(get(server, "origin", "http://evil.example").await, StatusCode::FORBIDDEN);
        assert_eq!(get(server, "origin", "null").await, StatusCode::FORBIDDEN);
        assert_eq!(get(server, "host", "localhost:6070").await, StatusCode::OK);
    }
    assert_eq!(get(&local, "host", "evil.example:6070").await, StatusCode::FORBIDDEN);
    // Prometheus asks by the address of the pod, and may have the token.
    assert_eq!(get(&open, "host", "10.1.2.3:6070").await, StatusCode::OK);
    let with_token = Client::new().get(local.admin("/metrics")).header("host", "proxy.internal");
    let with_token = with_token.bearer_auth(token).send().await.unwrap();
    assert_eq!(with_token.status(), StatusCode::OK);
}

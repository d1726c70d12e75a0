//! Holds over HTTP: permits that a client keeps while something runs, whichever instance its requests reach.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

use crate::common::{Files, Redis, Server, check, until};
use crate::redis_servers::Proxy;

const POLICIES: &str = "
policies:
  exports: { in_flight: 2 concurrent, day: 1000/day }
  tokens: { budget: 1000/h }
  search: { second: 10/s }
";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Two instances behind one Redis.
fn instances(redis: &Redis, settings: &str) -> [Server; 2] {
    let settings = format!(
        "{POLICIES}store: {{ redis: '{}', instances: 2 }}\nholds: {{ secret: {SECRET} }}\n{settings}",
        redis.url()
    );
    [(); 2].map(|()| Server::with_settings(&settings))
}

fn exact(redis: &Redis) -> [Server; 2] {
    instances(redis, "checks: { timeout: 4s, failure_mode: closed }")
}

async fn post(server: &Server, call: &str, body: Value) -> (StatusCode, Value) {
    let response = Client::new().post(server.http(call)).json(&body).send().await.unwrap();
    (
        response.status(),
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default(),
    )
}

async fn hold(server: &Server, body: Value) -> Value {
    let (status, held) = post(server, "/v1/hold", body).await;
    assert_eq!(status, StatusCode::OK, "{held}");
    held
}

/// Returns the token of a hold of one export.
async fn export(server: &Server) -> Option<String> {
    let held = hold(server, json!({ "policy": "exports", "key": "ada" })).await;
    let token = held["token"].as_str().map(str::to_owned);
    assert_eq!(held["allowed"], token.is_some(), "{held}");
    token
}

async fn end(server: &Server, call: &str, body: Value) -> StatusCode {
    post(server, &format!("/v1/hold/{call}"), body).await.0
}

async fn release(server: &Server, token: &str) -> StatusCode {
    end(server, "release", json!({ "token": token })).await
}

async fn remaining(server: &Server, policy: &str, quota: &str) -> u64 {
    let body = json!({ "policy": policy, "key": "ada" });
    let peek = Client::new().post(server.admin("/api/peek")).json(&body).send().await.unwrap();
    let peeked: Value = peek.json().await.unwrap();
    let quotas = peeked["quotas"].as_array().unwrap();
    let found = quotas.iter().find(|status| status["name"] == quota).unwrap();
    found["remaining"].as_u64().unwrap()
}

#[tokio::test]
async fn a_hold_lasts_until_it_is_released_and_is_released_once() {
    let server = Server::with_settings(POLICIES);
    let first = hold(&server, json!({ "policy": "exports", "key": "ada", "cost": 3 })).await;
    assert_eq!((&first["allowed"], &first["expires_after"]), (&json!(true), &json!(60)));
    let (first, second) = (first["token"].as_str().unwrap(), export(&server).await.unwrap());
    assert_eq!(export(&server).await, None);
    let others = hold(&server, json!({ "policy": "exports", "key": "bob" })).await;
    assert_eq!(others["allowed"], true);

    assert_eq!(release(&server, first).await, StatusCode::NO_CONTENT);
    assert_eq!(remaining(&server, "exports", "in_flight").await, 1);
    // What it took of the rate, too.
    assert_eq!(remaining(&server, "exports", "day").await, 999);
    assert_eq!(release(&server, first).await, StatusCode::GONE);
    assert_eq!(
        end(&server, "settle", json!({ "token": first, "cost": 0 })).await,
        StatusCode::GONE
    );
    assert_eq!(end(&server, "extend", json!({ "token": first })).await, StatusCode::GONE);
    assert_eq!(remaining(&server, "exports", "in_flight").await, 1);

    let settled = end(&server, "settle", json!({ "token": second, "cost": 5 })).await;
    assert_eq!(settled, StatusCode::NO_CONTENT);
    assert_eq!(remaining(&server, "exports", "in_flight").await, 2);
    assert_eq!(remaining(&server, "exports", "day").await, 995);
}

#[tokio::test]
async fn a_denial_names_the_quota_and_has_no_retry_after() {
    let server = Server::with_settings(POLICIES);
    let body = json!({ "policy": "exports", "key": "ada", "costs": { "in_flight": 2 } });
    assert_eq!(hold(&server, body.clone()).await["allowed"], true);
    let request = Client::new().post(server.http("/v1/hold")).json(&body);
    let denied = request.send().await.unwrap();
    assert!(!denied.headers().contains_key("retry-after"));
    let policy = denied.headers()["ratelimit-policy"].to_str().unwrap();
    assert!(policy.contains(r#""in_flight";q=2;qu="concurrent-requests""#), "{policy}");
    let denied: Value = denied.json().await.unwrap();
    assert_eq!((&denied["allowed"], denied.get("token")), (&json!(false), None));
    assert_eq!((denied.get("retry_after"), &denied["quotas"][0]["violated"]), (None, &json!(true)));
}

/// As for tokens of a language model.
#[tokio::test]
async fn a_budget_is_taken_in_slices_and_settled_by_the_actual_cost() {
    let redis = Redis::start().await;
    let [a, b] = exact(&redis);
    let held = hold(&a, json!({ "policy": "tokens", "key": "ada", "cost": 300 })).await;
    let body = json!({ "token": held["token"], "cost": 300 });
    let (status, extended) = post(&b, "/v1/hold/extend", body).await;
    assert_eq!((status, &extended["remaining"]), (StatusCode::OK, &json!(400)));
    let body = json!({ "token": extended["token"], "cost": 500 });
    let (status, denied) = post(&a, "/v1/hold/extend", body).await;
    assert_eq!((status, &denied["allowed"]), (StatusCode::OK, &json!(false)));
    // A denial keeps the hold. Its token knows as much as the one before.
    let body = json!({ "token": denied["token"], "cost": 350 });
    assert_eq!(end(&b, "settle", body).await, StatusCode::NO_CONTENT);
    assert!((650..=651).contains(&remaining(&a, "tokens", "budget").await));
}

#[tokio::test]
async fn a_hold_outlives_the_instance_that_took_it() {
    let redis = Redis::start().await;
    let [mut a, b] = exact(&redis);
    let token = export(&a).await.unwrap();
    a.kill();
    assert_eq!(remaining(&b, "exports", "in_flight").await, 1);
    let (status, extended) = post(&b, "/v1/hold/extend", json!({ "token": token })).await;
    assert_eq!((status, &extended["allowed"]), (StatusCode::OK, &json!(true)));
    assert_eq!(release(&b, extended["token"].as_str().unwrap()).await, StatusCode::NO_CONTENT);
    assert_eq!(remaining(&b, "exports", "in_flight").await, 2);
}

/// Each token of the hold, also one from before an extension.
#[tokio::test]
async fn of_all_that_end_a_hold_at_once_exactly_one_does() {
    let redis = Redis::start().await;
    let [a, b] = exact(&redis);
    // Otherwise nobody could see that more is given back.
    hold(&a, json!({ "policy": "tokens", "key": "ada", "cost": 500 })).await;
    let mut left = 500;
    for round in 0..10 {
        let first = hold(&a, json!({ "policy": "tokens", "key": "ada", "cost": 20 })).await;
        let extend = json!({ "token": first["token"], "cost": 10 });
        let (_, second) = post(&b, "/v1/hold/extend", extend).await;
        let ends = (0..16).map(async |n| {
            let server = [&a, &b][n % 2];
            // The older token does not know of the extension, whose cost stays used.
            let (token, gives_back) = [(&first, 20), (&second, 30)][n / 2 % 2];
            (end(server, "release", json!({ "token": token["token"] })).await, gives_back)
        });
        let ends = join_all(ends).await;
        let (ended, rest): (Vec<_>, Vec<_>) =
            ends.into_iter().partition(|(status, _)| *status == StatusCode::NO_CONTENT);
        assert_eq!(ended.len(), 1, "round {round}");
        assert!(rest.iter().all(|(status, _)| *status == StatusCode::GONE), "{rest:?}");
        left = left + ended[0].1 - 30;
    }
    let remaining = remaining(&a, "tokens", "budget").await;
    assert!((left..left + 5).contains(&remaining), "{remaining} instead of {left}");
}

#[tokio::test]
async fn no_more_are_in_flight_than_the_limit_whichever_instance_decides() {
    let redis = Redis::start().await;
    let servers = exact(&redis);
    let (in_flight, most) = (AtomicI64::new(0), AtomicI64::new(0));
    let client = async |n: usize| {
        for round in 0..20 {
            let Some(token) = export(&servers[(n + round) % 2]).await else { continue };
            most.fetch_max(in_flight.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::task::yield_now().await;
            in_flight.fetch_sub(1, SeqCst);
            let server = &servers[(n + round + n % 3) % 2];
            assert_eq!(release(server, &token).await, StatusCode::NO_CONTENT);
        }
    };
    join_all((0..16).map(client)).await;
    assert_eq!(most.load(SeqCst), 2);
    assert_eq!(remaining(&servers[0], "exports", "in_flight").await, 2);
}

#[tokio::test]
async fn a_hold_that_nobody_extends_ends_and_its_token_with_it() {
    let redis = Redis::start().await;
    let [a, b] = exact(&redis);
    let body =
        json!({ "policy": "exports", "key": "ada", "costs": { "in_flight": 2 }, "seconds": 1 });
    let held = hold(&a, body).await;
    until(async || remaining(&b, "exports", "in_flight").await == 2).await;
    until(async || release(&b, held["token"].as_str().unwrap()).await == StatusCode::GONE).await;
    assert_eq!(end(&a, "extend", json!({ "token": held["token"] })).await, StatusCode::GONE);
    assert_eq!(remaining(&a, "exports", "in_flight").await, 2);
}

#[tokio::test]
async fn only_tokens_of_this_fleet_are_accepted() {
    let redis = Redis::start().await;
    let [server, _] = exact(&redis);
    // With a store in memory, each process has a secret of its own.
    let foreign = [Server::with_settings(POLICIES), Server::with_settings(POLICIES)];
    let token = export(&foreign[0]).await.unwrap();
    for (server, token) in
        [(&server, &*token), (&foreign[1], &token), (&foreign[0], &token[1..]), (&server, "")]
    {
        for call in ["extend", "release", "settle"] {
            let body = match call {
                "settle" => json!({ "token": token, "cost": 1 }),
                _ => json!({ "token": token }),
            };
            assert_eq!(end(server, call, body).await, StatusCode::BAD_REQUEST, "{call}");
        }
    }
    assert_eq!(release(&foreign[0], &token).await, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn requests_that_make_no_sense_are_errors_that_say_why() {
    let server = Server::with_settings(POLICIES);
    let token = export(&server).await.unwrap();
    for (call, body, status, says) in [
        ("/v1/hold", json!({ "policy": "none", "key": "a" }), 404, "no policy `none`"),
        ("/v1/hold", json!({ "policy": "exports", "key": "" }), 422, "key is empty"),
        ("/v1/hold", json!({ "policy": "exports", "key": "a".repeat(1_025) }), 422, "1024 bytes"),
        ("/v1/hold", json!({ "policy": "exports", "key": "a", "seconds": 0 }), 422, "1 to 3600"),
        ("/v1/hold", json!({ "policy": "exports", "key": "a", "seconds": 3601 }), 422, "1 to 3600"),
        (
            "/v1/hold",
            json!({ "policy": "exports", "key": "a", "costs": { "x": 1 } }),
            400,
            "no quota `x`",
        ),
        ("/v1/hold/settle", json!({ "token": token }), 422, "give `cost`"),
        ("/v1/hold/settle", json!({ "token": token, "costs": { "x": 1 } }), 400, "no quota `x`"),
        ("/v1/hold/extend", json!({ "token": "x" }), 400, "holds.secret"),
        ("/v1/hold/release", json!({ "token": token, "cost": 1 }), 422, "unknown field `cost`"),
        ("/v1/check", json!({ "policy": "exports", "key": "a" }), 400, "use /v1/hold"),
    ] {
        let (found, problem) = post(&server, call, body.clone()).await;
        assert_eq!(found.as_u16(), status, "{call} {body}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{call} {body}: {problem}");
    }
    // Nothing of this has ended the hold.
    assert_eq!(release(&server, &token).await, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn lists_and_blocks_decide_holds_too() {
    let server = Server::with_settings(&format!("{POLICIES}allow: [friend]\ndeny: [foe]"));
    for (key, allowed) in [("friend", true), ("foe", false)] {
        let held = hold(&server, json!({ "policy": "exports", "key": key })).await;
        assert_eq!(held, json!({ "allowed": allowed, "source": "list" }));
    }
    let block = json!({ "policy": "exports", "key": "ada", "seconds": 60 });
    Client::new().post(server.admin("/api/block")).json(&block).send().await.unwrap();
    let held = hold(&server, json!({ "policy": "exports", "key": "ada" })).await;
    assert_eq!((&held["source"], held.get("token")), (&json!("block"), None));
    assert_eq!(server.overruled().await.iter().map(|(_, count)| count).sum::<u64>(), 3);
}

/// Returns the permits in flight by `/api/status`, and by the metrics.
async fn in_flight(server: &Server) -> (i64, i64) {
    let get =
        async |path: &str| reqwest::get(server.admin(path)).await.unwrap().text().await.unwrap();
    let status: Value = serde_json::from_str(&get("/api/status").await).unwrap();
    let policies = status["policies"].as_array().unwrap();
    let of = |name: &str| policies.iter().find(|policy| policy["name"] == name).unwrap();
    assert_eq!(of("search")["held"], Value::Null);
    let metrics = get("/metrics").await;
    let line = r#"fleetlimit_permits_held{fleetlimit_policy="exports"} "#;
    let shown = metrics.lines().find_map(|metric| metric.strip_prefix(line));
    (of("exports")["held"].as_i64().unwrap(), shown.map_or(0, |shown| shown.parse().unwrap()))
}

#[tokio::test]
async fn operators_see_how_many_permits_are_in_flight() {
    let redis = Redis::start().await;
    let [a, b] = exact(&redis);
    // One of the two answers may come before a hold has expired, and the other one after.
    let are_in_flight = async |permits| {
        let ((a, shown_a), (b, shown_b)) = (in_flight(&a).await, in_flight(&b).await);
        (a + b, shown_a + shown_b) == (permits, permits)
    };
    let token = export(&a).await.unwrap();
    let body =
        json!({ "policy": "exports", "key": "bob", "costs": { "in_flight": 2 }, "seconds": 3 });
    hold(&b, body).await;
    assert!(are_in_flight(3).await);
    until(async || are_in_flight(1).await).await;
    let body = json!({ "token": token, "costs": { "in_flight": 1 } });
    let (_, extended) = post(&b, "/v1/hold/extend", body).await;
    assert_eq!(extended["allowed"], true);
    assert!(are_in_flight(2).await);
    release(&a, extended["token"].as_str().unwrap()).await;
    assert!(are_in_flight(0).await);
}

#[tokio::test]
async fn while_redis_fails_holds_are_taken_and_ended_by_the_share() {
    let redis = Redis::start().await;
    let [a, b] = instances(&redis, "checks: { timeout: 200ms, failure_mode: local }");
    let before = export(&a).await.unwrap();
    let tokens = hold(&a, json!({ "policy": "tokens", "key": "ada", "cost": 400 })).await;
    until(async || {
        // Both know of each other, so each has a half.
        let metrics = reqwest::get(a.admin("/metrics")).await.unwrap().text().await.unwrap();
        let mut lines = metrics.lines();
        lines.any(|line| line.starts_with("fleetlimit_fleet_instances") && line.ends_with(" 2"))
    })
    .await;
    redis.stop();
    let held = hold(&b, json!({ "policy": "exports", "key": "carl" })).await;
    assert_eq!((&held["allowed"], &held["source"]), (&json!(true), &json!("local")));
    let denied = hold(&b, json!({ "policy": "exports", "key": "carl" })).await;
    assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("local")));
    for token in [held["token"].as_str().unwrap(), &before, tokens["token"].as_str().unwrap()] {
        assert_eq!(release(&b, token).await, StatusCode::NO_CONTENT);
    }
    let again = hold(&b, json!({ "policy": "exports", "key": "carl" })).await;
    assert_eq!(again["allowed"], true, "what was given back is free again");
    redis.restart().await;
    // Whether the hold had ended before was not known, so nothing of the budget was given back.
    until(async || {
        let body = json!({ "policy": "tokens", "key": "dora" });
        hold(&b, body).await["source"] == "store"
    })
    .await;
    let (status, _) = post(&a, "/v1/hold/extend", json!({ "token": again["token"] })).await;
    assert_eq!(status, StatusCode::OK, "a hold of the outage is registered when it is extended");
}

#[tokio::test]
async fn in_the_failure_modes_that_count_nothing_a_hold_cannot_end_in_an_outage_but_afterwards() {
    for mode in ["closed", "open"] {
        let redis = Redis::start().await;
        let [a, b] = instances(&redis, &format!("checks: {{ timeout: 4s, failure_mode: {mode} }}"));
        let token = export(&a).await.unwrap();
        redis.stop();
        for call in ["settle", "release"] {
            let body = match call {
                "settle" => json!({ "token": token, "cost": 1 }),
                _ => json!({ "token": token }),
            };
            let status = end(&b, call, body).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{mode} {call}");
        }
        redis.restart().await;
        // A hold whose end failed is still there, whatever Redis has lost.
        until(async || release(&a, &token).await == StatusCode::NO_CONTENT).await;
    }
}

/// Redis knows that the hold has ended, and has not got the permits back.
#[tokio::test]
async fn an_end_whose_first_reply_is_lost_is_completed_when_it_is_repeated() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let settings = format!(
        "{POLICIES}store: {{ redis: '{}' }}\nholds: {{ secret: {SECRET} }}\n\
         checks: {{ timeout: 500ms, failure_mode: closed }}",
        proxy.url()
    );
    let server = Server::with_settings(&settings);
    until(async || {
        // A check that is charged nothing.
        let body = json!({ "policy": "search", "key": "ada", "cost": 0 });
        post(&server, "/v1/check", body).await.0 == StatusCode::OK
    })
    .await;
    let token = export(&server).await.unwrap();
    proxy.delay(Duration::from_secs(1));
    assert_eq!(release(&server, &token).await, StatusCode::SERVICE_UNAVAILABLE);
    proxy.delay(Duration::ZERO);
    until(async || release(&server, &token).await == StatusCode::GONE).await;
    until(async || remaining(&server, "exports", "in_flight").await == 2).await;
}

#[tokio::test]
async fn a_client_that_does_not_wait_ends_its_hold_all_the_same() {
    let redis = Redis::start().await;
    let [a, b] = exact(&redis);
    let tokens = [export(&a).await.unwrap(), export(&a).await.unwrap()];
    for token in &tokens {
        let body = json!({ "token": token });
        let request = Client::new().post(b.http("/v1/hold/release")).json(&body).send();
        // Long enough to be sent, and too short for an answer most of the time.
        let _ = tokio::time::timeout(Duration::from_millis(3), request).await;
    }
    for token in &tokens {
        // One that was not sent is released now.
        release(&a, token).await;
    }
    assert_eq!(remaining(&a, "exports", "in_flight").await, 2);
}

/// As a client has it that did not get the response to its last extension.
#[tokio::test]
async fn an_older_token_ends_the_hold_too() {
    let redis = Redis::start().await;
    let [a, b] = exact(&redis);
    let token = export(&a).await.unwrap();
    let mut latest = token.clone();
    for server in [&b, &a, &b] {
        let (_, extended) = post(server, "/v1/hold/extend", json!({ "token": latest })).await;
        latest = extended["token"].as_str().unwrap().to_owned();
    }
    assert_eq!(release(&a, &token).await, StatusCode::NO_CONTENT);
    assert_eq!(remaining(&a, "exports", "in_flight").await, 2);
    assert_eq!(end(&b, "extend", json!({ "token": latest })).await, StatusCode::GONE);
    assert_eq!(remaining(&a, "exports", "in_flight").await, 2);
}

#[tokio::test]
async fn a_token_stays_small_however_often_its_hold_is_extended() {
    let server = Server::with_settings(POLICIES);
    let mut held = hold(&server, json!({ "policy": "tokens", "key": "user:7" })).await;
    let mut sizes = Vec::new();
    for _ in 0..60 {
        sizes.push(held["token"].as_str().unwrap().len());
        let body = json!({ "token": held["token"], "cost": 10 });
        held = post(&server, "/v1/hold/extend", body).await.1;
    }
    // As the docs say.
    assert!((200..300).contains(&sizes[0]) && (1_000..1_200).contains(&sizes[59]), "{sizes:?}");
}

#[tokio::test]
async fn an_update_of_the_policy_applies_to_holds() {
    let server = Server::with_settings(POLICIES);
    let token = export(&server).await.unwrap();
    let changed = POLICIES.replace("2 concurrent", "5 concurrent");
    server.files().write("settings.yaml", &changed);
    server.signal("HUP");
    until(async || remaining(&server, "exports", "in_flight").await == 4).await;
    assert_eq!(release(&server, &token).await, StatusCode::NO_CONTENT);
    assert_eq!(remaining(&server, "exports", "in_flight").await, 5);
}

#[test]
fn what_nobody_could_give_back_is_a_configuration_error() {
    const REDIS: &str = "store: { redis: 'redis://127.0.0.1' }";
    let held = "policies: { p: { q: 5 concurrent } }";
    let domain = "domain: d\ndescriptors: [{ key: user, policy: p }]";
    for (settings, says) in [
        (format!("{REDIS}\n{held}"), "settings.yaml:2:21: `5 concurrent` needs `holds.secret`"),
        (format!("holds: {{ secret: short }}\n{held}"), "holds.secret must have at least 16 bytes"),
        (
            format!("{held}\nauth: {{ policy: p }}"),
            "settings.yaml:2:17: auth.policy: the policy `p` limits requests in flight",
        ),
        (
            format!("{held}\ndomains: [d.yaml]"),
            "d.yaml:2:36: the policy `p` limits requests in flight",
        ),
    ] {
        let files = Files::new(&[("settings.yaml", &settings), ("d.yaml", domain)]);
        let output = check(&files.path("settings.yaml"));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(says), "{settings}: {errors}");
    }
    let reserved = "policies: { fleetlimit.ended-holds: { q: 1/s } }";
    let files = Files::new(&[("settings.yaml", reserved)]);
    let errors = String::from_utf8(check(&files.path("settings.yaml")).stderr).unwrap();
    assert!(
        errors.contains("settings.yaml:1:13: the name `fleetlimit.ended-holds` is reserved"),
        "{errors}"
    );
    let valid = format!("{REDIS}\n{held}\nholds: {{ secret: {SECRET} }}");
    let files = Files::new(&[("settings.yaml", &valid)]);
    assert!(check(&files.path("settings.yaml")).status.success());
}

#[tokio::test]
async fn a_gateway_cannot_choose_a_policy_whose_permits_it_would_not_give_back() {
    let server = Server::with_settings(POLICIES);
    let request = Client::new().get(server.http("/auth?policy=exports"));
    let response = request.header("x-forwarded-for", "192.0.2.1").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let line = server.wait_for_line("cannot check requests");
    assert!(line.contains("only /v1/hold can use it"), "{line}");
}

#[tokio::test]
async fn without_a_secret_that_all_instances_know_there_are_no_holds_on_redis() {
    let redis = Redis::start().await;
    let settings =
        format!("store: {{ redis: '{}' }}\npolicies: {{ tokens: {{ q: 9/h }} }}", redis.url());
    let server = Server::with_settings(&settings);
    let (status, problem) =
        post(&server, "/v1/hold", json!({ "policy": "tokens", "key": "a" })).await;
    assert_eq!(status, StatusCode::NOT_IMPLEMENTED);
    assert!(problem["detail"].as_str().unwrap().contains("holds.secret"), "{problem}");
}

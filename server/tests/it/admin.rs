//! The admin API.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

use crate::common::{Server, until};

const SETTINGS: &str = "policies: { search: { hour: 5/h } }";

async fn post(server: &Server, path: &str, body: Value) -> Response {
    Client::new().post(server.admin(path)).json(&body).send().await.unwrap()
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
async fn policies_and_denied_keys_are_listed() {
    let server = Server::with_settings(SETTINGS);
    for _ in 0..8 {
        let body = json!({ "policy": "search", "key": "ada" });
        Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
    }
    let status = async || -> Value {
        let response = Client::new().get(server.admin("/api/status")).send().await.unwrap();
        response.json().await.unwrap()
    };
    let first = status().await;
    assert_eq!((&first["store"], &first["failure_mode"]), (&json!("memory"), &json!("local")));
    assert_eq!(
        first["policies"],
        json!([{
            "name": "search", "quotas": { "hour": "5/h" }, "is_shadow": false,
            "allowed": 5, "denied": 3,
        }])
    );
    until(async || status().await["denied"]["keys"] == json!([{ "key": "ada", "count": 3 }])).await;
    until(async || status().await["denied"]["keys"] == json!([])).await;
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
    let auth = async || {
        let request = Client::new().get(server.http("/auth"));
        request.header("x-forwarded-for", "192.0.2.1").send().await.unwrap()
    };
    let denied = auth().await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "60");
    let body = json!({ "policy": "search", "key": "192.0.2.1" });
    let check = Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
    let decision: Value = check.json().await.unwrap();
    assert_eq!((&decision["allowed"], &decision["source"]), (&json!(false), &json!("block")));
    let response = client.ask("d", &[("user", "192.0.2.1")]).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    let status = Client::new().get(server.admin("/api/status")).send().await.unwrap();
    let status: Value = status.json().await.unwrap();
    assert_eq!(
        status["blocked"],
        json!([
            { "policy": "search", "key": "192.0.2.1", "seconds": 60 },
            { "policy": "search", "key": "user|192.0.2.1", "seconds": 60 },
        ])
    );
    assert_eq!(post(&server, "/api/unblock", body).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(auth().await.status(), StatusCode::OK);
    for wrong in [json!({ "policy": "search", "key": "a", "seconds": 0 }), json!({})] {
        assert!(post(&server, "/api/block", wrong).await.status().is_client_error());
    }
}

#[tokio::test]
async fn the_api_needs_the_token_and_probes_do_not() {
    let settings = format!("{{ {SETTINGS}, admin: {{ token: s3cret }} }}");
    let server = Server::with_settings(&settings);
    let get = async |path: &str, token: Option<&str>| {
        let mut request = Client::new().get(server.admin(path));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.unwrap().status()
    };
    assert_eq!(get("/api/status", None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(get("/api/status", Some("s3cre")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(get("/api/status", Some("s3cret")).await, StatusCode::OK);
    for path in ["/healthz", "/readyz", "/metrics", "/", "/page.js"] {
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
    assert_eq!(get("host", "localhost:6070").await, StatusCode::OK);
    assert_eq!(get("origin", &format!("http://{}", server.admin)).await, StatusCode::OK);
}

//! Settings by environment.

use std::io::{Read, Write};
use std::net::TcpStream;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tonic::Code as Grpc;

use crate::common::{FREE_PORTS, Files, Server, check_env, request, until};

const LISTEN: &str = "listen: { grpc: '127.0.0.1:0', http: '127.0.0.1:0', admin: '127.0.0.1:0' }";

fn server(settings: &str) -> Server {
    Server::with_env(&[("FLEETLIMIT_SETTINGS", &format!("{LISTEN}\n{settings}"))])
}

async fn status(url: String) -> StatusCode {
    Client::new().get(url).send().await.unwrap().status()
}

#[tokio::test]
async fn what_is_limited_can_be_set_by_environment() {
    let files = Files::new(&[("d.yaml", "domain: d\ndescriptors: [{ key: user, policy: p }]")]);
    let domain = files.path("d.yaml");
    let server = server(&format!(
        "policies: {{ p: {{ day: 1/day }} }}
domains: [{domain:?}]
auth: {{ policy: p, key_header: x-key }}
allow: [friend]
deny: [foe]
resource_limits: {{ descriptors: 2 }}"
    ));
    let auth = async |key: &str| {
        let request = Client::new().get(server.http("/auth")).header("x-key", key);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!([auth("ada").await, auth("ada").await], [200, 429]);
    assert_eq!([auth("friend").await, auth("friend").await], [200, 200]);
    assert_eq!(auth("foe").await, 429);
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("user", "bob")]).await.overall_code(), Code::Ok);
    assert_eq!(client.ask("d", &[("user", "bob")]).await.overall_code(), Code::OverLimit);
    let entries: &[(&str, &str)] = &[("user", "eve")];
    let many = client.send(request("d", &[entries; 3])).await.unwrap_err();
    assert_eq!(many.code(), Grpc::InvalidArgument);
}

#[tokio::test]
async fn single_settings_can_be_set_by_environment() {
    let settings = [
        ("FLEETLIMIT_SETTINGS", "policies: { p: { day: 1/day } }"),
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("FLEETLIMIT_KEY_PREFIX", "prefix"),
        ("FLEETLIMIT_CONNECTIONS", "3"),
        ("FLEETLIMIT_INSTANCES", "5"),
        ("FLEETLIMIT_SHUTDOWN_DELAY", "7s"),
    ];
    let server = Server::with_env(&[&FREE_PORTS[..], &settings].concat());
    let config = Client::new().get(server.admin("/api/config")).send().await.unwrap();
    let config: Value = config.json().await.unwrap();
    let store = &config["settings"]["store"];
    assert_eq!(
        [&store["key_prefix"], &store["connections"], &store["instances"]],
        [&json!("prefix"), &json!(3), &json!(5)]
    );
    assert_eq!(config["settings"]["shutdown"]["delay"], "7s");
}

#[tokio::test]
async fn the_store_and_what_happens_without_it_can_be_set_by_environment() {
    // Nothing listens there.
    let server = server(
        "store: { redis: 'redis://127.0.0.1:1' }\nchecks: { failure_mode: closed }\n\
         policies: { p: { day: 1/day } }",
    );
    let body = json!({ "policy": "p", "key": "ada" });
    let check = Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
    assert_eq!(check.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn how_the_process_runs_can_be_set_by_environment() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = Files::new(&[
        ("server.pem", &issued.cert.pem()),
        ("server.key", &issued.signing_key.serialize_pem()),
    ]);
    let [certificate, key] = ["server.pem", "server.key"].map(|name| files.path(name));
    let mut server = server(&format!(
        "policies: {{ p: {{ day: 1/day }} }}
tls: {{ certificate: {certificate:?}, key: {key:?} }}
admin: {{ token: s3cret-0123456789 }}
shutdown: {{ delay: 1h }}"
    ));
    assert_eq!(status(server.admin("/api/status")).await, StatusCode::UNAUTHORIZED);

    let mut plain = TcpStream::connect(server.http).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut reply = Vec::new();
    // It may be cut off.
    let _ = plain.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"HTTP"), "there is no TLS");

    server.signal("TERM");
    until(async || status(server.admin("/readyz")).await == StatusCode::SERVICE_UNAVAILABLE).await;
    assert_eq!(status(server.admin("/healthz")).await, StatusCode::OK, "the delay has not passed");
    server.signal("TERM");
    assert!(server.ends().await);
}

#[tokio::test]
async fn a_single_variable_overrides_the_settings() {
    let settings = format!(
        "{LISTEN}\nadmin: {{ token: a-0123456789abcd }}\npolicies: {{ p: {{ day: 1/day }} }}"
    );
    let env = [
        ("FLEETLIMIT_SETTINGS", settings.as_str()),
        ("FLEETLIMIT_ADMIN_TOKEN", "b-0123456789abcd"),
    ];
    let server = Server::with_env(&env);
    for (token, expected) in [("a", StatusCode::UNAUTHORIZED), ("b", StatusCode::OK)] {
        let request = Client::new()
            .get(server.admin("/api/status"))
            .bearer_auth(format!("{token}-0123456789abcd"));
        assert_eq!(request.send().await.unwrap().status(), expected);
    }
}

#[test]
fn all_errors_of_variables_are_printed_with_those_of_the_settings() {
    let env = [
        ("FLEETLIMIT_SETTINGS", "policies: { p: { day: 1/dai } }"),
        ("FLEETLIMIT_GRPC", "localhost"),
        ("FLEETLIMIT_CONNECTIONS", "0"),
        ("FLEETLIMIT_TIMEOUT", "50"),
        ("FLEETLIMIT_FAILURE_MODE", "closd"),
        ("REDIS_SENTINEL_SERVICE", "main"),
    ];
    let errors = String::from_utf8(check_env(&env).stderr).unwrap();
    for (variable, expected) in [
        ("FLEETLIMIT_SETTINGS:1:23", "dai"),
        ("FLEETLIMIT_GRPC", "`localhost`: invalid socket address"),
        ("FLEETLIMIT_CONNECTIONS", "`0`: number would be zero"),
        ("FLEETLIMIT_TIMEOUT", "`50`: time unit needed"),
        ("FLEETLIMIT_FAILURE_MODE", "`closd`: must be local, open or closed"),
        ("REDIS_SENTINEL_SERVICE", "there are no sentinels: set REDIS_SENTINEL"),
    ] {
        let line = errors.lines().find(|line| line.starts_with(&format!("{variable}: ")));
        assert!(line.is_some_and(|line| line.contains(expected)), "{variable}: {errors}");
    }
    assert_eq!(errors.lines().count(), env.len(), "{errors}");
}

#[tokio::test]
async fn the_name_of_the_primary_in_the_environment_replaces_that_of_the_settings() {
    let sentinel = "store: { sentinel: { urls: ['redis://127.0.0.1:1'], service: old } }";
    let settings = format!("{sentinel}\npolicies: {{ p: {{ day: 1/day }} }}");
    let env = [("FLEETLIMIT_SETTINGS", settings.as_str()), ("REDIS_SENTINEL_SERVICE", "new")];
    let server = Server::with_env(&[&FREE_PORTS[..], &env].concat());
    let config = Client::new().get(server.admin("/api/config")).send().await.unwrap();
    let config: Value = config.json().await.unwrap();
    assert_eq!(config["settings"]["store"]["sentinel"]["service"], "new");

    let env = [("FLEETLIMIT_SETTINGS", LISTEN), ("REDIS_SENTINEL", "redis://127.0.0.1:1")];
    let errors = String::from_utf8(check_env(&env).stderr).unwrap();
    assert!(errors.contains("REDIS_SENTINEL: REDIS_SENTINEL_SERVICE is missing"), "{errors}");
}

#[test]
fn a_variable_that_does_not_exist_is_an_error_unless_a_service_of_kubernetes_sets_it() {
    let settings = ("FLEETLIMIT_SETTINGS", "policies: { p: { day: 1/day } }");
    let services = [
        ("FLEETLIMIT_SERVICE_HOST", "10.0.0.1"),
        ("FLEETLIMIT_PORT", "tcp://10.0.0.1:8080"),
        ("FLEETLIMIT_SERVER_HTTP_SERVICE_PORT", "8080"),
        ("FLEETLIMIT_SERVER_HTTP_SERVICE_PORT_HTTP", "8080"),
        ("FLEETLIMIT_SERVER_HTTP_PORT", "tcp://10.0.0.1:8080"),
        ("FLEETLIMIT_SERVER_HTTP_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("FLEETLIMIT_SERVER_HTTP_PORT_8080_TCP_PROTO", "tcp"),
        ("FLEETLIMIT_SERVER_HTTP_PORT_8080_TCP_PORT", "8080"),
        ("FLEETLIMIT_SERVER_HTTP_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ];
    let output = check_env(&[&[settings], &services[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = check_env(&[
        settings,
        ("FLEETLIMIT_FAILURE_MOD", "closed"),
        ("FLEETLIMIT_ADMIN_TOKENS", "s3cret"),
        ("FLEETLIMIT_PORT", "8080"),
        ("FLEETLIMIT_LOG_LEVEL", "debug"),
    ]);
    let errors = String::from_utf8(output.stderr).unwrap();
    for expected in [
        "FLEETLIMIT_FAILURE_MOD: there is no such variable: did you mean FLEETLIMIT_FAILURE_MODE?",
        "FLEETLIMIT_ADMIN_TOKENS: there is no such variable: did you mean FLEETLIMIT_ADMIN_TOKEN?",
        "FLEETLIMIT_PORT: there is no such variable: fleetlimit-server --help lists them",
        "FLEETLIMIT_LOG_LEVEL: there is no such variable: fleetlimit-server --help lists them",
    ] {
        assert!(errors.lines().any(|line| line == expected), "{expected}: {errors}");
    }
    assert!(errors.lines().count() == 4 && !errors.contains("s3cret"), "{errors}");
}

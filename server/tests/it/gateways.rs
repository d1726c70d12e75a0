//! Envoy, Caddy and Traefik in front of the server, with the documented configurations. `make test-gateways`
//! installs and runs them.

mod flood;
mod hostile;
mod stall;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use reqwest::header::HeaderValue;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::common::{ControlPlane, Gateway, PATIENCE, PATIENT, Redis, Server, resource, until};

const CLIENTS: usize = 64;

fn domain(limits: &str) -> String {
    format!("domain: app\ndescriptors:\n{limits}")
}

async fn get(gateway: &Gateway, key: Option<&str>) -> reqwest::Response {
    let request = Client::new().get(gateway.url());
    let request = key.into_iter().fold(request, |request, key| request.header("x-api-key", key));
    request.send().await.unwrap()
}

fn header<'a>(response: &'a reqwest::Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
#[ignore = "needs Envoy: make test-gateways"]
async fn envoy_admits_and_denies_as_configured_with_the_headers() {
    let limits = "  - { key: remote_address, rate_limit: { unit: year, requests_per_unit: 6 } }
  - { key: api_key, rate_limit: { unit: year, requests_per_unit: 3 } }\n";
    let mut server = Server::with_domain(&domain(limits), "");
    let envoy = Gateway::envoy(&server);
    for remaining in [2, 1, 0] {
        let response = get(&envoy, Some("ada")).await;
        assert_eq!(response.status(), StatusCode::OK);
        // Of the address, and of the key.
        let field = header(&response, "ratelimit").unwrap().to_owned();
        let [address, key] = field.split(", ").collect::<Vec<_>>().try_into().unwrap();
        assert!(address.starts_with(&format!(r#""year";r={};t="#, remaining + 3)), "{field}");
        assert!(key.starts_with(&format!(r#""year";r={remaining};t="#)), "{field}");
    }
    let denied = get(&envoy, Some("ada")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = header(&denied, "retry-after").unwrap().parse().unwrap();
    assert!((1..=365 * 86_400).contains(&seconds));
    // The address has been counted for that, too: 4 of 6.
    assert_eq!(get(&envoy, None).await.status(), StatusCode::OK);
    assert_eq!(get(&envoy, Some("bob")).await.status(), StatusCode::OK);
    assert_eq!(get(&envoy, None).await.status(), StatusCode::TOO_MANY_REQUESTS);
    server.kill();
    assert_eq!(get(&envoy, None).await.status(), StatusCode::OK, "the limit is not enforced");
}

#[tokio::test]
#[ignore = "needs Envoy: make test-gateways"]
async fn a_header_that_is_not_text_does_not_pass_the_limits_of_envoy() {
    let limits = "  - { key: api_key, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let server = Server::with_domain(&domain(limits), "");
    let envoy = Gateway::envoy(&server);
    let value = HeaderValue::from_bytes(b"caf\xe9").unwrap();
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let request = Client::new().get(envoy.url()).header("x-api-key", value.clone());
        assert_eq!(request.send().await.unwrap().status(), status);
    }
}

/// Envoy lets a request pass whose check fails, for example because too many bytes are in flight.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn large_headers_of_many_requests_at_once_do_not_pass_the_limits_of_envoy() {
    let limits = "  - { key: api_key, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let server = Server::with_domain(&domain(limits), "");
    let envoy = Gateway::envoy_with(&server, &[PATIENT]);
    let key = "x".repeat(50_000);
    let responses = join_all((0..1_000).map(|_| get(&envoy, Some(&key)))).await;
    let count = |status| responses.iter().filter(|response| response.status() == status).count();
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    let errors: Vec<_> =
        metrics.lines().filter(|line| line.contains("grpc_errors_total{")).collect();
    let counts = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].map(count);
    assert_eq!((counts, errors), ([1, 999], vec![]));
}

/// The domain file of the page, with windows that do not end during a test.
fn documented_domain() -> String {
    let page = include_str!("../../../docs/gateways/envoy.md");
    let file = page.split("```yaml\ndomain: app\n").nth(1).unwrap().split("```").next().unwrap();
    format!("domain: app\n{}", file.replace("unit: minute", "unit: year"))
}

const SEARCH: &str = "policies: { search: { second: 1000/s } }";

#[tokio::test]
#[ignore = "needs Envoy, Caddy and Traefik: make test-gateways"]
async fn gateways_ask_over_tls() {
    let limits = "  - { key: remote_address, rate_limit: { unit: year, requests_per_unit: 3 } }\n";
    let start = Instant::now();
    for gateway in [Gateway::envoy, Gateway::caddy, Gateway::traefik] {
        let settings = "policies: { search: { requests: 3/h } }";
        let server = Server::with_certificate(&domain(limits), settings);
        let gateway = gateway(&server);
        for status in [StatusCode::OK; 3].into_iter().chain([StatusCode::TOO_MANY_REQUESTS]) {
            let mut response = get(&gateway, None).await;
            // Traefik opens its port before it knows its routes.
            while response.status() == StatusCode::NOT_FOUND && start.elapsed() < PATIENCE {
                response = get(&gateway, None).await;
            }
            assert_eq!(response.status(), status);
        }
    }
}

/// How many requests Envoy lets pass, and for how long they were sent.
async fn admitted(envoy: &[Gateway], time: Duration) -> (usize, Duration) {
    let start = Instant::now();
    let clients = (0..CLIENTS).map(|n| async move {
        let (client, mut admitted) = (Client::new(), 0);
        while start.elapsed() < time {
            let response = client.get(envoy[n % envoy.len()].url()).send().await.unwrap();
            admitted += usize::from(response.status() == StatusCode::OK);
        }
        admitted
    });
    let admitted = join_all(clients).await.iter().sum();
    (admitted, start.elapsed())
}

/// Waits until a second of the clock has just begun.
async fn next_second() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    sleep(Duration::from_secs(1) - Duration::from_nanos(now.subsec_nanos().into())).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn many_clients_of_envoy_are_admitted_exactly_as_often_as_a_fixed_window_allows() {
    let limits =
        "  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 50 } }\n";
    let redis = Redis::start().await;
    for store in ["", &format!("store: {{ redis: '{}' }}\nchecks: {{ timeout: 1s }}", redis.url())]
    {
        let server = Server::with_domain(&domain(limits), store);
        let envoy = [Gateway::envoy(&server)];
        next_second().await;
        let (admitted, took) = admitted(&envoy, Duration::from_millis(4_700)).await;
        assert!(took < Duration::from_millis(4_950), "too slow to tell: {took:?}");
        assert_eq!(admitted, 250, "five windows of 50, in {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn many_clients_of_envoy_are_admitted_exactly_as_often_as_a_token_bucket_allows() {
    let redis = Redis::start().await;
    for store in ["", &format!("store: {{ redis: '{}' }}\nchecks: {{ timeout: 1s }}", redis.url())]
    {
        let settings = format!("policies: {{ fifty: {{ requests: 50/s }} }}\n{store}");
        let limits = "  - { key: remote_address, policy: fifty }\n";
        let server = Server::with_domain(&domain(limits), &settings);
        let envoy = [Gateway::envoy_with(&server, &[PATIENT])];
        let post = async |path: &str, cost: Value| {
            let key = ["remote_address", "127.0.0.1"];
            let mut body = json!({ "policy": "fifty", "key": key });
            if !cost.is_null() {
                body["cost"] = cost;
            }
            Client::new().post(server.admin(path)).json(&body).send().await.unwrap()
        };
        // So that the bucket is not full before the clients have started.
        let start = Instant::now();
        assert!(post("/api/charge", json!(50)).await.status().is_success());
        let charged = start.elapsed();
        let (admitted, _) = admitted(&envoy, Duration::from_secs(5)).await;
        let before = start.elapsed();
        let peeked: Value = post("/api/peek", Value::Null).await.json().await.unwrap();
        // Each permit since the charge has been granted, or is left.
        let all = admitted as f64 + peeked["remaining"].as_f64().unwrap();
        let [least, most] = [before - charged, start.elapsed()].map(|t| 50.0 * t.as_secs_f64());
        assert!(least - 1.0 <= all && all <= most, "{all}, expected {least} to {most}");
        assert!(admitted >= 200, "the limit was not reached: {admitted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn two_copies_behind_envoy_share_the_limit_and_a_killed_one_loses_nothing() {
    let limits =
        "  - { key: remote_address, rate_limit: { unit: year, requests_per_unit: 500 } }\n";
    let redis = Redis::start().await;
    let store = format!("store: {{ redis: '{}' }}\nchecks: {{ timeout: 1s }}", redis.url());
    let copy = || Server::with_domain(&domain(limits), &store);
    let (mut first, second) = (copy(), copy());
    let gateways = [Gateway::envoy(&first), Gateway::envoy(&second)];
    let mut before = 0;
    while before < 300 {
        before += usize::from(get(&gateways[before % 2], None).await.status() == StatusCode::OK);
    }
    first.kill();
    let (after, _) = admitted(&gateways[1..], Duration::from_secs(2)).await;
    assert_eq!(before + after, 500);
}

/// Without a query in its configuration, Caddy sends that of the client.
#[tokio::test]
#[ignore = "needs Caddy: make test-gateways"]
async fn a_query_does_not_choose_the_limit_behind_caddy() {
    const DOCUMENTED: &str = "uri /auth?policy=search";
    let server = Server::with_settings("policies: { a: { q: 1/h } }\nauth: { policy: a }");
    let client = Client::new();
    let get = async |caddy: &Gateway, query: &str| {
        client.get(format!("{}{query}", caddy.url())).send().await.unwrap().status()
    };
    let keeps_query = Gateway::caddy_with(&server, &[(DOCUMENTED, "uri /auth")]);
    assert_eq!(get(&keeps_query, "?cost=0").await, StatusCode::BAD_REQUEST);
    let drops_query = Gateway::caddy_with(&server, &[(DOCUMENTED, "uri /auth?")]);
    assert_eq!(get(&drops_query, "?cost=0").await, StatusCode::OK);
    assert_eq!(get(&drops_query, "?cost=0").await, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
#[ignore = "needs Caddy: make test-gateways"]
async fn caddy_admits_and_denies_as_configured_with_the_headers() {
    assert_three_per_hour(Gateway::caddy, StatusCode::BAD_GATEWAY).await;
}

#[tokio::test]
#[ignore = "needs Traefik: make test-gateways"]
async fn traefik_admits_and_denies_as_configured_with_the_headers() {
    assert_three_per_hour(Gateway::traefik, StatusCode::INTERNAL_SERVER_ERROR).await;
}

/// `failed` is the status of requests that cannot be checked.
async fn assert_three_per_hour(gateway: fn(&Server) -> Gateway, failed: StatusCode) {
    let mut server = Server::with_settings("policies: { search: { requests: 3/h } }");
    let gateway = gateway(&server);
    // What clients say about their address does not count.
    let claim = AtomicU8::new(0);
    let get = async || {
        let address = format!("192.0.2.{}", claim.fetch_add(1, Ordering::Relaxed));
        Client::new().get(gateway.url()).header("x-forwarded-for", address).send().await.unwrap()
    };
    let start = Instant::now();
    for remaining in [2, 1, 0] {
        let mut response = get().await;
        // Traefik opens its port before it knows its routes.
        while response.status() == StatusCode::NOT_FOUND && start.elapsed() < PATIENCE {
            response = get().await;
        }
        assert_eq!(response.status(), StatusCode::OK);
        let received = header(&response, "received-ratelimit").unwrap();
        assert!(received.starts_with(&format!(r#""requests";r={remaining};t="#)), "{received}");
        assert_eq!(response.text().await.unwrap(), "hello\n");
    }
    let denied = get().await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u32 = header(&denied, "retry-after").unwrap().parse().unwrap();
    assert!((1_100..=1_200).contains(&seconds), "{seconds}");
    assert_eq!(header(&denied, "ratelimit-policy"), Some(r#""requests";q=3;w=3600"#));
    server.kill();
    assert_eq!(get().await.status(), failed);
}

/// The statuses of requests that go on until this is dropped, and when their responses came.
struct Load {
    task: tokio::task::JoinHandle<()>,
    statuses: Arc<Mutex<Vec<(Instant, StatusCode)>>>,
}

impl Load {
    fn start(gateway: &Gateway) -> Self {
        let statuses = Arc::<Mutex<Vec<_>>>::default();
        let (client, url, seen) = (Client::new(), gateway.url(), statuses.clone());
        let task = tokio::spawn(async move {
            loop {
                let status = client.get(&url).send().await.unwrap().status();
                seen.lock().unwrap().push((Instant::now(), status));
            }
        });
        Self { task, statuses }
    }

    /// The statuses since a time.
    fn since(&self, start: Instant) -> Vec<StatusCode> {
        let statuses = self.statuses.lock().unwrap();
        statuses.iter().filter(|(at, _)| *at >= start).map(|(_, status)| *status).collect()
    }

    /// Waits for so many responses from now on, all of which have this status.
    async fn all_are(&self, status: StatusCode) {
        let start = Instant::now();
        until(async || self.since(start).len() >= 50).await;
        assert_eq!(self.since(start).iter().find(|found| **found != status), None);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn a_control_plane_changes_limits_within_a_second_while_envoy_sends_requests() {
    const MOST: u32 = 1_000_000;
    let mut control_plane = ControlPlane::start().await;
    let limit = |permits| vec![resource("app", &[("remote_address", "", permits)])];
    control_plane.send("1", limit(MOST));
    let server = Server::with_settings(&control_plane.settings(""));
    let envoy = Gateway::envoy_with(&server, &[PATIENT]);
    let load = Load::start(&envoy);
    load.all_are(StatusCode::OK).await;

    for (version, permits, status) in
        [("2", 1, StatusCode::TOO_MANY_REQUESTS), ("3", MOST, StatusCode::OK)]
    {
        let sent = Instant::now();
        control_plane.send(version, limit(permits));
        until(async || load.since(sent).contains(&status)).await;
        let took = sent.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        load.all_are(status).await;
    }

    let errors = control_plane.apply("4", vec![resource("app", &[("", "", 1)])]).await;
    assert!(errors.unwrap_err().contains("the key is empty"));
    load.all_are(StatusCode::OK).await;
    control_plane.stop();
    server.wait_for_line("control_plane_lost");
    load.all_are(StatusCode::OK).await;
    control_plane.send("5", limit(1));
    control_plane.restart().await;
    until(async || {
        load.since(Instant::now() - Duration::from_millis(100))
            .contains(&StatusCode::TOO_MANY_REQUESTS)
    })
    .await;
    load.all_are(StatusCode::TOO_MANY_REQUESTS).await;
    // No check has failed: Envoy would have let it pass.
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    assert!(!metrics.contains("fleetlimit_server_grpc_errors_total"), "{metrics}");
}

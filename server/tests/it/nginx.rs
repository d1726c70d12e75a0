//! nginx in front of the server, with the documented configuration.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use reqwest::{Client, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Gateway, Server, until};

const SETTINGS: &str = "policies: { search: { requests: 3/h } }";
const NO_LIMITS: &str = "domain: app\ndescriptors: []";

#[tokio::test]
async fn nginx_passes_on_what_is_admitted_and_answers_denials_with_429() {
    let server = Server::with_settings(SETTINGS);
    let nginx = Gateway::nginx(&server);
    let get = async || {
        // The client's own header does not count.
        let request = Client::new().get(nginx.url()).header("x-forwarded-for", "192.0.2.1");
        request.send().await.unwrap()
    };
    let header = |response: &reqwest::Response, name: &str| {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    for remaining in [2, 1, 0] {
        let response = get().await;
        assert_eq!(response.status(), StatusCode::OK);
        let field = header(&response, "ratelimit").unwrap();
        assert!(field.starts_with(&format!(r#""requests";r={remaining};t="#)), "{field}");
        assert_eq!(header(&response, "ratelimit-policy").unwrap(), r#""requests";q=3;w=3600"#);
        assert_eq!(header(&response, "cache-control"), None, "the service says nothing about it");
        assert_eq!(response.text().await.unwrap(), "hello\n");
    }
    let denied = get().await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u32 = header(&denied, "retry-after").unwrap().parse().unwrap();
    assert!((1_100..=1_200).contains(&seconds), "{seconds}");
    assert!(header(&denied, "ratelimit").unwrap().starts_with(r#""requests";r=0;t="#));
    assert_eq!(header(&denied, "cache-control").unwrap(), "no-store");
}

#[tokio::test]
async fn nginx_asks_over_tls() {
    let server = Server::with_certificate(NO_LIMITS, SETTINGS);
    let nginx = Gateway::nginx(&server);
    for status in [StatusCode::OK; 3].into_iter().chain([StatusCode::TOO_MANY_REQUESTS]) {
        assert_eq!(Client::new().get(nginx.url()).send().await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn nginx_passes_requests_on_if_the_server_is_gone() {
    let mut server = Server::with_settings(SETTINGS);
    let nginx = Gateway::nginx(&server);
    server.kill();
    for _ in 0..5 {
        let response = Client::new().get(nginx.url()).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn no_client_can_avoid_the_check() {
    let server = Server::with_settings(SETTINGS);
    let nginx = Gateway::nginx(&server);
    for _ in 0..3 {
        assert!(Client::new().get(nginx.url()).send().await.unwrap().status().is_success());
    }
    let mut many = Client::new().get(nginx.url());
    for n in 0..150 {
        many = many.header(format!("x-{n}"), "1");
    }
    let control = b"GET / HTTP/1.1\r\nhost: x\r\nx-a: \x01\r\nconnection: close\r\n\r\n";
    let huge = Client::new().get(nginx.url()).header("x-huge", "x".repeat(7_000));
    for request in [many, huge, Client::new().get(nginx.url())] {
        assert_eq!(request.send().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    }
    let mut stream = tokio::net::TcpStream::connect(nginx.address()).await.unwrap();
    stream.write_all(control).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 4"), "{response}");
}

#[tokio::test]
async fn nginx_denies_all_requests_if_its_configuration_is_wrong() {
    for settings in [
        "policies: { other: { requests: 3/h } }",
        "{ policies: { search: { requests: 3/h } }, auth: { gateways: [10.0.0.1] } }",
    ] {
        let server = Server::with_settings(settings);
        let nginx = Gateway::nginx(&server);
        let response = Client::new().get(nginx.url()).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    }
}

const SERVER: &str = "server 127.0.0.1:8080 max_fails=0;";
const ONE_EACH: &str = "policies: { search: { requests: 1/day } }";
/// In nginx's log, for each request that passes unchecked, and for those that nginx cannot check.
const UNCHECKED: &str = "auth request unexpected status: 50";

/// With two servers, which a worker of nginx asks in turn.
fn nginx_in_front_of(first: &Server, second: &Server) -> Gateway {
    let line = |server: &Server| SERVER.replace("127.0.0.1:8080", &server.http.to_string());
    let lines = [line(first), line(second)].concat();
    let changes =
        [(SERVER, &*lines), (" 2s;", " 1s;"), ("worker_processes auto", "worker_processes 1")];
    Gateway::nginx_with(first, &changes)
}

async fn status(nginx: &Gateway) -> StatusCode {
    Client::new().get(nginx.url()).send().await.unwrap().status()
}

/// By default, nginx does not ask a server for 10 s after a failure.
#[tokio::test]
async fn nginx_checks_all_requests_after_a_stall_and_while_one_of_two_servers_works() {
    let (first, mut second) = (Server::with_settings(ONE_EACH), Server::with_settings(ONE_EACH));
    let nginx = nginx_in_front_of(&first, &second);
    for _ in 0..2 {
        assert_eq!(status(&nginx).await, StatusCode::OK, "each server allows one");
    }
    let assert_denied = async |times| {
        for _ in 0..times {
            assert_eq!(status(&nginx).await, StatusCode::TOO_MANY_REQUESTS);
        }
    };
    first.signal("STOP");
    assert_denied(2).await;
    second.signal("STOP");
    assert_eq!(status(&nginx).await, StatusCode::OK, "both servers are stalled");
    first.signal("CONT");
    second.signal("CONT");
    assert_denied(8).await;
    second.kill();
    assert_denied(8).await;
    assert_eq!(nginx.logged(UNCHECKED), 1);
}

#[tokio::test]
async fn nginx_denies_what_the_last_of_several_servers_rejects() {
    let mut first = Server::with_settings(ONE_EACH);
    let second = Server::with_settings("policies: { other: { requests: 1/day } }");
    let nginx = nginx_in_front_of(&first, &second);
    first.kill();
    for _ in 0..4 {
        assert_eq!(status(&nginx).await, StatusCode::BAD_REQUEST);
    }
}

/// Each check has a connection, and the server closes those beyond its limit.
#[tokio::test]
async fn a_flood_of_more_checks_than_connections_passes_no_limit_of_nginx() {
    const CHECKS: usize = 60;
    const FLOOD: usize = 200;
    let limits = format!("resource_limits: {{ connections_per_address: {CHECKS} }}");
    let policies = "policies: { search: { requests: 1/day burst 20 } }";
    let server = Server::with_settings(&format!("{policies}\n{limits}"));
    let changes = [
        ("limit_conn requests 1000;", &*format!("limit_conn requests {CHECKS};")),
        ("events {}", "events { worker_connections 1000; }"),
        // Longer than a slow machine takes.
        (" 2s;", " 25s;"),
    ];
    let nginx = Gateway::nginx_with(&server, &changes);
    let received = AtomicUsize::new(0);
    server.signal("STOP");
    let requests = join_all((0..FLOOD).map(|_| async {
        let status = status(&nginx).await;
        received.fetch_add(1, Ordering::Relaxed);
        status
    }));
    let checks_are_in_flight = async {
        until(async || received.load(Ordering::Relaxed) == FLOOD - CHECKS).await;
        server.signal("CONT");
    };
    let (statuses, ()) = tokio::join!(requests, checks_are_in_flight);
    let count = |status| statuses.iter().filter(|&&each| each == status).count();
    let counts =
        [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].map(count);
    assert_eq!(counts, [20, CHECKS - 20, FLOOD - CHECKS]);
    assert_eq!(nginx.logged(UNCHECKED), 0);
}

/// By default, nginx rejects the check of a request with a body of more than 1 MB, even where larger bodies are
/// allowed.
#[tokio::test]
async fn a_large_body_does_not_pass_the_limits_of_nginx() {
    let server = Server::with_settings(ONE_EACH);
    let allows = ("location / {", "location / { client_max_body_size 10m;");
    let is_not_asked = ("client_max_body_size 0;", "");
    let upload = async |nginx: &Gateway| {
        let mut stream = tokio::net::TcpStream::connect(nginx.address()).await.unwrap();
        let head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        String::from_utf8_lossy(&status[9..]).into_owned()
    };
    let documented = Gateway::nginx(&server);
    assert_eq!(status(&documented).await, StatusCode::OK);
    assert_eq!(upload(&documented).await, "413");
    assert_eq!(upload(&Gateway::nginx_with(&server, &[allows])).await, "429");
    let cannot_check = Gateway::nginx_with(&server, &[allows, is_not_asked]);
    assert_eq!(upload(&cannot_check).await, "503");
}

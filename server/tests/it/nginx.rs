//! nginx in front of the server, with the documented configuration.

use reqwest::{Client, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Gateway, Server};

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

//! Requests that are written to avoid the limits that Envoy's page configures.

use reqwest::{Client, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{SEARCH, documented_domain, domain, get};
use crate::common::{Gateway, Server};

/// The status of a request over HTTP/1, with this target and these lines of headers.
async fn status(gateway: &Gateway, target: &str, headers: &str) -> u16 {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status_line = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut status_line).await.unwrap();
    String::from_utf8_lossy(&status_line[9..]).parse().unwrap()
}

/// The status of a request over HTTP/2.
async fn status_over_http2(gateway: &Gateway, path: &str) -> u16 {
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(format!("http://app{path}")).body(()).unwrap();
    let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    response.await.unwrap().status().as_u16()
}

#[tokio::test]
#[ignore = "needs Envoy: make test-gateways"]
async fn no_spelling_of_a_path_avoids_the_limit_of_its_route_in_envoy() {
    // So that only the route's own limit denies.
    let domain = documented_domain().replace("requests_per_unit: 100 ", "requests_per_unit: 1000 ");
    let server = Server::with_domain(&domain, SEARCH);
    let envoy = Gateway::envoy(&server);
    for n in 0..20 {
        assert_eq!(status(&envoy, &format!("/v1/items?n={n}"), "").await, 200);
    }
    // Equivalent to a path below /v1, or so for some services.
    for path in [
        "/v1/items?n=20",
        "/v1",
        "/v1?n=21",
        "/V1/items",
        "//v1/items",
        "///v1",
        "/%76%31/items",
        "/%56%31/items",
        "/%76%31",
        "/./v1/items",
        "/%2e/v1/items",
        "/v1/../v1/items",
        "/x/../v1/items",
        "/x/%2E%2e/v1/items",
        "/v1/%2e%2e/v1/items",
        "/../v1/items",
        "/\\v1/items",
        "/v1\\items",
        "/x\\..\\v1",
        "/v1/items?a;b",
        "/v1%20/items",
        "/v1./items",
        "/v1.json",
        "/v1%3Fn=1",
        "/v1,x",
        "/v1%25/items",
        "/v1%ff",
        "/v1%zz",
    ] {
        assert_eq!(status(&envoy, path, "").await, 429, "{path}");
        assert_eq!(status_over_http2(&envoy, path).await, 429, "{path} over HTTP/2");
    }
    for path in [
        "/v1;x",
        "/v1;x/items",
        "/v1/items;x=1",
        "/;x/v1/items",
        "/x;/v1",
        "/%FF/;x/v1",
        "/%3Bx/v1",
        "/v1%3bx/items",
        "/%0av1",
        "/%09/v1/items",
        "/%1Fv1",
        "/v1%2Fitems",
        "/v1%2fitems",
        "/v1%5Citems",
        "/x%2F..%2Fv1",
        "/v1%00/items",
    ] {
        assert_eq!(status(&envoy, path, "").await, 400, "{path}");
        assert_eq!(status_over_http2(&envoy, path).await, 400, "{path} over HTTP/2");
    }
    // Other forms of a target, which only HTTP/1 has.
    for (target, expected) in [
        ("http://app/v1/items", 429),
        ("http://other//%76%31/items", 429),
        ("HTTP://app/V1", 429),
        ("https://app/v1", 403),
        ("/v1#x", 400),
        ("\\v1/items", 400),
        ("v1/items", 400),
    ] {
        assert_eq!(status(&envoy, target, "").await, expected, "{target}");
    }
    for path in ["/", "/w1/items", "/items/v1"] {
        assert_eq!(status(&envoy, path, "").await, 200, "{path}");
    }
}

#[tokio::test]
#[ignore = "needs Envoy: make test-gateways"]
async fn the_limit_of_the_address_applies_to_every_route_of_envoy_whatever_the_client_sends() {
    let domain = documented_domain().replace("requests_per_unit: 100 ", "requests_per_unit: 2 ");
    let server = Server::with_domain(&domain, SEARCH);
    let envoy = Gateway::envoy(&server);
    for path in ["/v1", "/"] {
        assert_eq!(status(&envoy, path, "").await, 200);
    }
    for headers in [
        "",
        "x-forwarded-for: 192.0.2.1\r\n",
        "x-forwarded-for: 192.0.2.1\r\nX-Forwarded-For: 127.0.0.1, 192.0.2.2\r\n",
        "forwarded: for=192.0.2.1\r\nx-real-ip: 192.0.2.1\r\n",
        "x-envoy-external-address: 192.0.2.1\r\nx-envoy-internal: true\r\n",
        "x-envoy-original-path: /x\r\nx-envoy-upstream-rq-timeout-ms: 1\r\n",
        "x-envoy-retry-on: 5xx\r\nx-envoy-max-retries: 9\r\nx-envoy-ratelimited: true\r\n",
        "x-api-key: new\r\n",
        "x-api-key:\r\n",
    ] {
        for path in ["/v1", "/", "/any/thing?else"] {
            assert_eq!(status(&envoy, path, headers).await, 429, "{path} {headers}");
        }
    }
    let drops_address = "connection: x-forwarded-for\r\n";
    assert_eq!(status(&envoy, "/", drops_address).await, 400);
}

#[tokio::test]
#[ignore = "needs Envoy: make test-gateways"]
async fn of_several_keys_the_service_receives_only_the_one_that_envoy_limits() {
    let limits = "  - { key: api_key, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    for keys in [
        &["junk", "real"][..],
        &["junk", "", "real", "other"],
        &["", "real"],
        &["junk,real", "real"],
        &["real", "real"],
    ] {
        let server = Server::with_domain(&domain(limits), "");
        let envoy = Gateway::envoy(&server);
        let send = async |keys: &[&str]| {
            let request = Client::new().get(envoy.url());
            let request =
                keys.iter().fold(request, |request, key| request.header("x-api-key", *key));
            request.send().await.unwrap()
        };
        let response = send(keys).await;
        assert_eq!(response.status(), StatusCode::OK, "{keys:?}");
        let received: Vec<_> = response.headers().get_all("received-key").iter().collect();
        assert_eq!(received, [keys[0]]);
        assert_eq!(send(&keys[..1]).await.status(), StatusCode::TOO_MANY_REQUESTS, "{keys:?}");
        // In HTTP/1, names can differ in case.
        let names = ["X-Api-Key", "x-api-key", "X-API-KEY", "x-Api-key"];
        let lines = names.iter().zip(keys).map(|(name, key)| format!("{name}: {key}\r\n"));
        assert_eq!(status(&envoy, "/", &lines.collect::<String>()).await, 429, "{keys:?}");
    }
    let server = Server::with_domain(&domain(limits), "");
    let envoy = Gateway::envoy(&server);
    assert_eq!(status(&envoy, "/", "x_api_key: real\r\n").await, 400);
    assert_eq!(status(&envoy, "/", "x-api-key : real\r\n").await, 400);
}

#[tokio::test]
#[ignore = "needs Envoy: make test-gateways"]
async fn keys_that_match_a_wildcard_share_its_limit_behind_envoy() {
    let server = Server::with_domain(&documented_domain(), SEARCH);
    let envoy = Gateway::envoy(&server);
    for n in 0..50 {
        let response = get(&envoy, Some(&format!("trial-{n}"))).await;
        assert_eq!(response.status(), StatusCode::OK, "{n}");
    }
    let denied = get(&envoy, Some("trial-50")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&envoy, Some("paid")).await.status(), StatusCode::OK);
}

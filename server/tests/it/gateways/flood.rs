//! More requests at once than a gateway checks by default: none of them may pass unchecked because of that.

use std::net::SocketAddr;

use futures_util::future::join_all;
use reqwest::StatusCode;
use tokio::net::TcpStream;

use super::{SEARCH, documented_domain, get};
use crate::common::{Gateway, PATIENT, Redis, Server, until};

const FLOOD: usize = 3_000;

/// Sends requests over HTTP/2, all at once, and returns the status of each.
async fn flood(gateway: SocketAddr, requests: usize) -> Vec<StatusCode> {
    const STREAMS: usize = 100;
    let connections = (0..requests / STREAMS).map(|_| async {
        let stream = TcpStream::connect(gateway).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let responses = (0..STREAMS).map(|_| async {
            let request = http::Request::get("http://app/").body(()).unwrap();
            let mut client = client.clone().ready().await.unwrap();
            let (response, _) = client.send_request(request, true).unwrap();
            response.await.unwrap().status()
        });
        join_all(responses).await
    });
    join_all(connections).await.concat()
}

fn count(statuses: &[StatusCode], status: StatusCode) -> usize {
    statuses.iter().filter(|&&each| each == status).count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn a_flood_is_limited_by_envoy_even_if_all_checks_are_in_flight_at_once() {
    let redis = Redis::start().await;
    // So that a slow machine fails no check, and takes no permits from the failure mode in addition.
    let patient = "checks: { timeout: 20s }\nresource_limits: { request_timeout: 30s }";
    let memory = format!("{SEARCH}\n{patient}");
    let with_redis = format!("{memory}\nstore: {{ redis: '{}' }}", redis.url());
    for (settings, is_redis_stopped) in
        [(&memory, false), (&with_redis, false), (&with_redis, true)]
    {
        let server = Server::with_domain(&documented_domain(), settings);
        if is_redis_stopped {
            redis.stop();
        }
        let envoy = Gateway::envoy_with(&server, &[PATIENT]);
        server.signal("STOP");
        let flood = tokio::spawn(flood(envoy.address(), FLOOD));
        until(async || {
            let in_flight = envoy.metric("cluster.fleetlimit.upstream_rq_active").await;
            let passed = envoy.metric("cluster.app.ratelimit.failure_mode_allowed").await;
            in_flight + passed == FLOOD as u64
        })
        .await;
        server.signal("CONT");
        let statuses = flood.await.unwrap();
        // Others may get an error if the service accepts connections too slowly.
        let denied = count(&statuses, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(denied, FLOOD - 100, "{settings}, stopped: {is_redis_stopped}");
    }
}

/// With the documented timeout, a slow machine lets requests pass.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn envoy_counts_all_requests_that_pass_unchecked() {
    let server = Server::with_domain(&documented_domain(), SEARCH);
    let envoy = Gateway::envoy(&server);
    let allowed = async || envoy.metric("cluster.app.ratelimit.failure_mode_allowed").await;
    let statuses = flood(envoy.address(), FLOOD).await;
    let passed = FLOOD - count(&statuses, StatusCode::TOO_MANY_REQUESTS);
    let within_limit = envoy.metric("cluster.app.ratelimit.ok").await;
    assert!(within_limit <= 100, "{within_limit}");
    assert_eq!(passed as u64, within_limit + allowed().await);
    assert_eq!(envoy.metric("cluster.fleetlimit.upstream_rq_pending_overflow").await, 0);

    let too_slow = async || envoy.metric("cluster.fleetlimit.upstream_rq_timeout").await;
    let before = (allowed().await, too_slow().await);
    server.signal("STOP");
    assert_eq!(flood(envoy.address(), 300).await, [StatusCode::OK; 300]);
    assert_eq!((allowed().await, too_slow().await), (before.0 + 300, before.1 + 300));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy: make test-gateways"]
async fn envoy_denies_what_it_cannot_check_if_it_is_configured_so() {
    let server = Server::with_domain(&documented_domain(), SEARCH);
    let deny = "failure_mode_deny: true
                      status_on_error: { code: ServiceUnavailable }";
    let envoy = Gateway::envoy_with(&server, &[("failure_mode_deny: false", deny)]);
    server.signal("STOP");
    assert_eq!(flood(envoy.address(), 300).await, [StatusCode::SERVICE_UNAVAILABLE; 300]);
    assert_eq!(envoy.metric("cluster.app.ratelimit.error").await, 300);
}

/// They open a connection for each check in flight.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Caddy and Traefik: make test-gateways"]
async fn a_flood_of_more_checks_than_connections_passes_no_limit_of_caddy_or_traefik() {
    let settings = "policies: { search: { requests: 1/day burst 100 } }
resource_limits: { connections_per_address: 200 }";
    for (gateway, failed) in [
        (Gateway::caddy as fn(&Server) -> Gateway, StatusCode::BAD_GATEWAY),
        (Gateway::traefik, StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let server = Server::with_settings(settings);
        let gateway = gateway(&server);
        // Traefik opens its port before it knows its routes.
        until(async || get(&gateway, None).await.status() == StatusCode::OK).await;
        let responses = join_all((0..600).map(|_| get(&gateway, None))).await;
        let statuses: Vec<_> = responses.iter().map(reqwest::Response::status).collect();
        let denied = count(&statuses, StatusCode::TOO_MANY_REQUESTS) + count(&statuses, failed);
        let admitted = count(&statuses, StatusCode::OK);
        assert!(admitted <= 99 && admitted + denied == 600, "{admitted} and {denied}");
    }
}

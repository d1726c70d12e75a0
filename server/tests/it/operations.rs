//! Reloads, hostile clients, and the end of the process.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use reqwest::{Client, StatusCode};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::common::{Files, PATIENCE, Server, request, until};

fn domain(permits: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n  \
         - {{ key: user, rate_limit: {{ unit: year, requests_per_unit: {permits} }} }}\n"
    )
}

async fn get(url: String) -> (StatusCode, String) {
    let response = Client::new().get(url).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

async fn reload(server: &Server) -> (StatusCode, String) {
    let response = Client::new().post(server.admin("/api/reload")).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test]
async fn a_reload_changes_limits_and_keeps_what_was_consumed() {
    let server = Server::with_domain(&domain(10), "");
    let mut client = server.client().await;
    for _ in 0..4 {
        client.ask("d", &[("user", "ada")]).await;
    }
    server.files().write("domain.yaml", &domain(20));
    assert_eq!(reload(&server).await.0, StatusCode::NO_CONTENT);
    assert_eq!(client.ask("d", &[("user", "ada")]).await.statuses[0].limit_remaining, 15);

    // A limit that is gone does not apply, and one that is back has forgotten nothing.
    server.files().write("domain.yaml", "domain: d");
    assert_eq!(reload(&server).await.0, StatusCode::NO_CONTENT);
    assert!(client.ask("d", &[("user", "ada")]).await.statuses[0].current_limit.is_none());
    server.files().write("domain.yaml", &domain(20));
    assert_eq!(reload(&server).await.0, StatusCode::NO_CONTENT);
    assert_eq!(client.ask("d", &[("user", "ada")]).await.statuses[0].limit_remaining, 14);
}

/// Otherwise the key would have to wait for the end of the year.
#[tokio::test]
async fn a_reload_with_another_unit_starts_a_new_window() {
    let server = Server::with_domain(&domain(10), "");
    let mut client = server.client().await;
    for _ in 0..11 {
        client.ask("d", &[("user", "ada")]).await;
    }
    server.files().write("domain.yaml", &domain(10).replace("year", "month"));
    assert_eq!(reload(&server).await.0, StatusCode::NO_CONTENT);
    assert_eq!(client.ask("d", &[("user", "ada")]).await.statuses[0].limit_remaining, 9);
}

#[tokio::test]
async fn an_invalid_file_keeps_the_old_limits_and_metrics_show_it() {
    let server = Server::with_domain(&domain(10), "");
    let mut client = server.client().await;
    server.files().write("domain.yaml", "domain: d\ndescriptors: [{ key: user, polcy: x }]");
    let (status, text) = reload(&server).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text.contains("polcy"), "{text}");
    assert_eq!(client.ask("d", &[("user", "ada")]).await.statuses[0].limit_remaining, 9);
    let (_, metrics) = get(server.admin("/metrics")).await;
    assert!(metrics.contains("fleetlimit_server_reload_failed 1"), "{metrics}");
    assert!(
        metrics.contains(r#"fleetlimit_server_reloads_total{outcome="rejected"}"#),
        "{metrics}"
    );

    server.files().write("domain.yaml", &domain(10));
    assert_eq!(reload(&server).await.0, StatusCode::NO_CONTENT);
    let (_, metrics) = get(server.admin("/metrics")).await;
    assert!(metrics.contains("fleetlimit_server_reload_failed 0"), "{metrics}");
}

#[tokio::test]
async fn a_rejected_reload_changes_nothing_and_is_tried_again_when_its_files_change() {
    let settings = |domains: &str, more: &str| {
        format!("policies: {{ p: {{ day: 5/day }} }}\ndomains: [{domains}]\n{more}")
    };
    let server =
        Server::with_files(&[("settings.yaml", &settings("a.yaml", "")), ("a.yaml", &domain(10))]);
    let mut client = server.client().await;
    client.ask("d", &[("user", "ada")]).await;
    // Valid limits, and trusted proxies that are not.
    server.files().write("a.yaml", &domain(500));
    let wrong = settings("a.yaml", "auth: { trusted_proxies: [0.0.0.0/0] }");
    server.files().write("settings.yaml", &wrong);
    assert_eq!(reload(&server).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(client.ask("d", &[("user", "ada")]).await.statuses[0].limit_remaining, 8);

    // A file that was never part of a valid configuration.
    server.files().write("b.yaml", "domain: other\ndescriptors: [{ kee: x }]");
    server.files().write("settings.yaml", &settings("a.yaml, b.yaml", ""));
    assert_eq!(reload(&server).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    server.files().write("b.yaml", "domain: other");
    until(async || {
        let status = client.ask("d", &[("user", "ada")]).await.statuses[0].clone();
        status.current_limit.is_some_and(|limit| limit.requests_per_unit == 500)
    })
    .await;
    server.files().write("settings.yaml", "");
    let (status, text) = reload(&server).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "an empty file would lift all limits");
    assert!(text.contains("nothing is limited"), "{text}");
}

#[tokio::test]
async fn a_reload_lists_all_errors_also_those_of_what_needs_a_restart() {
    let server = Server::with_domain(&domain(10), "");
    let settings = "domains: [domain.yaml]\nstore: { redis: nonsense }\n\
                    tls: { certificate: none.pem, key: none.key }\nresource_limits: { foo: 1 }";
    server.files().write("settings.yaml", settings);
    server.files().write("domain.yaml", "domain: d\ndescriptors: [{ key: user, polcy: x }]");
    let (status, text) = reload(&server).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    for expected in [
        "settings.yaml:2:17: invalid Redis URL",
        "settings.yaml:3:8: none.pem",
        "settings.yaml:3:31: tls.key: No such file",
        "settings.yaml:4:20: unknown field `foo`",
        "domain.yaml:2:28: unknown field `polcy`",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[tokio::test]
async fn a_reload_that_a_certificate_prevents_is_tried_again_when_that_changes() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = Files::new(&[
        ("server.pem", &issued.cert.pem()),
        ("server.key", &issued.signing_key.serialize_pem()),
    ]);
    let [certificate, key] = ["server.pem", "server.key"].map(|name| files.path(name));
    let settings = |policy: &str| {
        format!(
            "policies: {{ {policy}: {{ day: 5/day }} }}\n\
             tls: {{ certificate: {certificate:?}, key: {key:?} }}"
        )
    };
    files.write("settings.yaml", &settings("old"));
    let server = Server::start(&files.path("settings.yaml"), &[]);
    files.write("server.pem", "half a");
    files.write("settings.yaml", &settings("new"));
    assert_eq!(reload(&server).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    files.write("server.pem", &issued.cert.pem());
    until(async || get(server.admin("/api/status")).await.1.contains("\"new\"")).await;
}

#[tokio::test]
async fn descriptors_and_domains_without_a_limit_are_visible() {
    let server = Server::with_domain(&domain(10), "allow: [friend]");
    let mut client = server.client().await;
    client.ask("d", &[("usr", "ada")]).await;
    // Also if a list or the request itself decides.
    let (listed, unknown) = ([("user", "friend")], [("user", "ada")]);
    client.send(request("e", &[&unknown, &unknown])).await.unwrap();
    client.send(request("e", &[&listed])).await.unwrap();
    let mut with_limit = request("e", &[&unknown]);
    with_limit.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 1 });
    client.send(with_limit).await.unwrap();
    let (_, metrics) = get(server.admin("/metrics")).await;
    for (reason, count) in [("descriptor", 1), ("domain", 3)] {
        let line = format!("fleetlimit_server_unmatched_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

/// Envoy lets these requests pass, so operators have to see them.
#[tokio::test]
async fn requests_that_were_not_checked_are_visible() {
    let settings = "resource_limits: { descriptors: 2, request_bytes: 4096, request_timeout: 300ms }\n\
                    checks: { timeout: 100ms }";
    let server = Server::with_domain(&domain(10), settings);
    let mut client = server.client().await;
    let one: &[(&str, &str)] = &[("user", "ada")];
    client.send(request("d", &[one])).await.unwrap();
    client.send(request("d", &[one; 3])).await.unwrap_err();
    client.send(request("d", &[&[("user", &"x".repeat(5_000))]])).await.unwrap_err();
    crate::http2::send_half(&server).await;
    // Of another service.
    let unknown = HealthCheckRequest { service: "unknown".into() };
    server.health().await.check(unknown).await.unwrap_err();
    let (_, metrics) = get(server.admin("/metrics")).await;
    let errors =
        metrics.lines().filter(|line| line.starts_with("fleetlimit_server_grpc_errors_total"));
    let mut errors: Vec<_> = errors.collect();
    errors.sort();
    assert_eq!(
        errors,
        [
            "fleetlimit_server_grpc_errors_total{code=\"CANCELLED\"} 1",
            "fleetlimit_server_grpc_errors_total{code=\"INVALID_ARGUMENT\"} 1",
            "fleetlimit_server_grpc_errors_total{code=\"OUT_OF_RANGE\"} 1",
        ]
    );
}

#[tokio::test]
async fn a_reload_changes_lists_and_what_gateways_may_send() {
    let settings = "policies: { a: { q: 9/day } }\nauth: { policy: a }";
    let server = Server::with_settings(settings);
    let auth = async || {
        let request = Client::new().get(server.http("/auth"));
        let request = request.header("x-forwarded-for", "192.0.2.1").header("x-key", "ada");
        request.send().await.unwrap().status()
    };
    assert_eq!(auth().await, StatusCode::OK);
    for (changed, expected) in [
        ("policies: { a: { q: 9/day } }\nauth: { policy: a }\ndeny: [192.0.2.1]", 429),
        ("policies: { a: { q: 9/day } }\nauth: { policy: a }\ndeny: [192.0.2.2]", 200),
        ("policies: { a: { q: 9/day } }\nauth: { policy: a, key_header: x-key }\ndeny: [ada]", 429),
        ("policies: { a: { q: 9/day } }\nauth: { policy: a, gateways: [192.0.2.9] }", 400),
        ("policies: { a: { q: 9/day } }", 400),
        (settings, 200),
    ] {
        server.files().write("settings.yaml", changed);
        assert_eq!(reload(&server).await.0, StatusCode::NO_CONTENT, "{changed}");
        assert_eq!(auth().await.as_u16(), expected, "{changed}");
    }
}

#[tokio::test]
async fn changed_files_and_hangups_reload_too() {
    let server = Server::with_domain(&domain(10), "");
    let client = server.client().await;
    let has_limit = |permits: u32| {
        let client = client.clone();
        move || {
            let mut client = client.clone();
            async move {
                let response = client.ask("d", &[("user", "ada")]).await;
                let limit = response.statuses[0].current_limit.clone();
                limit.is_some_and(|limit| limit.requests_per_unit == permits)
            }
        }
    };
    server.files().write("domain.yaml", &domain(1_000));
    until(has_limit(1_000)).await;
    server.files().write("domain.yaml", &domain(2_000));
    server.signal("HUP");
    until(has_limit(2_000)).await;
}

#[tokio::test]
async fn metrics_by_value_are_counted_where_the_configuration_asks_for_them() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - { key: key1, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - key: route
    value_to_metric: true
    descriptors:
      - { key: subject, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: free, detailed_metric: true, rate_limit: { unlimited: true } }
  - { key: never, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 0 } }
  - key: trial
    detailed_metric: true
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
",
        "",
    );
    let mut client = server.client().await;
    for key in ["free", "never", "trial", "trial"] {
        client.ask("d", &[(key, "a")]).await;
    }
    for _ in 0..3 {
        client.ask("d", &[("key1", "a")]).await;
    }
    client.ask("d", &[("route", "draw"), ("subject", "123")]).await;
    client.ask("d", &[("plain", "secret")]).await;
    let (_, metrics) = get(server.admin("/metrics")).await;
    let value = |descriptor: &str, outcome: &str| {
        let line = metrics.lines().find(|line| {
            line.starts_with("fleetlimit_server_descriptors_total")
                && line.contains(&format!("\"{descriptor}\""))
                && line.contains(outcome)
        });
        line.map(|line| line.rsplit(' ').next().unwrap().to_owned())
    };
    assert_eq!(value("key1_a", "allowed").as_deref(), Some("1"));
    assert_eq!(value("key1_a", "denied").as_deref(), Some("2"));
    assert_eq!(value("route_draw.subject", "allowed").as_deref(), Some("1"));
    assert_eq!(value("free_a", "allowed").as_deref(), Some("1"));
    assert_eq!(value("never_a", "denied").as_deref(), Some("1"));
    assert_eq!(value("trial_a", "denied").as_deref(), Some("1"), "without shadow mode");
    assert!(!metrics.contains("secret") && !metrics.contains("123"));
}

#[tokio::test]
async fn a_process_that_ends_says_so_first_and_finishes_what_it_has_begun() {
    let mut server = Server::with_settings(
        "
policies: { a: { q: 9/s } }
resource_limits: { request_timeout: 60s }
shutdown: { delay: 5s, timeout: 60s }
",
    );
    let mut health = server.health().await;
    let mut status = async || {
        let reply = health.check(HealthCheckRequest::default()).await;
        reply.map(|reply| reply.into_inner().status())
    };
    assert_eq!(status().await.unwrap(), ServingStatus::Serving);
    // A request of which half has arrived.
    let mut begun = TcpStream::connect(server.http).unwrap();
    let body = r#"{"policy": "a", "key": "k"}"#;
    write!(
        begun,
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    server.signal("TERM");
    until(async || get(server.http("/readyz")).await.0 == StatusCode::SERVICE_UNAVAILABLE).await;
    assert_eq!(status().await.unwrap(), ServingStatus::NotServing);
    until(async || TcpStream::connect(server.http).is_err()).await;
    begun.write_all(body.as_bytes()).unwrap();
    let mut response = String::new();
    begun.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(server.ends().await);
}

#[tokio::test]
async fn large_health_checks_are_rejected() {
    let settings = "{ policies: { a: { q: 9/s } }, resource_limits: { request_bytes: 1000 } }";
    let server = Server::with_settings(settings);
    let request = HealthCheckRequest { service: "x".repeat(2_000) };
    let status = server.health().await.check(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::OutOfRange);
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let settings = "{ policies: { a: { q: 9/s } }, shutdown: { delay: 10m } }";
    let mut server = Server::with_settings(settings);
    server.signal("TERM");
    until(async || get(server.http("/readyz")).await.0 == StatusCode::SERVICE_UNAVAILABLE).await;
    server.signal("TERM");
    assert!(server.ends().await);
}

#[tokio::test]
async fn clients_that_watch_the_health_do_not_delay_the_end() {
    let mut server = Server::with_settings(
        "
policies: { a: { q: 9/s } }
resource_limits: { request_timeout: 60s }
shutdown: { timeout: 60s }
",
    );
    let mut health = server.health().await;
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    server.signal("TERM");
    assert!(server.ends().await);
}

#[tokio::test]
async fn clients_that_send_garbage_or_half_a_request_do_not_disturb_others() {
    let server = Server::with_domain(
        &domain(10),
        "resource_limits: { connections: 32, connections_per_address: 32 }",
    );
    let half_open: Vec<_> = (0..20)
        .flat_map(|_| [server.grpc, server.http, server.admin])
        .map(|address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HT").unwrap();
            stream
        })
        .collect();
    for address in [server.grpc, server.http, server.admin] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&[0xff; 4_096]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        // Reset, or told that it is garbage.
        let _ = stream.read_to_end(&mut reply);
    }
    let mut client = server.client().await;
    let answer = in_time(client.ask("d", &[("user", "ada")])).await;
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(get(server.http("/healthz")).await.0, StatusCode::OK);
    drop(half_open);
}

#[tokio::test]
async fn connections_without_requests_make_room_for_others() {
    let server = Server::with_domain(
        &domain(10),
        "resource_limits: { connections: 1, request_timeout: 1s, idle_timeout: 1s }",
    );
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // Half a preface, then a complete one with empty SETTINGS.
    for part in [&preface[..7], &preface[..]] {
        let mut idle = TcpStream::connect(server.grpc).unwrap();
        idle.write_all(part).unwrap();
        let code = in_time(async { server.client().await.ask("d", &[("user", "ada")]).await });
        assert_eq!(code.await.overall_code(), Code::Ok);
    }
    let mut idle = TcpStream::connect(server.http).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    // Less than the 10 s after which an idle HTTP/1 connection is closed anyway.
    let time = Duration::from_secs(8);
    let answer = tokio::time::timeout(time, get(server.http("/healthz"))).await;
    assert_eq!(answer.expect("others are not answered").0, StatusCode::OK);
}

async fn in_time<F: Future>(answer: F) -> F::Output {
    tokio::time::timeout(PATIENCE, answer).await.expect("others are not answered")
}

#[tokio::test]
async fn a_request_with_large_headers_is_rejected() {
    let server = Server::with_domain(&domain(10), "resource_limits: { header_bytes: 8192 }");
    let large = "x".repeat(12_000);
    let with_header = Client::new().get(server.http("/healthz")).header("x-large", &large);
    let status = with_header.send().await.unwrap().status();
    assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    let mut request = tonic::Request::new(request("d", &[&[("user", "ada")]]));
    request.metadata_mut().insert("x-large", large.parse().unwrap());
    let rejected = server.client().await.0.should_rate_limit(request).await;
    assert_eq!(rejected.map_err(|status| status.code()).unwrap_err(), tonic::Code::Unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_distinct_descriptors_takes_bounded_memory_and_holds_nobody_up() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - { key: path, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000000 } }
",
        "store: { max_keys: 5000 }",
    );
    let mut flood = server.client().await;
    let mut other = server.client().await;
    let mut number = 0_u64;
    let mut after_a_quarter = 0;
    for round in 0..600 {
        let paths: Vec<_> = (0..64).map(|n| format!("{}{}", number + n, "x".repeat(100))).collect();
        number += 64;
        let entries: Vec<_> = paths.iter().map(|path| [("path", path.as_str())]).collect();
        let entries: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
        let (answer, answer_of_other) =
            tokio::join!(flood.send(request("d", &entries)), other.ask("d", &[("user", "ada")]),);
        assert_eq!(answer.unwrap().overall_code(), Code::Ok);
        assert_eq!(answer_of_other.overall_code(), Code::Ok);
        if round == 150 {
            after_a_quarter = server.memory();
        }
    }
    let end = server.memory();
    // Without a bound it is 11 MB more.
    assert!(end < after_a_quarter + 4_000_000, "from {after_a_quarter} to {end} bytes");
}

/// As on a volume that does not answer.
#[tokio::test]
async fn a_file_that_blocks_its_reader_does_not_keep_the_process_from_ending() {
    let mut server = Server::with_settings("policies: { p: { q: 1/s } }");
    let settings = server.files().path("settings.yaml");
    std::fs::remove_file(&settings).unwrap();
    assert!(Command::new("mkfifo").arg(&settings).status().unwrap().success());
    // Someone could still write to it.
    let _writer = File::options().read(true).write(true).open(&settings).unwrap();
    server.signal("HUP");
    let files = format!("/proc/{}/fd", server.pid());
    until(async || {
        let mut open = std::fs::read_dir(&files).unwrap().flatten();
        open.any(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == settings))
    })
    .await;
    server.signal("TERM");
    assert!(server.ends().await);
}

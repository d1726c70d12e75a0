//! Checks over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

use crate::common::{PATIENCE, Server};

const SETTINGS: &str = "
policies:
  search: { hour: 3/h }
  upload: { files: 10/day, bytes: 1000/day }
auth: { policy: search }
allow: [10.9.0.0/16, friend]
deny: [203.0.113.66, '2001:db8:bad::/48']
";

async fn auth(server: &Server, query: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = Client::new().get(server.http(&format!("/auth{query}")));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

async fn check(server: &Server, body: Value) -> Response {
    Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap()
}

/// Until the next of three permits per hour.
fn is_twenty_minutes(response: &Response) -> bool {
    let seconds: u32 = header(response, "retry-after").unwrap().parse().unwrap();
    (1_100..=1_200).contains(&seconds)
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn gateways_are_told_whether_a_client_may_pass() {
    let server = Server::with_settings(SETTINGS);
    let ask = async |client: &str| auth(&server, "", &[("x-forwarded-for", client)]).await;
    for remaining in ["2", "1", "0"] {
        let response = ask("192.0.2.1").await;
        assert_eq!(response.status(), StatusCode::OK);
        let field = header(&response, "ratelimit").unwrap();
        assert!(field.starts_with(&format!(r#""hour";r={remaining};t="#)), "{field}");
        assert_eq!(header(&response, "ratelimit-policy"), Some(r#""hour";q=3;w=3600"#));
    }
    let denied = ask("192.0.2.1").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(is_twenty_minutes(&denied));
    assert_eq!(header(&denied, "content-type"), Some("application/problem+json"));
    assert_eq!(header(&denied, "cache-control"), Some("no-store"));
    let other = ask("192.0.2.2").await;
    assert_eq!((other.status(), header(&other, "cache-control")), (StatusCode::OK, None));
    let listed = ask("203.0.113.66").await;
    assert_eq!(header(&listed, "cache-control"), Some("no-store"));

    // Some gateways add the port.
    assert_eq!(ask("192.0.2.1:4711").await.status(), StatusCode::TOO_MANY_REQUESTS);
    for port in ["46532", "443", "80"] {
        let client = format!("2001:db8:1:2:3:4:5:6:{port}");
        assert_eq!(ask(&client).await.status(), StatusCode::OK);
    }
    let same = ask("2001:db8:1:2::9").await;
    assert_eq!(same.status(), StatusCode::TOO_MANY_REQUESTS);
    // Only the entry that the gateway added counts.
    assert_eq!(ask("192.0.2.99, 192.0.2.1").await.status(), StatusCode::TOO_MANY_REQUESTS);
    // nginx passes only some statuses on.
    let headers = [("x-forwarded-for", "192.0.2.1")];
    let denied = auth(&server, "?denied=403", &headers).await;
    assert_eq!(denied.status(), StatusCode::FORBIDDEN);
    assert!(is_twenty_minutes(&denied));
}

#[tokio::test]
async fn a_gateway_chooses_the_policy_the_key_and_the_cost() {
    let server = Server::with_settings(SETTINGS);
    let query = "?policy=upload&key_header=x-api-key&cost=4";
    let ask = async |key: &str| auth(&server, query, &[("x-api-key", key)]).await;
    assert!(header(&ask("a").await, "ratelimit").unwrap().starts_with(r#""files";r=6;"#));
    assert!(header(&ask("a").await, "ratelimit").unwrap().starts_with(r#""files";r=2;"#));
    assert_eq!(ask("a").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("b").await.status(), StatusCode::OK);
    assert_eq!(ask("").await.status(), StatusCode::BAD_REQUEST);
    let twice = [("x-api-key", "a"), ("x-api-key", "c")];
    assert_eq!(auth(&server, query, &twice).await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_header_of_the_gateway_chooses_the_policy() {
    let policies = "policies: { free: { day: 1/day }, paid: { day: 2/day } }";
    let auth_settings = "auth: { policy_header: x-plan, key_header: x-user }";
    let server = Server::with_settings(&format!("{policies}\n{auth_settings}"));
    let limit = async |query: &str, user: &str, plan: Option<&str>| {
        let plan = plan.map(|plan| ("x-plan", plan));
        let headers: Vec<_> = [("x-user", user)].into_iter().chain(plan).collect();
        limit(&server, query, &headers).await
    };
    assert_eq!(limit("", "ada", Some("paid")).await, of(2));
    // The URL has precedence over the settings.
    assert_eq!(limit("?policy=free", "bob", Some("paid")).await, of(1));
    assert_eq!(limit("?policy=paid&policy_header=x-other", "bob", Some("free")).await, of(2));
    assert_eq!(limit("", "ada", Some("gold")).await, (404, None));
    assert_eq!(limit("", "ada", Some("")).await, (400, None));
    let twice = [("x-user", "ada"), ("x-plan", "free"), ("x-plan", "paid")];
    assert_eq!(auth(&server, "", &twice).await.status(), StatusCode::BAD_REQUEST);
}

async fn limit(server: &Server, query: &str, headers: &[(&str, &str)]) -> (u16, Option<String>) {
    let response = auth(server, query, headers).await;
    let policy = header(&response, "ratelimit-policy").map(str::to_owned);
    (response.status().as_u16(), policy)
}

fn of(permits: u32) -> (u16, Option<String>) {
    (200, Some(format!(r#""day";q={permits};w=86400"#)))
}

#[tokio::test]
async fn a_client_that_makes_the_gateway_drop_the_header_of_its_policy_has_no_second_limit() {
    let policies = "policies: { free: { day: 1/day }, paid: { day: 2/day } }";
    for (settings, query) in [
        ("policy_header: x-plan, key_header: x-user", ""),
        ("policy: free, key_header: x-user", "?policy_header=x-plan"),
        ("policy_header: x-other, key_header: x-user", "?policy_header=x-plan"),
    ] {
        let server = Server::with_settings(&format!("{policies}\nauth: {{ {settings} }}"));
        let ada = ("x-user", "ada");
        assert_eq!(limit(&server, query, &[ada, ("x-plan", "paid")]).await, of(2), "{settings}");
        assert_eq!(limit(&server, query, &[ada]).await, (400, None), "{settings}");
        let line = server.wait_for_line("the header `x-plan` is missing");
        assert!(line.contains("WARN"), "{line}");
        // A gateway may ask for it.
        let query = "?policy=free&policy_header=x-plan";
        assert_eq!(limit(&server, query, &[ada]).await, of(1), "{settings}");
        assert_eq!(limit(&server, query, &[ada, ("x-plan", "")]).await, (400, None), "{settings}");
    }
}

#[tokio::test]
async fn a_client_that_chooses_its_key_cannot_take_the_permits_of_another_one() {
    let server = Server::with_settings(SETTINGS);
    let by_header = async |name: &str, key: &str| {
        auth(&server, &format!("?key_header={name}"), &[(name, key)]).await.status()
    };
    for victim in ["192.0.2.1", "x-user|ada", "ada"] {
        for _ in 0..3 {
            assert_eq!(by_header("x-api-key", victim).await, StatusCode::OK);
        }
        assert_eq!(by_header("x-api-key", victim).await, StatusCode::TOO_MANY_REQUESTS);
    }
    let by_address = auth(&server, "", &[("x-forwarded-for", "192.0.2.1")]).await;
    assert_eq!(by_address.status(), StatusCode::OK);
    assert_eq!(by_header("x-user", "ada").await, StatusCode::OK);
    let checked = check(&server, json!({ "policy": "search", "key": "ada" })).await;
    assert_eq!(checked.json::<Value>().await.unwrap()["allowed"], true);

    // What operators and services call that key.
    let key = json!({ "policy": "search", "key": "x-api-key|ada" });
    assert_eq!(check(&server, key).await.json::<Value>().await.unwrap()["allowed"], false);
}

#[tokio::test]
async fn a_request_that_does_not_end_in_time_gets_408() {
    let settings = "{ policies: { a: { q: 1/s } }, resource_limits: { request_timeout: 200ms } }";
    let server = Server::with_settings(settings);
    let mut connection = TcpStream::connect(server.http).unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
                content-length: 99\r\n\r\n{";
    connection.write_all(head.as_bytes()).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut response = [0; 12];
    connection.read_exact(&mut response).unwrap();
    assert_eq!(&response, b"HTTP/1.1 408");
}

/// Otherwise it would lose the decision, because the server would close the connection.
#[tokio::test]
async fn a_gateway_that_passes_the_body_on_gets_the_decision_and_keeps_its_connection() {
    let server = Server::with_settings(SETTINGS);
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..2 {
        let head = "POST /auth HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.1\r\n";
        write!(stream, "{head}content-length: 60000\r\n\r\n").unwrap();
        for part in [b'a'; 60_000].chunks(15_000) {
            stream.write_all(part).unwrap();
        }
        let mut response = [0; 12];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(&response, b"HTTP/1.1 200");
        // The body of a response without an error is empty.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
    }
}

/// What operators need to know is not for clients, who get this from Caddy and Traefik.
async fn is_unchecked(response: Response, status: u16) {
    assert_eq!(response.status().as_u16(), status);
    let title = response.status().canonical_reason().unwrap();
    let body: Value = response.json().await.unwrap();
    let detail = "This request cannot be checked.";
    assert_eq!(body, json!({ "title": title, "status": status, "detail": detail }));
}

#[tokio::test]
async fn a_gateway_that_hides_its_clients_is_logged() {
    let server = Server::with_settings(SETTINGS);
    is_unchecked(auth(&server, "", &[]).await, 400).await;
    server.wait_for_line("has to send X-Forwarded-For");
    is_unchecked(auth(&server, "", &[("x-forwarded-for", "192.0.2.1, unknown")]).await, 400).await;
}

/// Whoever reaches the port could use up the permits of any key.
#[tokio::test]
async fn only_a_gateway_may_ask_about_any_kind_of_key() {
    for (settings, advice) in [
        ("gateways: [10.0.0.1]", ""),
        ("gateways: []", ""),
        ("gateways: [10.0.0.1], key_header: x-user", ""),
        ("gateways: [10.0.0.1], trusted_proxies: [127.0.0.1]", "`auth.trusted_proxies` does: move"),
    ] {
        let server = Server::with_settings(&format!(
            "{{ policies: {{ a: {{ q: 1/s }} }}, auth: {{ policy: a, {settings} }} }}"
        ));
        let headers = [("x-forwarded-for", "192.0.2.1"), ("x-user", "ada")];
        for query in ["", "?policy=a", "?policy=b", "?key_header=x-user", "?nonsense=1"] {
            is_unchecked(auth(&server, query, &headers).await, 400).await;
        }
        let line = server.wait_for_line("`auth.gateways` does not have 127.0.0.1");
        assert!(line.contains(advice), "{line}");
    }
}

/// Gateways append, and their networks have other machines in them.
#[tokio::test]
async fn a_client_in_the_network_of_the_gateways_cannot_claim_another_address() {
    let server = Server::with_settings(
        "
policies: { search: { hour: 3/h } }
auth: { policy: search, gateways: [127.0.0.0/8, 10.0.0.0/8], trusted_proxies: [192.0.2.10] }
allow: [10.9.0.0/16]
",
    );
    let ask = async |forwarded: &str| auth(&server, "", &[("x-forwarded-for", forwarded)]).await;
    for (forged, before) in [("10.9.0.1", ""), ("10.0.0.7", ""), ("10.9.0.2", ", 192.0.2.10")] {
        let response = ask(&format!("{forged}, 10.1.2.3{before}")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(header(&response, "ratelimit").is_some(), "it is on the allow list by {forged}");
    }
    for forwarded in ["10.1.2.3", "10.9.0.3, 10.1.2.3", "203.0.113.1, 10.1.2.3, 192.0.2.10"] {
        assert_eq!(ask(forwarded).await.status(), StatusCode::TOO_MANY_REQUESTS, "{forwarded}");
    }
    // Nor can one behind it, whom a list knows by its own address.
    for forwarded in ["10.9.0.3", "203.0.113.1, 10.9.0.3, 192.0.2.10"] {
        let response = ask(forwarded).await;
        assert_eq!((response.status(), header(&response, "ratelimit")), (StatusCode::OK, None));
    }
}

#[tokio::test]
async fn proxies_whose_network_has_clients_in_it_are_logged() {
    let settings = |proxies: &str| {
        format!(
            "{{ policies: {{ a: {{ q: 1/s }} }}, auth: {{ policy: a, trusted_proxies: [{proxies}] }} }}"
        )
    };
    let is_logged = |server: &Server| server.log.iter().any(|line| line.contains("is large"));
    for (proxies, expected) in [
        ("10.0.0.0/15", true),
        ("'::ffff:10.0.0.0/111'", true),
        ("'2001:db8::/47'", true),
        ("10.1.0.0/16, 192.0.2.1, '2001:db8::/48', '::ffff:10.0.0.0/112'", false),
    ] {
        let server = Server::with_settings(&settings(proxies));
        assert_eq!(is_logged(&server), expected, "{proxies}");
        if !expected {
            server.files().write("settings.yaml", &settings("10.0.0.0/8"));
            server.wait_for_line("10.0.0.0/8");
        }
    }
}

#[tokio::test]
async fn clients_of_one_network_share_a_limit_as_configured() {
    for (settings, clients, other) in [
        ("", ["2001:db8:1:2::1", "2001:db8:1:2:3::1"], "2001:db8:1:3::1"),
        ("ipv6_prefix: 56", ["2001:db8:1:2::1", "2001:db8:1:ff::1"], "2001:db8:1:100::1"),
        ("ipv6_prefix: 128", ["2001:db8::1", "2001:db8::0:1"], "2001:db8::2"),
        ("ipv6_prefix: 128", ["64:ff9b::192.0.2.1", "192.0.2.1"], "64:ff9b::192.0.2.2"),
        ("", ["64:ff9b::192.0.2.1", "::ffff:192.0.2.1"], "64:ff9b::192.0.2.2"),
        ("ipv4_prefix: 24", ["64:ff9b::192.0.2.1", "192.0.2.200"], "192.0.3.1"),
        ("", ["64:ff9b:1::192.0.2.1", "64:ff9b:1::192.0.2.2"], "64:ff9b:1:1::192.0.2.1"),
    ] {
        let server = Server::with_settings(&format!(
            "policies: {{ a: {{ q: 1/day }} }}\nauth: {{ policy: a, {settings} }}"
        ));
        let ask = async |client: &str| {
            auth(&server, "", &[("x-forwarded-for", client)]).await.status().as_u16()
        };
        let statuses = [ask(clients[0]).await, ask(clients[1]).await, ask(other).await];
        assert_eq!(statuses, [200, 429, 200], "{settings} {clients:?} {other}");
    }
}

/// As Caddy sends them if its configuration has `uri /auth`.
#[tokio::test]
async fn a_client_does_not_choose_the_parameters_of_auth_with_its_own_query() {
    let server = Server::with_settings("policies: { a: { q: 1/h } }\nauth: { policy: a }");
    let ask = async |query: &str, uri: &str| {
        let headers = [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-uri", uri)];
        auth(&server, query, &headers).await
    };
    for query in ["?cost=0", "?key_header=user-agent", "?q=1"] {
        let response = ask(query, &format!("/path{query}")).await;
        is_unchecked(response, 400).await;
        is_unchecked(ask(query, &format!("/path{query}#fragment?")).await, 400).await;
    }
    server.wait_for_line("end the URL");
    assert_eq!(ask("?", "/path?cost=0").await.status(), StatusCode::OK);
    let other_query = ask("?policy=a", "/path?cost=0").await;
    assert_eq!(other_query.status(), StatusCode::TOO_MANY_REQUESTS, "the first was charged");
}

#[tokio::test]
async fn what_is_wrong_with_a_gateway_is_in_the_log_and_not_in_the_response() {
    for (query, status, says) in [
        ("", 400, "add `?policy=NAME`"),
        ("?policy=b", 404, "there is no policy `b`"),
        ("?policy=a&denied=200", 400, "`denied`"),
        ("?policy=a&polcy=a", 400, "polcy"),
        ("?policy=a&key_header=a%20b", 400, "`a b` is not the name of a header"),
        ("?policy=a&key_header=missing", 400, "the header `missing` is missing"),
        ("?policy_header=missing", 400, "the header `missing` is missing"),
        // A line break in it begins no line.
        ("?%0aERROR=1", 400, "unknown field ` ERROR`"),
    ] {
        let server = Server::with_settings("policies: { a: { q: 1/s } }");
        let response = auth(&server, query, &[("x-forwarded-for", "192.0.2.1")]).await;
        is_unchecked(response, status).await;
        let line = server.wait_for_line(says);
        assert!(line.contains("WARN") && line.contains("/auth cannot check"), "{line}");
    }
}

#[tokio::test]
async fn a_client_does_not_get_to_know_which_list_denies_it() {
    let server = Server::with_settings(SETTINGS);
    let block = json!({ "policy": "search", "key": "192.0.2.1", "seconds": 100 });
    let blocked = Client::new().post(server.admin("/api/block")).json(&block).send().await;
    assert!(blocked.unwrap().status().is_success());
    for client in ["203.0.113.66", "192.0.2.1"] {
        let response = auth(&server, "", &[("x-forwarded-for", client)]).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["detail"], "This request is denied.");
    }
}

#[tokio::test]
async fn mistakes_of_a_caller_are_answered_and_are_no_failure_of_the_store() {
    let server = Server::with_settings(SETTINGS);
    for (body, status, says) in [
        (json!({ "policy": "upload", "key": "" }), 422, "the key is empty"),
        (json!({ "policy": "upload", "key": "a", "costs": { "minute": 3 } }), 400, "`minute`"),
    ] {
        let response = check(&server, body).await;
        assert_eq!(response.status().as_u16(), status);
        let text = response.text().await.unwrap();
        assert!(text.contains(says), "{text}");
    }
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    assert!(!metrics.contains("failure_mode"), "{metrics}");
}

#[tokio::test]
async fn a_check_returns_the_decision_as_json() {
    let server = Server::with_settings(SETTINGS);
    let costs = json!({ "policy": "upload", "key": "ada", "costs": { "bytes": 600 } });
    let response = check(&server, costs.clone()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(header(&response, "ratelimit").unwrap().contains(r#""bytes";r=400"#));
    let decision: Value = response.json().await.unwrap();
    assert_eq!((&decision["allowed"], &decision["source"]), (&json!(true), &json!("store")));
    assert_eq!(decision["quotas"][0]["remaining"], 9);
    assert_eq!(decision["quotas"][1]["remaining"], 400);

    let response = check(&server, costs).await;
    assert_eq!(response.status(), StatusCode::OK, "the check has worked");
    assert!(header(&response, "retry-after").is_some());
    let decision: Value = response.json().await.unwrap();
    assert_eq!(decision["allowed"], false);
    assert_eq!(decision["quotas"][0]["violated"], false);
    assert_eq!(decision["quotas"][1]["violated"], true);
    assert_eq!(decision["quotas"][0]["remaining"], 9, "a denial takes nothing");
    assert!(decision["retry_after"].as_f64().unwrap() > 17_000.0, "{decision}");
}

#[tokio::test]
async fn a_policy_that_is_tried_out_denies_nothing_and_shows_what_it_would_deny() {
    let settings = |shadow: &str| {
        format!(
            "policies: {{ new: {{ day: 2/day }} }}\nauth: {{ policy: new, key_header: x-key }}\n\
             shadow: [{shadow}]"
        )
    };
    let server = Server::with_settings(&settings("new"));
    let auth = async || {
        let request = Client::new().get(server.http("/auth")).header("x-key", "ada");
        request.send().await.unwrap().status()
    };
    for _ in 0..5 {
        assert_eq!(auth().await, StatusCode::OK);
    }
    let body = json!({ "policy": "new", "key": "x-key|ada" });
    let decision: Value = check(&server, body).await.json().await.unwrap();
    assert_eq!(decision["allowed"], true);
    let status: Value =
        reqwest::get(server.admin("/api/status")).await.unwrap().json().await.unwrap();
    let policy = &status["policies"][0];
    let counts = ["allowed", "denied", "would_be_denied"].map(|count| policy[count].as_u64());
    assert_eq!(counts, [Some(2), Some(0), Some(4)]);
    assert_eq!(policy["is_shadow"], true);

    server.files().write("settings.yaml", &settings(""));
    let reload = Client::new().post(server.admin("/api/reload")).send().await.unwrap();
    assert_eq!(reload.status(), StatusCode::NO_CONTENT);
    assert_eq!(auth().await, StatusCode::TOO_MANY_REQUESTS, "what was consumed stays consumed");
}

#[tokio::test]
async fn invalid_checks_are_explained() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 1/s } }, resource_limits: { request_bytes: 1000 } }",
    );
    for (body, status, says) in [
        (json!({ "policy": "b", "key": "k" }), 404, "there is no policy `b`"),
        (json!({ "policy": "a" }), 422, "missing field `key`"),
        (json!({ "policy": "a", "key": "k", "cots": 1 }), 422, "unknown field `cots`"),
        (json!({ "policy": "a", "key": "k", "cost": -1 }), 422, "cost"),
        (json!({ "policy": "a", "key": "k", "costs": { "x": 1 } }), 400, "`x`"),
        (json!({ "policy": "a", "key": "k".repeat(2_000) }), 413, ""),
    ] {
        let response = check(&server, body).await;
        let (actual, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(actual, status, "{text}");
        assert!(text.contains(says), "{text}");
    }
    let post = || Client::new().post(server.http("/v1/check")).body("{");
    let untyped = post().send().await.unwrap();
    assert_eq!(untyped.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let garbage = post().header("content-type", "application/json").send().await.unwrap();
    assert_eq!(garbage.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn listed_keys_are_not_counted() {
    let server = Server::with_settings(SETTINGS);
    let ask = async |client: &str| auth(&server, "", &[("x-forwarded-for", client)]).await.status();
    for _ in 0..5 {
        assert_eq!(ask("10.9.1.2").await, StatusCode::OK);
        assert_eq!(ask("203.0.113.66").await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(ask("2001:db8:bad::7").await, StatusCode::TOO_MANY_REQUESTS);
        let friend = check(&server, json!({ "policy": "search", "key": "friend" })).await;
        let decision: Value = friend.json().await.unwrap();
        assert_eq!(decision, json!({ "allowed": true, "source": "list" }));
    }
    let query = "?key_header=x-api-key";
    for _ in 0..5 {
        let friend = auth(&server, query, &[("x-api-key", "friend")]).await;
        assert_eq!(friend.status(), StatusCode::OK);
    }
    let overruled = server.overruled().await;
    assert_eq!(overruled, [("allow".to_owned(), 15), ("deny".to_owned(), 10)]);
    // An address that is allowed is no key that a client can choose.
    let spoofed = async || auth(&server, query, &[("x-api-key", "10.9.1.2")]).await.status();
    for _ in 0..3 {
        assert_eq!(spoofed().await, StatusCode::OK);
    }
    assert_eq!(spoofed().await, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn checks_over_http_need_the_token_and_gateways_and_probes_do_not() {
    let settings = "policies: { p: { day: 9/day } }\nauth: { policy: p }\n\
                    http: { token: t0p-0123456789ab }";
    let server = Server::with_settings(settings);
    let body = json!({ "policy": "p", "key": "ada" });
    for path in ["/v1/check", "/v1/hold", "/v1/hold/extend", "/v1/hold/settle", "/v1/hold/release"]
    {
        let request = || Client::new().post(server.http(path)).json(&body);
        let two = request().bearer_auth("t0p-0123456789ab").header("authorization", "Basic x");
        for wrong in [request(), request().bearer_auth("t0p-0123456789ac"), two] {
            let response = wrong.send().await.unwrap();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
        }
        let token = request().header("authorization", "bearer t0p-0123456789ab");
        let allowed = token.send().await.unwrap();
        assert_ne!(allowed.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let gateway = Client::new().get(server.http("/auth")).header("x-forwarded-for", "192.0.2.1");
    assert_eq!(gateway.send().await.unwrap().status(), StatusCode::OK);
    for path in ["/readyz", "/healthz", "/healthcheck"] {
        let response = Client::new().get(server.http(path)).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
    }
}

//! Domains from a control plane.

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, UInt64Value};
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use serde_json::{Value, json};
use tonic::Code as Status;

use crate::common::{
    Authority, Client, ControlPlane, Files, Server, check, encode, request, resource, until,
};

/// The number of requests of this user that are admitted, at most 9.
async fn admitted(envoy: &mut Client, domain: &str, user: &str) -> usize {
    for admitted in 0..9 {
        if envoy.ask(domain, &[("user", user)]).await.overall_code() == Code::OverLimit {
            return admitted;
        }
    }
    9
}

/// The value of a metric without labels.
async fn metric(server: &Server, name: &str) -> Option<String> {
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    values.next().map(str::to_owned)
}

async fn control_plane_of(server: &Server) -> Value {
    let status = reqwest::get(server.admin("/api/status")).await.unwrap();
    status.json::<Value>().await.unwrap()["control_plane"].clone()
}

#[tokio::test]
async fn domains_apply_as_they_arrive_and_keep_what_is_consumed() {
    let mut control_plane = ControlPlane::start().await;
    control_plane
        .send("1", vec![resource("d", &[("user", "", 2)]), resource("e", &[("user", "", 4)])]);
    let fields = "node_id: limits-1, node_metadata: { zone: a }, headers: { X-Token: s3cret }";
    let server = Server::with_settings(&control_plane.settings(fields));
    let (headers, first) = control_plane.request_with_headers().await;
    assert_eq!(headers.get("x-token").unwrap(), "s3cret");
    let DiscoveryRequest { node, type_url, version_info, response_nonce, resource_names, .. } =
        first;
    let Node { id, metadata, user_agent_name, .. } = node.unwrap();
    assert_eq!((&*id, &*user_agent_name), ("limits-1", "fleetlimit-server"));
    assert_eq!(metadata.unwrap().fields["zone"].kind, Some(Kind::StringValue("a".to_owned())));
    assert_eq!(type_url, "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig");
    assert_eq!((&*version_info, &*response_nonce, resource_names.len()), ("", "", 0));
    let acknowledged = control_plane.request().await;
    assert_eq!((&*acknowledged.version_info, &*acknowledged.response_nonce), ("1", "nonce-0"));
    assert_eq!(acknowledged.error_detail, None);

    let mut envoy = server.client().await;
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 2);
    assert_eq!(admitted(&mut envoy, "e", "ada").await, 4);
    // A limit is raised, a domain goes, another one comes.
    let resources = vec![resource("d", &[("user", "", 5)]), resource("f", &[("user", "", 1)])];
    assert_eq!(control_plane.apply("2", resources).await, Ok(()));
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 3);
    assert_eq!(admitted(&mut envoy, "e", "ada").await, 9);
    assert_eq!(admitted(&mut envoy, "f", "ada").await, 1);
    // No resources are a configuration, too.
    assert_eq!(control_plane.apply("3", Vec::new()).await, Ok(()));
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 9);
}

#[tokio::test]
async fn a_broken_update_changes_nothing_and_is_rejected_with_all_its_errors() {
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings(""));
    assert_eq!(control_plane.apply("1", vec![resource("d", &[("user", "", 2)])]).await, Ok(()));
    let nested = |key: &str, inner| RateLimitDescriptor {
        key: key.to_owned(),
        descriptors: vec![inner],
        ..RateLimitDescriptor::default()
    };
    let mut unit = RateLimitConfig::default();
    let inner = RateLimitDescriptor {
        value: "anna".to_owned(),
        rate_limit: Some(Default::default()),
        ..nested("user", RateLimitDescriptor { key: "x".to_owned(), ..Default::default() })
    };
    (unit.name, unit.domain) = ("gateway/http".to_owned(), "e".to_owned());
    unit.descriptors = vec![nested("route", inner)];
    let broken = vec![
        resource("d", &[("user", "", 7), ("user", "", 8)]),
        encode(&unit),
        Any { type_url: "other".to_owned(), value: Vec::new() },
    ];
    let errors = control_plane.apply("2", broken).await.unwrap_err();
    let lines: Vec<_> = errors.lines().collect();
    let expected = [
        "xds/name-of-d: descriptor user: there is another descriptor `user`",
        "xds/gateway/http: descriptor route/user=anna: `unit` is missing",
        "xds: a resource has the type other instead of \
         type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig",
    ];
    assert_eq!(lines, expected);
    let log = server.lines_until("control_plane_update_rejected");
    assert!(expected.iter().all(|error| log.iter().any(|line| line.contains(error))), "{log:?}");
    assert_eq!(metric(&server, "fleetlimit_server_xds_rejected").await.as_deref(), Some("1"));
    let status = control_plane_of(&server).await;
    assert_eq!((&status["version"], &status["connected"]), (&json!("1"), &json!(true)));
    assert_eq!(status["rejected"], json!({ "version": "2", "errors": errors }));
    let mut envoy = server.client().await;
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 2);

    // The next rejection still names the version in use.
    control_plane.send("3", vec![Any::default()]);
    let rejected = control_plane.request().await;
    assert_eq!((&*rejected.version_info, &*rejected.response_nonce), ("1", "nonce-2"));
    assert_eq!(rejected.error_detail.unwrap().code, i32::from(Status::InvalidArgument));
    assert_eq!(control_plane.apply("4", vec![resource("d", &[("user", "", 3)])]).await, Ok(()));
    assert_eq!(metric(&server, "fleetlimit_server_xds_rejected").await.as_deref(), Some("0"));
    assert_eq!(control_plane_of(&server).await["rejected"], Value::Null);
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 1);
}

#[tokio::test]
async fn a_lost_control_plane_changes_nothing_and_is_followed_again_when_it_is_back() {
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings(""));
    assert_eq!(control_plane.apply("1", vec![resource("d", &[("user", "", 2)])]).await, Ok(()));
    server.wait_for_line("control_plane_connected");
    assert_eq!(metric(&server, "fleetlimit_server_xds_connected").await.as_deref(), Some("1"));
    control_plane.stop();
    server.wait_for_line("control_plane_lost");
    assert_eq!(metric(&server, "fleetlimit_server_xds_connected").await.as_deref(), Some("0"));
    let mut envoy = server.client().await;
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 2);
    assert_eq!(reqwest::get(server.http("/readyz")).await.unwrap().status(), 200);
    // Another process with other resources has the same version.
    control_plane.send("1", vec![resource("d", &[("user", "", 3)])]);
    control_plane.restart().await;
    let first = control_plane.request().await;
    assert_eq!((&*first.version_info, &*first.response_nonce), ("", ""));
    assert_eq!(control_plane.request().await.version_info, "1");
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 1);
    server.wait_for_line("control_plane_connected");
    assert_eq!(metric(&server, "fleetlimit_server_xds_connected").await.as_deref(), Some("1"));
}

/// Otherwise a server that has just started would let everything pass.
#[tokio::test]
async fn checks_before_the_first_configuration_are_errors_and_the_server_is_not_ready() {
    for ready_without in [false, true] {
        let mut control_plane = ControlPlane::start().await;
        let settings = control_plane.settings(&format!("ready_without: {ready_without}"));
        let settings = format!("{settings}deny: [eve]\n");
        let server = Server::with_settings(&settings);
        control_plane.request().await;
        let mut envoy = server.client().await;
        let failed = envoy.send(request("d", &[&[("user", "ada")]])).await.unwrap_err();
        assert_eq!(failed.code(), Status::Unavailable, "{failed}");
        let denied = envoy.ask("d", &[("user", "eve")]).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        let ready = async || reqwest::get(server.http("/readyz")).await.unwrap();
        let (before, health) =
            (ready().await, reqwest::get(server.http("/healthz")).await.unwrap());
        assert_eq!((before.status() == 200, health.status().as_u16()), (ready_without, 200));
        if !ready_without {
            assert!(before.text().await.unwrap().contains("control plane"));
        }
        assert_eq!(control_plane.apply("1", vec![resource("d", &[("user", "", 1)])]).await, Ok(()));
        assert_eq!(admitted(&mut envoy, "d", "ada").await, 1);
        assert_eq!(ready().await.status(), 200);
    }
}

#[tokio::test]
async fn files_and_the_control_plane_are_one_configuration() {
    let mut control_plane = ControlPlane::start().await;
    let settings = |policy: &str| {
        let xds = control_plane.settings("");
        format!("domains: [d.yaml]\npolicies: {{ p: {{ q: {policy} }} }}\n{xds}")
    };
    let (once, twice) = (settings("1/day"), settings("2/day"));
    let domain = "domain: d\ndescriptors: [{ key: user, policy: p }]";
    let server = Server::with_files(&[("settings.yaml", &once), ("d.yaml", domain)]);
    assert_eq!(control_plane.apply("1", vec![resource("e", &[("user", "", 3)])]).await, Ok(()));
    let mut envoy = server.client().await;
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 1);
    // A reload of the files keeps the other domains.
    server.files().write("settings.yaml", &twice);
    server.wait_for_line("configuration_reloaded");
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 1);
    assert_eq!(admitted(&mut envoy, "e", "ada").await, 3);
    let errors = control_plane.apply("2", vec![resource("d", &[])]).await.unwrap_err();
    assert!(errors.starts_with("xds/name-of-d: another file or resource has the domain `d` too"));
    assert_eq!(metric(&server, "fleetlimit_server_reload_failed").await.as_deref(), Some("0"));
}

#[tokio::test]
async fn both_sides_show_certificates_which_may_be_renewed() {
    let (old, new) = (Authority::new(), Authority::new());
    let mut control_plane = ControlPlane::with_tls(Some(old.server_tls("control-plane"))).await;
    control_plane.send("1", vec![resource("d", &[("user", "", 1)])]);
    let files = Files::new(&[]);
    let write = |authority: &Authority| authority.write(&files, "client", "a-client");
    let [ca, certificate, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| files.path(name));
    // The name that is not in the URL.
    let tls = |name: &str| {
        let client = format!("client: {{ certificate: {certificate:?}, key: {key:?} }}");
        control_plane.settings(&format!("tls: {{ ca: {ca:?}, {client}, name: {name} }}"))
    };
    write(&old);
    files.write("wrong.yaml", &tls("localhost"));
    files.write("settings.yaml", &tls("control-plane"));
    let wrong = Server::start(&files.path("wrong.yaml"), &[]);
    let line = wrong.wait_for_line("control_plane_lost");
    assert!(line.contains("certificate"), "{line}");
    let server = Server::start(&files.path("settings.yaml"), &[]);
    assert_eq!(control_plane.request().await.version_info, "");
    assert_eq!(control_plane.request().await.version_info, "1");

    control_plane.stop();
    control_plane.tls = Some(new.server_tls("control-plane"));
    control_plane.restart().await;
    server.wait_for_line("control_plane_lost");
    write(&new);
    control_plane.send("2", vec![resource("d", &[("user", "", 2)])]);
    until(async || control_plane_of(&server).await["version"] == "2").await;
}

#[test]
fn settings_that_cannot_work_are_errors() {
    for (section, expected) in [
        ("server: http://envoy-gateway:18001", "xds.server: `http…` is not a host with a port"),
        ("server: envoy-gateway", "xds.server: `envoy-gateway` is not a host with a port"),
        ("server: \"envoy-gateway:0\"", "is not a host with a port"),
        ("headers: { \"a b\": x }", "xds.headers: `a b` is not the name of a header"),
        ("headers: { a: \"s3cret\\n\" }", "xds.headers: the value of `a` has a character"),
        ("max_message_bytes: 0", "xds.max_message_bytes: must be more than 0"),
        ("retry: { first: 0s }", "xds.retry: `first` and `longest` must be 10ms to 1h"),
        ("retry: { longest: 50years }", "xds.retry: `first` and `longest` must be 10ms to 1h"),
        ("server: \"me:s3cret@control-plane:1\"", "is not a host with a port"),
        ("tls: { ca: missing.pem }", "missing.pem: No such file"),
        ("tls: { name: \"a b\" }", "xds.server: "),
        ("sever: a", "unknown field `sever`"),
    ] {
        let files = Files::new(&[("settings.yaml", &format!("xds: {{ {section} }}"))]);
        let output = check(&files.path("settings.yaml"));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(expected), "{section}: {text}");
        assert!(!text.contains("s3cret") && text.lines().count() == 1, "{section}: {text}");
    }
}

#[tokio::test]
async fn a_response_that_is_too_large_is_not_read() {
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings("max_message_bytes: 1000"));
    assert_eq!(control_plane.apply("1", vec![resource("d", &[("user", "", 1)])]).await, Ok(()));
    control_plane.send("2", vec![resource("d", &[("user", &"x".repeat(1_000), 1)])]);
    let line = server.wait_for_line("control_plane_lost");
    assert!(line.contains("1000"), "{line}");
    let mut envoy = server.client().await;
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 1);
}

/// Otherwise whoever has used more than is left could do so again and again.
#[tokio::test]
async fn usage_that_is_reported_after_the_response_counts_beyond_the_limit() {
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings(""));
    control_plane.apply("1", vec![resource("d", &[("user", "", 100_000)])]).await.unwrap();
    let mut envoy = server.client().await;
    let mut send = async |hits: u64| {
        let mut asked = request("d", &[&[("user", "ada")]]);
        asked.descriptors[0].hits_addend = Some(UInt64Value { value: hits });
        envoy.send(asked).await.unwrap().overall_code()
    };
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(send(0).await, expected);
        if expected == Code::Ok {
            send(60_000).await;
        }
    }
}

/// An empty one would remove all limits.
#[tokio::test]
async fn a_response_of_another_type_changes_nothing() {
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings(""));
    control_plane.apply("1", vec![resource("d", &[("user", "", 1)])]).await.unwrap();
    // Otherwise it would still send this with the other type.
    control_plane.stop();
    control_plane.type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
    control_plane.send("2", Vec::new());
    control_plane.restart().await;
    let lines = server.lines_until("has the type");
    assert!(lines.last().unwrap().contains("control_plane_lost"), "{lines:?}");
    let mut envoy = server.client().await;
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 1);
    assert_eq!(control_plane_of(&server).await["version"], "1");
}

/// Half of a valid file can be a valid file with fewer limits.
#[tokio::test]
async fn a_file_that_is_being_written_neither_applies_with_an_update_nor_rejects_it() {
    let mut control_plane = ControlPlane::start().await;
    let settings = format!("domains: [d.yaml]\n{}", control_plane.settings(""));
    let domain = "domain: d\ndescriptors:\n- { key: user, rate_limit: { unit: day, requests_per_unit: 2 } }\n";
    let server = Server::with_files(&[("settings.yaml", &settings), ("d.yaml", domain)]);
    let mut envoy = server.client().await;
    for (version, written) in [("1", "domain: d\n"), ("2", "domain: d\ndescr")] {
        server.files().write("d.yaml", written);
        // Before the file is read twice with the same content.
        let update = control_plane.apply(version, vec![resource(version, &[("user", "", 1)])]);
        assert_eq!(update.await, Ok(()));
        assert_eq!(admitted(&mut envoy, version, "ada").await, 1);
        server.files().write("d.yaml", domain);
        // On a slow machine, the half file may have been read twice. It must not stay in effect.
        until(async || {
            let response = envoy.ask("d", &[("user", "anyone")]).await;
            response.statuses[0].current_limit.is_some()
        })
        .await;
        assert_eq!(admitted(&mut envoy, "d", version).await, 2);
    }
    // A later change still applies.
    server.files().write("d.yaml", &domain.replace("unit: 2", "unit: 3"));
    server.wait_for_line("configuration_reloaded");
    assert_eq!(admitted(&mut envoy, "d", "ada").await, 3);
}

#[tokio::test]
async fn very_many_errors_are_not_all_reported() {
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings(""));
    let broken = vec![resource("d", &[("", "", 1); 20_000])];
    let errors = control_plane.apply("1", broken).await.unwrap_err();
    assert!(errors.starts_with("xds/name-of-d: descriptor : the key is empty"), "{errors}");
    let status = control_plane_of(&server).await;
    let errors = status["rejected"]["errors"].as_str().unwrap();
    assert_eq!(errors.lines().count(), 1_001);
    assert!(errors.ends_with("and 38999 more"), "{}", errors.lines().last().unwrap());
}

/// The rules of Envoy Gateway: routes, with several rules of several conditions, shared rules in domains of their own.
#[tokio::test]
async fn rules_as_envoy_gateway_writes_them_limit_what_its_proxies_send() {
    let limit = |requests_per_unit, unit: RateLimitUnit| {
        let unit = unit.into();
        Some(RateLimitPolicy { requests_per_unit, unit, ..RateLimitPolicy::default() })
    };
    let node = |key: &str, value: &str, rate_limit, descriptors| RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit,
        descriptors,
        ..RateLimitDescriptor::default()
    };
    let (one, two) = (limit(1, RateLimitUnit::Month), limit(2, RateLimitUnit::Year));
    let distinct = node("rule-0-match-1", "", one.clone(), vec![]);
    let both = node("rule-0-match-0", "rule-0-match-0", None, vec![distinct]);
    let network = node("masked_remote_address", "192.168.0.0/16", two.clone(), vec![]);
    let all = node("rule-2-match--1", "rule-2-match--1", two.clone(), vec![]);
    let route = "httproute/default/app/rule/0/match/0/*";
    let listener = RateLimitConfig {
        name: "default/gateway/http".to_owned(),
        domain: "default/gateway/http".to_owned(),
        descriptors: vec![node(route, route, None, vec![both, network, all])],
    };
    let shared = "default/policy/rule/0";
    let rule = node("rule-0-match-0", "rule-0-match-0", one, vec![]);
    let of_policy = RateLimitConfig {
        name: "default/policy".to_owned(),
        domain: "default/policy".to_owned(),
        descriptors: vec![node(shared, shared, None, vec![rule])],
    };
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings(""));
    control_plane.apply("1", vec![encode(&listener), encode(&of_policy)]).await.unwrap();
    let mut envoy = server.client().await;
    let header = ("rule-0-match-0", "rule-0-match-0");
    for (domain, descriptor, expected) in [
        (&listener.domain, &[(route, route), header, ("rule-0-match-1", "ada")][..], 1),
        (&listener.domain, &[(route, route), header, ("rule-0-match-1", "bob")], 1),
        (&listener.domain, &[(route, route), ("masked_remote_address", "192.168.0.0/16")], 2),
        (&listener.domain, &[(route, route), ("rule-2-match--1", "rule-2-match--1")], 2),
        (&of_policy.domain, &[(shared, shared), header], 1),
        (&listener.domain, &[("httproute/default/app/rule/1/match/0/*", route), header], 5),
    ] {
        let mut admitted = 0;
        while admitted < 5 && envoy.ask(domain, descriptor).await.overall_code() == Code::Ok {
            admitted += 1;
        }
        assert_eq!(admitted, expected, "{descriptor:?}");
    }
}

//! The ways to start the program that the documents and the deployment files show.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::common::{FREE_PORTS, Files, PATIENCE, Redis, Server, program, request, until};

/// The document of this kind among the manifests for Kubernetes.
fn manifest(kind: &str) -> Value {
    let manifests = include_str!("../../deploy/kubernetes.yaml").split("\n---\n");
    let mut manifests = manifests.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    manifests.find(|manifest| manifest["kind"] == kind).unwrap()
}

/// The mounted files of the ConfigMap.
fn files_of_kubernetes() -> [(&'static str, String); 2] {
    let data = &manifest("ConfigMap")["data"];
    ["settings.yaml", "app.yaml"].map(|name| (name, data[name].as_str().unwrap().to_owned()))
}

/// Those of the Compose file, which mounts each on its own.
fn files_of_compose() -> [(&'static str, String); 2] {
    let compose: Value = serde_saphyr::from_str(include_str!("../../deploy/compose.yaml")).unwrap();
    [("settings", "settings.yaml"), ("app", "app.yaml")].map(|(source, name)| {
        let target = format!("/etc/fleetlimit/{name}");
        let mounted = json!({ "source": source, "target": target });
        let service = &compose["services"]["fleetlimit-server"];
        assert!(service["configs"].as_array().unwrap().contains(&mounted), "{service}");
        (name, compose["configs"][source]["content"].as_str().unwrap().to_owned())
    })
}

#[tokio::test]
async fn the_deployment_files_limit_what_gateways_ask() {
    for files in [files_of_compose(), files_of_kubernetes()] {
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let server = Server::with_files(&files);
        let mut envoy = server.client().await;
        let asked = request("app", &[&[("remote_address", "192.0.2.1")], &[("api_key", "anna")]]);
        let response = envoy.send(asked).await.unwrap();
        let limited = response.response_headers_to_add.iter();
        let policies: Vec<_> = limited.filter(|header| header.key == "ratelimit-policy").collect();
        let [policies] = policies[..] else { panic!("{response:?}") };
        for quota in [";q=100;", "\"second\";", "\"day\";"] {
            assert!(policies.value.contains(quota), "{policies:?}");
        }
    }
}

/// Other machines than gateways have addresses in these networks.
#[tokio::test]
async fn a_client_in_the_networks_of_the_deployment_files_has_a_limit() {
    for [settings, app] in [files_of_compose(), files_of_kubernetes()] {
        let mut changed: Value = serde_saphyr::from_str(&settings.1).unwrap();
        let gateways = changed["auth"]["gateways"].as_array_mut().unwrap();
        let networks = gateways.clone();
        gateways.push(json!("127.0.0.1"));
        let changed = changed.to_string();
        let server = Server::with_files(&[("settings.yaml", &changed), (app.0, &app.1)]);
        assert!(server.log.iter().all(|line| !line.contains("WARN")), "{:?}", server.log);
        for network in &networks {
            let (network, _) = network.as_str().unwrap().rsplit_once(".0").unwrap();
            let client = format!("{network}.9");
            let mut statuses = BTreeMap::new();
            for n in 0..100 {
                let request = Client::new().get(server.http("/auth"));
                let request = request.header("x-forwarded-for", format!("{network}.{n}, {client}"));
                let response = request.send().await.unwrap();
                if let Some(policies) = response.headers().get("ratelimit-policy") {
                    let policies = policies.to_str().unwrap();
                    assert!(policies.contains("\"second\"") && policies.contains("\"day\""));
                }
                *statuses.entry(response.status().as_u16()).or_insert(0) += 1;
            }
            assert!(statuses.contains_key(&429) && statuses[&200] >= 20, "{client} {statuses:?}");
        }
    }
}

/// The probes come from another machine, without the token, and with the address of the pod.
#[tokio::test]
async fn the_probes_of_kubernetes_pass_until_the_pod_ends() {
    let pod = &manifest("Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let redis = Redis::start().await;
    let env = container["env"].as_array().unwrap().iter().map(|variable| {
        let value = match variable["name"].as_str().unwrap() {
            "REDIS_URL" => redis.url().to_owned(),
            "FLEETLIMIT_ADMIN" => variable["value"].as_str().unwrap().replace("6070", "0"),
            "FLEETLIMIT_ADMIN_TOKEN" => "0123456789abcdef".repeat(4),
            _ => variable["value"].as_str().unwrap().to_owned(),
        };
        (variable["name"].as_str().unwrap(), value)
    });
    let env: Vec<_> = env.collect();
    let mut environment: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let files = files_of_kubernetes();
    let files = Files::new(&files.each_ref().map(|(name, text)| (*name, text.as_str())));
    let settings = files.path("settings.yaml");
    environment.extend([FREE_PORTS[0], FREE_PORTS[1]]);
    environment.push(("FLEETLIMIT_CONFIG", settings.to_str().unwrap()));
    let mut server = Server::with_env(&environment);
    let port = server.admin.port();
    let probe = async |name: &str| {
        let get = &container[name]["httpGet"];
        assert_eq!(get["port"], "admin");
        let url = format!("http://127.0.0.1:{port}{}", get["path"].as_str().unwrap());
        let request = Client::new().get(url).header("host", "10.1.2.3:6070");
        request.send().await.ok().map(|response| response.status())
    };
    for name in ["livenessProbe", "readinessProbe"] {
        assert_eq!(probe(name).await, Some(StatusCode::OK), "{name}");
    }
    server.signal("TERM");
    until(async || probe("readinessProbe").await == Some(StatusCode::SERVICE_UNAVAILABLE)).await;
    assert_eq!(probe("livenessProbe").await, Some(StatusCode::OK));
    let signalled = Instant::now();
    assert!(server.ends().await);
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(signalled.elapsed() < Duration::from_secs(grace));
}

#[tokio::test]
async fn the_sample_has_limits() {
    let server = Server::with_sample();
    assert!(server.log.iter().all(|line| !line.contains("ERROR")), "{:?}", server.log);
    let mut statuses = BTreeMap::new();
    for _ in 0..12 {
        let request = Client::new().get(server.http("/auth"));
        let response = request.header("x-forwarded-for", "192.0.2.1").send().await.unwrap();
        *statuses.entry(response.status()).or_insert(0) += 1;
    }
    // One more than ten, if a minute ends meanwhile.
    assert!(statuses[&StatusCode::OK] >= 10, "{statuses:?}");
    assert!(statuses.contains_key(&StatusCode::TOO_MANY_REQUESTS), "{statuses:?}");
}

#[tokio::test]
async fn the_sample_prints_requests_that_work() {
    let mut process = Command::from(program(&FREE_PORTS))
        .arg("--sample")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut lines, mut printed) = (BufReader::new(process.stdout.take().unwrap()), String::new());
    while !printed.contains("The page") {
        assert!(lines.read_line(&mut printed).await.unwrap() > 0, "{printed}");
    }
    let urls: Vec<_> = printed.split_whitespace().filter(|word| word.starts_with("http")).collect();
    let [auth, check, page] = urls[..] else { panic!("{printed}") };
    let client = Client::new();
    let body = json!({ "policy": "login", "key": "anna" });
    for request in [
        client.get(auth).header("x-forwarded-for", "192.0.2.1"),
        client.post(check).json(&body),
        client.get(page),
    ] {
        assert_eq!(request.send().await.unwrap().status(), StatusCode::OK, "{printed}");
    }
}

/// All domains of a gateway would be unlimited.
#[tokio::test]
async fn settings_that_are_lost_do_not_start_the_sample() {
    for (env, expected) in [
        (None, "FLEETLIMIT_CONFIG: there are no settings: give a file"),
        (
            Some("FLEETLIMIT_CONFG"),
            "FLEETLIMIT_CONFG: there is no such variable: did you mean FLEETLIMIT_CONFIG?",
        ),
    ] {
        let env = env.map(|name| (name, "/etc/fleetlimit/settings.yaml"));
        let env: Vec<_> = env.into_iter().chain(FREE_PORTS).collect();
        let mut process = Command::from(program(&env));
        let output = process.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = timeout(PATIENCE, output).await.expect("it has started").unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(expected), "{errors}");
    }
}

#[test]
fn a_pod_has_no_access_to_the_cluster() {
    let pod = &manifest("Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["enableServiceLinks"], false);
}

/// A tag or a version can be moved to something else.
#[test]
fn actions_and_wheels_are_pinned_by_their_hashes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = |directory: &str| {
        let files = fs::read_dir(root.join(directory)).unwrap();
        let files = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
        files.collect::<Vec<_>>()
    };
    let workflows = files(".github/workflows");
    let uses = workflows.iter().flat_map(|text| text.lines());
    let uses: Vec<_> = uses.filter_map(|line| line.split_once("uses: ")).collect();
    assert!(!uses.is_empty());
    for (_, action) in uses {
        let (_, commit) = action.split_once('@').unwrap();
        let (commit, tag) = commit.split_once(" # v").unwrap_or_else(|| panic!("{action}"));
        let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_hash && !tag.is_empty(), "{action}");
    }
    let scripts: Vec<_> =
        files("scripts").iter().map(|script| script.replace("\\\n", "")).collect();
    let lines = scripts.iter().flat_map(|script| script.lines());
    let downloads = |line: &&str| line.contains("pip download") || line.contains("pip\" install");
    let downloads: Vec<_> = lines.filter(downloads).collect();
    assert!(downloads.len() >= 3, "{downloads:?}");
    for line in downloads {
        assert!(line.contains("--require-hashes"), "{line}");
    }
    let image = include_str!("../../deploy/Dockerfile");
    assert!(!image.contains("COPY . "), "that takes everything into the build");
}

//! What the pages of `docs/server` say agrees with the program. `server/src/config/tests.rs` checks the settings.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

use fleetlimit::{Limiter, MemoryStore, Quota};
use redis::Value;
use reqwest::{Client, StatusCode};
use serde_json::json;

use crate::common::{FREE_PORTS, Files, Redis, Server, program, until};

const START: &str = include_str!("../../../docs/server.md");
const SETTINGS: &str = include_str!("../../../docs/server/settings.md");
const API: &str = include_str!("../../../docs/server/http-api.md");
const CLIENTS: &str = include_str!("../../../docs/server/clients.md");
const OPERATING: &str = include_str!("../../../docs/server/operating.md");
const SIMULATE: &str = include_str!("../../../docs/server/simulate.md");
const ENVOY: &str = include_str!("../../../docs/gateways/envoy.md");

/// The blocks of a page in this language.
fn blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    page.split(&*fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The rows of the table with this head, as cells without backticks.
fn rows(page: &'static str, head: &str) -> Vec<Vec<&'static str>> {
    let (_, table) = page.split_once(&format!("\n{head}\n")).unwrap_or_else(|| panic!("{head}"));
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells = |row: &'static str| {
        let cells = row.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim_matches([' ', '`'])).collect()
    };
    rows.map(cells).collect()
}

#[test]
fn the_documented_settings_are_valid() {
    // After two blocks of Envoy's configuration.
    let files = Files::new(&[("limits/app.yaml", blocks(ENVOY, "yaml")[2])]);
    files.issue_certificate("redis.internal");
    for (name, issued) in [
        ("ca.pem", "server.pem"),
        ("clients.pem", "server.pem"),
        ("client.pem", "server.pem"),
        ("client.key", "server.key"),
    ] {
        std::fs::copy(files.path(issued), files.path(name)).unwrap();
    }
    let all = [blocks(START, "yaml"), blocks(SETTINGS, "yaml")].concat();
    assert!(all.len() >= 4 && all.iter().any(|block| block.contains("# domains: [limits/]")));
    for block in all {
        let mut settings = block.replace("# domains: [limits/]", "domains: [limits/]");
        if !settings.contains("policies:") {
            settings += "policies: { p: { q: 1/s } }\n";
        }
        files.write("settings.yaml", &settings);
        let output = program(&[])
            .current_dir(files.path(""))
            .args(["check", "settings.yaml"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{block}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn each_quota_in_the_table_can_be_used() {
    let rows = rows(SETTINGS, "| quota | allows |");
    assert!(rows.len() > 10);
    for row in rows {
        let quota: Quota = row[0].parse().unwrap();
        Limiter::new(MemoryStore::new(), quota).unwrap();
        assert_eq!(quota.to_string(), row[0], "the shortest form");
    }
}

#[test]
fn the_grammar_of_quotas_is_that_of_the_library() {
    let library = include_str!("../../../src/quota.rs").replace("///", "").replace("\n ", "\n");
    let (_, rest) = library.split_once("```text\nquota  = ").unwrap();
    let grammar = format!("quota  = {}", rest.split("```").next().unwrap());
    assert!(blocks(SETTINGS, "text").contains(&&*grammar), "{grammar}");
}

#[test]
fn the_metrics_are_those_of_the_server_and_the_library() {
    let metric = |name: &str, kind: &str, unit: &str| {
        let suffix = match kind {
            "counter" => "_total",
            "histogram" if unit == "s" => "_seconds",
            _ => "",
        };
        format!("{}{suffix}", name.replace('.', "_"))
    };
    let of_server = rows(OPERATING, "| metric | kind | |");
    let documented: BTreeSet<_> = of_server.iter().map(|row| (row[0].to_owned(), row[1])).collect();
    let source: String = include_str!("../../src/telemetry.rs").split_whitespace().collect();
    let mut expected =
        BTreeSet::from([("fleetlimit_server_descriptors_total".to_owned(), "counter")]);
    assert!(
        include_str!("../../src/details.rs").contains("\"fleetlimit_server_descriptors_total\"")
    );
    for definition in source.split("pub(crate)const").skip(1) {
        let (constant, rest) = definition.split_once(":&str=\"").unwrap();
        let name = rest.split('"').next().unwrap();
        let is = |kind: &&&str| source.contains(&format!("describe_{kind}!({constant},"));
        let kind = *["counter", "gauge", "histogram"].iter().find(is).unwrap();
        expected.insert((metric(name, kind, ""), kind));
    }
    assert_eq!(documented, expected);

    let labels = |cell: &str| -> BTreeSet<String> {
        cell.split("`, `")
            .filter(|label| *label != "none")
            .map(|label| label.replace('.', "_"))
            .collect()
    };
    let of_limiter = rows(OPERATING, "| metric | kind | labels | |");
    let documented: BTreeMap<_, _> =
        of_limiter.iter().map(|row| (row[0].to_owned(), (row[1], labels(row[2])))).collect();
    // `tests/it/metrics.rs` compares the guide with what is served.
    let guide = include_str!("../../../src/guide.rs").lines();
    let guide = guide.filter_map(|line| line.strip_prefix("//! | `fleetlimit."));
    let expected: BTreeMap<_, _> = guide
        .map(|row| {
            let cells: Vec<_> = row.split(" | ").map(|cell| cell.trim_matches('`')).collect();
            let name = format!("fleetlimit.{}", cells[0]);
            (metric(&name, cells[1], cells[2]), (cells[1], labels(cells[3])))
        })
        .collect();
    assert!(expected.len() > 10);
    assert_eq!(documented, expected);

    let mut known: BTreeSet<String> =
        documented.values().flat_map(|(_, labels)| labels.clone()).collect();
    known.extend(documented.keys().cloned().chain(of_server.iter().map(|row| row[0].to_owned())));
    // The target of the log.
    known.insert("fleetlimit_server".to_owned());
    for page in [START, SETTINGS, API, OPERATING, ENVOY] {
        let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("fleetlimit_")) {
            assert!(known.contains(word), "{word}");
        }
    }
}

#[test]
fn each_call_of_the_admin_api_is_documented() {
    let rows = rows(API, "| call | body | |");
    let documented: BTreeSet<_> = rows.iter().map(|row| row[0].to_owned()).collect();
    let routes = include_str!("../../src/admin/mod.rs").split(".route(\"").skip(1);
    let routes = routes.filter(|route| route.starts_with("/api/")).map(|route| {
        let (path, handler) = route.split_once("\", ").unwrap();
        format!("{} {path}", handler.split('(').next().unwrap().to_uppercase())
    });
    assert_eq!(documented, routes.collect());
}

#[tokio::test]
async fn each_field_of_a_check_is_documented() {
    let fields = |head: &str| -> BTreeSet<&str> {
        rows(API, head).iter().flat_map(|row| row[0].split("`, `")).collect()
    };
    let server = Server::with_settings("policies: { p: { q: 1/day } }");
    let check = async || -> serde_json::Value {
        let body = json!({ "policy": "p", "key": "ada", "cost": 1, "costs": { "q": 1 } });
        let names: BTreeSet<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields("| field of the request | |"), names);
        let request = Client::new().post(server.http("/v1/check")).json(&body);
        request.send().await.unwrap().json().await.unwrap()
    };
    check().await;
    let denied = check().await;
    let documented = fields("| field of the response | |");
    assert_eq!(documented, denied.as_object().unwrap().keys().map(String::as_str).collect());
    let rows = rows(API, "| field of the response | |");
    let sources = rows.iter().find(|row| row[0] == "source").unwrap()[1];
    let documented: BTreeSet<_> = sources.split('`').skip(1).step_by(2).collect();
    let code = include_str!("../../src/http/decision_json.rs");
    let (_, code) = code.split_once("fn source(").unwrap();
    let sources = code.split("=> \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut sources: BTreeSet<_> = sources.filter(|source| *source != "other").collect();
    sources.insert("list");
    assert_eq!(documented, sources);
}

#[tokio::test]
async fn each_field_of_the_status_and_the_history_is_documented() {
    let documented = |head: &str| -> BTreeSet<String> {
        let rows = rows(API, head);
        rows.iter().flat_map(|row| row[0].split("`, `")).map(str::to_owned).collect()
    };
    let names = |value: &serde_json::Value| -> BTreeSet<String> {
        value.as_object().unwrap_or_else(|| panic!("{value}")).keys().cloned().collect()
    };
    // Its store fails.
    let settings = "{ store: { redis: 'redis://127.0.0.1:1' }, policies: { p: { q: 1/day } } }";
    let server = Server::with_settings(settings);
    let get = async |path: &str| -> serde_json::Value {
        reqwest::get(server.admin(path)).await.unwrap().json().await.unwrap()
    };
    let body = json!({ "policy": "p", "key": "ada" });
    Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
    until(async || !get("/api/status").await["degraded"].is_null()).await;
    let status = get("/api/status").await;
    for (head, value) in [
        ("| field of `/api/status` | |", &status),
        ("| field of a policy | |", &status["policies"][0]),
        ("| field of `degraded` | |", &status["degraded"]),
    ] {
        assert_eq!(documented(head), names(value));
    }
    until(async || get("/api/history").await["samples"] != json!([])).await;
    let history = get("/api/history").await;
    assert_eq!(documented("| field of a sample | |"), names(&history["samples"][0]));
}

#[test]
fn each_call_of_a_hold_is_documented_with_its_fields() {
    let code = include_str!("../../src/http/hold.rs");
    let calls = [
        ("/v1/hold", "HoldRequest"),
        ("/v1/hold/extend", "ExtendRequest"),
        ("/v1/hold/settle", "SettleRequest"),
        ("/v1/hold/release", "ReleaseRequest"),
    ];
    let rows = rows(API, "| call | fields of the body | |");
    assert_eq!(rows.len(), calls.len());
    for (row, (path, request)) in rows.iter().zip(calls) {
        assert_eq!(row[0], format!("POST {path}"));
        let documented: BTreeSet<_> =
            row[1].split("`, `").flat_map(|names| names.split("` or `")).collect();
        let (_, fields) = code.split_once(&format!("struct {request} {{")).unwrap();
        let (fields, _) = fields.split_once("\n}").unwrap();
        let lines = fields.lines().map(str::trim).filter(|line| !line.starts_with(['/', '#']));
        let fields: BTreeSet<_> = lines.filter_map(|line| Some(line.split_once(": ")?.0)).collect();
        assert_eq!(documented, fields, "{path}");
    }
}

#[test]
fn each_parameter_of_auth_is_documented() {
    let rows = rows(API, "| parameter | |");
    let documented: BTreeSet<_> = rows.iter().map(|row| row[0]).collect();
    let (_, code) =
        include_str!("../../src/http/auth.rs").split_once("struct AuthQuery {").unwrap();
    let (code, _) = code.split_once("\n}").unwrap();
    let lines = code.lines().map(str::trim).filter(|line| !line.starts_with(['/', '#']));
    let fields = lines.filter_map(|line| Some(line.split_once(": ")?.0));
    assert_eq!(documented, fields.collect());
}

#[test]
fn each_option_of_simulate_is_documented() {
    let documented: BTreeSet<_> = rows(SIMULATE, "| option | |").iter().map(|row| row[0]).collect();
    let help = program(&[]).args(["simulate", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with("--"));
    let options: BTreeSet<_> = lines.map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(documented, options);
}

fn permissions(text: &str) -> BTreeSet<String> {
    let words =
        text.split([' ', '\n', '`', '(', ')', ',', '.']).map(|word| word.replace("\\|", "|"));
    words.filter(|word| word.starts_with('+') || word.starts_with("&+")).collect()
}

#[test]
fn the_permissions_are_those_of_the_library() {
    let (_, library) = include_str!("../../../src/store/redis/redis_store.rs")
        .split_once("/// The user needs these permissions")
        .unwrap();
    let (library, _) = library.split_once("/// Some of these are optional").unwrap();
    let mut expected = permissions(library);
    assert!(expected.len() > 20);
    // The server has no pool of `deadpool-redis`.
    assert!(expected.remove("+unwatch"));
    let (_, page) = OPERATING.split_once("### Permissions").unwrap();
    let (page, _) = page.split_once("\n## ").unwrap();
    assert_eq!(permissions(page), expected);
}

#[tokio::test]
async fn the_documented_user_of_redis_may_do_all_that_the_server_does() {
    let redis = Redis::start().await;
    let acl = blocks(OPERATING, "text").into_iter().find(|block| block.starts_with("ACL")).unwrap();
    redis.command(&acl.split_whitespace().collect::<Vec<_>>()).await;
    let url = redis.url().replace("redis://", "redis://fleetlimit:secret@");
    let settings = ("FLEETLIMIT_SETTINGS", "policies: { p: { q: 5/day } }");
    let server = Server::with_env(&[&FREE_PORTS[..], &[settings, ("REDIS_URL", &url)]].concat());
    let key = json!({ "policy": "p", "key": "ada" });
    let post = async |url: String, body: serde_json::Value| {
        Client::new().post(url).json(&body).send().await.unwrap()
    };
    let check = async || -> serde_json::Value {
        post(server.http("/v1/check"), key.clone()).await.json().await.unwrap()
    };
    assert_eq!(check().await["source"], "store");
    for (call, more) in
        [("charge", "cost"), ("credit", "cost"), ("block", "seconds"), ("unblock", "policy")]
    {
        let mut body = key.clone();
        if more != "policy" {
            body[more] = json!(1);
        }
        let response = post(server.admin(&format!("/api/{call}")), body).await;
        assert_eq!(response.status(), StatusCode::NO_CONTENT, "{call}");
    }
    assert_eq!(
        post(server.admin("/api/reset"), key.clone()).await.status(),
        StatusCode::NO_CONTENT
    );
    let mut server = server;
    server.signal("TERM");
    assert!(server.ends().await);
    assert_eq!(redis.query::<Value>(&["ACL", "LOG"]).await, Value::Array(Vec::new()));
}

/// Servers that are not fleetlimit-server, and one that cannot decide.
struct Broken {
    urls: Vec<String>,
    _silent: TcpListener,
    _closed: Server,
}

impl Broken {
    fn start() -> Self {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let url =
            |listener: &TcpListener| format!("http://{}/v1/check", listener.local_addr().unwrap());
        let refused = url(&listener());
        let silent = listener();
        let mut urls = vec![refused, url(&silent)];
        for response in [
            "",
            "nonsense\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntext",
            "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\ntext",
        ] {
            let listener = listener();
            urls.push(url(&listener));
            // Until the test ends.
            thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let _ = stream.read(&mut [0; 4_096]);
                    let _ = stream.write_all(response.as_bytes());
                }
            });
        }
        let settings = "store: { redis: 'redis://127.0.0.1:1' }\nchecks: { failure_mode: closed }\n\
                        policies: { p: { day: 1/day } }";
        let closed =
            Server::with_env(&[&FREE_PORTS[..], &[("FLEETLIMIT_SETTINGS", settings)]].concat());
        urls.push(closed.http("/v1/check"));
        Self { urls, _silent: silent, _closed: closed }
    }
}

/// What a program prints that calls a client for these URLs of servers. Each line is a key, and the results of three
/// checks, with the fallbacks true, false and true. The last line is that of an unknown policy.
fn expected(broken: &Broken) -> String {
    let mut lines = vec!["decided true true false".to_owned()];
    lines.extend(broken.urls.iter().map(|_| "fallback true false true".to_owned()));
    lines.push("unknown error".to_owned());
    lines.join("\n") + "\n"
}

const PYTHON: &str = r#"
import sys

[good, *broken] = sys.argv[1:]
for name, CHECK_URL in [("decided", good)] + [("fallback", url) for url in broken]:
    results = [is_allowed("p", "ada", fallback=fallback) for fallback in [True, False, True]]
    print(name, *(str(result).lower() for result in results))
CHECK_URL = good
try:
    is_allowed("q", "ada", fallback=True)
except urllib.error.HTTPError as error:
    print("unknown error" if error.code == 404 else error)
"#;

/// A policy that is misspelled must not be a reason for the fallback.
#[test]
fn the_client_in_python_falls_back_only_if_there_is_no_decision() {
    let server = Server::with_settings("policies: { p: { day: 2/day } }");
    let broken = Broken::start();
    let files = Files::new(&[("client.py", &[blocks(CLIENTS, "python")[0], PYTHON].concat())]);
    let mut python = Command::new("python3");
    python.arg(files.path("client.py")).arg(server.http("/v1/check")).args(&broken.urls);
    // Nothing listens there.
    python.env("http_proxy", "http://127.0.0.1:1").env_remove("no_proxy");
    let output = python.stderr(Stdio::inherit()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected(&broken));
}

const PYTHON_HOLD: &str = r#"
import sys
import time

[HOLD_URL, nobody] = sys.argv[1:]
with hold("p", "ada", fallback=False, seconds=1) as first:
    # Without an extension, it would end meanwhile.
    time.sleep(1.5)
    with hold("p", "ada", fallback=True) as second:
        print(first, second)
for fallback in [True, False]:
    with hold("p", "ada", fallback=fallback) as third:
        print(third)
try:
    with hold("p", "ada", fallback=True) as fourth:
        raise ValueError("of the block")
except ValueError as error:
    print(fourth, error)
HOLD_URL, url = nobody, HOLD_URL
for fallback in [True, False]:
    with hold("p", "ada", fallback=fallback) as unknown:
        print(unknown)
HOLD_URL = url
try:
    with hold("q", "ada", fallback=True):
        print("held")
except urllib.error.HTTPError as error:
    print(error.code)
"#;

#[test]
fn the_client_in_python_holds_permits_while_a_block_runs() {
    let server = Server::with_settings("policies: { p: { running: 1 concurrent } }");
    let code = blocks(CLIENTS, "python");
    // Without the examples of calls.
    let program = [code[0], code[2], PYTHON_HOLD].concat();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}/v1/hold", listener.local_addr().unwrap());
    drop(listener);
    let output = Command::new("python3")
        .args(["-c", &program, &server.http("/v1/hold"), &nobody])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let expected = "True False\nTrue\nTrue\nTrue of the block\nTrue\nFalse\n404\n";
    assert_eq!(printed, expected, "{errors}");
}

/// The variables of a table, whose first column has one or several.
fn variables(table: &[Vec<&str>]) -> BTreeSet<String> {
    let names = table.iter().flat_map(|row| row[0].split(", "));
    names.map(|name| name.trim_matches('`').to_owned()).collect()
}

#[test]
fn each_variable_of_envoyproxy_ratelimit_is_documented_with_its_effect() {
    const PAGE: &str = include_str!("../../../docs/gateways/envoy.md");
    const CODE: [&str; 3] = [
        include_str!("../../src/config/ratelimit_env/mod.rs"),
        include_str!("../../src/config/ratelimit_env/redis.rs"),
        include_str!("../../src/config/ratelimit_env/settings.rs"),
    ];
    const WITHOUT: &str = include_str!("../../src/config/ratelimit_env/without_effect.rs");
    let literals = |code: &str| -> BTreeSet<String> {
        let is_name = |text: &&str| {
            let of_names = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            text.len() > 3 && text.chars().all(of_names)
        };
        code.split('"').filter(is_name).map(str::to_owned).collect()
    };
    // Values, and a prefix.
    let others =
        ["FALSE", "TRUE", "FILE", "GRPC_XDS_SOTW", "SINGLE", "CLUSTER", "SENTINEL", "WAIT"];
    let (without, needed) = WITHOUT.split_once("struct Needed").unwrap();
    let without = literals(without);
    let mut all: BTreeSet<_> = CODE.iter().flat_map(|code| literals(code)).collect();
    all.extend(without.iter().cloned().chain(literals(needed)));
    // These are needed before the settings are read.
    let of_logs = ["LOG_LEVEL", "LOG_FORMAT"];
    all.extend(of_logs.map(str::to_owned));
    assert!(of_logs.iter().all(|name| include_str!("../../src/cli.rs").contains(name)));
    all.retain(|name| !others.contains(&name.as_str()));
    let rows = rows(PAGE, "| variable | effect |");
    assert_eq!(variables(&rows), all);
    let (none, with): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row[1].starts_with("none"));
    let without = without.into_iter().filter(|name| !others.contains(&name.as_str())).collect();
    assert_eq!(variables(&none), without);
    assert!(with.len() > 15);
}

//! In the place of envoyproxy/ratelimit: its environment, and what starts it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::common::{
    Authority, ControlPlane, FREE_PORTS, Files, PROGRAM, Redis, Server, program, request, resource,
};

/// The program under the name of the other.
fn ratelimit(env: &[(&str, &str)]) -> Command {
    let mut command = program(&FREE_PORTS);
    command.env_remove("HOST").env_remove("PORT").envs(env.iter().copied()).arg0("/bin/ratelimit");
    command
}

fn errors(env: &[(&str, &str)]) -> Vec<String> {
    let output = ratelimit(env).arg("check").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// A directory of runtime files with these domains.
fn runtime(domains: &[(&str, &str)]) -> Files {
    let paths: Vec<_> =
        domains.iter().map(|(name, text)| (format!("ratelimit/config/{name}"), *text)).collect();
    let paths: Vec<_> = paths.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    Files::new(&paths)
}

const DOMAIN: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: group, rate_limit: { unit: year, requests_per_unit: 1 } }
";

/// A server with the files of the runtime directory, in memory.
fn with_runtime(files: &Files, env: &[(&str, &str)]) -> Server {
    let root = files.path("");
    let common = [
        ("RUNTIME_ROOT", root.to_str().unwrap()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("BACKEND_TYPE", "memory"),
    ];
    Server::spawn(ratelimit(&[&common, env].concat()))
}

fn header<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = response.response_headers_to_add.iter();
    headers.find(|header| header.key.eq_ignore_ascii_case(name)).map(|header| &*header.value)
}

#[tokio::test]
async fn its_files_and_redis_are_used_as_its_environment_says() {
    let redis = Redis::start().await;
    redis.query::<String>(&["CONFIG", "SET", "requirepass", "s3:cr@t"]).await;
    let address = redis.url().trim_start_matches("redis://").to_owned();
    let files = runtime(&[("d.yaml", DOMAIN)]);
    let root = files.path("");
    let env = [
        ("RUNTIME_ROOT", root.to_str().unwrap()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &address),
        ("REDIS_AUTH", ":s3:cr@t"),
        ("CACHE_KEY_PREFIX", "from-env"),
        ("USE_STATSD", "false"),
    ];
    let server = Server::spawn(ratelimit(&env));
    assert!(server.log.iter().any(|line| line.contains("store=\"redis\"")), "{:?}", server.log);
    let health = HealthCheckRequest { service: "ratelimit".to_owned() };
    let health = server.health().await.check(health).await.unwrap();
    assert_eq!(health.get_ref().status(), ServingStatus::Serving);
    let mut envoy = server.client().await;
    for left in (0..5).rev() {
        let response = envoy.ask("d", &[("user", "ada")]).await;
        assert_eq!(response.statuses[0].limit_remaining, left);
    }
    assert_eq!(envoy.ask("d", &[("user", "ada")]).await.overall_code(), Code::OverLimit);
    let client = redis::Client::open(format!("redis://:s3%3Acr%40t@{address}")).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("from-env*").query_async(&mut connection).await.unwrap();
    assert!(!keys.is_empty());
    files.write(
        "ratelimit/config/d.yaml",
        &DOMAIN.replace("requests_per_unit: 5", "requests_per_unit: 7"),
    );
    server.wait_for_line("configuration_reloaded");
    assert_eq!(envoy.ask("d", &[("user", "ada")]).await.statuses[0].limit_remaining, 1);
}

#[tokio::test]
async fn its_modes_headers_and_domains_in_several_files_work() {
    let more =
        "domain: d\ndescriptors: [{ key: plan, rate_limit: { unit: year, requests_per_unit: 2 } }]";
    let files = runtime(&[("a.yaml", DOMAIN), ("b.yaml", more)]);
    let merge = ("MERGE_DOMAIN_CONFIG", "true");
    let headers = [
        merge,
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "x-limit"),
        ("NEAR_LIMIT_RATIO", "0.5"),
    ];
    let server = with_runtime(&files, &headers);
    let mut envoy = server.client().await;
    let asked: &[&[(&str, &str)]] = &[&[("user", "ada")], &[("plan", "ada")], &[("free", "ada")]];
    let first = envoy.send(request("d", asked)).await.unwrap();
    let values = |response: &RateLimitResponse| {
        ["x-limit", "ratelimit-remaining", "ratelimit-reset"]
            .map(|name| header(response, name).map(|value| value.parse::<u64>().unwrap()))
    };
    let [limit, remaining, reset] = values(&first);
    assert_eq!((limit, remaining), (Some(2), Some(1)), "{first:?}");
    assert!(reset.is_some_and(|seconds| (1..=365 * 86_400).contains(&seconds)), "{first:?}");
    envoy.send(request("d", asked)).await.unwrap();
    let third = envoy.send(request("d", asked)).await.unwrap();
    assert_eq!(third.overall_code(), Code::OverLimit);
    assert_eq!(values(&third)[..2], [Some(2), Some(0)]);
    assert_eq!(values(&envoy.ask("d", &[("free", "ada")]).await), [None; 3]);
    // The second check of the plan, and the third of the user. The first has used just a half of the plan.
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    for (policy, expected) in [("d.plan", 1), ("d.user", 1), ("d.group", 0)] {
        let line = format!("fleetlimit_server_near_limit_total{{policy=\"{policy}\"}} {expected}");
        let has_none = expected == 0 && !metrics.contains(&line[..line.len() - 2]);
        assert!(has_none || metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }

    let shadow = with_runtime(&files, &[merge, ("SHADOW_MODE", "1")]);
    let quota = with_runtime(&files, &[merge, ("QUOTA_MODE", "true")]);
    for (server, second, both) in [(shadow, Code::Ok, Code::Ok), (quota, Code::OverLimit, Code::Ok)]
    {
        let mut envoy = server.client().await;
        envoy.ask("d", &[("group", "a")]).await;
        assert_eq!(envoy.ask("d", &[("group", "a")]).await.overall_code(), second);
        // The other one has a limit that is not reached, or none.
        for other in ["user", "unknown"] {
            let asked: &[&[(&str, &str)]] = &[&[("group", "a")], &[(other, "b")]];
            assert_eq!(envoy.send(request("d", asked)).await.unwrap().overall_code(), both);
        }
    }
    let without = [("RUNTIME_ROOT", files.path("").to_str().unwrap().to_owned())];
    let without = errors(&[
        ("RUNTIME_ROOT", &without[0].1),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("BACKEND_TYPE", "memory"),
    ]);
    assert!(without.len() == 1 && without[0].contains("MERGE_DOMAIN_CONFIG"), "{without:?}");
}

#[test]
fn each_variable_that_cannot_work_is_an_error_that_names_it() {
    let files = runtime(&[("d.yaml", DOMAIN)]);
    let root = files.path("").to_str().unwrap().to_owned();
    let valid = [
        ("RUNTIME_ROOT", &*root),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("BACKEND_TYPE", "memory"),
    ];
    assert_eq!(errors(&valid), [""; 0]);
    for (variable, value, expected) in [
        ("BACKEND_TYPE", "memcache", "BACKEND_TYPE: `memcache`: must be redis or memory"),
        ("BACKEND_TYPE", "redis", "REDIS_URL: is missing: set BACKEND_TYPE=memory"),
        ("CONFIG_TYPE", "HTTP", "CONFIG_TYPE: `HTTP`: must be FILE or GRPC_XDS_SOTW"),
        ("RUNTIME_SUBDIRECTORY", "other", "other/config: No such file"),
        ("PORT", "80800", "PORT: `80800`: number too large"),
        ("GRPC_HOST", "envoy", "GRPC_HOST: `envoy`: must be an IP address"),
        ("GRPC_UDS", "/tmp/s", "GRPC_UDS: gRPC is not served on a Unix socket"),
        ("GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_USE_TLS: GRPC_SERVER_TLS_CERT is missing"),
        (
            "GRPC_MAX_CONNECTION_AGE",
            "24",
            "GRPC_MAX_CONNECTION_AGE: `24`: must be a duration such as",
        ),
        ("SHADOW_MODE", "maybe", "SHADOW_MODE: `maybe`: must be true or false"),
        ("NEAR_LIMIT_RATIO", "1.5", "NEAR_LIMIT_RATIO: checks.near_limit_ratio: must be 0 to 1"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "yes", "must be true or false"),
        ("LOG_LEVEL", "loud", "LOG_LEVEL: `loud`: must be error, warn"),
    ] {
        let found = errors(&[&valid[..], &[(variable, value)]].concat());
        let is_found = found.iter().any(|line| line.contains(expected));
        assert!(is_found, "{variable}={value}: {found:?}");
    }
    let xds = |more: &[(&str, &str)]| {
        errors(&[&valid[..], &[("CONFIG_TYPE", "GRPC_XDS_SOTW")], more].concat())
    };
    assert_eq!(xds(&[]), [""; 0]);
    for (variable, value, expected) in [
        (
            "CONFIG_GRPC_XDS_SERVER_URL",
            "http://a",
            "CONFIG_GRPC_XDS_SERVER_URL: xds.server: `http…` is not",
        ),
        (
            "CONFIG_GRPC_XDS_NODE_METADATA",
            "a",
            "CONFIG_GRPC_XDS_NODE_METADATA: must be pairs such as a=1,b=2",
        ),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "s3cret", "must be pairs such as a:1,b:2"),
        (
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
            "x",
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES: `x`: invalid digit",
        ),
    ] {
        let found = xds(&[(variable, value)]);
        let is_found = found.len() == 1 && found[0].contains(expected);
        assert!(is_found && !found[0].contains("s3cret"), "{variable}={value}: {found:?}");
    }
    let tls =
        [("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"), ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "a.pem")];
    let expected = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT: CONFIG_GRPC_XDS_CLIENT_TLS_KEY is missing";
    assert_eq!(xds(&tls), [expected]);
}

/// The variable and the reason of each warning.
fn warned(log: &[String]) -> Vec<String> {
    let names = log.iter().filter(|line| line.contains("variable_without_effect")).map(|line| {
        let (_, rest) = line.split_once("variable=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_variable_without_effect_is_a_warning_unless_it_asks_for_what_happens_anyway() {
    let files = runtime(&[("d.yaml", DOMAIN)]);
    let env = [
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "statsd"),
        ("REDIS_POOL_SIZE", "50"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("REDIS_PERSECOND", "false"),
        ("DEBUG_HOST", "0.0.0.0"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", ""),
    ];
    let server = with_runtime(&files, &env);
    assert_eq!(warned(&server.log), ["DEBUG_HOST", "REDIS_POOL_SIZE", "STATSD_HOST", "USE_STATSD"]);
    assert!(server.admin.ip().is_loopback());

    // They may have been meant for it.
    let env = [&FREE_PORTS[..], &[("REDIS_TYPE", "single"), ("RUNTIME_ROOT", "/data")]].concat();
    let mut other = program(&env);
    other.arg("--sample");
    let server = Server::spawn(other);
    let line = server.log.iter().find(|line| line.contains("variables_ignored")).unwrap();
    assert!(line.contains("variables=\"REDIS_TYPE, RUNTIME_ROOT\""), "{line}");
}

#[test]
fn logs_are_objects_with_the_format_json_and_have_the_level_of_the_environment() {
    let log = |env: &[(&str, &str)]| {
        let files = runtime(&[("d.yaml", DOMAIN)]);
        let root = files.path("").to_str().unwrap().to_owned();
        let common = [
            ("RUNTIME_ROOT", root.as_str()),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("BACKEND_TYPE", "memory"),
            ("USE_STATSD", "true"),
            // It cannot start.
            ("FLEETLIMIT_GRPC", "192.0.2.1:1"),
        ];
        let output = ratelimit(&[&common, env].concat()).env_remove("RUST_LOG").output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let text = log(&[("LOG_FORMAT", "JSON")]);
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(line["event"], "variable_without_effect", "{line}");
    assert_eq!((&line["level"], &line["variable"]), (&json!("WARN"), &json!("USE_STATSD")));
    assert!(line["message"].as_str().unwrap().contains("has no effect"), "{line}");
    assert!(log(&[]).contains("variable_without_effect"));
    assert!(!log(&[("LOG_LEVEL", "ERROR")]).contains("variable_without_effect"));
    assert!(log(&[("LOG_LEVEL", "loud")]).starts_with("LOG_LEVEL: `loud`: must be error, warn"));
}

/// All variables of envoyproxy/ratelimit, as of July 2026.
const ALL: &str = "
BACKEND_TYPE CACHE_KEY_PREFIX CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS
CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_NODE_ID
CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_SERVER_TLS_CACERT
CONFIG_GRPC_XDS_SERVER_TLS_SAN CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_USE_TLS
CONFIG_TYPE DEBUG_HOST DEBUG_PORT
DISABLE_STATS EXPIRATION_JITTER_MAX_SECONDS EXTRA_TAGS
FORCE_START_WITHOUT_INITIAL_CONFIG GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN
GRPC_HOST GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
GRPC_PORT GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY
GRPC_SERVER_USE_TLS GRPC_UDS HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
HOST LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER
LIMIT_RESET_HEADER LIMIT_RESPONSE_HEADERS_ENABLED LOCAL_CACHE_SIZE_IN_BYTES
LOG_FORMAT LOG_LEVEL MEMCACHE_HOST_PORT
MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH
MEMCACHE_TLS MEMCACHE_TLS_CACERT MEMCACHE_TLS_CLIENT_CERT
MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION MERGE_DOMAIN_CONFIG
NEAR_LIMIT_RATIO PORT PROMETHEUS_ADDR
PROMETHEUS_MAPPER_YAML PROMETHEUS_PATH PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS
QUOTA_MODE REDIS_AUTH REDIS_CLUSTER_PIPELINE_PARALLELISM
REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_PERSECOND REDIS_PERSECOND_AUTH
REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_PIPELINE_WINDOW
REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_SENTINEL_AUTH
REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_TLS
REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PIPELINE_LIMIT
REDIS_PIPELINE_WINDOW REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_POOL_SIZE
REDIS_SENTINEL_AUTH REDIS_SOCKET_TYPE REDIS_STARTUP_INITIAL_INTERVAL
REDIS_STARTUP_MAX_ELAPSED_TIME REDIS_STARTUP_MAX_INTERVAL REDIS_TIMEOUT
REDIS_TLS REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT
REDIS_TLS_CLIENT_KEY REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_TYPE
REDIS_URL RESPONSE_DYNAMIC_METADATA RUNTIME_APPDIRECTORY
RUNTIME_IGNOREDOTFILES RUNTIME_ROOT RUNTIME_SUBDIRECTORY
RUNTIME_WATCH_ROOT SHADOW_MODE STATSD_HOST
STATSD_PORT STATS_FLUSH_INTERVAL STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
TRACING_ENABLED TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE
TRACING_SERVICE_INSTANCE_ID TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE
USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_PROMETHEUS
USE_STATSD XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_JITTER
XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
";

/// Otherwise someone believes in a setting that is not there.
#[test]
fn each_variable_of_the_other_program_has_an_effect_or_is_a_warning() {
    const PAGE: &str = include_str!("../../../docs/gateways/envoy.md");
    let (_, table) = PAGE.split_once("| variable | effect |").unwrap();
    let rows = table.lines().take_while(|line| !line.starts_with('#'));
    let rows: Vec<_> = rows.filter_map(|row| row.strip_prefix("| ")?.split_once(" | ")).collect();
    let files = runtime(&[("d.yaml", DOMAIN)]);
    let root = files.path("").to_str().unwrap().to_owned();
    for variable in ALL.split_whitespace() {
        let name = format!("`{variable}`");
        let (_, effect) = rows.iter().find(|(names, _)| names.contains(&name)).expect(variable);
        if !effect.starts_with("none") {
            continue;
        }
        // None of them has this value by default.
        let env = [
            ("RUNTIME_ROOT", &*root),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("BACKEND_TYPE", "memory"),
            (variable, "other"),
        ];
        let found = errors(&env);
        let warning = format!("warning: {variable} has no effect: ");
        assert!(found.len() == 1 && found[0].starts_with(&warning), "{variable}: {found:?}");
    }
}

#[test]
fn variables_that_need_another_one_are_warnings_without_it() {
    let files = runtime(&[("d.yaml", DOMAIN)]);
    let root = files.path("").to_str().unwrap().to_owned();
    let common = [("RUNTIME_ROOT", &*root), ("RUNTIME_SUBDIRECTORY", "/ratelimit")];
    let memory = [("BACKEND_TYPE", "memory")];
    let redis = [("REDIS_URL", "127.0.0.1:1")];
    for (env, variable) in [
        (&[memory[0], ("GRPC_CLIENT_TLS_CACERT", "/certs/ca.crt")][..], "GRPC_CLIENT_TLS_CACERT"),
        (&[memory[0], ("PROMETHEUS_ADDR", ":9090")], "PROMETHEUS_ADDR"),
        (
            &[memory[0], ("CONFIG_GRPC_XDS_NODE_ID", "a"), ("CONFIG_TYPE", "FILE")],
            "CONFIG_GRPC_XDS_NODE_ID",
        ),
        (&[memory[0], redis[0]], "REDIS_URL"),
        (&[redis[0], ("REDIS_TLS_CACERT", "ca.pem")], "REDIS_TLS_CACERT"),
        (&[redis[0], ("REDIS_SENTINEL_AUTH", "s3cret")], "REDIS_SENTINEL_AUTH"),
    ] {
        let found = errors(&[&common, env].concat());
        let warning = format!("warning: {variable} has no effect: ");
        assert!(found.len() == 1 && found[0].starts_with(&warning), "{variable}: {found:?}");
    }
}

/// The command of a container follows the entry point of its image.
#[test]
fn the_other_program_may_be_the_first_argument() {
    let files = runtime(&[("d.yaml", DOMAIN)]);
    let mut command = program(&FREE_PORTS);
    command.env("RUNTIME_ROOT", files.path("")).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    command.env("BACKEND_TYPE", "memory").args(["/bin/ratelimit", "check"]);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2 policies, no errors\n");
}

/// The deployment of Envoy Gateway 1.9: its environment, apart from the addresses.
const ENVOY_GATEWAY: [(&str, &str); 21] = [
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("LOG_LEVEL", "info"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_ADDR", "127.0.0.1:0"),
    ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
];
/// Its user and group.
const NOBODY: u32 = 65_534;

/// A root directory with nothing but the program, what it is linked with, and these files.
fn root_directory(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path.trim_start_matches('/'));
    let copy = |from: &str, to: &str| {
        fs::create_dir_all(at(to).parent().unwrap()).unwrap();
        fs::copy(from, at(to)).unwrap();
    };
    copy(PROGRAM, "/bin/ratelimit");
    let libraries = Command::new("ldd").arg(PROGRAM).output().unwrap();
    let libraries = String::from_utf8(libraries.stdout).unwrap();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(library, library);
    }
    for (path, text) in files {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        fs::write(at(path), text).unwrap();
    }
    // Nothing in it can be written by the user.
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o555)).unwrap();
    root
}

/// Only root may become another user.
fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t")
}

fn in_root_directory(root: &Path, env: &[(&str, &str)]) -> Command {
    let mut command = if is_root() {
        let mut chroot = Command::new("chroot");
        chroot.arg(format!("--userspec={NOBODY}:{NOBODY}"));
        chroot
    } else {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "chroot"]);
        unshare
    };
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(env.iter().copied());
    command.arg(root).arg("/bin/ratelimit").stdin(Stdio::null());
    command
}

#[tokio::test]
async fn what_envoy_gateway_deploys_starts_in_an_empty_root_directory_as_another_user() {
    let authority = Authority::new();
    let mut control_plane =
        ControlPlane::with_tls(Some(authority.server_tls("envoy-gateway"))).await;
    let redis = Redis::start().await;
    let [certificate, key] = authority.issue("envoy-ratelimit");
    let hosts = "127.0.0.1 envoy-gateway redis.redis.svc\n";
    let root = root_directory(&[
        ("/certs/tls.crt", &certificate),
        ("/certs/tls.key", &key),
        ("/certs/ca.crt", &authority.pem),
        // Kubernetes writes it for each container.
        ("/etc/hosts", hosts),
    ]);
    let redis_port = redis.url().rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let control_plane_url = format!("envoy-gateway:{}", control_plane.address.port());
    let redis_url = format!("redis.redis.svc:{redis_port}");
    let addresses =
        [("CONFIG_GRPC_XDS_SERVER_URL", &*control_plane_url), ("REDIS_URL", &*redis_url)];
    let env = [&ENVOY_GATEWAY[..], &FREE_PORTS, &addresses].concat();
    let mut server = Server::spawn(in_root_directory(root.path(), &env));
    assert_eq!(warned(&server.log), ["GRPC_SERVER_TLS_CA_CERT", "PROMETHEUS_MAPPER_YAML"]);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let uid = format!("\nUid:\t{NOBODY}\t{NOBODY}\t");
    assert!(!is_root() || status.contains(&uid), "{status}");

    let probe = async || reqwest::get(server.http("/healthcheck")).await.unwrap().status();
    assert_eq!(probe().await, 200, "a probe over HTTP, without a certificate");
    assert_eq!(control_plane.request().await.node.unwrap().id, "envoy-ratelimit");
    control_plane.apply("1", vec![resource("d", &[("user", "", 1)])]).await.unwrap();
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", server.grpc.port()));
    let tls = authority.client_tls("envoy", "envoy-ratelimit");
    let channel = endpoint.unwrap().tls_config(tls).unwrap().connect().await.unwrap();
    let mut envoy = RateLimitServiceClient::new(channel);
    for expected in [Code::Ok, Code::OverLimit] {
        let asked = request("d", &[&[("user", "ada")]]);
        let response = envoy.should_rate_limit(asked).await.unwrap();
        assert_eq!(response.get_ref().overall_code(), expected);
    }
    let line = server.log.last().unwrap();
    let (_, metrics) = line.split_once(" metrics=").unwrap();
    let metrics = format!("http://{}/metrics", metrics.split(' ').next().unwrap());
    let metrics = reqwest::get(metrics).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("fleetlimit_server_xds_connected 1"), "{metrics}");
    assert!(metrics.contains("fleetlimit_source=\"store\""), "{metrics}");
    server.signal("TERM");
    assert!(server.ends().await);
}

//! The examples, each run as a process.

mod production;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, str};

use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::common::{BOUND, Cluster, Server, TempDir, wait_until};
use crate::local::wait_until_agreed;
use crate::oracle::Oracle;

const BUCKET: &str = "fleetlimit:{127.0.0.1}:default:t2";
const BURST: u64 = 10;
const PER_SECOND: f64 = 5.0;

/// A running server of an example.
pub(crate) struct Example {
    address: String,
    client: Client<HttpConnector, Full<Bytes>>,
    process: Child,
    // Keeps the pipe open, so that the process can print.
    _stdout: BufReader<ChildStdout>,
}

impl Example {
    async fn serve(name: &str, environment: &[(&str, &str)]) -> Self {
        Self::serve_with(name, environment, Stdio::inherit()).await
    }

    pub(crate) async fn serve_with(
        name: &str,
        environment: &[(&str, &str)],
        stderr: Stdio,
    ) -> Self {
        let mut command = command(name, environment);
        let mut process = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let address = timeout(BOUND, async {
            let mut line = String::new();
            while stdout.read_line(&mut line).await.unwrap() > 0 {
                if let Some((_, rest)) = line.split_once("http://") {
                    return rest.split('/').next().unwrap().to_owned();
                }
                line.clear();
            }
            panic!("{name} exited and printed no address");
        });
        let address = address.await.expect("the example prints its address in time");
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, client, process, _stdout: stdout }
    }

    pub(crate) async fn get(&self, path: &str) -> Response<Bytes> {
        self.get_with(path, "accept", "*/*").await
    }

    /// `None` if the process does not respond.
    async fn try_get(&self, path: &str) -> Option<Response<Bytes>> {
        let request = Request::get(format!("http://{}{path}", self.address));
        let response = self.client.request(request.body(Full::default()).unwrap()).await.ok()?;
        let (parts, body) = response.into_parts();
        Some(Response::from_parts(parts, body.collect().await.ok()?.to_bytes()))
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().expect("the process runs").to_string();
        let status = std::process::Command::new("kill").args([signal, &id]).status();
        assert!(status.unwrap().success());
    }

    async fn get_with(&self, path: &str, header: &str, value: &str) -> Response<Bytes> {
        let request = Request::get(format!("http://{}{path}", self.address)).header(header, value);
        self.exchange(request.body(Full::default()).unwrap()).await
    }

    async fn post_form(&self, path: &str, form: String) -> Response<Bytes> {
        let request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/x-www-form-urlencoded");
        self.exchange(request.body(form.into()).unwrap()).await
    }

    async fn log_in(&self, email: &str, password: &str) -> StatusCode {
        let form = format!("email={email}&password={password}");
        self.post_form("/login", form).await.status()
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Response<Bytes> {
        let exchange = async {
            let response = self.client.request(request).await.unwrap();
            let (parts, body) = response.into_parts();
            Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
        };
        timeout(BOUND, exchange).await.expect("the example responds in time")
    }
}

/// Runs an example that is not a server.
async fn run(name: &str, environment: &[(&str, &str)]) -> Output {
    let output = timeout(BOUND, command(name, environment).output()).await;
    output.expect("the example exits in time").unwrap()
}

fn command(name: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary(name));
    command.env_remove("REDIS_URL").env("PORT", "0");
    // An error is its text, and a line of the log has no colors.
    command.env("RUST_BACKTRACE", "0").env("NO_COLOR", "1");
    command.envs(environment.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Returns the path of an example. Cargo puts the examples next to the directory of the tests.
fn binary(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.parent().unwrap().with_file_name("examples").join(name);
    let path = path.with_extension(env::consts::EXE_EXTENSION);
    assert!(path.exists(), "{name} is not built: run `cargo build --examples --all-features`");
    path
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Returns whether the store allowed and counted the request.
fn is_counted(response: &Response<Bytes>) -> bool {
    let is_local = text(response.body()).contains("this process has its share");
    response.status() == StatusCode::OK && response.headers().contains_key("ratelimit") && !is_local
}

/// Returns how many requests of one client can have been admitted since then.
fn quota_since(started: Instant) -> u64 {
    BURST + (PER_SECOND * started.elapsed().as_secs_f64()) as u64
}

fn assert_is_denial(response: &Response<Bytes>) {
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let headers = response.headers();
    assert_eq!(headers["retry-after"], "1");
    assert_eq!(headers["ratelimit"], r#""default";r=0;t=1"#);
    assert_eq!(headers["ratelimit-policy"], r#""default";q=10;w=2"#);
    assert_eq!(headers["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(problem["type"], kind);
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], json!(["default"]));
}

#[tokio::test]
async fn quickstart_admits_the_quota_and_denies_the_rest_with_retry_after() {
    let quickstart = Example::serve("quickstart", &[]).await;
    let (started, mut admitted) = (Instant::now(), 0);
    for _ in 0..30 {
        let response = quickstart.get("/").await;
        if response.status() == StatusCode::OK {
            assert!(is_counted(&response));
            admitted += 1;
        } else {
            assert_is_denial(&response);
        }
    }
    let most = quota_since(started);
    assert!((BURST..=most).contains(&admitted), "{admitted} admitted, at most {most} expected");
}

#[tokio::test]
async fn quickstart_serves_before_redis_is_up_and_uses_it_then() {
    // Reserves a port, on which the server restarts later.
    let server = Server::start().await;
    server.stop();
    let directory = TempDir::new();
    let log = directory.path().join("log");
    let (url, stderr) = (server.url(), fs::File::create(&log).unwrap());
    let quickstart = Example::serve_with("quickstart", &[("REDIS_URL", &url)], stderr.into()).await;

    let started = Instant::now();
    let response = quickstart.get("/").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!is_counted(&response) && text(response.body()).contains("its share"));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    let (log, port) = (fs::read_to_string(&log).unwrap(), server.port().to_string());
    assert!(log.contains("rate limit enforced locally") && log.contains(&port), "{log}");

    server.restart().await;
    wait_until("a request is counted", Duration::from_secs(2), async || {
        is_counted(&quickstart.get("/").await)
    })
    .await;
    wait_until("a request is denied", BOUND, async || {
        quickstart.get("/").await.status() == StatusCode::TOO_MANY_REQUESTS
    })
    .await;
    assert_eq!(server.query::<u8>(&["EXISTS", BUCKET]).await, 1);
}

/// Between two requests of a client, so that 64 of them reach each limit and leave time to the processes.
const PAUSE: Duration = Duration::from_millis(200);

/// Of a check.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Sends requests from 64 clients to three processes for three seconds. Asserts that the processes
/// together admit exactly the burst plus the rate times the time on the server's clock.
async fn assert_processes_share_quota(url: &str, server: &Server) {
    let environment = [("REDIS_URL", url)];
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Example::serve("quickstart", &environment).await);
    }
    assert_share_quota(processes, server).await;
}

async fn assert_share_quota(processes: Vec<Example>, server: &Server) {
    let oracle = Oracle { permits: 5, micros: 1_000_000, burst: BURST };
    for process in &processes {
        wait_until("the process is connected", BOUND, async || is_counted(&process.get("/").await))
            .await;
    }
    let processes: Vec<_> = processes.into_iter().map(Arc::new).collect();
    let (mut before, mut after) = (0, 0);
    wait_until("the first permit is granted", BOUND, async || {
        server.command(&["DEL", BUCKET]).await;
        before = server.time_micros().await;
        let response = processes[0].get("/").await;
        after = server.time_micros().await;
        response.status() == StatusCode::OK && is_counted(&response)
    })
    .await;

    let started = Instant::now();
    let clients: Vec<_> = (0..64)
        .map(|n| {
            let process = processes[n % 3].clone();
            tokio::spawn(async move {
                let (mut admitted, mut timed_out) = (0, 0);
                while started.elapsed() < Duration::from_secs(3) {
                    let sent = Instant::now();
                    let response = process.get("/").await;
                    // A check can time out on a busy machine. It may still be charged, also if the
                    // process denies it.
                    match is_counted(&response) {
                        true => admitted += 1,
                        false => {
                            let is_local = response.status() == StatusCode::OK;
                            timed_out += u64::from(is_local || sent.elapsed() >= TIMEOUT);
                        }
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                (admitted, timed_out)
            })
        })
        .collect();
    let (mut admitted, mut timed_out) = (1, 0);
    for client in clients {
        let (more_admitted, more_timed_out) = client.await.unwrap();
        admitted += more_admitted;
        timed_out += more_timed_out;
    }

    // The bucket was never full after the first permit. So the time from the first permit until the
    // bucket is full is the refill time of all granted permits. One more or less would change it by
    // 200 ms.
    let full_at = oracle.full_at(server, BUCKET).await.unwrap();
    let first = |permits| full_at - oracle.permits_to_ticks(permits);
    let window = oracle.micros_to_ticks(before)..=oracle.micros_to_ticks(after);
    assert!(
        (0..=timed_out).any(|charged| window.contains(&first(admitted + charged))),
        "{admitted} admitted, {timed_out} timed out, first permit {} us after the window",
        (first(admitted) - oracle.micros_to_ticks(after)) / oracle.micros_to_ticks(1),
    );
    assert!(admitted >= BURST + 10, "the limit was not reached: {admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_share_exactly_the_quota_on_one_redis() {
    let server = Server::start().await;
    assert_processes_share_quota(&server.url(), &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_share_exactly_the_quota_on_a_cluster() {
    let cluster = Cluster::start().await;
    let owner = cluster.slot_owner(cluster.slot_of(BUCKET).await).await;
    let node = |url: String| url.replace("redis://", "").replace('/', "");
    let nodes: Vec<_> = cluster.urls().into_iter().map(node).collect();
    let url = format!("redis+cluster://{}", nodes.join(","));
    assert_processes_share_quota(&url, cluster.node(owner)).await;
}

/// Time is that of Redis. If a process used its own, its clock would fill or empty the bucket.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_whose_clocks_differ_share_exactly_the_quota() {
    let server = Server::start().await;
    let mut processes = Vec::new();
    for (clock, hours) in [("+0", 0.0), ("-1h", -1.0), ("+1h", 1.0)] {
        let environment = [
            ("REDIS_URL", &*server.url()),
            ("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1"),
            ("FAKETIME", clock),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        let process = Example::serve("quickstart", &environment).await;
        let response = process.get("/").await;
        let date = response.headers()["date"].to_str().unwrap();
        let shift = jiff::fmt::rfc2822::parse(date).unwrap().timestamp() - jiff::Timestamp::now();
        let shift = shift.total(jiff::Unit::Hour).unwrap();
        assert!((shift - hours).abs() < 0.1, "{shift} hours: faketime has to be installed");
        processes.push(process);
    }
    assert_share_quota(processes, &server).await;
}

/// Requests of 64 clients to processes, in these proportions, until it is stopped.
struct Clients {
    stop: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    fn start(processes: &[Arc<Example>], weights: [usize; 3]) -> Self {
        let (stop, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let turns: Vec<_> = (0..3).flat_map(|process| vec![process; weights[process]]).collect();
        let tasks = (0..64)
            .map(|n| {
                let (stop, admitted) = (stop.clone(), admitted.clone());
                let process = processes[turns[n % turns.len()]].clone();
                tokio::spawn(async move {
                    while !stop.load(Relaxed) {
                        tokio::time::sleep(PAUSE).await;
                        // A process that is killed does not respond.
                        let Some(response) = process.try_get("/").await else { return };
                        let is_admitted = response.status() == StatusCode::OK;
                        admitted.fetch_add(is_admitted.into(), Relaxed);
                    }
                })
            })
            .collect();
        Self { stop, admitted, tasks }
    }

    /// The requests that are admitted in this time.
    async fn admitted_in(&self, time: Duration) -> u64 {
        let before = self.admitted.load(Relaxed);
        tokio::time::sleep(time).await;
        self.admitted.load(Relaxed) - before
    }

    async fn stop(self) {
        self.stop.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// A limiter that failed open, or whose instances each used the whole limit, would admit thousands, or
/// three times the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_keep_the_limit_while_redis_is_stopped_and_killed() {
    let all_live = async |weights| {
        let (admitted, most) = admitted_in_an_outage(weights, false).await;
        assert!(admitted >= most / 2.0, "{weights:?}: {admitted} of {most}");
    };
    tokio::join!(all_live([1, 1, 1]), all_live([3, 1, 1]), admitted_in_an_outage([1, 1, 1], true));
}

/// What three processes admit, and what they may. One of them may be killed.
async fn admitted_in_an_outage(weights: [usize; 3], is_killed: bool) -> (f64, f64) {
    const SECOND: Duration = Duration::from_secs(1);
    let server = Server::start().await;
    let environment = [("REDIS_URL", &*server.url()), ("LIMIT", "50/s burst 50")];
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Arc::new(Example::serve("quickstart", &environment).await));
    }
    let clients = Clients::start(&processes, weights);
    wait_until_agreed(&server, 3).await;
    let start = Instant::now();
    server.pause();
    let mut admitted = clients.admitted_in(3 * SECOND).await;
    server.stop();
    if is_killed {
        // It has no chance to do anything.
        processes[0].signal("-KILL");
    }
    admitted += clients.admitted_in(10 * SECOND).await;
    let (admitted, most) = (admitted as f64, 50.0 + 50.0 * start.elapsed().as_secs_f64());
    assert!(admitted <= most, "{weights:?}: {admitted} of {most}");
    server.restart().await;
    wait_until("Redis decides", SECOND, async || {
        server.query::<u8>(&["EXISTS", BUCKET]).await == 1
    })
    .await;
    clients.stop().await;
    (admitted, most)
}

#[tokio::test]
async fn quickstart_reports_invalid_configuration_and_exits() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    for (environment, expected) in [
        (&[("REDIS_URL", "no redis")][..], "invalid REDIS_URL"),
        (&[("REDIS_URL", "")], "invalid REDIS_URL"),
        (&[("REDIS_URL", "redis+cluster://127.0.0.1:1,")], "invalid REDIS_URL"),
        (&[("LIMIT", "5/fortnight")], "invalid LIMIT"),
        (&[("PORT", "http")], "invalid PORT"),
        (&[("PORT", &taken)], &format!("cannot listen on 127.0.0.1:{taken}")),
    ] {
        let output = run("quickstart", environment).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{environment:?}: {error}");
        assert!(error.starts_with(&format!("Error: {expected}\n\nCaused by:\n")), "{error}");
        assert!(!error.contains("Error(") && output.stdout.is_empty(), "{error}");
    }
}

/// An operator searches for the line that the docs show.
#[tokio::test]
async fn each_example_on_redis_logs_an_outage_as_its_docs_say() {
    let server = Server::start().await;
    server.stop();
    let (url, address) = (server.url(), format!("127.0.0.1:{}", server.port()));
    let mut examples = 0;
    for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let path = file.unwrap().path();
        let source = fs::read_to_string(&path).unwrap();
        if !source.contains("REDIS_URL") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let documented = source.lines().find_map(|line| line.strip_prefix("//! WARN fleetlimit: "));
        let documented = documented.unwrap_or_else(|| panic!("{name} documents no line"));
        let (line, _) = documented.split_once(" reason=").unwrap();
        let (line, log) = (line.replace("127.0.0.1:6379", &address), log_of(name, &url).await);
        assert!(log.contains(&line), "{name}: no {line} in\n{log}");
        examples += 1;
    }
    assert!(examples >= 8, "{examples}");
}

/// What an example logs about a request or a call.
async fn log_of(name: &str, url: &str) -> String {
    let environment = [
        ("REDIS_URL", url),
        ("ADMIN_TOKEN", "secret"),
        ("CALLS", "1"),
        ("LISTEN", "127.0.0.1:0"),
        ("METRICS_LISTEN", "127.0.0.1:0"),
    ];
    if name == "outbound" {
        return text(&run(name, &environment).await.stderr).to_owned();
    }
    let directory = TempDir::new();
    let log = directory.path().join("log");
    let stderr = fs::File::create(&log).unwrap();
    let example = Example::serve_with(name, &environment, stderr.into()).await;
    match name {
        "login" => {
            example.log_in("me@example.com", "wrong").await;
        }
        "limits_file" => {
            example.get("/search").await;
        }
        "llm_tokens" => {
            example.get_with("/chat?tokens=1", "x-api-key", "key").await;
        }
        _ => {
            example.get("/").await;
        }
    }
    fs::read_to_string(&log).unwrap()
}

#[tokio::test]
async fn routes_have_separate_quotas_and_keys() {
    let routes = Example::serve("routes", &[]).await;

    // The key has the route and the client, not the path.
    for (path, status) in [("/items/1", 200), ("/items/2", 200), ("/items/3", 429)] {
        assert_eq!(routes.get(path).await.status(), status, "{path}");
    }
    assert_eq!(routes.get("/items/3/price").await.status(), 200);

    // The first two are accounts of one tenant, and the third has none.
    for (key, status) in [("secret-1", 200), ("secret-2", 429), ("secret-3", 403), ("a", 401)] {
        let response = routes.get_with("/report", "x-api-key", key).await;
        assert_eq!(response.status(), status, "{key}");
    }

    let found = routes.get_with("/search", "x-api-key", "secret-1").await;
    let fields: Vec<_> = found.headers().get_all("ratelimit").iter().collect();
    let [inner, outer] = fields[..] else { panic!("{fields:?}") };
    assert_eq!(inner, r#""search";r=2;t=20"#);
    assert!(outer.to_str().unwrap().starts_with(r#""all";r="#));

    wait_until("the outer quota is used up", BOUND, async || {
        let response = routes.get("/report").await;
        let is_denied = response.status() == StatusCode::TOO_MANY_REQUESTS;
        is_denied && text(response.body()).contains(r#""violated-policies":["all"]"#)
    })
    .await;
    let health = routes.get("/healthz").await;
    assert!(health.status() == 200 && !is_counted(&health));
}

#[tokio::test]
async fn plans_limit_by_the_plan_of_the_account() {
    let plans = Example::serve("plans", &[]).await;
    // Without an account, only the address is limited.
    let unauthorized = plans.get("/export").await;
    assert_eq!(unauthorized.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(unauthorized.headers()["ratelimit-policy"], r#""address";q=200;w=1"#);

    for (plan, quota) in [("free", 10), ("paid", 100)] {
        let bearer = format!("Bearer {plan}");
        let response = plans.get_with("/export", "authorization", &bearer).await;
        // The first field is that of the inner layer.
        let policy = format!("\"{plan}\";q={quota};w=1");
        assert_eq!(response.headers()["ratelimit-policy"], policy.as_str());
        let remaining = format!("\"{plan}\";r={};t=1", quota - 5);
        assert_eq!(response.headers()["ratelimit"], remaining.as_str());
    }

    wait_until("an export is denied", BOUND, async || {
        let response = plans.get_with("/export", "authorization", "Bearer free").await;
        if response.status() == StatusCode::OK {
            return false;
        }
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["retry-after"], "1");
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["advice"], "wait, or upgrade");
        assert!(body["wait_ms"].as_u64().is_some_and(|wait| (1..=500).contains(&wait)));
        true
    })
    .await;
}

#[tokio::test]
async fn admin_routes_need_the_token_and_show_and_block_clients() {
    for environment in [&[][..], &[("ADMIN_TOKEN", "")]] {
        let output = run("admin", environment).await;
        assert_eq!(output.status.code(), Some(1), "{environment:?}");
        assert!(text(&output.stderr).starts_with("Error: ADMIN_TOKEN is "), "{environment:?}");
    }

    let server = Server::start().await;
    let environment = [("REDIS_URL", &*server.url()), ("ADMIN_TOKEN", "secret")];
    let admin = Example::serve("admin", &environment).await;
    let other = Example::serve("admin", &environment).await;
    for token in ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret"] {
        let response = admin.get_with("/admin/denied", "authorization", token).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{token}");
    }
    let send = async |method: &str, path: &str| {
        let url = format!("http://{}/admin{path}", admin.address);
        let request = Request::builder().method(method).uri(url);
        let request = request.header("authorization", "Bearer secret");
        admin.exchange(request.body(Full::default()).unwrap()).await
    };
    // A call to Redis can time out on a busy machine.
    let json = async |path: &str| {
        let mut body = None;
        wait_until(path, BOUND, async || {
            let response = send("GET", path).await;
            let is_ok = response.status() == StatusCode::OK;
            body = is_ok.then(|| serde_json::from_slice::<Value>(response.body()).unwrap());
            is_ok
        })
        .await;
        body.unwrap()
    };

    wait_until("a client is denied", BOUND, async || {
        admin.get("/").await.status() == StatusCode::TOO_MANY_REQUESTS
    })
    .await;
    let denied = json("/denied").await;
    assert_eq!((&denied[0][0], denied.as_array().unwrap().len()), (&json!("127.0.0.1"), 1));
    let limit = json("/limits/127.0.0.1").await;
    assert_eq!((&limit["limit"], &limit["blocked_seconds"]), (&json!(10), &Value::Null));
    wait_until("the bucket is full again", BOUND, async || {
        send("DELETE", "/limits/127.0.0.1").await.status() == StatusCode::NO_CONTENT
    })
    .await;
    assert_eq!(json("/limits/203.0.113.7").await["remaining"], 10);

    for key in ["127.0.0.1", "2001:db8::/64"] {
        let block = send("PUT", &format!("/blocked/{key}?seconds=3600")).await;
        assert_eq!(block.status(), StatusCode::NO_CONTENT, "{key}");
        let seconds = json(&format!("/limits/{key}")).await["blocked_seconds"].as_u64().unwrap();
        assert!((3_500..=3_600).contains(&seconds), "{seconds}");
    }
    assert_eq!(json("/blocked").await.as_array().unwrap().len(), 2);
    for invalid in ["/blocked/a?seconds=0", "/blocked/a?seconds=1e9", "/blocked/a"] {
        assert_eq!(send("PUT", invalid).await.status(), StatusCode::BAD_REQUEST, "{invalid}");
    }
    for example in [&admin, &other] {
        wait_until("the client is blocked", BOUND, async || {
            let response = example.get("/").await;
            let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap());
            response.status() == StatusCode::TOO_MANY_REQUESTS
                && wait.is_some_and(|wait| wait.len() == 4)
        })
        .await;
    }
    assert_eq!(send("DELETE", "/blocked/127.0.0.1").await.status(), StatusCode::NO_CONTENT);
    for example in [&admin, &other] {
        wait_until("the client is not blocked", BOUND, async || {
            example.get("/").await.status() == StatusCode::OK
        })
        .await;
    }
}

#[cfg(feature = "tonic")]
#[tokio::test]
async fn a_denied_grpc_client_receives_the_retry_delay() {
    let output = run("grpc", &[]).await;
    assert!(output.status.success());
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let [first, second, third] = lines[..] else { panic!("{lines:?}") };
    assert!(first.starts_with("ok, ") && first.contains(r#"\"default\";r=1;t=30"#), "{first}");
    assert!(second.starts_with("ok, "), "{second}");
    let denied = "RESOURCE_EXHAUSTED: rate limit exceeded, wait Some(";
    assert!(third.starts_with(denied), "{third}");
}

#[tokio::test]
async fn a_worker_waits_for_permits_and_a_service_returns_errors() {
    let started = Instant::now();
    let output = run("outside_http", &[]).await;
    // 10 permits are available at once, and another 10 at a rate of 50 per second.
    assert!(output.status.success() && started.elapsed() >= Duration::from_millis(200));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let prefixes = [
        "   5 recipients: sent",
        "   5 recipients: sent",
        "  10 recipients: sent",
        "2000 recipients: too many",
        "mailbox: accepted",
        "mailbox: accepted",
        "mailbox: rate limit exceeded, retry after",
    ];
    assert_eq!(lines.len(), prefixes.len());
    for (line, prefix) in lines.into_iter().zip(prefixes) {
        assert!(line.starts_with(prefix), "{line}");
    }
}

#[tokio::test]
async fn a_denial_by_one_of_several_quotas_takes_nothing_from_the_others() {
    let server = Server::start().await;
    let url = server.url();
    for environment in [&[][..], &[("REDIS_URL", url.as_str())]] {
        let policies = Example::serve("policies", environment).await;
        let (started, mut admitted) = (Instant::now(), 0);
        let mut last = None;
        for _ in 0..40 {
            let response = policies.get("/").await;
            match response.status() {
                StatusCode::OK => admitted += 1,
                _ => {
                    let problem: Value = serde_json::from_slice(response.body()).unwrap();
                    assert_eq!(problem["violated-policies"], json!(["second"]));
                }
            }
            last = Some(response);
        }
        let seconds = started.elapsed().as_secs_f64();
        assert!((10..=10 + (10.0 * seconds) as u32).contains(&admitted), "{admitted}");
        let field = last.unwrap().headers()["ratelimit"].to_str().unwrap().to_owned();
        let left = |name: &str| -> u32 {
            let (_, rest) = field.split_once(&format!("\"{name}\";r=")).unwrap();
            rest.split([';', ',']).next().unwrap().parse().unwrap()
        };
        assert_eq!(left("day"), 1_000 - admitted, "{field}");
        let refilled = (100.0 / 60.0 * seconds) as u32 + 1;
        assert!((100 - admitted..=100 - admitted + refilled).contains(&left("minute")), "{field}");
    }
}

/// The tokens of an answer, and the name of its last event.
fn answer(body: &[u8]) -> (u64, String) {
    let text = str::from_utf8(body).unwrap();
    let events: Vec<_> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
    let (end, tokens) = events.split_last().unwrap();
    assert!(tokens.iter().all(|event| *event == "data: token"), "{text}");
    let (event, data) = end.split_once("\ndata: ").unwrap();
    match event {
        "event: done" => assert_eq!(data, tokens.len().to_string()),
        _ => assert!(data.contains(r#""type":"rate_limit_exceeded","retry_after":"#), "{end}"),
    }
    (tokens.len() as u64, event.into())
}

/// The budget is that of a day, so that nothing refills.
async fn assert_streams_share_a_budget(environment: &[(&str, &str)]) {
    const BUDGET: u64 = 10_000;
    let environment = [environment, &[("LIMIT", "10000/day"), ("PORT", "0")]].concat();
    let example = Example::serve("llm_tokens", &environment).await;
    // From 50 to 4,000 tokens.
    let lengths = (0..100u64).map(|n| 50 + n * 37 % 100 * 3_950 / 99);
    let chats = lengths.map(|tokens| {
        let (example, path) = (&example, format!("/chat?tokens={tokens}"));
        async move { (tokens, example.get_with(&path, "x-api-key", "key").await) }
    });
    let (mut used, mut ends) = (0, BTreeMap::<String, usize>::new());
    for (wanted, response) in join_all(chats).await {
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            *ends.entry("denied".into()).or_default() += 1;
            continue;
        }
        assert_eq!(response.status(), StatusCode::OK);
        let (tokens, end) = answer(response.body());
        assert!(tokens <= wanted && (tokens == wanted) == (end == "event: done"), "{tokens} {end}");
        used += tokens;
        *ends.entry(end).or_default() += 1;
    }
    // A slice is taken before it is used, so none is too much.
    assert!((BUDGET * 97 / 100..=BUDGET).contains(&used), "{used} of {BUDGET}: {ends:?}");
    assert!(ends["event: error"] > 0 && ends["denied"] > 0, "{ends:?}");
}

#[tokio::test]
async fn streams_of_tokens_use_the_budget_of_their_key_and_no_more() {
    assert_streams_share_a_budget(&[]).await;
    let server = Server::start().await;
    assert_streams_share_a_budget(&[("REDIS_URL", &server.url())]).await;
}

#[tokio::test]
async fn a_client_that_disconnects_pays_for_the_tokens_that_it_got() {
    let environment = [("LIMIT", "1000/day"), ("PORT", "0")];
    let example = Example::serve("llm_tokens", &environment).await;
    let request = Request::get(format!("http://{}/chat?tokens=4000", example.address))
        .header("x-api-key", "key");
    let request = request.body(Full::default()).unwrap();
    let mut body = example.client.request(request).await.unwrap().into_body();
    let mut got = 0;
    while got < 300 {
        let frame = body.frame().await.unwrap().unwrap();
        got += frame
            .data_ref()
            .map_or(0, |data| str::from_utf8(data).unwrap().matches("token").count());
    }
    drop(body);
    let mut rest = 0;
    wait_until("the rest of the budget is free", BOUND, async || {
        let response = example.get_with("/chat?tokens=100", "x-api-key", "key").await;
        let is_allowed = response.status() == StatusCode::OK;
        rest += if is_allowed { answer(response.body()).0 } else { 0 };
        !is_allowed
    })
    .await;
    // The first slice of a request is whole, so fewer than 256 tokens are left.
    let used = got as u64 + rest;
    assert!((1_000 - 256..=1_000).contains(&used), "{got} and {rest}");
}

#[tokio::test]
async fn login_counts_failures_only_and_lets_no_concurrent_attempt_through() {
    let server = Server::start().await;
    let on_redis = [("REDIS_URL", server.url())];
    let on_redis = on_redis.each_ref().map(|(name, url)| (*name, url.as_str()));
    for environment in [&[][..], &on_redis] {
        let example = Example::serve("login", environment).await;
        let attempt = async |email: &str, password: &str| example.log_in(email, password).await;
        for _ in 0..30 {
            assert_eq!(attempt("good@example.com", "correct+horse").await, StatusCode::OK);
        }
        let attempts = (0..30).map(|_| attempt("target@example.com", "wrong"));
        let statuses = join_all(attempts).await;
        let tried = statuses.iter().filter(|status| **status == StatusCode::UNAUTHORIZED).count();
        let denied = statuses.iter().filter(|status| status.as_u16() == 429).count();
        assert_eq!((tried, denied), (5, 25));
        // Also the right password, until the window ends.
        wait_until("the other attempts are given back to the client address", BOUND, async || {
            attempt("good@example.com", "correct+horse").await == StatusCode::OK
        })
        .await;
        let target = attempt(" TARGET@example.com", "correct+horse").await;
        assert_eq!(target, StatusCode::TOO_MANY_REQUESTS);

        let (mut tried, mut emails) = (tried, 0..);
        let mut try_next = async || {
            let email = format!("{}@example.com", emails.next().unwrap_or(0));
            attempt(&email, "wrong").await == StatusCode::UNAUTHORIZED
        };
        wait_until("the address is denied", BOUND, async || {
            tried += usize::from(try_next().await);
            tried >= 20
        })
        .await;
        for _ in 0..10 {
            assert!(!try_next().await, "more than 20 attempts");
        }
    }
}

#[tokio::test]
async fn login_lets_no_more_than_20_concurrent_attempts_of_an_address_through() {
    let server = Server::start().await;
    let url = server.url();
    for environment in [&[][..], &[("REDIS_URL", url.as_str())]] {
        let example = Example::serve("login", environment).await;
        let emails: Vec<_> = (0..60).map(|n| format!("{n}@example.com")).collect();
        let attempts = emails.iter().map(|email| example.log_in(email, "wrong"));
        let statuses = join_all(attempts).await;
        let count = |code: u16| statuses.iter().filter(|status| status.as_u16() == code).count();
        assert_eq!((count(401), count(429)), (20, 40), "{statuses:?}");
        // Also the right password, until the window ends.
        let right = example.log_in("good@example.com", "correct+horse").await;
        assert_eq!(right, StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn an_edited_file_changes_the_limits_and_keeps_what_was_consumed() {
    let directory = TempDir::new();
    let file = directory.path().join("limits.toml");
    // As editors do: a new file takes the place of the old one.
    let write = |text: &str| {
        let new = directory.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &file).unwrap();
    };
    write("[search]\nday = \"10/day\"\n");
    let log = directory.path().join("log");
    let stderr = fs::File::create(&log).unwrap();
    let path = file.to_str().unwrap();
    let example = Example::serve_with("limits_file", &[("LIMITS", path)], stderr.into()).await;
    let logged = |text: &str| fs::read_to_string(&log).unwrap().matches(text).count();
    let used_and_limit = async || {
        let response = example.get("/search").await;
        let number = |header: &str, key: &str| -> u64 {
            let field = response.headers()[header].to_str().unwrap();
            field.split(key).nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
        };
        let limit = number("ratelimit-policy", ";q=");
        (limit - number("ratelimit", ";r="), limit)
    };
    assert_eq!(used_and_limit().await, (1, 10));

    write("[search]\nday = \"50/day\"\n[serach]\nday = \"1/day\"\n");
    wait_until("the file is read", BOUND, async || logged("rate limits reloaded") == 1).await;
    assert_eq!(used_and_limit().await, (2, 50));
    assert_eq!(logged("no route uses this policy of the file"), 1, "a misspelled name");

    write("[search]\nday = \"70/dya\"\nhour = 7\n");
    wait_until("the errors are logged", BOUND, async || logged("not reloaded") == 1).await;
    assert_eq!((logged("70/dya"), logged("7 is not a quota")), (1, 1), "all of them");
    assert_eq!(used_and_limit().await, (3, 50), "the old limits stay");

    write("[search]\nday = \"70/day\"\n");
    wait_until("the file is read again", BOUND, async || logged("rate limits reloaded") == 2).await;
    assert_eq!(used_and_limit().await, (4, 70));
    example.signal("-HUP");
    wait_until("the signal reloads", BOUND, async || logged("rate limits reloaded") == 3).await;
    assert_eq!(used_and_limit().await, (5, 70));
}

/// Each of these runs alone, because others would delay the calls: see `make integration`.
mod timing {
    use fleetlimit::{Costs, Policy, RedisStore};

    use super::*;
    use crate::exact::test_limiter;

    const SECOND: Duration = Duration::from_secs(1);

    /// Records when the requests to a server arrived.
    async fn recording_api(arrivals: Arc<Mutex<Vec<Instant>>>) -> String {
        let handler = async move || arrivals.lock().unwrap().push(Instant::now());
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let app = axum::Router::new().route("/", axum::routing::get(handler));
        tokio::spawn(async { axum::serve(listener, app).await });
        url
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_api_never_sees_a_sixth_call_of_three_processes_in_a_second() {
        const TURN: Duration = Duration::from_millis(220);
        const BEFORE: u32 = 10;

        let server = Server::start().await;
        let arrivals = Arc::default();
        let api = recording_api(Arc::clone(&arrivals)).await;
        let (redis, calls) = (server.url(), "10");
        let environment = [("REDIS_URL", redis.as_str()), ("API_URL", &api), ("CALLS", calls)];
        let quota = "5/1100ms queue 30s".parse().unwrap();
        let policy = Policy::new("outbound").quota("calls", quota);
        let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), policy);
        limiter.peek("127.0.0.1").await.unwrap().ensure_allowed().unwrap();
        // On a busy machine, processes are late. A call that is late is nearer to the next one.
        let stop = Arc::new(AtomicBool::new(false));
        let watchdog = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let (mut worst, mut last) = (Duration::ZERO, Instant::now());
                while !stop.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                    worst = worst.max(last.elapsed());
                    last = Instant::now();
                }
                worst
            }
        });

        // Takes the first turns, during which the processes start. So the time of each later turn is known.
        let start = Instant::now();
        let taken = limiter.reserve("127.0.0.1", Costs::new(BEFORE.into())).await.unwrap();
        assert!(taken.decision().is_allowed());
        let outputs = join_all((0..3).map(|_| run("outbound", &environment))).await;
        let elapsed = start.elapsed();
        stop.store(true, Relaxed);
        let late = watchdog.join().unwrap();
        for output in outputs {
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{stderr}");
            assert_eq!(stdout.matches("called after").count(), 10, "{stdout}");
        }
        let arrivals = arrivals.lock().unwrap();
        assert_eq!(arrivals.len(), 30);
        // No tolerance, because a delay cannot make a call early.
        for (arrival, turn) in arrivals.iter().zip(BEFORE..) {
            let (after, turn_after) = (*arrival - start, turn * TURN);
            assert!(after >= turn_after, "call {turn} after {after:?}, its turn is {turn_after:?}");
        }
        // The sixth turn is 1.1 s after the first. Calls closer than a second are accepted only if the
        // machine has stalled for more than half of the 100 ms that this leaves.
        let least = (5 * TURN).saturating_sub(2 * late).min(SECOND);
        for calls in arrivals.windows(6) {
            let six = calls[5] - calls[0];
            assert!(six >= least, "six calls in {six:?}, in spite of {late:?}");
        }
        assert!(elapsed < 50 * TURN + 10 * late, "slower than the quota: {elapsed:?}");
    }
}

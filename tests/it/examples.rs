//! The examples, each run as the process that its reader would start.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, str};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::common::{BOUND, Cluster, Server, wait_until};
use crate::oracle::Oracle;

const BUCKET: &str = "tollgate:{127.0.0.1}:default:t1";
const BURST: u64 = 10;
const PER_SECOND: f64 = 5.0;

/// An example that serves, on a port of its own.
struct Example {
    address: String,
    client: Client<HttpConnector, Empty<Bytes>>,
    _process: Child,
    // Open as long as the process may want to print.
    _stdout: BufReader<ChildStdout>,
}

impl Example {
    async fn serve(name: &str, environment: &[(&str, &str)]) -> Self {
        let mut process = command(name, environment).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let address = timeout(BOUND, async {
            let mut line = String::new();
            while stdout.read_line(&mut line).await.unwrap() > 0 {
                if let Some((_, rest)) = line.split_once("http://") {
                    return rest.split('/').next().unwrap().to_owned();
                }
                line.clear();
            }
            panic!("{name} ended and printed no address");
        });
        let address = address.await.expect("an address within the bound");
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, client, _process: process, _stdout: stdout }
    }

    async fn get(&self, path: &str) -> Response<Bytes> {
        self.get_with(path, "accept", "*/*").await
    }

    async fn get_with(&self, path: &str, header: &str, value: &str) -> Response<Bytes> {
        let request = Request::get(format!("http://{}{path}", self.address)).header(header, value);
        let answer = async {
            let response = self.client.request(request.body(Empty::new()).unwrap()).await.unwrap();
            let (parts, body) = response.into_parts();
            Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
        };
        timeout(BOUND, answer).await.expect("an answer within the bound")
    }
}

/// Runs an example that ends by itself.
async fn run(name: &str, environment: &[(&str, &str)]) -> Output {
    let output = timeout(BOUND, command(name, environment).output()).await;
    output.expect("an end within the bound").unwrap()
}

fn command(name: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary(name));
    command.env_remove("REDIS_URL").env_remove("REDIS_CLUSTER").env("PORT", "0");
    command.envs(environment.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Cargo puts the examples beside the directory of the tests.
fn binary(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.parent().unwrap().with_file_name("examples").join(name);
    let path = path.with_extension(env::consts::EXE_EXTENSION);
    assert!(path.exists(), "no {name}: `cargo build --examples` with the features of this test");
    path
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Whether the limiter counted the request, which it does not while its store is away.
fn is_counted(response: &Response<Bytes>) -> bool {
    response.headers().contains_key("ratelimit")
}

/// The most that one client can have been admitted since then.
fn quota_since(began: Instant) -> u64 {
    BURST + (PER_SECOND * began.elapsed().as_secs_f64()) as u64
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
async fn quickstart_admits_the_quota_and_tells_the_rest_to_wait() {
    let quickstart = Example::serve("quickstart", &[]).await;
    let (began, mut admitted) = (Instant::now(), 0);
    for _ in 0..30 {
        let response = quickstart.get("/").await;
        if response.status() == StatusCode::OK {
            assert!(is_counted(&response));
            admitted += 1;
        } else {
            assert_is_denial(&response);
        }
    }
    let most = quota_since(began);
    assert!((BURST..=most).contains(&admitted), "{admitted}, and at most {most}");
}

#[tokio::test]
async fn quickstart_serves_before_redis_is_there_and_uses_it_then() {
    // A port that is free and stays so.
    let server = Server::start().await;
    server.stop();
    let quickstart = Example::serve("quickstart", &[("REDIS_URL", &server.url())]).await;

    let began = Instant::now();
    let response = quickstart.get("/").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!is_counted(&response) && text(response.body()).contains("no limit"));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());

    server.restart().await;
    wait_until("Redis counts", Duration::from_secs(2), async || {
        is_counted(&quickstart.get("/").await)
    })
    .await;
    wait_until("a request is denied", BOUND, async || {
        quickstart.get("/").await.status() == StatusCode::TOO_MANY_REQUESTS
    })
    .await;
    assert_eq!(server.query::<u8>(&["EXISTS", BUCKET]).await, 1);
}

/// Three processes and 64 clients for three seconds: together they are given exactly the burst and
/// what the rate allows, by the clock of the server that has the bucket.
async fn assert_shared(variable: &str, urls: &str, server: &Server) {
    let oracle = Oracle { permits: 5, micros: 1_000_000, burst: BURST };
    let mut processes = Vec::new();
    for _ in 0..3 {
        let process = Example::serve("quickstart", &[(variable, urls)]).await;
        wait_until("the process has its connection", BOUND, async || {
            is_counted(&process.get("/").await)
        })
        .await;
        processes.push(Arc::new(process));
    }
    let (mut before, mut after) = (0, 0);
    wait_until("the first permit is given", BOUND, async || {
        server.command(&["DEL", BUCKET]).await;
        before = server.time_micros().await;
        let response = processes[0].get("/").await;
        after = server.time_micros().await;
        response.status() == StatusCode::OK && is_counted(&response)
    })
    .await;

    let began = Instant::now();
    let clients: Vec<_> = (0..64)
        .map(|n| {
            let process = processes[n % 3].clone();
            tokio::spawn(async move {
                let (mut admitted, mut late) = (0, 0);
                while began.elapsed() < Duration::from_secs(3) {
                    let response = process.get("/").await;
                    if response.status() == StatusCode::OK {
                        // On a busy machine a check can miss its deadline. It may be charged.
                        *(if is_counted(&response) { &mut admitted } else { &mut late }) += 1;
                    }
                }
                (admitted, late)
            })
        })
        .collect();
    let (mut admitted, mut late) = (1, 0);
    for client in clients {
        let (more, later) = client.await.unwrap();
        admitted += more;
        late += later;
    }

    // The bucket was never full again, so it is full as long after the first permit as all the
    // permits take to refill. One more or less would move that by 200 ms.
    let full_at = oracle.full_at(server, BUCKET).await.unwrap();
    let first = |permits| full_at - oracle.price(permits);
    let window = oracle.ticks(before)..=oracle.ticks(after);
    assert!(
        (0..=late).any(|charged| window.contains(&first(admitted + charged))),
        "{admitted} admitted, {late} late, {} us after the first could be",
        (first(admitted) - oracle.ticks(after)) / oracle.ticks(1),
    );
    assert!(admitted >= BURST + 10, "the limit was not reached: {admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_share_exactly_the_quota_on_one_redis() {
    let server = Server::start().await;
    assert_shared("REDIS_URL", &server.url(), &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_share_exactly_the_quota_on_a_cluster() {
    let cluster = Cluster::start().await;
    let owner = cluster.slot_owner(cluster.slot_of(BUCKET).await).await;
    assert_shared("REDIS_CLUSTER", &cluster.urls().join(","), cluster.node(owner)).await;
}

#[tokio::test]
async fn quickstart_says_what_is_wrong_and_exits() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    for (environment, says) in [
        (&[("REDIS_URL", "no redis")][..], "REDIS_URL: "),
        (&[("REDIS_URL", "")], "REDIS_URL: "),
        (&[("REDIS_CLUSTER", "redis://127.0.0.1:1,no redis")], "REDIS_CLUSTER: "),
        (&[("REDIS_URL", "redis://a"), ("REDIS_CLUSTER", "redis://a")], "keep one"),
        (&[("PORT", "http")], "invalid PORT \"http\""),
        (&[("PORT", &taken)], &format!("cannot listen on 127.0.0.1:{taken}")),
    ] {
        let output = run("quickstart", environment).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{environment:?}: {error}");
        assert!(error.starts_with("quickstart: ") && error.contains(says), "{error}");
        assert_eq!((error.lines().count(), &output.stdout[..]), (1, &b""[..]), "{error}");
    }
}

#[tokio::test]
async fn routes_have_quotas_and_callers_of_their_own() {
    let routes = Example::serve("routes", &[]).await;

    // By route and client, not by path.
    for (path, status) in [("/items/1", 200), ("/items/2", 200), ("/items/3", 429)] {
        assert_eq!(routes.get(path).await.status(), status, "{path}");
    }
    assert_eq!(routes.get("/items/3/price").await.status(), 200);

    for (tenant, status) in [("acme", 200), ("acme", 429), ("other", 200)] {
        let response = routes.get_with("/report", "x-tenant", tenant).await;
        assert_eq!(response.status(), status, "{tenant}");
    }
    assert!(text(routes.get("/report").await.body()).contains("missing header: x-tenant"));

    let found = routes.get_with("/search", "x-api-key", "secret").await;
    let fields: Vec<_> = found.headers().get_all("ratelimit").iter().collect();
    let [inner, outer] = fields[..] else { panic!("{fields:?}") };
    assert_eq!(inner, r#""search";r=2;t=20"#);
    assert!(outer.to_str().unwrap().starts_with(r#""all";r="#));

    wait_until("the quota around all is used up", BOUND, async || {
        let response = routes.get("/report").await;
        let is_denied = response.status() == StatusCode::TOO_MANY_REQUESTS;
        is_denied && text(response.body()).contains(r#""violated-policies":["all"]"#)
    })
    .await;
    let health = routes.get("/health").await;
    assert!(health.status() == 200 && !is_counted(&health));
}

#[tokio::test]
async fn plans_limit_by_what_the_account_has_paid_for() {
    let plans = Example::serve("plans", &[]).await;
    assert_eq!(plans.get("/export").await.status(), StatusCode::UNAUTHORIZED);

    for (plan, quota) in [("free", 10), ("paid", 100)] {
        let bearer = format!("Bearer {plan}");
        let response = plans.get_with("/export", "authorization", &bearer).await;
        let policy = format!("\"{plan}\";q={quota};w=1");
        assert_eq!(response.headers()["ratelimit-policy"], policy.as_str());
        let left = format!("\"{plan}\";r={};t=1", quota - 5);
        assert_eq!(response.headers()["ratelimit"], left.as_str());
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

#[cfg(feature = "tonic")]
#[tokio::test]
async fn a_grpc_client_is_told_how_long_to_wait() {
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
async fn a_worker_waits_for_its_turn_and_a_service_answers_with_errors() {
    let began = Instant::now();
    let output = run("outside_http", &[]).await;
    // 10 permits at once, and another 10 at 50 a second.
    assert!(output.status.success() && began.elapsed() >= Duration::from_millis(200));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let begins = [
        " 5 recipients: sent",
        " 5 recipients: sent",
        "10 recipients: sent",
        "11 recipients: too many",
        "mailbox: accepted",
        "mailbox: accepted",
        "mailbox: rate limit exceeded, retry after",
    ];
    assert_eq!(lines.len(), begins.len());
    for (line, begin) in lines.into_iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}");
    }
}

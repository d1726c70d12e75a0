//! The example `production`: two instances on one Redis, through real sockets.

use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::common::ports::free_port;
use crate::metrics::value;

/// Permits do not come back during a test.
const LIMIT: u64 = 20;
const ORIGIN: &str = "https://app.example.com";

struct Instance {
    example: Example,
    metrics: String,
    log: PathBuf,
    _directory: TempDir,
}

impl Instance {
    async fn start(server: &Server) -> Self {
        let directory = TempDir::new();
        let log = directory.path().join("log");
        let metrics = format!("127.0.0.1:{}", free_port());
        let environment = [
            ("REDIS_URL", &*server.url()),
            // The one that `wait_until_agreed` knows.
            ("KEY_PREFIX", "fleetlimit"),
            ("LIMIT", &format!("{LIMIT}/day")),
            ("LISTEN", "127.0.0.1:0"),
            ("METRICS_LISTEN", &metrics),
        ];
        let stderr = fs::File::create(&log).unwrap();
        let example = Example::serve_with("production", &environment, stderr.into()).await;
        Self { example, metrics, log, _directory: directory }
    }

    /// Sends the request of a client, as a proxy on this host does.
    async fn get(&self, path: &str, client: &str) -> Response<Bytes> {
        self.example.get_with(path, "x-forwarded-for", client).await
    }

    async fn metrics(&self) -> String {
        let request = Request::get(format!("http://{}/metrics", self.metrics));
        let response = self.example.exchange(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        text(response.body()).to_owned()
    }

    /// The number of decisions with this source, or of all.
    async fn decisions(&self, source: Option<&str>) -> u64 {
        let labels: Vec<_> =
            source.into_iter().map(|source| ("fleetlimit_source", source)).collect();
        value(&self.metrics().await, "fleetlimit_decisions_total", &labels).unwrap_or(0.0) as u64
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Asserts that the process exits with code 0. Returns its log.
    async fn assert_exits(mut self) -> String {
        let status = timeout(BOUND, self.example.process.wait()).await;
        let status = status.expect("the process exits").unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.log());
        self.log()
    }
}

/// Two instances that know of each other.
async fn two_instances(server: &Server) -> [Instance; 2] {
    let instances = [Instance::start(server).await, Instance::start(server).await];
    for instance in &instances {
        assert_eq!(instance.get("/", "203.0.113.1").await.status(), StatusCode::OK);
    }
    wait_until_agreed(server, 2).await;
    instances
}

/// Sends requests of a client to both in turn, three times as many as are allowed. Returns how many each has
/// admitted.
async fn admitted(instances: &[Instance; 2], client: &str) -> [u64; 2] {
    let mut admitted = [0; 2];
    for n in 0..3 * LIMIT as usize {
        let response = instances[n % 2].get("/", client).await;
        match response.status() {
            StatusCode::OK => admitted[n % 2] += 1,
            status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
        }
    }
    admitted
}

/// The instances that Redis knows.
async fn registered(server: &Server) -> usize {
    let fields: Vec<String> = server.query(&["HKEYS", "fleetlimit:{fleet}"]).await;
    fields.iter().filter(|field| field.parse::<u64>().is_ok()).count()
}

#[tokio::test]
async fn production_shares_the_limit_of_a_client_and_limits_no_probe() {
    let server = Server::start().await;
    let instances = two_instances(&server).await;
    let [first, second] = &instances;

    let before = first.decisions(Some("local")).await + second.decisions(Some("local")).await;
    let [by_first, by_second] = admitted(&instances, "203.0.113.7").await;
    // A check can time out on a busy machine. Then it may be charged, and is decided locally.
    let after = first.decisions(Some("local")).await + second.decisions(Some("local")).await;
    let (admitted, timed_out) = (by_first + by_second, after - before);
    assert!(admitted.abs_diff(LIMIT) <= timed_out && timed_out < LIMIT / 2, "{admitted}");

    let decided = first.decisions(None).await;
    for path in ["/healthz", "/readyz"] {
        for _ in 0..3 * LIMIT {
            assert_eq!(first.get(path, "203.0.113.7").await.status(), StatusCode::OK);
        }
    }
    for _ in 0..3 * LIMIT {
        first.metrics().await;
    }
    let preflight = Request::options(format!("http://{}/", first.example.address))
        .header("x-forwarded-for", "203.0.113.7")
        .header("origin", ORIGIN)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "content-type");
    let preflight = first.example.exchange(preflight.body(Full::default()).unwrap()).await;
    assert_eq!(preflight.status(), StatusCode::OK);
    assert_eq!(preflight.headers()["access-control-allow-origin"], ORIGIN);
    assert_eq!(first.decisions(None).await, decided, "nobody has taken a permit");

    let denied = first.get("/", "203.0.113.7").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["access-control-allow-origin"], ORIGIN);
    let exposed = denied.headers()["access-control-expose-headers"].to_str().unwrap();
    for header in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert!(exposed.split(',').any(|exposed| exposed == header), "{exposed}");
        assert!(denied.headers().contains_key(header), "{header}");
    }
    assert_eq!(first.get("/", "203.0.113.8").await.status(), StatusCode::OK, "another client");
    assert_eq!(first.get("/metrics", "203.0.113.8").await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn production_keeps_the_limit_while_redis_is_killed_and_shows_it() {
    let server = Server::start().await;
    let instances = two_instances(&server).await;
    server.stop();

    let [by_first, by_second] = admitted(&instances, "203.0.113.7").await;
    let sum = by_first + by_second;
    // The shares of both, of which each may round one permit down.
    assert!((LIMIT - 2..=LIMIT).contains(&sum), "{by_first} and {by_second} of {LIMIT}");
    assert!(by_first > 0 && by_second > 0, "{by_first} and {by_second}");
    for (instance, admitted) in instances.iter().zip([by_first, by_second]) {
        assert!(instance.decisions(Some("local")).await >= admitted.max(1));
        assert_eq!(instance.decisions(Some("failure_mode")).await, 0);
        assert_eq!(instance.get("/readyz", "203.0.113.7").await.status(), StatusCode::OK);
        let metrics = instance.metrics().await;
        assert_eq!(value(&metrics, "fleetlimit_fleet_instances", &[]), Some(2.0));
        let log = instance.log();
        assert!(log.contains("rate limit enforced locally, by this instance's share"), "{log}");
        assert!(!log.contains("ERROR"), "{log}");
    }

    server.restart().await;
    for instance in &instances {
        let before = instance.decisions(Some("store")).await;
        wait_until("Redis decides again, and the log says so", BOUND, async || {
            instance.get("/", "203.0.113.9").await;
            let is_logged = instance.log().contains("rate limit enforced by the store again");
            is_logged && instance.decisions(Some("store")).await > before
        })
        .await;
    }
}

#[tokio::test]
async fn production_finishes_its_requests_and_leaves_the_fleet_on_sigterm() {
    let server = Server::start().await;
    let [first, second] = two_instances(&server).await;
    assert_eq!(registered(&server).await, 2);

    let decided = first.decisions(None).await;
    let mut in_flight = TcpStream::connect(&first.example.address).await.unwrap();
    let request = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhe";
    in_flight.write_all(request.as_bytes()).await.unwrap();
    wait_until("the request is in flight", BOUND, async || first.decisions(None).await > decided)
        .await;
    first.example.signal("-TERM");
    wait_until("no connection is accepted", BOUND, async || {
        TcpStream::connect(&first.example.address).await.is_err()
    })
    .await;
    assert_eq!(registered(&server).await, 2, "it takes permits until its last request");

    in_flight.write_all(b"llo").await.unwrap();
    let mut response = String::new();
    timeout(BOUND, in_flight.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("hello"), "{response}");
    let log = first.assert_exits().await;
    assert!(!log.contains("cut off"), "{log}");
    assert_eq!(registered(&server).await, 1, "the other one has the whole limit");

    second.example.signal("-TERM");
    second.assert_exits().await;
    assert_eq!(registered(&server).await, 0);
}

#[tokio::test]
async fn production_reports_an_invalid_setting_with_a_valid_one() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let redis = ("REDIS_URL", "redis://127.0.0.1:1");
    for (settings, expected) in [
        (&[][..], &["REDIS_URL is not set", "redis://127.0.0.1:6379"][..]),
        (&[("REDIS_URL", "http://a")], &["invalid REDIS_URL", "`redis:`"]),
        (&[redis, ("LIMIT", "10/fortnight")], &["invalid LIMIT", "10/s burst 20"]),
        (&[redis, ("INSTANCES", "0")], &["invalid INSTANCES", "such as 2"]),
        (&[redis, ("KEY_PREFIX", "a b")], &["invalid KEY_PREFIX", "visible ASCII"]),
        (&[redis, ("TRUSTED_PROXIES", "nginx")], &["invalid TRUSTED_PROXIES", "192.0.2.1"]),
        (&[redis, ("TRUSTED_PROXIES", "0.0.0.0/0")], &["invalid TRUSTED_PROXIES", "spoof"]),
        (&[redis, ("ALLOWED_ORIGIN", "\n")], &["invalid ALLOWED_ORIGIN", ORIGIN]),
        (&[redis, ("LISTEN", "3000")], &["invalid LISTEN", "127.0.0.1:3000"]),
        (&[redis, ("LISTEN", &taken)], &["cannot listen on LISTEN", &taken]),
        (&[redis, ("METRICS_LISTEN", "9000")], &["invalid METRICS_LISTEN", "127.0.0.1:9000"]),
        (&[redis, ("METRICS_LISTEN", &taken)], &["cannot serve metrics", &taken]),
    ] {
        let ports = [("LISTEN", "127.0.0.1:0"), ("METRICS_LISTEN", "127.0.0.1:0")];
        let output = run("production", &[&ports[..], settings].concat()).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{settings:?}: {error}");
        // Debug output has quotes with escapes, and names of types.
        assert!(!error.contains("Error(") && !error.contains("\\\""), "{settings:?}: {error}");
        for expected in expected {
            assert!(error.contains(expected), "{settings:?}: {error}");
        }
    }
}

//! Minutes of everything at once: reloads, restarts of Redis, slow and hostile clients, in each failure
//! mode for a third of the time. `make soak-server` runs it, and `SECONDS_OF_SOAK=30` makes it short.

mod slow;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::common::{Redis, Server, request};

/// In this order, because only the last one lets checks fail.
const FAILURE_MODES: [&str; 3] = ["local", "open", "closed"];
const SLOW_CLIENTS: usize = 8;
/// Twice the idle timeout, the time for a request, and that to end a connection.
const SLOW_IS_CLOSED: Duration = Duration::from_secs(2 * 4 + 5 + 2);
/// Long enough for each part of the memory to be in use.
const FLAT_AFTER: Duration = Duration::from_secs(120);

const CLIENTS: usize = 16;
/// A client may wait for its turn while other tests' processes start, but not for seconds.
const SLOWEST: Duration = Duration::from_secs(2);

/// After it, checks are decided by Redis again.
const RECOVERED: Duration = Duration::from_secs(3);

fn settings(redis: &Redis, failure_mode: &str) -> String {
    format!(
        "checks: {{ timeout: 1s, failure_mode: {failure_mode} }}
store: {{ redis: '{}', max_keys: 20000 }}
policies: {{ api: {{ second: 100/s, day: 1000000/day }} }}
auth: {{ policy: api }}
domains: [domain.yaml]
resource_limits: {{ connections: 128, idle_timeout: 4s }}
",
        redis.url()
    )
}

fn domain(permits: u64) -> String {
    format!(
        "domain: d\ndescriptors:\n  \
         - {{ key: user, policy: api }}\n  \
         - {{ key: path, rate_limit: {{ unit: minute, requests_per_unit: {permits} }} }}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make soak-server"]
async fn reloads_restarts_and_hostile_clients_cause_no_errors_and_no_growth() {
    let seconds = std::env::var("SECONDS_OF_SOAK").map_or(300, |text| text.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let redis = Redis::start().await;
    let first = settings(&redis, FAILURE_MODES[0]);
    let files = [("settings.yaml", &*first), ("domain.yaml", &*domain(1_000))];
    let server = Server::with_files(&files);
    let start = Instant::now();
    let (done, checks) = (AtomicBool::new(false), AtomicU64::new(0));
    let is_on = || start.elapsed() < time;
    let (may_fail, failures) = (AtomicBool::new(false), AtomicU64::new(0));
    // When Redis was available again, or none while it is not.
    let available = Mutex::new(Some(start));
    // A check fails only while the store does, in the mode that says so.
    let failed = |is_unavailable: bool, status: &dyn std::fmt::Debug| {
        assert!(is_unavailable && may_fail.load(Ordering::Relaxed), "{status:?}");
        let since = available.lock().unwrap().map(|since| since.elapsed());
        assert!(
            since.is_none_or(|since| since < RECOVERED),
            "{status:?} {since:?} after an outage"
        );
        failures.fetch_add(1, Ordering::Relaxed);
    };

    let clients = (0..CLIENTS).map(|n| {
        let (server, checks, is_on, failed) = (&server, &checks, &is_on, &failed);
        async move {
            let mut client = server.client().await;
            let mut round = n as u64;
            while is_on() {
                round += 1;
                let (user, path) = (format!("user-{}", round % 50), format!("/{}", round % 7));
                let request = request("d", &[&[("user", &user)], &[("path", &path)]]);
                let before = Instant::now();
                if let Err(status) = client.send(request).await {
                    failed(status.code() == Code::Unavailable, &status);
                }
                assert!(before.elapsed() < SLOWEST, "{:?}", before.elapsed());
                checks.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let clients = futures_util::future::join_all(clients);

    let gateway = async {
        let client = Client::new();
        while is_on() {
            let get = client.get(server.http("/auth")).header("x-forwarded-for", "192.0.2.1");
            let status = get.send().await.expect("the server answers").status();
            if ![StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&status) {
                failed(status == StatusCode::SERVICE_UNAVAILABLE, &status);
            }
            sleep(Duration::from_millis(5)).await;
        }
    };

    let reloads = async {
        let mut round = 0;
        while is_on() {
            round += 1;
            let third = start.elapsed().as_secs_f64() / time.as_secs_f64() * 3.0;
            let mode = FAILURE_MODES[(third as usize).min(2)];
            // Before the server can have read it.
            may_fail.fetch_or(mode == "closed", Ordering::Relaxed);
            server.files().write("settings.yaml", &settings(&redis, mode));
            let text =
                if round % 5 == 0 { "nonsense: [".to_owned() } else { domain(1_000 + round) };
            server.files().write("domain.yaml", &text);
            let reply = Client::new().post(server.admin("/api/reload")).send().await.unwrap();
            let status = reply.status();
            assert_eq!(status.is_success(), round % 5 != 0, "{status} {:?}", reply.text().await);
            sleep(Duration::from_millis(700)).await;
        }
    };

    // Each key is another one.
    let flood = async {
        let mut client = server.client().await;
        let mut key = 0_u64;
        while is_on() {
            let keys: Vec<_> = (0..32).map(|n| format!("{}{}", key + n, "x".repeat(100))).collect();
            key += 32;
            let entries: Vec<_> = keys.iter().map(|key| [("path", key.as_str())]).collect();
            let entries: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
            if let Err(status) = client.send(request("d", &entries)).await {
                failed(status.code() == Code::Unavailable, &status);
            }
        }
    };

    let hostile = async {
        while is_on() {
            for address in [server.grpc, server.http, server.admin] {
                tokio::task::spawn_blocking(move || attack(address)).await.unwrap();
            }
            let huge = "x".repeat(300_000);
            let mut client = server.client().await;
            assert!(client.send(request("d", &[&[("path", &huge)]])).await.is_err());
            sleep(Duration::from_millis(50)).await;
        }
    };

    let slow = (0..SLOW_CLIENTS).map(|n| {
        let (server, is_on) = (&server, &is_on);
        async move {
            while is_on() {
                let (protocol, closed) = if n % 2 == 0 {
                    ("HTTP/1.1", timeout(SLOW_IS_CLOSED + SLOWEST, slow::http1(server.admin)).await)
                } else {
                    ("HTTP/2", timeout(SLOW_IS_CLOSED + SLOWEST, slow::http2(server.grpc)).await)
                };
                assert!(closed.is_ok(), "a slow client keeps its connection over {protocol}");
            }
        }
    });
    let slow = futures_util::future::join_all(slow);

    let restarts = async {
        while is_on() {
            sleep(Duration::from_secs(7)).await;
            *available.lock().unwrap() = None;
            redis.stop();
            sleep(Duration::from_secs(2)).await;
            redis.restart().await;
            *available.lock().unwrap() = Some(Instant::now());
        }
    };

    let watch = async {
        sleep(time / 4).await;
        let quarter = server.memory();
        sleep(time / 4 * 3).await;
        done.store(true, Ordering::Relaxed);
        (quarter, server.memory())
    };

    let (_, _, _, _, _, _, _, (quarter, end)) =
        tokio::join!(clients, gateway, reloads, flood, hostile, slow, restarts, watch);
    println!(
        "{} checks, of which {} failed, memory {:.1} MB after a quarter of {time:?} and {:.1} MB at the end",
        checks.load(Ordering::Relaxed),
        failures.load(Ordering::Relaxed),
        quarter as f64 / 1e6,
        end as f64 / 1e6
    );
    assert!(done.load(Ordering::Relaxed));
    assert!(failures.load(Ordering::Relaxed) > 0, "the mode `closed` was not in use in an outage");
    assert!(time < FLAT_AFTER || end < quarter + quarter / 5, "{quarter} {end}");
}

/// Garbage, half a request, and a connection that is only open for a while.
fn attack(address: SocketAddr) {
    let send = |bytes: &[u8]| {
        let Ok(mut stream) = TcpStream::connect(address) else { return None };
        let _ = stream.write_all(bytes);
        Some(stream)
    };
    let open = [
        send(&[0xff; 10_000]),
        send(b"GET /auth HTTP/1.1\r\nhost: x\r\n"),
        send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        send(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n{"),
        send(b""),
    ];
    std::thread::sleep(Duration::from_millis(20));
    drop(open);
}

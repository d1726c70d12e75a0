//! Minutes of everything at once: reloads, restarts of Redis, slow and hostile clients. `make
//! soak-server` runs it.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use tokio::time::sleep;

use crate::common::{Redis, Server, request};

const CLIENTS: usize = 16;
/// A client may wait for its turn while other tests' processes start, but not for seconds.
const SLOWEST: Duration = Duration::from_secs(2);

fn settings(redis: &Redis) -> String {
    format!(
        "store: {{ redis: '{}', max_keys: 20000 }}
policies: {{ api: {{ second: 100/s, day: 1000000/day }} }}
auth: {{ policy: api }}
domains: [domain.yaml]
limits: {{ connections: 128 }}
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

/// The resident memory of the server, in bytes.
fn memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1_024
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make soak-server"]
async fn reloads_restarts_and_hostile_clients_cause_no_errors_and_no_growth() {
    let seconds = std::env::var("SECONDS_OF_SOAK").map_or(300, |text| text.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let redis = Redis::start().await;
    let files = [("settings.yaml", &*settings(&redis)), ("domain.yaml", &*domain(1_000))];
    let server = Server::with_files(&files);
    let start = Instant::now();
    let (done, checks) = (AtomicBool::new(false), AtomicU64::new(0));
    let is_on = || start.elapsed() < time;

    let clients = (0..CLIENTS).map(|n| {
        let (server, checks, is_on) = (&server, &checks, &is_on);
        async move {
            let mut client = server.client().await;
            let mut round = n as u64;
            while is_on() {
                round += 1;
                let (user, path) = (format!("user-{}", round % 50), format!("/{}", round % 7));
                let request = request("d", &[&[("user", &user)], &[("path", &path)]]);
                let before = Instant::now();
                client.send(request).await.expect("the failure mode answers");
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
            let is_decision = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&status);
            assert!(is_decision, "{status}");
            sleep(Duration::from_millis(5)).await;
        }
    };

    let reloads = async {
        let mut round = 0;
        while is_on() {
            round += 1;
            let text =
                if round % 5 == 0 { "nonsense: [".to_owned() } else { domain(1_000 + round) };
            server.files().write("domain.yaml", &text);
            let reply = Client::new().post(server.admin("/api/reload")).send().await.unwrap();
            assert_eq!(reply.status().is_success(), round % 5 != 0);
            sleep(Duration::from_millis(700)).await;
        }
    };

    // Each key is another one, and each label too.
    let flood = async {
        let mut client = server.client().await;
        let mut key = 0_u64;
        while is_on() {
            let keys: Vec<_> = (0..32).map(|n| format!("{}{}", key + n, "x".repeat(100))).collect();
            key += 32;
            let entries: Vec<_> = keys.iter().map(|key| [("path", key.as_str())]).collect();
            let entries: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
            client.send(request("d", &entries)).await.expect("the failure mode answers");
        }
    };

    let hostile = async {
        while is_on() {
            for address in [server.grpc, server.http, server.admin] {
                tokio::task::spawn_blocking(move || attack(address)).await.unwrap();
            }
            let huge = "x".repeat(100_000);
            let mut client = server.client().await;
            assert!(client.send(request("d", &[&[("path", &huge)]])).await.is_err());
            sleep(Duration::from_millis(50)).await;
        }
    };

    let restarts = async {
        while is_on() {
            sleep(Duration::from_secs(7)).await;
            redis.stop();
            sleep(Duration::from_secs(2)).await;
            redis.restart().await;
        }
    };

    let watch = async {
        sleep(time / 4).await;
        let quarter = memory(&server);
        sleep(time / 4 * 3).await;
        done.store(true, Ordering::Relaxed);
        (quarter, memory(&server))
    };

    let (_, _, _, _, _, _, (quarter, end)) =
        tokio::join!(clients, gateway, reloads, flood, hostile, restarts, watch);
    println!(
        "{} checks, memory {:.1} MB after a quarter of {time:?} and {:.1} MB at the end",
        checks.load(Ordering::Relaxed),
        quarter as f64 / 1e6,
        end as f64 / 1e6
    );
    assert!(done.load(Ordering::Relaxed));
    assert!(end < quarter + quarter / 5, "{quarter} {end}");
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

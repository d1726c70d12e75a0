//! A Redis that is broken or in the hands of an attacker.

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::common::{FREE_PORTS, Files, Redis, Server, until};

const SETTINGS: &str = "domains: [domain.yaml]";
const DOMAIN: &str = "
domain: d
descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 100 } }]
";

fn server(redis: &str) -> (Server, Files) {
    let files = Files::new(&[("settings.yaml", SETTINGS), ("domain.yaml", DOMAIN)]);
    let env: Vec<_> = FREE_PORTS.into_iter().chain([("REDIS_URL", redis)]).collect();
    (Server::start(&files.path("settings.yaml"), &env), files)
}

/// Accepts connections as Redis does, and replies to each script with an error of this size.
async fn with_long_errors(size: usize) -> String {
    async fn serve(stream: TcpStream, error: &[u8]) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 0 {
            let mut words = Vec::new();
            for _ in 0..line.trim_start_matches('*').trim().parse().unwrap() {
                line.clear();
                stream.read_line(&mut line).await?;
                let mut word = vec![0; line.trim_start_matches('$').trim().parse().unwrap()];
                stream.read_exact(&mut word).await?;
                line.clear();
                stream.read_line(&mut line).await?;
                words.push(word);
            }
            line.clear();
            let reply = match &*words[0].to_ascii_uppercase() {
                b"HELLO" => b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n".as_slice(),
                b"EVAL" | b"EVALSHA" => error,
                _ => b"+OK\r\n",
            };
            stream.write_all(reply).await?;
        }
        Ok(())
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let error: &[u8] = format!("-ERR {}\r\n", "x".repeat(size)).into_bytes().leak();
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, error));
        }
    });
    url
}

#[tokio::test]
async fn long_errors_of_redis_do_not_fill_the_log() {
    let (server, _files) = server(&with_long_errors(1 << 20).await);
    let mut client = server.client().await;
    let end = Instant::now() + Duration::from_secs(2);
    let mut checks = 0;
    while Instant::now() < end {
        client.ask("d", &[("user", &checks.to_string())]).await;
        checks += 1;
    }
    server.signal("HUP");
    let log = server.lines_until("configuration reloaded");
    assert!(log.iter().any(|line| line.contains("xxxx")), "{checks} checks without an error");
    let longest = log.iter().map(String::len).max().unwrap();
    let size: usize = log.iter().map(String::len).sum();
    assert!(longest < 2_000 && size < 20_000, "{longest}, {size}");
}

/// Each of so many would have a share of nothing.
#[tokio::test]
async fn instances_that_somebody_made_up_do_not_deny_the_clients_of_real_ones() {
    let redis = Redis::start().await;
    let (server, _files) = server(&redis.url());
    let mut client = server.client().await;
    client.ask("d", &[("user", "ada")]).await;
    let registered = async || redis.query::<u64>(&["EXISTS", "fleetlimit:{fleet}"]).await == 1;
    until(registered).await;
    let now = redis.query::<(u64, u64)>(&["TIME"]).await.0 * 1_000;
    let ids: Vec<String> = (1..=20_001).map(|id: u32| id.to_string()).collect();
    let entry = format!("{now} 1000000000 1");
    let fields = ids.iter().flat_map(|id| [id.as_str(), entry.as_str()]);
    let command: Vec<&str> = ["HSET", "fleetlimit:{fleet}"].into_iter().chain(fields).collect();
    redis.command(&command).await;
    let plan: String = ids.iter().map(|id| format!("{id} 1000000000 ")).collect();
    let state = format!("9 9 0 {now} {now}");
    let plans = ["state", &state, "plan", plan.trim_end(), "agreed", plan.trim_end()];
    redis.command(&[&["HSET", "fleetlimit:{fleet}"], &plans[..]].concat()).await;
    server.wait_for_line("more than 10000 instances");
    redis.stop();
    let mut admitted = 0;
    for _ in 0..120 {
        let code = client.ask("d", &[("user", "grace")]).await.overall_code();
        admitted += u32::from(code == Code::Ok);
    }
    assert_eq!(admitted, 100);
}

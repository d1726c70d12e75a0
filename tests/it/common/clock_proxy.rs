//! Redis with a clock that a test sets.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::RedisStore;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Server, connect};

/// A proxy in front of a server, which lets scripts read the time from two keys.
pub(crate) struct ClockProxy {
    port: u16,
    admin: MultiplexedConnection,
}

/// The digests of the scripts as the client knows them, and those that run instead.
type Digests = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// A text in a script, and what replaces it.
pub(crate) type Change = (&'static str, &'static str);

pub(crate) const CLOCK: Change = ("redis.call('TIME')", "redis.call('MGET', 's', 'us')");

/// Expiry in thousands of years, so that the server keeps what it would expire at its own time.
pub(crate) const NO_EXPIRY: Change = ("'PXAT',", "'PXAT', '9' ..");

impl ClockProxy {
    pub(crate) async fn start(server: &Server, changes: &'static [Change]) -> Self {
        let admin = connect(&server.url()).await.unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (port, target) = (listener.local_addr().unwrap().port(), server.port());
        let (digests, loader) = (Digests::default(), admin.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, target, changes, digests.clone(), loader.clone()));
            }
        });
        Self { port, admin }
    }

    pub(crate) fn store(&self, prefix: &str) -> RedisStore {
        let url = format!("redis://127.0.0.1:{}/", self.port);
        RedisStore::open(url).unwrap().key_prefix(prefix.to_owned())
    }

    /// What is stored at a key now, and when it expires, in microseconds.
    pub(crate) async fn stored(&self, key: &str) -> Option<(Vec<u8>, u64)> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").cmd("GET").arg(key).cmd("PTTL").arg(key);
        type Reply = ((u64, u64), Option<Vec<u8>>, i64);
        let ((seconds, micros), value, ttl): Reply =
            pipe.query_async(&mut self.admin.clone()).await.unwrap();
        let value = value?;
        assert!(ttl > 0, "it expires");
        Some((value, seconds * 1_000_000 + micros + ttl as u64 * 1_000))
    }

    pub(crate) async fn command(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async::<()>(&mut self.admin.clone()).await.unwrap();
    }

    pub(crate) async fn set_time(&self, micros: u64) {
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        self.command(&["MSET", "s", &seconds.to_string(), "us", &micros.to_string()]).await;
    }
}

/// Only the script of checks, not that of the fleet.
const CHECKS: &str = "local keys, arguments = KEYS, ARGV";

async fn relay(
    client: TcpStream,
    target: u16,
    changes: &'static [Change],
    digests: Digests,
    mut loader: MultiplexedConnection,
) {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    let (mut data, mut buffer) = (Vec::new(), vec![0; 64 * 1_024]);
    while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
        data.extend_from_slice(&buffer[..length]);
        while let Some((mut words, length)) = command(&data) {
            data.drain(..length);
            if words[0] == b"EVAL" {
                let script = String::from_utf8(words[1].clone()).unwrap();
                if script.contains(CHECKS) {
                    let changed = changes.iter().fold(script.clone(), |script, (from, to)| {
                        assert!(script.contains(from), "{from}");
                        script.replace(from, to)
                    });
                    let mut pipe = redis::pipe();
                    pipe.cmd("SCRIPT").arg("LOAD").arg(script);
                    pipe.cmd("SCRIPT").arg("LOAD").arg(&changed);
                    let (one, other) = pipe.query_async(&mut loader).await.unwrap();
                    digests.lock().unwrap().insert(one, other);
                    words[1] = changed.into_bytes();
                }
            } else if words[0] == b"EVALSHA"
                && let Some(other) = digests.lock().unwrap().get(&words[1])
            {
                words[1].clone_from(other);
            }
            let mut text = format!("*{}\r\n", words.len()).into_bytes();
            for word in words {
                text.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                text.extend_from_slice(&word);
                text.extend_from_slice(b"\r\n");
            }
            if to_server.write_all(&text).await.is_err() {
                return;
            }
        }
    }
}

/// The words of the first command, if it has arrived, and its length.
fn command(data: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let number = |at: &mut usize| {
        let length = data.get(*at..)?.windows(2).position(|end| end == b"\r\n")?;
        let text = str::from_utf8(&data[*at + 1..*at + length]).unwrap();
        *at += length + 2;
        Some(text.parse::<usize>().unwrap())
    };
    let count = number(&mut at)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(&mut at)?;
        words.push(data.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= data.len()).then_some((words, at))
}

/// A server at a time that the test sets.
pub(crate) struct Clock {
    proxy: ClockProxy,
    /// In microseconds since 1970.
    now: u64,
}

impl Clock {
    pub(crate) async fn start(server: &Server) -> Self {
        // Far enough from the time of the server, at which keys expire.
        let now = UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(10 * 86_400);
        let now = now.as_micros() as u64;
        let clock = Self { proxy: ClockProxy::start(server, &[CLOCK]).await, now };
        clock.proxy.set_time(now).await;
        clock
    }

    pub(crate) fn store(&self, prefix: &str) -> RedisStore {
        self.proxy.store(prefix)
    }

    /// In microseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) async fn advance(&mut self, time: Duration) {
        self.now += time.as_micros() as u64;
        self.proxy.set_time(self.now).await;
    }

    pub(crate) async fn step_back(&mut self, time: Duration) {
        self.now -= time.as_micros() as u64;
        self.proxy.set_time(self.now).await;
    }
}

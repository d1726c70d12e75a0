//! fleetlimit's script and the arguments of its call. No API exposes them, so they are read from
//! `MONITOR` during the first check of a limiter.

use ::fleetlimit::Policy;
use redis::Cmd;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::common::Server;
use crate::subjects::{BoxError, address, fleetlimit};

/// The arguments of an `EVAL` with one Redis key, and the SHA-1 of the script.
pub(crate) struct CapturedCall {
    pub(crate) script: String,
    pub(crate) sha: String,
    /// The parts of the Redis key before and after the rate limit key.
    affixes: (String, String),
    /// Maybe not text.
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl CapturedCall {
    /// Captures the first call of a limiter with this policy. A new server does not have the script
    /// yet, so that call is an `EVAL`.
    pub(crate) async fn capture(policy: Policy) -> Result<Self, BoxError> {
        let server = Server::start().await;
        let mut monitor = TcpStream::connect(("127.0.0.1", server.port())).await?;
        monitor.write_all(b"MONITOR\r\n").await?;
        let mut lines = BufReader::new(monitor).lines();
        lines.next_line().await?;
        let limiter = fleetlimit::limiter(fleetlimit::redis_store(&server)?, policy)?;
        limiter.check(address(0)).await?.ensure_allowed()?;
        while let Some(line) = lines.next_line().await? {
            let words = parse_words(&line);
            if words.first().is_some_and(|command| command == b"EVAL") {
                return Self::new(words, &server).await;
            }
        }
        Err("MONITOR ended without an EVAL".into())
    }

    async fn new(words: Vec<Vec<u8>>, server: &Server) -> Result<Self, BoxError> {
        let mut words = words.into_iter().skip(1);
        let mut next = || {
            let word = words.next().ok_or("EVAL has too few arguments")?;
            String::from_utf8(word).map_err(BoxError::from)
        };
        let (script, keys, key) = (next()?, next()?, next()?);
        let address = address(0).to_string();
        let affixes = key.split_once(&address).filter(|_| keys == "1");
        let (prefix, suffix) = affixes.ok_or("EVAL does not have one key with the address")?;
        let affixes = (prefix.to_owned(), suffix.to_owned());
        let sha = load_script(server, &script).await;
        Ok(Self { script, sha, affixes, arguments: words.collect() })
    }

    /// Loads the script on another server.
    pub(crate) async fn load(&self, server: &Server) {
        load_script(server, &self.script).await;
    }

    pub(crate) fn redis_key(&self, key: &str) -> String {
        format!("{}{key}{}", self.affixes.0, self.affixes.1)
    }

    pub(crate) fn command(&self, key: u32) -> Cmd {
        self.command_for(&[key])
    }

    /// One check of each key.
    pub(crate) fn command_for(&self, keys: &[u32]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(keys.len());
        for key in keys {
            command.arg(self.redis_key(&address(*key).to_string()));
        }
        command.arg(&self.arguments);
        command
    }
}

/// Returns the SHA-1 of the script.
pub(crate) async fn load_script(server: &Server, script: &str) -> String {
    server.query(&["SCRIPT", "LOAD", script]).await
}

/// Returns the quoted words of a line of `MONITOR`, unescaped.
fn parse_words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = line.bytes();
    while rest.by_ref().any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = rest.next().filter(|&byte| byte != b'"') {
            word.push(match byte {
                b'\\' => match rest.next() {
                    Some(b'n') => b'\n',
                    Some(b'r') => b'\r',
                    Some(b't') => b'\t',
                    Some(b'a') => 7,
                    Some(b'b') => 8,
                    Some(b'x') => {
                        let mut digit = || char::from(rest.next()?).to_digit(16);
                        let (Some(high), Some(low)) = (digit(), digit()) else { break };
                        (16 * high + low) as u8
                    }
                    Some(byte) => byte,
                    None => break,
                },
                byte => byte,
            });
        }
        words.push(word);
    }
    words
}

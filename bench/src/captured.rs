//! tollgate's script and the arguments of its call. No API exposes them, so they are read from
//! `MONITOR` during the first check of a limiter.

use ::tollgate::Policy;
use redis::Cmd;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::common::Server;
use crate::subjects::{BoxError, address, tollgate};

/// The arguments of an `EVAL` with one Redis key, and the SHA-1 of the script.
pub(crate) struct CapturedCall {
    pub(crate) script: String,
    pub(crate) sha: String,
    /// The parts of the Redis key before and after the rate limit key.
    affixes: (String, String),
    pub(crate) arguments: Vec<String>,
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
        let limiter = tollgate::limiter(tollgate::redis_store(&server)?, policy)?;
        limiter.check(address(0)).await?.ensure_allowed()?;
        while let Some(line) = lines.next_line().await? {
            let words = parse_words(&line);
            if words.first().is_some_and(|command| command == "EVAL") {
                return Self::new(words, &server).await;
            }
        }
        Err("MONITOR ended without an EVAL".into())
    }

    async fn new(words: Vec<String>, server: &Server) -> Result<Self, BoxError> {
        let mut words = words.into_iter().skip(1);
        let mut next = || words.next().ok_or("EVAL has too few arguments");
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
        let mut command = redis::cmd("EVALSHA");
        let redis_key = self.redis_key(&address(key).to_string());
        command.arg(&self.sha).arg(1).arg(redis_key).arg(&self.arguments);
        command
    }
}

/// Returns the SHA-1 of the script.
pub(crate) async fn load_script(server: &Server, script: &str) -> String {
    server.query(&["SCRIPT", "LOAD", script]).await
}

/// Returns the quoted words of a line of `MONITOR`, unescaped.
fn parse_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.chars();
    while rest.by_ref().any(|c| c == '"') {
        let mut word = String::new();
        while let Some(c) = rest.next().filter(|&c| c != '"') {
            word.push(match c {
                '\\' => match rest.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some(c) => c,
                    None => break,
                },
                c => c,
            });
        }
        words.push(word);
    }
    words
}

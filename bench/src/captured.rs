//! tollgate's script and the call that runs it, which no API shows: read from MONITOR while a
//! limiter makes its first check.

use ::tollgate::Policy;
use redis::Cmd;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::common::Server;
use crate::subjects::{Fault, address, tollgate};

/// The words of an `EVAL` of one key, and the hash of its script.
pub(crate) struct Captured {
    pub(crate) script: String,
    pub(crate) sha: String,
    /// The key's name, before and after the caller.
    name: (String, String),
    pub(crate) arguments: Vec<String>,
}

impl Captured {
    /// The call of a limiter of this policy, on a server that has not seen the script.
    pub(crate) async fn of(policy: Policy) -> Result<Self, Fault> {
        let server = Server::start().await;
        let mut monitor = TcpStream::connect(("127.0.0.1", server.port())).await?;
        monitor.write_all(b"MONITOR\r\n").await?;
        let mut lines = BufReader::new(monitor).lines();
        lines.next_line().await?;
        let limiter = tollgate::limiter(tollgate::on(&server)?, policy)?;
        limiter.check(address(0)).await?;
        while let Some(line) = lines.next_line().await? {
            let words = words(&line);
            if words.first().is_some_and(|command| command == "EVAL") {
                return Self::new(words, &server).await;
            }
        }
        Err("the server ended".into())
    }

    async fn new(words: Vec<String>, server: &Server) -> Result<Self, Fault> {
        let mut words = words.into_iter().skip(1);
        let mut next = || words.next().ok_or("an EVAL with too few words");
        let (script, keys, key) = (next()?, next()?, next()?);
        let caller = address(0).to_string();
        let name = key.split_once(&caller).filter(|_| keys == "1");
        let (before, after) = name.ok_or("not an EVAL of the one key")?;
        let name = (before.to_owned(), after.to_owned());
        let sha = load(server, &script).await;
        Ok(Self { script, sha, name, arguments: words.collect() })
    }

    /// Makes another server know the script.
    pub(crate) async fn load(&self, server: &Server) {
        load(server, &self.script).await;
    }

    pub(crate) fn key_of(&self, caller: &str) -> String {
        format!("{}{caller}{}", self.name.0, self.name.1)
    }

    pub(crate) fn call(&self, caller: u32) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        let key = self.key_of(&address(caller).to_string());
        call.arg(&self.sha).arg(1).arg(key).arg(&self.arguments);
        call
    }
}

pub(crate) async fn load(server: &Server, script: &str) -> String {
    server.query(&["SCRIPT", "LOAD", script]).await
}

/// The quoted words of a line of MONITOR, without their escapes.
fn words(line: &str) -> Vec<String> {
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

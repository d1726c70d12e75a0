use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use std::{env, io, thread};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo,
    RedisResult, ToRedisArgs, Value,
};

use super::place::{TempDir, free_port};
use super::wait::{BOUND, wait_until};

/// A server process on the loopback interface, killed on drop.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    args: Vec<String>,
    dir: TempDir,
    process: Mutex<Option<Child>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with_args::<&str>(&[]).await
    }

    /// Starts with options of `redis.conf` in their form for the command line, such as
    /// `&["--maxmemory", "2mb"]`.
    pub(crate) async fn with_args<A: AsRef<str>>(extra: &[A]) -> Self {
        Self::launch(|port, dir| {
            let extra = extra.iter().map(|arg| arg.as_ref().to_owned());
            Self::options(port, dir).into_iter().chain(extra).collect()
        })
        .await
    }

    /// What every data server is started with.
    pub(crate) fn options(port: u16, dir: &Path) -> Vec<String> {
        let dir = dir.to_str().expect("a temporary directory with a name in UTF-8");
        let place = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", dir];
        let volatile = ["--save", "", "--appendonly", "no"];
        place.into_iter().chain(volatile).map(String::from).collect()
    }

    /// Starts with the arguments that `args` makes of a port and a directory: with others as long
    /// as the process ends at once, for somebody else may have taken the port.
    pub(crate) async fn launch(args: impl Fn(u16, &Path) -> Vec<String>) -> Self {
        let mut log = String::new();
        for _ in 0..10 {
            let (port, dir) = (free_port(), TempDir::new());
            let args = args(port, dir.path());
            let server = Self { port, args, dir, process: Mutex::new(None) };
            if server.run().await {
                return server;
            }
            log = server.log();
        }
        panic!("the server does not start:\n{log}");
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The process, while there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.lock().unwrap().as_ref().map(Child::id)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Kills the process: no farewell to its clients, and all data is lost.
    pub(crate) fn stop(&self) {
        if let Some(mut process) = self.process.lock().unwrap().take() {
            process.kill().expect("a child that is not yet waited for");
            process.wait().expect("a child that was killed");
        }
    }

    /// Starts the process again on the same port and in the same directory, having killed it if
    /// it runs.
    pub(crate) async fn restart(&self) {
        self.stop();
        assert!(self.run().await, "the server does not start again:\n{}", self.log());
    }

    /// Stops the process from running: its connections stay open and are silent, new ones too.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// A signal by way of the shell, which every system has; a system call would be unsafe code.
    fn signal(&self, name: &str) {
        let pid = self.pid().expect("a server that runs");
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
        assert!(status.expect("a shell").success(), "kill -{name} {pid}");
    }

    /// Sends one command on a connection of its own.
    ///
    /// # Panics
    /// When the answer is an error, or none.
    pub(crate) async fn command<A: ToRedisArgs>(&self, words: &[A]) -> Value {
        self.query(words).await
    }

    /// [`command`](Self::command) with the answer as a `T`.
    pub(crate) async fn query<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> T {
        match self.try_query(words).await {
            Ok(answer) => answer,
            Err(error) => panic!("port {}: {error}", self.port),
        }
    }

    /// [`query`](Self::query) with the error as a value.
    pub(crate) async fn try_query<T: FromRedisValue>(
        &self,
        words: &[impl ToRedisArgs],
    ) -> RedisResult<T> {
        let mut connection = connect(&self.url()).await?;
        redis::Cmd::new().arg(words).query_async(&mut connection).await
    }

    /// The fields of a section of `INFO`.
    pub(crate) async fn info(&self, section: &str) -> BTreeMap<String, String> {
        fields(&self.query::<String>(&["INFO", section]).await)
    }

    /// How often each command was called, in lower case, and since Redis 7 each subcommand by
    /// itself (`config|set`). Without `info`, which is how this is known.
    pub(crate) async fn command_stats(&self) -> BTreeMap<String, u64> {
        let stats = self.info("commandstats").await;
        let calls = stats.iter().map(|(name, stat)| {
            let name = name.strip_prefix("cmdstat_").expect("a name of a command");
            let calls = stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            (name.to_owned(), calls.and_then(|calls| calls.parse().ok()).expect("a count"))
        });
        calls.filter(|(name, _)| name != "info").collect()
    }

    /// The server's clock.
    pub(crate) async fn time_micros(&self) -> u64 {
        let (seconds, micros) = self.query::<(u64, u64)>(&["TIME"]).await;
        seconds * 1_000_000 + micros
    }

    /// Starts the process and waits until it answers. False when it ended instead.
    async fn run(&self) -> bool {
        let pid = self.spawn();
        let mut ended = false;
        wait_until("the server answers", BOUND, async || {
            ended = self.has_ended();
            ended || self.answers_as(pid).await
        })
        .await;
        !ended
    }

    fn spawn(&self) -> u32 {
        let binary = env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| "redis-server".into());
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let process = Command::new(&binary)
            .args(&self.args)
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn();
        let process = process.unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => panic!(
                "there is no `{binary}` on this machine. `make test` installs redis-server; \
                 REDIS_SERVER_BIN names another binary."
            ),
            _ => panic!("{binary}: {error}"),
        });
        let pid = process.id();
        *self.process.lock().unwrap() = Some(process);
        pid
    }

    fn has_ended(&self) -> bool {
        let mut process = self.process.lock().unwrap();
        process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    /// Whether the process that listens on the port is this one, and not the one of another test
    /// run that was faster.
    async fn answers_as(&self, pid: u32) -> bool {
        let info = self.try_query::<String>(&["INFO", "server"]).await.unwrap_or_default();
        fields(&info).get("process_id") == Some(&pid.to_string())
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if thread::panicking() {
            eprintln!("the log of the server on port {}:\n{}", self.port, self.log());
        }
    }
}

/// A connection that sends nothing by itself, so that only what a test asks for is counted.
///
/// It is not retried, and gives up long after any limiter would have.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = url.into_connection_info()?.set_redis_settings(silent);
    let patient = Some(Duration::from_secs(10));
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(patient).set_response_timeout(patient);
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

/// The `name:value` lines of a reply.
pub(super) fn fields(reply: &str) -> BTreeMap<String, String> {
    let pairs = reply.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

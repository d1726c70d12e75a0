use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::{env, io, thread};

use super::client::fields;
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

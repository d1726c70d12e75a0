//! A server process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::{env, io, thread};

use super::client::fields;
use super::ports::free_port;
use super::temp_dir::TempDir;
use super::tls::TlsFiles;
use super::wait::{BOUND, wait_until};

/// A server process on the loopback interface. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    is_tls: bool,
    /// The program, and the arguments before those of the server.
    launcher: Vec<String>,
    args: Vec<String>,
    dir: TempDir,
    process: Mutex<Option<Child>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with_args::<&str>(&[]).await
    }

    /// Starts a server with options of `redis.conf` as command line arguments, such as
    /// `&["--maxmemory", "2mb"]`.
    pub(crate) async fn with_args<A: AsRef<str>>(extra: &[A]) -> Self {
        Self::launch(|port, dir| {
            let extra = extra.iter().map(|arg| arg.as_ref().to_owned());
            Self::options(port, dir).into_iter().chain(extra).collect()
        })
        .await
    }

    /// Starts a server that runs each script under several versions of Lua. If they differ in a call or in
    /// the reply, that is an error.
    pub(crate) async fn with_every_lua() -> Self {
        let [python, script] = ["target/python/bin/python", "tests/it/common/every_lua.py"]
            .map(|path| format!("{}/{path}", env!("CARGO_MANIFEST_DIR")));
        assert!(Path::new(&python).exists(), "no {python}, which `make redis` installs");
        let launcher = vec![python, script, binary()];
        Self::launch_by(launcher, None, Self::options).await
    }

    /// Starts a server that speaks only TLS.
    pub(crate) async fn with_tls<A: AsRef<str>>(tls: &TlsFiles, extra: &[A]) -> Self {
        Self::launch_with(Some(tls), |port, dir| {
            let extra = extra.iter().map(|arg| arg.as_ref().to_owned());
            Self::options(port, dir).into_iter().chain(tls.args(port)).chain(extra).collect()
        })
        .await
    }

    /// Starts a node that has all slots of a cluster, like a service that puts a cluster behind one address.
    pub(crate) async fn with_all_slots() -> Self {
        let server = Self::with_args(&["--cluster-enabled", "yes"]).await;
        let slots = (0..16_384).map(|slot| slot.to_string());
        let add = ["CLUSTER", "ADDSLOTS"].map(String::from).into_iter().chain(slots);
        server.command(&add.collect::<Vec<_>>()).await;
        wait_until("the cluster serves all slots", BOUND, async || {
            server.query::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
        })
        .await;
        server
    }

    /// Starts a server that loads data for 4 seconds when it restarts. Meanwhile it replies after every
    /// 2 MB.
    pub(crate) async fn with_slow_load() -> Self {
        let server =
            Self::with_args(&["--key-load-delay", "200000", "--rdbcompression", "no"]).await;
        let fill = "for n = 1, 20 do redis.call('SET', n, string.rep('x', 1000000)) end";
        server.command(&["EVAL", fill, "0"]).await;
        server.command(&["SAVE"]).await;
        server
    }

    /// Returns the arguments of every server except sentinels.
    pub(crate) fn options(port: u16, dir: &Path) -> Vec<String> {
        let dir = dir.to_str().expect("the path of the temporary directory is UTF-8");
        let location = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", dir];
        let no_persistence = ["--save", "", "--appendonly", "no"];
        location.into_iter().chain(no_persistence).map(String::from).collect()
    }

    /// Starts a server with the arguments that `args` returns for a port and a directory. If the
    /// process exits at once, retries with another port, because another process may have taken it.
    pub(crate) async fn launch(args: impl Fn(u16, &Path) -> Vec<String>) -> Self {
        Self::launch_with(None, args).await
    }

    /// Like [`launch`](Self::launch). With `tls` the server's port is for TLS.
    pub(crate) async fn launch_with(
        tls: Option<&TlsFiles>,
        args: impl Fn(u16, &Path) -> Vec<String>,
    ) -> Self {
        Self::launch_by(vec![binary()], tls, args).await
    }

    async fn launch_by(
        launcher: Vec<String>,
        tls: Option<&TlsFiles>,
        args: impl Fn(u16, &Path) -> Vec<String>,
    ) -> Self {
        let mut log = String::new();
        for _ in 0..10 {
            let (port, dir) = (free_port(), TempDir::new());
            let args = args(port, dir.path());
            let (is_tls, process) = (tls.is_some(), Mutex::new(None));
            let launcher = launcher.clone();
            let server = Self { port, is_tls, launcher, args, dir, process };
            if server.run().await {
                return server;
            }
            log = server.log();
        }
        panic!("the server did not start:\n{log}");
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}/", self.port)
    }

    /// Returns the URL for the commands of tests, which trust every certificate.
    pub(super) fn command_url(&self) -> String {
        let fragment = if self.is_tls { "#insecure" } else { "" };
        format!("{}{fragment}", self.url())
    }

    /// Returns the process ID, unless the server is stopped.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.lock().unwrap().as_ref().map(Child::id)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// From now on snapshots fail, because none can replace a directory. Returns what is in the way.
    pub(crate) fn obstruct_snapshots(&self) -> PathBuf {
        let in_the_way = self.dir().join("dump.rdb");
        std::fs::create_dir(&in_the_way).expect("there is no snapshot yet");
        std::fs::write(in_the_way.join("file"), "").expect("the directory is new");
        in_the_way
    }

    /// Takes a snapshot, with a server that keeps any, and waits until it has this result.
    pub(crate) async fn save(&self, status: &str) {
        self.command(&["BGSAVE"]).await;
        wait_until("the snapshot has ended", BOUND, async || {
            let state = self.info("persistence").await;
            state["rdb_bgsave_in_progress"] == "0" && state["rdb_last_bgsave_status"] == status
        })
        .await;
    }

    /// Kills the process. All data is lost.
    pub(crate) fn stop(&self) {
        if let Some(mut process) = self.process.lock().unwrap().take() {
            process.kill().expect("the process is a child");
            process.wait().expect("the process is a child");
        }
    }

    /// Starts the process again, on the same port and in the same directory. Kills it first if it
    /// is running.
    pub(crate) async fn restart(&self) {
        self.stop();
        assert!(self.run().await, "the server did not restart:\n{}", self.log());
    }

    /// Suspends the process. The kernel keeps its connections open and completes new ones, but the
    /// server does not reply.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Sends a signal with the shell, because a system call would need unsafe code.
    fn signal(&self, name: &str) {
        let pid = self.pid().expect("the server is running");
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
        assert!(status.expect("there is a shell").success(), "kill -{name} {pid}");
    }

    /// Starts the process and waits for its first reply. Returns false if the process exits before.
    async fn run(&self) -> bool {
        let pid = self.spawn();
        let mut has_exited = false;
        wait_until("the server replies", BOUND, async || {
            has_exited = self.has_exited();
            has_exited || self.replies_as(pid).await
        })
        .await;
        !has_exited
    }

    fn spawn(&self) -> u32 {
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let process = Command::new(&self.launcher[0])
            .args(&self.launcher[1..])
            .args(&self.args)
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn();
        let process = process.unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => panic!(
                "`{}` not found. `make redis` installs redis-server. REDIS_SERVER_BIN names another \
                 binary.",
                self.launcher[0]
            ),
            _ => panic!("{}: {error}", self.launcher[0]),
        });
        let pid = process.id();
        *self.process.lock().unwrap() = Some(process);
        pid
    }

    fn has_exited(&self) -> bool {
        let mut process = self.process.lock().unwrap();
        process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    /// Returns whether this process has replied on the port, and not that of another test run.
    async fn replies_as(&self, pid: u32) -> bool {
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

fn binary() -> String {
    env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| "redis-server".into())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if thread::panicking() {
            eprintln!("log of the server on port {}:\n{}", self.port, self.log());
        }
    }
}

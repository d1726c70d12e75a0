//! Processes and clients for the tests.

mod authority;
mod control_plane;
mod gateway;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic_health::pb::health_client::HealthClient;

pub(crate) use crate::redis_servers::Server as Redis;
pub(crate) use authority::Authority;
pub(crate) use control_plane::{ControlPlane, encode, resource};
pub(crate) use gateway::{Gateway, PATIENT};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_fleetlimit-server");

/// Variables for listeners on free ports.
pub(crate) const FREE_PORTS: [(&str, &str); 3] = [
    ("FLEETLIMIT_GRPC", "127.0.0.1:0"),
    ("FLEETLIMIT_HTTP", "127.0.0.1:0"),
    ("FLEETLIMIT_ADMIN", "127.0.0.1:0"),
];

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Files of a configuration.
pub(crate) struct Files(TempDir);

impl Files {
    /// With these names and contents.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            this.write(name, text);
        }
        this
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Replaced at once, as an editor or a mounted volume does.
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// Writes a new certificate, `server.pem`, and its key, `server.key`.
    pub(crate) fn issue_certificate(&self, host: &str) -> CertificateDer<'static> {
        let issued = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        self.write(CERTIFICATE, &issued.cert.pem());
        self.write("server.key", &issued.signing_key.serialize_pem());
        issued.cert.into()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// What `fleetlimit-server check` says about a settings file.
pub(crate) fn check(file: &Path) -> Output {
    program(&[]).arg("check").arg(file).output().unwrap()
}

/// What `fleetlimit-server check` says about an environment.
pub(crate) fn check_env(env: &[(&str, &str)]) -> Output {
    program(env).arg("check").output().unwrap()
}

/// The program with this environment, and no other settings: variables of these tests are none of its own.
pub(crate) fn program(env: &[(&str, &str)]) -> Command {
    let mut program = Command::new(PROGRAM);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLEETLIMIT_") {
            program.env_remove(name);
        }
    }
    for name in ["REDIS_URL", "REDIS_CLUSTER", "REDIS_SENTINEL", "REDIS_SENTINEL_SERVICE"] {
        program.env_remove(name);
    }
    program.envs(env.iter().copied());
    program
}

const CERTIFICATE: &str = "server.pem";

/// A running server, on free ports. It is killed at the end.
pub(crate) struct Server {
    process: Child,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Up to the line with the addresses.
    pub(crate) log: Vec<String>,
    later_log: mpsc::Receiver<String>,
    files: Option<Files>,
}

impl Server {
    /// With a settings file of this text.
    pub(crate) fn with_settings(text: &str) -> Self {
        Self::with_files(&[("settings.yaml", text)])
    }

    /// With a domain of envoyproxy/ratelimit's format, and these settings.
    pub(crate) fn with_domain(domain: &str, settings: &str) -> Self {
        let settings = format!("domains: [domain.yaml]\n{settings}");
        Self::with_files(&[("settings.yaml", &settings), ("domain.yaml", domain)])
    }

    /// One of them is `settings.yaml`.
    pub(crate) fn with_files(files: &[(&str, &str)]) -> Self {
        let files = Files::new(files);
        let mut server = Self::start(&files.path("settings.yaml"), &[]);
        server.files = Some(files);
        server
    }

    /// With TLS, for `localhost`.
    pub(crate) fn with_certificate(domain: &str, settings: &str) -> Self {
        let files = Files::new(&[("domain.yaml", domain)]);
        files.issue_certificate("localhost");
        let [certificate, key] = [CERTIFICATE, "server.key"].map(|name| files.path(name));
        let tls = format!("tls: {{ certificate: {certificate:?}, key: {key:?} }}");
        files.write("settings.yaml", &format!("domains: [domain.yaml]\n{tls}\n{settings}"));
        let mut server = Self::start(&files.path("settings.yaml"), &[]);
        server.files = Some(files);
        server
    }

    /// Of a server with TLS.
    pub(crate) fn certificate(&self) -> Option<PathBuf> {
        self.files.as_ref().map(|files| files.path(CERTIFICATE)).filter(|file| file.exists())
    }

    /// After this command of a shell, such as one that sets a limit.
    pub(crate) fn after(command: &str, settings: &str) -> Self {
        let files = Files::new(&[("settings.yaml", settings)]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!(r#"{command} && exec "$0" "$@""#), PROGRAM]);
        shell.env_remove("REDIS_URL");
        let mut server = Self::with_options(shell, &files.path("settings.yaml"));
        server.files = Some(files);
        server
    }

    pub(crate) fn start(settings: &Path, env: &[(&str, &str)]) -> Self {
        Self::with_options(program(env), settings)
    }

    /// Without options: only with an environment.
    pub(crate) fn with_env(env: &[(&str, &str)]) -> Self {
        Self::spawn(program(env))
    }

    /// With the built-in sample.
    pub(crate) fn with_sample() -> Self {
        let mut program = program(&FREE_PORTS);
        program.arg("--sample");
        Self::spawn(program)
    }

    fn with_options(mut program: Command, settings: &Path) -> Self {
        program.arg("--config").arg(settings);
        program.args(["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        Self::spawn(program)
    }

    pub(crate) fn spawn(mut program: Command) -> Self {
        let mut process = program.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (lines, log) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("{line}");
                // The test may have seen enough.
                let _ = lines.send(line);
            }
        });
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.contains(" listening ")) {
            lines.push(log.recv_timeout(PATIENCE).expect("the server does not start"));
        }
        let address = |name: &str| {
            let (_, rest) = lines[lines.len() - 1].split_once(&format!(" {name}=")).unwrap();
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        let (grpc, http, admin) = (address("grpc"), address("http"), address("admin"));
        Self { process, grpc, http, admin, log: lines, later_log: log, files: None }
    }

    pub(crate) fn files(&self) -> &Files {
        self.files.as_ref().unwrap()
    }

    /// Waits for a line of the log after that with the addresses.
    pub(crate) fn wait_for_line(&self, text: &str) -> String {
        self.lines_until(text).pop().unwrap_or_default()
    }

    /// The lines of the log since the last one that was waited for.
    pub(crate) fn lines_until(&self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.contains(text)) {
            lines.push(self.later_log.recv_timeout(PATIENCE).expect(text));
        }
        lines
    }

    pub(crate) async fn client(&self) -> Client {
        let url = format!("http://{}", self.grpc);
        Client(RateLimitServiceClient::connect(url).await.unwrap())
    }

    pub(crate) async fn health(&self) -> HealthClient<Channel> {
        let channel = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        HealthClient::new(channel.connect().await.unwrap())
    }

    pub(crate) fn http(&self, path: &str) -> String {
        format!("http://{}{path}", self.http)
    }

    pub(crate) fn admin(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// What lists and blocks have decided, by the metrics.
    pub(crate) async fn overruled(&self) -> Vec<(String, u64)> {
        let metrics = reqwest::get(self.admin("/metrics")).await.unwrap().text().await.unwrap();
        let values = metrics.lines().filter_map(|line| {
            let rest = line.strip_prefix("fleetlimit_server_overruled_total{by=\"")?;
            let (by, value) = rest.split_once("\"} ")?;
            Some((by.to_owned(), value.parse().unwrap()))
        });
        let mut values: Vec<_> = values.collect();
        values.sort();
        values
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its resident memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most resident memory that it has ever had, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1_024
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Whether it ends without an error, after a signal.
    pub(crate) async fn ends(&mut self) -> bool {
        let mut status = None;
        until(async || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.is_some_and(|status| status.success())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A gateway that speaks gRPC.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) RateLimitServiceClient<Channel>);

impl Client {
    pub(crate) async fn ask(
        &mut self,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> RateLimitResponse {
        self.send(request(domain, &[entries])).await.unwrap()
    }

    pub(crate) async fn send(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        self.0.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }
}

pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
    RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.into(), value: value.into() };
    let entries = entries.iter().map(entry).collect();
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

/// Waits until a condition holds.
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "the condition does not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

//! Real gateways in front of the server, with the configurations of the documentation.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use axum::Router;
use http::{HeaderMap, HeaderValue};
use tempfile::TempDir;
use tokio::runtime::Builder;

use super::{PATIENCE, Server};

/// What is different with TLS: a line of the configuration, and whether the second block of the page
/// replaces it or follows it.
const TLS: [(&str, &str, bool); 4] = [
    ("nginx", "proxy_pass http://fleetlimit/auth?policy=search&denied=403;\n", true),
    ("caddy", "forward_auth 127.0.0.1:8080 {\n", true),
    ("traefik", "address: http://127.0.0.1:8080/auth?policy=search\n", true),
    ("envoy", "- name: fleetlimit\n", false),
];

/// For Envoy: the documented timeout, and one that is longer than a slow machine takes.
pub(crate) const PATIENT: Change = ("  timeout: 2s", "  timeout: 25s");

/// A documented text, and what replaces it.
pub(crate) type Change<'a> = (&'a str, &'a str);

/// A running gateway. It is killed at the end.
pub(crate) struct Gateway {
    process: Child,
    address: SocketAddr,
    admin: SocketAddr,
    directory: TempDir,
}

impl Gateway {
    pub(crate) fn nginx(server: &Server) -> Self {
        Self::nginx_with(server, &[])
    }

    pub(crate) fn nginx_with(server: &Server, changes: &[Change]) -> Self {
        let log: &[Change] = &[("error_log stderr", "error_log error.log")];
        Self::start("nginx", server, &[log, changes].concat(), |_, directory, config| {
            // Debian has it where not all users look for programs.
            let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
            let mut command = Command::new("nginx");
            command
                .env("PATH", path)
                .arg("-p")
                .arg(directory)
                .arg("-c")
                .arg(config)
                .args(["-g", "daemon off; pid nginx.pid; user root;"]);
            command
        })
    }

    pub(crate) fn caddy(server: &Server) -> Self {
        Self::caddy_with(server, &[])
    }

    pub(crate) fn caddy_with(server: &Server, changes: &[Change]) -> Self {
        Self::start("caddy", server, changes, |_, directory, config| {
            let mut command = Command::new("caddy");
            command.env("HOME", directory).args(["run", "--adapter", "caddyfile", "--config"]);
            command.arg(config);
            command
        })
    }

    pub(crate) fn envoy(server: &Server) -> Self {
        Self::envoy_with(server, &[])
    }

    pub(crate) fn envoy_with(server: &Server, changes: &[Change]) -> Self {
        Self::start("envoy", server, changes, |_, _, config| {
            let mut command = Command::new(root().join("target/gateways/envoy"));
            command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]);
            command.arg("-c").arg(config);
            command
        })
    }

    pub(crate) fn traefik(server: &Server) -> Self {
        Self::start("traefik", server, &[], |address, _, config| {
            let mut command = Command::new(root().join("target/gateways/traefik"));
            command.arg(format!("--entryPoints.web.address={address}"));
            command.arg("--global.checkNewVersion=false").arg("--providers.file.filename");
            command.arg(config);
            command
        })
    }

    /// With the configuration of its page in `docs/gateways`, which is the first block there that is not for a
    /// shell, and these changes and other ports. With TLS if the server has a certificate.
    fn start(
        name: &str,
        server: &Server,
        changes: &[Change],
        command: impl FnOnce(SocketAddr, &Path, &Path) -> Command,
    ) -> Self {
        let page = root().join("docs/gateways").join(name).with_extension("md");
        let page = std::fs::read_to_string(page).unwrap();
        let blocks = page.split("```").skip(1).step_by(2);
        let mut blocks = blocks.filter(|block| !block.starts_with("sh\n"));
        let mut block = || blocks.next().unwrap().split_once('\n').unwrap();
        let (language, text) = block();
        let text = match server.certificate() {
            Some(certificate) => {
                let (_, line, is_replaced) = TLS.into_iter().find(|(of, ..)| *of == name).unwrap();
                assert_eq!(text.matches(line).count(), 1, "{text}");
                let (_, addition) = block();
                let with_tls = match is_replaced {
                    true => text.replace(line, addition.trim_start()),
                    false => text.replace(line, &format!("{line}{addition}")),
                };
                with_tls.replace("fleetlimit.pem", certificate.to_str().unwrap())
            }
            None => text.to_owned(),
        };
        let directory = tempfile::tempdir().unwrap();
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [address, admin] = free.map(|listener| listener.local_addr().unwrap());
        let mut replaced = text;
        for (documented, actual) in changes {
            assert!(replaced.contains(documented), "{documented} is not in {replaced}");
            replaced = replaced.replace(documented, actual);
        }
        for (documented, actual) in [
            (
                "static_resources:\n",
                format!(
                    "admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}\n\
                     static_resources:\n",
                    admin.port()
                ),
            ),
            ("0.0.0.0, port_value: 10000", format!("127.0.0.1, port_value: {}", address.port())),
            ("listen 10000", format!("listen {address}")),
            (":10000 {", format!("{{\n\tadmin off\n\tauto_https off\n}}\n:{} {{", address.port())),
            (
                "127.0.0.1, port_value: 8081",
                format!("127.0.0.1, port_value: {}", server.grpc.port()),
            ),
            ("127.0.0.1:8080", server.http.to_string()),
            ("localhost:8080", format!("localhost:{}", server.http.port())),
            ("127.0.0.1, port_value: 3000", format!("127.0.0.1, port_value: {}", service().port())),
            ("127.0.0.1:3000", service().to_string()),
        ] {
            replaced = replaced.replace(documented, &actual);
        }
        let file = directory.path().join("config").with_extension(language);
        std::fs::write(&file, replaced).unwrap();
        let process =
            command(address, directory.path(), &file).stdout(Stdio::null()).spawn().unwrap_or_else(
                |error| panic!("{name}: {error}: run `make redis`, or `make test-gateways`"),
            );
        let gateway = Self { process, address, admin, directory };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < PATIENCE, "the gateway does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        gateway
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// A counter or gauge of Envoy.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let url = format!("http://{}/stats?filter=^{name}$", self.admin);
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        // It does not exist before the first request.
        text.split_once(": ").map_or(0, |(_, value)| value.trim().parse().unwrap())
    }

    /// The lines of nginx's log that contain a text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let log = std::fs::read_to_string(self.directory.path().join("error.log")).unwrap();
        log.lines().filter(|line| line.contains(text)).count()
    }
}

/// The service that the gateways protect. It says hello, and which `RateLimit` and keys it has received.
fn service() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(|| {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let app = Router::new().fallback(async |headers: HeaderMap| {
                    let none = HeaderValue::from_static("none");
                    let received = headers.get("ratelimit").cloned().unwrap_or(none);
                    let mut response = HeaderMap::new();
                    response.insert("received-ratelimit", received);
                    for key in headers.get_all("x-api-key") {
                        response.append("received-key", key.clone());
                    }
                    (response, "hello\n")
                });
                axum::serve(listener, app).await.unwrap();
            });
        });
        address
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Its workers end with it, which `kill` would leave behind.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

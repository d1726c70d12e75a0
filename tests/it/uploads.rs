//! Requests whose bodies nobody has read when the layer responds.

use std::convert::Infallible;
use std::fs;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::routing::post;
use axum::{Router, serve};
use fleetlimit::layer::Drain;
use fleetlimit::resolve::{Global, PeerIp, from_fn};
use fleetlimit::{
    FailureMode, KeyResolver, Limiter, MemoryStore, Quota, RateLimitLayer, RedisStore, Rejection,
    Resolution,
};
use futures_util::stream;
use http::{Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::{Full, StreamBody};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::common::{BOUND, TempDir, wait_until};

/// The most that the layer reads by default.
const DEFAULT: usize = 64 * 1_024;
/// Longer than the test may take.
const FOREVER: Duration = Duration::from_secs(3_600);

/// Denies everything.
async fn exhausted() -> Limiter {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_day(1)).unwrap();
    assert!(limiter.check("global").await.unwrap().is_allowed());
    limiter
}

async fn denying() -> RateLimitLayer<Global> {
    RateLimitLayer::new(exhausted().await, Global)
}

/// Serves over HTTP/1 and HTTP/2 on a real socket.
async fn serve_app(layer: RateLimitLayer<impl KeyResolver + 'static>) -> SocketAddr {
    let app = Router::new().fallback(async |body: Bytes| body.len().to_string()).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { serve(listener, app).await });
    address
}

/// A client that controls what it sends when.
struct RawClient(BufReader<TcpStream>);

impl RawClient {
    async fn connect(server: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(server).await.unwrap()))
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    async fn send_head(&mut self, headers: &str) {
        self.send(format!("POST / HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n\r\n")).await;
    }

    /// Reads a response, and returns its status.
    async fn status(&mut self) -> u16 {
        timeout(BOUND, self.read_response()).await.expect("there is a response")
    }

    async fn read_response(&mut self) -> u16 {
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != "\r\n") {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).await.unwrap(), 0, "closed after {lines:?}");
            lines.push(line.to_lowercase());
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
        self.0.read_exact(&mut body).await.unwrap();
        lines[0].split(' ').nth(1).unwrap().parse().unwrap()
    }
}

#[tokio::test]
async fn a_client_that_is_still_sending_gets_each_response_of_the_layer_and_keeps_its_connection() {
    let closed =
        Limiter::builder(RedisStore::open("redis://127.0.0.1:1").unwrap(), Quota::per_day(1))
            .failure_mode(FailureMode::Closed)
            .build()
            .unwrap();
    let rejecting = from_fn(|_| -> Resolution { Rejection::not_found("gone").into() });
    for (status, server) in [
        (429, serve_app(denying().await).await),
        (503, serve_app(RateLimitLayer::new(closed, Global)).await),
        (404, serve_app(RateLimitLayer::new(exhausted().await, rejecting)).await),
        // The server does not tell the peer address.
        (500, serve_app(RateLimitLayer::new(exhausted().await, PeerIp::new())).await),
    ] {
        let mut client = RawClient::connect(server).await;
        for _ in 0..2 {
            client.send_head(&format!("content-length: {DEFAULT}")).await;
            for part in vec![b'a'; DEFAULT].chunks(DEFAULT / 4) {
                client.send(part).await;
            }
            assert_eq!(client.status().await, status);
        }
        client.send_head("transfer-encoding: chunked").await;
        client.send("5\r\nhello\r\n").await;
        client.send("0\r\n\r\n").await;
        assert_eq!(client.status().await, status);
        client.send_head("content-length: 0").await;
        assert_eq!(client.status().await, status);
    }
}

#[tokio::test]
async fn a_handler_that_denies_before_it_reads_the_body_can_do_the_same() {
    async fn upload(
        State(limiter): State<Limiter>,
        request: Request,
    ) -> Result<(), fleetlimit::Error> {
        let (parts, body) = request.into_parts();
        let decision = limiter.check("global").await?;
        Drain::default().read(&parts, body).await;
        decision.ensure_allowed()
    }
    let app = Router::new().route("/", post(upload)).with_state(exhausted().await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = RawClient::connect(listener.local_addr().unwrap()).await;
    tokio::spawn(async { serve(listener, app).await });
    for _ in 0..2 {
        client.send_head("content-length: 10").await;
        client.send("hello").await;
        client.send("world").await;
        assert_eq!(client.status().await, 429);
    }
}

#[tokio::test]
async fn a_denial_does_not_wait_for_more_than_the_layer_would_read() {
    let server = serve_app(denying().await.drain(DEFAULT as u64, FOREVER)).await;
    let mut announced = RawClient::connect(server).await;
    announced.send_head(&format!("content-length: {}", DEFAULT + 1)).await;
    assert_eq!(announced.status().await, 429);
    let mut chunked = RawClient::connect(server).await;
    chunked.send_head("transfer-encoding: chunked").await;
    chunked.send(format!("{DEFAULT:x}\r\n{}\r\n1\r\na", "a".repeat(DEFAULT))).await;
    assert_eq!(chunked.status().await, 429);

    let server = serve_app(denying().await.drain(0, FOREVER)).await;
    for headers in ["content-length: 1", "transfer-encoding: chunked"] {
        let mut client = RawClient::connect(server).await;
        client.send_head(headers).await;
        assert_eq!(client.status().await, 429, "{headers}");
    }
}

#[tokio::test]
async fn a_client_that_stops_sending_gets_its_denial_all_the_same() {
    let longest = Duration::from_millis(100);
    let server = serve_app(denying().await.drain(100, longest)).await;
    let mut client = RawClient::connect(server).await;
    let start = Instant::now();
    client.send_head("content-length: 100").await;
    client.send("hello").await;
    assert_eq!(client.status().await, 429);
    assert!(start.elapsed() >= longest, "{:?}", start.elapsed());
}

/// It sends the body only if it is asked to, and a denial must not ask.
#[tokio::test]
async fn a_client_that_expects_to_be_asked_for_the_body_is_not_asked() {
    let server = serve_app(denying().await.drain(100, FOREVER)).await;
    let mut client = RawClient::connect(server).await;
    client.send_head("content-length: 5\r\nexpect: 100-continue").await;
    assert_eq!(client.status().await, 429);
}

/// A body that has not arrived.
fn pending() -> impl Body<Data = Bytes, Error = Infallible> + Send + 'static {
    StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>())
}

fn request<B>(version: Version, body: B) -> http::Request<B> {
    http::Request::post("/").version(version).body(body).unwrap()
}

async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

async fn served<B>(_: http::Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::default())
}

/// A stream of HTTP/2 ends without its connection, and may be a conversation that never ends.
#[tokio::test]
async fn a_stream_of_http2_gets_its_denial_at_once() {
    let service = denying().await.layer(service_fn(served));
    for version in [Version::HTTP_2, Version::HTTP_11, Version::HTTP_10] {
        let denied = service.clone().oneshot(request(version, pending()));
        assert_eq!(poll_once(denied).await.is_ready(), version == Version::HTTP_2, "{version:?}");
    }
}

#[tokio::test]
async fn a_request_without_a_body_gets_its_denial_without_a_timer() {
    let mut service = denying().await.layer(service_fn(served));
    let call = service.ready().await.unwrap().call(request(Version::HTTP_11, String::new()));
    assert!(poll_once(call).await.is_ready());
    let call = service.ready().await.unwrap().call(request(Version::HTTP_11, "hello".to_owned()));
    assert!(poll_once(call).await.is_ready());
}

#[tokio::test]
async fn a_request_that_is_being_read_holds_no_place_in_the_service() {
    let one_at_a_time = ServiceBuilder::new().concurrency_limit(1).service(service_fn(served));
    let denying = denying().await.drain(100, Duration::from_millis(10));
    let mut service = denying.layer(one_at_a_time);
    let mut other = service.clone();
    let mut denied =
        pin!(service.ready().await.unwrap().call(request(Version::HTTP_11, pending())));
    assert!(poll_once(denied.as_mut()).await.is_pending());
    assert!(poll_once(other.ready()).await.is_ready(), "the only place is free");
    assert_eq!(denied.await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_body_of_empty_frames_does_not_hold_a_denial_up() {
    let frames = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::new())));
    let service = denying().await.layer(service_fn(served));
    let denied = service.oneshot(request(Version::HTTP_11, StreamBody::new(frames))).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// A memory store needs no timers.
#[test]
fn without_the_timers_of_a_runtime_the_layer_waits_for_a_client_all_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let layer = runtime.block_on(denying()).drain(100, Duration::from_millis(10));
    let service = layer.layer(service_fn(served));
    let mut denied = pin!(service.oneshot(request(Version::HTTP_11, pending())));
    assert!(runtime.block_on(poll_once(denied.as_mut())).is_pending());
    assert_eq!(runtime.block_on(denied).unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

/// The sum of the time and the duration would be too large.
#[tokio::test]
async fn a_layer_may_wait_for_a_client_without_end() {
    let service = denying().await.drain(100, Duration::MAX).layer(service_fn(served));
    let denied = service.oneshot(request(Version::HTTP_11, pending()));
    assert!(poll_once(denied).await.is_pending());
}

/// nginx in front of these servers, with its defaults. It ends with the test.
struct Nginx {
    process: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Nginx {
    async fn start(servers: &[SocketAddr]) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let directory = TempDir::new();
        let servers: String = servers.iter().map(|server| format!("server {server};")).collect();
        // Those of Debian need root.
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};"))
            .concat();
        let config = format!(
            "events {{}}
             http {{
                 access_log off;
                 {temporary}
                 upstream app {{ {servers} }}
                 server {{ listen {free}; location / {{ proxy_pass http://app; }} }}
             }}"
        );
        fs::create_dir(directory.path().join("logs")).unwrap();
        fs::write(directory.path().join("nginx.conf"), config).unwrap();
        // Debian has it where not all users look for programs. One process, which ends with `kill`.
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let process = Command::new("nginx")
            .env("PATH", path)
            .arg("-p")
            .arg(directory.path())
            .args(["-c", "nginx.conf", "-g", "daemon off; master_process off; pid nginx.pid;"])
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx is installed: run `make redis`");
        let nginx = Self { process, address: free, _directory: directory };
        wait_until("nginx accepts connections", BOUND, async || {
            TcpStream::connect(free).await.is_ok()
        })
        .await;
        nginx
    }

    /// Uploads a body that nginx writes to a file before it passes it on, as it does by default.
    async fn upload(&self, client: &'static str) -> StatusCode {
        let body = Full::from(vec![b'a'; DEFAULT]);
        let request = http::Request::post(format!("http://{}/", self.address));
        let request = request.header("x-client", client).body(body).unwrap();
        let http: Client<HttpConnector, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).build_http();
        http.request(request).await.unwrap().status()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Limits by client, with a limit that only this one has reached.
async fn denying_only(client: &'static str) -> RateLimitLayer<impl KeyResolver + 'static> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_day(1_000)).unwrap();
    limiter.check_cost(client, 1_000).await.unwrap().ensure_allowed().unwrap();
    let by_client = from_fn(|parts| Some(parts.headers.get("x-client")?.to_str().ok()?.to_owned()));
    RateLimitLayer::new(limiter, by_client)
}

#[tokio::test]
async fn the_denial_of_an_upload_arrives_through_nginx() {
    let nginx = Nginx::start(&[serve_app(denying_only("greedy").await).await]).await;
    for n in 0..60 {
        assert_eq!(nginx.upload("greedy").await, StatusCode::TOO_MANY_REQUESTS, "upload {n}");
    }
}

#[tokio::test]
async fn denied_uploads_do_not_take_the_servers_of_other_clients_out_of_use() {
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(serve_app(denying_only("greedy").await).await);
    }
    let nginx = Nginx::start(&servers).await;
    for _ in 0..6 {
        assert_eq!(nginx.upload("greedy").await, StatusCode::TOO_MANY_REQUESTS);
    }
    for n in 0..60 {
        assert_eq!(nginx.upload("other").await, StatusCode::OK, "request {n}");
    }
}

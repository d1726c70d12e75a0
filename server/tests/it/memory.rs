//! The memory that hostile clients of the gRPC port can make the process hold.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit as Unit;
use futures_util::future::join_all;
use h2::SendStream;
use h2::client::SendRequest;
use http::header::HeaderValue;
use prost::Message;
use prost::bytes::{BufMut, Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::{PATIENCE, Redis, Server, request, until};

const CONNECTIONS: usize = 10;
const STREAMS: usize = 1_024;
/// As in the documentation, for each connection.
const MOST: u64 = 32 * 1_024 * 1_024;
const CHECK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

const DOMAIN: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000000 }, metadata: { a: b } }
";

/// What a client sends on each stream.
pub(crate) struct Hostile {
    path: &'static str,
    pub(crate) body: Bytes,
    is_ended: bool,
    headers: usize,
    /// Of the streams, for what the server sends.
    window: u32,
}

impl Hostile {
    pub(crate) fn new(body: Bytes) -> Self {
        Self { path: CHECK, body, is_ended: true, headers: 0, window: 65_535 }
    }
}

pub(crate) fn message(request: &impl Message) -> BytesMut {
    let message = request.encode_to_vec();
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.len() as u32);
    bytes.extend_from_slice(&message);
    bytes
}

/// A request whose descriptors have limits, and so many entries, which are empty.
fn entries(descriptors: usize, entries: usize) -> BytesMut {
    let empty = vec![("", ""); entries];
    let mut request = request("d", &vec![&*empty; descriptors]);
    for descriptor in &mut request.descriptors {
        let unit = Unit::Year.into();
        descriptor.limit = Some(RateLimitOverride { requests_per_unit: 1_000_000, unit });
    }
    message(&request)
}

/// The same message with another byte for each `x`.
fn not_utf8(mut message: BytesMut) -> BytesMut {
    message.iter_mut().filter(|byte| **byte == b'x').for_each(|byte| *byte = 0xff);
    message
}

pub(crate) async fn connect(server: &Server, window: u32) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.grpc).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).max_concurrent_reset_streams(STREAMS);
    let (requests, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    until(async || requests.current_max_send_streams() == STREAMS).await;
    requests
}

pub(crate) async fn begin(
    requests: &SendRequest<Bytes>,
    hostile: &Hostile,
) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    let mut request = http::Request::post(format!("http://server{}", hostile.path))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    for _ in 0..hostile.headers {
        request.headers_mut().append("a", HeaderValue::from_static(""));
    }
    let mut requests = requests.clone().ready().await.unwrap();
    let (response, mut stream) = requests.send_request(request, false).unwrap();
    stream.send_data(hostile.body.clone(), hostile.is_ended).unwrap();
    (response, stream)
}

/// How much more memory the server has than before, at most, while clients use all streams of all connections, and
/// until each has a response or an error.
async fn growth(server: &Server, hostile: &Hostile) -> u64 {
    let before = server.memory();
    let clients = (0..CONNECTIONS).map(|_| async {
        let requests = connect(server, hostile.window).await;
        let mut begun = Vec::new();
        for _ in 0..STREAMS {
            begun.push(begin(&requests, hostile).await);
        }
        let (responses, streams): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
        // A busy machine takes long to read millions of headers.
        let responses = timeout(5 * PATIENCE, join_all(responses)).await.expect("no response");
        // Their bodies are still to be read.
        (requests, responses, streams)
    });
    let held = join_all(clients).await;
    let refused = held.iter().flat_map(|(_, responses, _)| responses).filter(|response| {
        let status = response.as_ref().ok().and_then(|r| r.headers().get("grpc-status"));
        status.is_some_and(|status| status == "8")
    });
    let refused = refused.count();
    let growth = server.peak_memory().saturating_sub(before);
    let now = server.memory().saturating_sub(before);
    println!("{} MiB at most, {} MiB at the end, {refused} refused", growth >> 20, now >> 20);
    // Another client is served all the same.
    server.client().await.ask("d", &[("other", "x")]).await;
    growth
}

async fn assert_bounded(server: &Server, hostile: &Hostile) {
    let growth = growth(server, hostile).await;
    assert!(growth < CONNECTIONS as u64 * MOST, "{} MiB", growth >> 20);
}

fn server(settings: &str) -> Server {
    Server::with_domain(DOMAIN, settings)
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_messages_do_not_fill_the_memory() {
    let hostile = Hostile { is_ended: false, ..Hostile::new(Bytes::from_static(&[0, 0, 4, 0, 0])) };
    assert_bounded(&server(""), &hostile).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_open_streams_do_not_fill_the_memory() {
    for (descriptors, of_each) in [(1, 2_047), (64, 32)] {
        let body = entries(descriptors, of_each).freeze();
        let hostile = Hostile { is_ended: false, ..Hostile::new(body) };
        assert_bounded(&server(""), &hostile).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_for_the_store_do_not_fill_the_memory() {
    let redis = Redis::start().await;
    let settings = format!("store: {{ redis: '{}' }}\nchecks: {{ timeout: 4s }}", redis.url());
    let long = "x".repeat(4_000);
    for body in [
        message(&request("d", &[&[("user", "ada")]])),
        message(&request("d", &[&[("user", "ada")][..]; 2])),
        message(&request("d", &vec![&[("user", "ada")][..]; 64])),
        message(&request("d", &[&[("user", &*long)]])),
        message(&request("d", &vec![&[("user", &*long)][..]; 60])),
        entries(64, 64),
        // Bytes that are not UTF-8 take four in memory.
        not_utf8(message(&request("d", &[&[("user", &*"x".repeat(200_000))]]))),
        not_utf8(message(&request("d", &[&[("user", &*long)]]))),
    ] {
        let server = server(&settings);
        server.client().await.ask("d", &[("user", "ada")]).await;
        redis.pause();
        assert_bounded(&server, &Hostile::new(body.freeze())).await;
        redis.resume();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_are_not_read_do_not_fill_the_memory() {
    let mut many = vec![("user", "ada")];
    many.resize(64, ("", ""));
    for body in [
        message(&request("d", &[&[("user", &*"x".repeat(1_900))]])),
        message(&request("d", &[&[("user", &*"x".repeat(3_900))]])),
        message(&request("d", &[&[("user", &*"x".repeat(200_000))]])),
        message(&request("d", &vec![&many[..1]; 64])),
        message(&request("d", &vec![&*many; 64])),
    ] {
        assert_bounded(&server(""), &Hostile { window: 0, ..Hostile::new(body.freeze()) }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_do_not_fill_the_memory() {
    let body = Bytes::from_static(&[0, 0, 0]);
    // About as many as are allowed. Each is a byte on the wire.
    let hostile = Hostile { is_ended: false, headers: 1_900, ..Hostile::new(body) };
    // A busy machine may take longer to send the first one.
    assert_bounded(&server("resource_limits: { handshake_timeout: 5m }"), &hostile).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_other_services_do_not_fill_the_memory() {
    // The largest file, which contains this symbol, again and again.
    let symbol = b"google.protobuf.FileDescriptorSet";
    let mut one = BytesMut::new();
    one.put_slice(&[0, 0, 0, 0, symbol.len() as u8 + 2, 0x22, symbol.len() as u8]);
    one.put_slice(symbol);
    let body = Bytes::from(one.repeat(20));
    let hostile = Hostile { path: REFLECTION, is_ended: false, window: 0, ..Hostile::new(body) };
    assert_bounded(&server(""), &hostile).await;
    let announced = Bytes::from_static(&[0, 0, 4, 0, 0]);
    for path in ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", REFLECTION] {
        let hostile = Hostile { path, is_ended: false, ..Hostile::new(announced.clone()) };
        assert_bounded(&server(""), &hostile).await;
    }
}

//! Requests over HTTP/2 that are begun and not finished.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use prost::Message;
use prost::bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::{PATIENCE, Server, request, until};

async fn connect(server: &Server) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.grpc).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    requests
}

/// Sends the headers of a check.
async fn begin(requests: &SendRequest<Bytes>) -> (ResponseFuture, SendStream<Bytes>) {
    begin_at(requests, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit").await
}

async fn begin_at(
    requests: &SendRequest<Bytes>,
    path: &str,
) -> (ResponseFuture, SendStream<Bytes>) {
    let request = http::Request::post(format!("http://server{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    requests.clone().ready().await.unwrap().send_request(request, false).unwrap()
}

fn finish(stream: &mut SendStream<Bytes>) {
    let message = request("d", &[&[("user", "ada")]]).encode_to_vec();
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.len() as u32);
    bytes.extend_from_slice(&message);
    stream.send_data(bytes.freeze(), true).unwrap();
}

async fn grpc_status(response: ResponseFuture) -> String {
    let response = timeout(PATIENCE, response).await.expect("no response").unwrap();
    let status = |headers: &http::HeaderMap| {
        headers.get("grpc-status").map(|status| status.to_str().unwrap().to_owned())
    };
    if let Some(status) = status(response.headers()) {
        return status;
    }
    let mut body: RecvStream = response.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    status(&body.trailers().await.unwrap().unwrap()).unwrap()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// The kind of the next frame, its stream, and its payload.
async fn read_frame(stream: &mut TcpStream) -> (u8, u32, Vec<u8>) {
    let read = async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.expect("the connection stays open");
        let [a, b, c, kind, _, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.expect("the connection stays open");
        (kind, u32::from_be_bytes(id), payload)
    };
    timeout(PATIENCE, read).await.expect("no frame")
}

/// The frames of a check, with headers that are not compressed.
fn check(stream: u32) -> Vec<u8> {
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // POST over http, and the indices of :path, :authority and content-type.
    let mut headers = vec![0x83, 0x86];
    for (index, value) in [(&[4][..], path), (&[1], "server"), (&[15, 16], "application/grpc")] {
        headers.extend(index);
        headers.push(value.len() as u8);
        headers.extend(value.bytes());
    }
    let message = request("d", &[&[("user", "ada")]]).encode_to_vec();
    let body = [&[0, 0, 0, 0, message.len() as u8], &*message].concat();
    [frame(HEADERS, 4, stream, &headers), frame(0, 1, stream, &body)].concat()
}

/// A gateway cancels its checks when they take too long, and sends others.
#[tokio::test]
async fn a_gateway_that_cancels_all_its_checks_keeps_its_connection() {
    let server = Server::with_settings("policies: { a: { q: 9/s } }");
    let mut stream = TcpStream::connect(server.grpc).await.unwrap();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(SETTINGS, 0, 0, &[]));
    stream.write_all(&sent).await.unwrap();
    while read_frame(&mut stream).await.0 != WINDOW_UPDATE {}
    let mut id = 1;
    let mut burst = Vec::new();
    // The process does not run for a while, so it reads all of it at once.
    server.signal("STOP");
    for _ in 0..3 {
        let ids: Vec<_> = (0..1_024).map(|n| id + 2 * n).collect();
        ids.iter().for_each(|id| burst.extend(check(*id)));
        ids.iter().for_each(|id| burst.extend(frame(RST_STREAM, 0, *id, &8_u32.to_be_bytes())));
        id += 2 * 1_024;
    }
    burst.extend(check(id));
    timeout(PATIENCE, stream.write_all(&burst)).await.expect("no room for it").unwrap();
    server.signal("CONT");
    let mut last = 0;
    while last < id {
        let (kind, id, payload) = read_frame(&mut stream).await;
        assert_ne!(kind, GOAWAY, "{}", payload.escape_ascii());
        if kind == HEADERS {
            last = last.max(id);
        }
    }
}

/// Sends a request that does not end, and waits until the server gives up.
pub(crate) async fn send_half(server: &Server) {
    let (half, _stream) = begin(&connect(server).await).await;
    assert_eq!(grpc_status(half).await, "4", "DEADLINE_EXCEEDED");
}

#[tokio::test]
async fn other_methods_and_services_are_unimplemented() {
    let server = Server::with_settings("policies: { a: { q: 9/s } }");
    let requests = connect(&server).await;
    let service = "/envoy.service.ratelimit.v3.RateLimitService";
    for path in [&*format!("{service}/Other"), service, "/Other/ShouldRateLimit", "/"] {
        let (response, mut stream) = begin_at(&requests, path).await;
        finish(&mut stream);
        assert_eq!(grpc_status(response).await, "12", "{path}");
    }
}

#[tokio::test]
async fn a_connection_has_at_most_so_many_requests_at_a_time() {
    let server =
        Server::with_settings("{ policies: { a: { q: 9/s } }, resource_limits: { streams: 3 } }");
    let requests = connect(&server).await;
    until(async || requests.current_max_send_streams() == 3).await;
    let mut begun = Vec::new();
    for _ in 0..3 {
        begun.push(begin(&requests).await);
    }
    let (response, mut stream) = begun.pop().unwrap();
    finish(&mut stream);
    assert_eq!(grpc_status(response).await, "0", "the others do not hold it up");
}

#[tokio::test]
async fn requests_that_are_not_finished_cannot_fill_the_memory() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, resource_limits: { request_bytes: 65536, request_timeout: 1h } }",
    );
    let requests = connect(&server).await;
    let mut halves = Vec::new();
    for _ in 0..70 {
        let (response, mut stream) = begin(&requests).await;
        // Only the length of a message of 65,536 bytes. The first 4,096 do not count.
        stream.send_data(Bytes::from_static(&[0, 0, 1, 0, 0]), false).unwrap();
        halves.push((response, stream));
    }
    let (responses, _streams): (Vec<_>, Vec<_>) = halves.into_iter().unzip();
    let mut ended: FuturesUnordered<_> = responses.into_iter().map(grpc_status).collect();
    // 64 times 65,536 bytes are allowed, which are 68 of the 70.
    for _ in 0..2 {
        assert_eq!(ended.next().await.unwrap(), "8", "RESOURCE_EXHAUSTED");
    }
    let (response, mut stream) = begin(&requests).await;
    finish(&mut stream);
    assert_eq!(grpc_status(response).await, "0", "small requests are answered");
    let (response, mut stream) = begin(&connect(&server).await).await;
    finish(&mut stream);
    assert_eq!(grpc_status(response).await, "0", "on another connection, too");
    assert!(ended.next().now_or_never().is_none(), "those within the limit go on");
}

#[tokio::test]
async fn a_request_that_is_not_finished_in_time_gets_the_status_of_grpc() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, resource_limits: { request_timeout: 500ms } }",
    );
    let requests = connect(&server).await;
    let (half, _stream) = begin(&requests).await;
    assert_eq!(grpc_status(half).await, "4", "DEADLINE_EXCEEDED");
    let (response, mut stream) = begin(&requests).await;
    finish(&mut stream);
    assert_eq!(grpc_status(response).await, "0");
}

#[tokio::test]
async fn a_check_that_has_begun_is_answered_before_the_process_ends() {
    let mut server = Server::with_settings(
        "
policies: { a: { q: 9/s } }
resource_limits: { request_timeout: 60s }
shutdown: { timeout: 60s }
",
    );
    let requests = connect(&server).await;
    let (half, mut stream) = begin(&requests).await;
    // The server reads in order, so it has begun the first one, too.
    let (response, mut other) = begin(&requests).await;
    finish(&mut other);
    assert_eq!(grpc_status(response).await, "0");
    server.signal("TERM");
    until(async || TcpStream::connect(server.grpc).await.is_err()).await;
    // GOAWAY has arrived.
    until(async || requests.clone().ready().await.is_err()).await;
    finish(&mut stream);
    assert_eq!(grpc_status(half).await, "0");
    drop(requests);
    assert!(server.ends().await);
}

/// With tracing, Envoy sends the `tracestate` of a client along, and lets its requests pass whose checks fail.
#[tokio::test]
async fn a_client_cannot_make_its_check_fail_by_large_headers() {
    let server = Server::with_domain(
        "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1 } }]",
        "",
    );
    let mut client = server.client().await;
    client.ask("d", &[("user", "ada")]).await;
    let mut check = tonic::Request::new(request("d", &[&[("user", "ada")]]));
    // Envoy accepts 60 KiB of headers.
    check.metadata_mut().insert("tracestate", "x".repeat(60 * 1_024).parse().unwrap());
    let response = client.0.should_rate_limit(check).await.unwrap();
    assert_eq!(response.into_inner().overall_code(), Code::OverLimit);
}

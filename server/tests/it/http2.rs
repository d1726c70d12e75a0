//! Requests over HTTP/2 that are begun and not finished.

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use prost::Message;
use prost::bytes::{BufMut, Bytes, BytesMut};
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
    let server = Server::with_settings("{ policies: { a: { q: 9/s } }, limits: { streams: 3 } }");
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
        "{ policies: { a: { q: 9/s } }, limits: { request_bytes: 65536, request_timeout: 1h } }",
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
        "{ policies: { a: { q: 9/s } }, limits: { request_timeout: 500ms } }",
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
limits: { request_timeout: 60s }
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

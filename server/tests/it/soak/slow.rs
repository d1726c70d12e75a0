//! Clients that send requests, and hardly read the replies. Each returns when the server has closed its
//! connection.

use std::io::Cursor;
use std::net::SocketAddr;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::common::request;

/// A client reads a byte this often.
const PAUSE: Duration = Duration::from_millis(200);
/// Little, so that replies wait in the server.
const RECEIVE_BUFFER: u32 = 4_096;
/// Replies of a connection that wait at the same time.
const STREAMS: usize = 200;

/// Asks for large replies, of which few fit into the buffers of the system.
pub(super) async fn http1(address: SocketAddr) {
    let (mut replies, mut requests) = connect(address).await.into_split();
    let write = async {
        let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
        while requests.write_all(request).await.is_ok() {}
    };
    let read = async {
        while matches!(replies.read(&mut [0]).await, Ok(1)) {
            sleep(PAUSE).await;
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
}

/// With a window of one byte.
pub(super) async fn http2(address: SocketAddr) {
    let stream = connect(address).await;
    let mut builder = h2::client::Builder::new();
    let handshake = builder.initial_window_size(1).handshake(stream).await;
    let (client, connection) = handshake.expect("a new connection is accepted");
    // Either ends with an error when the connection is closed.
    tokio::select! {
        _ = connection => {}
        _ = exchange(client, address) => {}
    }
}

async fn exchange(
    mut client: h2::client::SendRequest<Cursor<Vec<u8>>>,
    address: SocketAddr,
) -> Result<(), h2::Error> {
    let message = request("d", &[&[("user", "slow")]]).encode_to_vec();
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    // Not compressed.
    let body = Cursor::new([&[0], &length[..], &message].concat());
    let url =
        format!("http://{address}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let mut replies = Vec::new();
    for _ in 0..STREAMS {
        client = client.ready().await?;
        let head = http::Request::post(&url).header("content-type", "application/grpc");
        let (reply, mut sending) = client.send_request(head.body(()).expect("a request"), false)?;
        sending.send_data(body.clone(), true)?;
        replies.push(reply);
    }
    for reply in replies {
        let mut reply = reply.await?.into_body();
        while let Some(bytes) = reply.data().await {
            reply.flow_control().release_capacity(bytes?.len())?;
            sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
    socket.connect(address).await.unwrap()
}

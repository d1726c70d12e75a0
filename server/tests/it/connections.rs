//! How many connections clients may have, and for how long.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use reqwest::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::common::{PATIENCE, Server, until};

/// Another one than that of the clients that do no harm, which is 127.0.0.1.
const HOSTILE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

async fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((HOSTILE, 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

/// What is sent until the connection is closed.
async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    assert!(end.is_ok(), "the connection is not closed");
    bytes
}

async fn are_served(server: &Server) {
    let served = async {
        server.client().await;
        for url in [server.http("/healthz"), server.admin("/healthz")] {
            assert_eq!(reqwest::get(url).await.unwrap().status(), StatusCode::OK);
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("others are not served");
}

#[tokio::test]
async fn one_client_address_cannot_take_all_connections() {
    for (limits, most) in [("connections: 8", 4), ("connections: 8, connections_per_address: 6", 6)]
    {
        let server = Server::with_settings(&format!(
            "{{ policies: {{ a: {{ q: 9/s }} }}, limits: {{ {limits}, idle_timeout: 1h }} }}"
        ));
        for (name, address) in
            [("grpc", server.grpc), ("http", server.http), ("admin", server.admin)]
        {
            let mut held = Vec::new();
            for _ in 0..8 {
                held.push(connect(address).await);
            }
            for refused in &mut held[most..] {
                assert!(read_to_end(refused).await.is_empty());
            }
            are_served(&server).await;
            let metrics =
                reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
            let line = format!(
                "fleetlimit_server_connections_refused_total{{port=\"{name}\"}} {}\n",
                8 - most
            );
            assert!(metrics.contains(&line), "{line} {metrics}");
        }
    }
}

#[tokio::test]
async fn a_client_that_had_too_many_connections_may_come_back() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, limits: { connections: 2, idle_timeout: 1h } }",
    );
    let held = connect(server.http).await;
    assert!(read_to_end(&mut connect(server.http).await).await.is_empty());
    drop(held);
    let client = reqwest::Client::builder().local_address(HOSTILE).build().unwrap();
    until(async || client.get(server.http("/healthz")).send().await.is_ok()).await;
}

/// The start of an HTTP/2 connection, with empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// HEADERS of a request that CONTINUATION has to follow.
const HALF_HEADERS: &[u8] = b"\0\0\x01\x01\0\0\0\0\x01\x82";

#[tokio::test]
async fn connections_without_a_complete_request_are_closed_in_time() {
    let server = Server::with_settings(
        "
policies: { a: { q: 9/s } }
limits: { connections: 16, handshake_timeout: 2s, idle_timeout: 1h, request_timeout: 1h }
",
    );
    let half_headers = [PREFACE, HALF_HEADERS].concat();
    let half_requests: [&[u8]; 4] = [b"", &PREFACE[..7], PREFACE, &half_headers];
    let half_lines: [&[u8]; 4] = [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhos",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET",
    ];
    let mut held = Vec::new();
    for (address, parts) in
        [(server.grpc, half_requests), (server.http, half_lines), (server.admin, half_lines)]
    {
        for part in parts.into_iter().cycle().take(8) {
            let mut stream = connect(address).await;
            stream.write_all(part).await.unwrap();
            held.push(stream);
        }
    }
    are_served(&server).await;
    for stream in &mut held {
        read_to_end(stream).await;
    }
}

#[tokio::test]
async fn a_connection_that_has_had_a_request_lasts_until_the_idle_timeout() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, limits: { handshake_timeout: 1s, idle_timeout: 1h } }",
    );
    let (client, connection) = h2::client::handshake(connect(server.grpc).await).await.unwrap();
    tokio::spawn(connection);
    let ask = async |client: h2::client::SendRequest<_>| {
        let request = http::Request::post(format!("http://{}/", server.grpc)).body(()).unwrap();
        let (response, _) = client.ready().await?.send_request(request, true)?;
        response.await
    };
    ask(client.clone()).await.unwrap();
    read_to_end(&mut connect(server.grpc).await).await;
    ask(client).await.expect("the connection is closed");
}

#[tokio::test]
async fn a_low_soft_limit_of_open_files_does_not_limit_connections() {
    let settings = "
policies: { a: { q: 9/s } }
limits: { connections: 100, connections_per_address: 100, handshake_timeout: 1h, idle_timeout: 1h }
";
    let server = Server::after("ulimit -S -n 64", settings);
    let mut held = Vec::new();
    for _ in 0..90 {
        let mut stream = connect(server.http).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        answer.expect("the connection is not accepted").unwrap();
        held.push(stream);
    }
    are_served(&server).await;
}

#[tokio::test]
async fn too_few_open_files_for_the_connections_are_reported_with_what_to_change() {
    for (connections, fit) in [(100, false), (24, true)] {
        let server = Server::after(
            "ulimit -n 200",
            &format!(
                "{{ policies: {{ a: {{ q: 9/s }} }}, limits: {{ connections: {connections} }} }}"
            ),
        );
        let warning = server.log.iter().find(|line| line.contains("too few open files"));
        assert_eq!(warning.is_none(), fit, "{warning:?}");
        if let Some(warning) = warning {
            assert!(
                warning.contains("to 428, or set `limits.connections` to at most 24"),
                "{warning}"
            );
        }
        are_served(&server).await;
    }
}

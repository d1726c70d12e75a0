//! How many connections clients may have, and for how long.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use reqwest::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

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
    let end = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
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
    timeout(PATIENCE, served).await.expect("others are not served");
}

#[tokio::test]
async fn one_client_address_cannot_take_all_connections() {
    for (limits, most) in [("connections: 8", 4), ("connections: 8, connections_per_address: 6", 6)]
    {
        let server = Server::with_settings(&format!(
            "{{ policies: {{ a: {{ q: 9/s }} }}, resource_limits: {{ {limits}, idle_timeout: 1h }} }}"
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
        "{ policies: { a: { q: 9/s } }, resource_limits: { connections: 2, idle_timeout: 1h } }",
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
resource_limits: { connections: 16, handshake_timeout: 2s, idle_timeout: 1h, request_timeout: 1h }
",
    );
    let half_headers = [PREFACE, HALF_HEADERS].concat();
    let half_requests: [&[u8]; 4] = [b"", &PREFACE[..7], PREFACE, &half_headers];
    let half_lines: [&[u8]; 4] = [b"", b"GET", b"GET / HT", b"GET / HTTP/1.1\r\nhos"];
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

/// Sends a request over HTTP/1, and waits for the response.
async fn get(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(stream.read_u8().await?);
    }
    let response = String::from_utf8(response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let (_, length) = response.split_once("content-length: ").unwrap();
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(())
}

/// Load balancers send requests on idle connections, and lose those that meet the end of one.
#[tokio::test]
async fn an_idle_connection_that_has_had_a_request_outlasts_one_that_had_none() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, resource_limits: { handshake_timeout: 1s, idle_timeout: 1h } }",
    );
    let (client, connection) = h2::client::handshake(connect(server.grpc).await).await.unwrap();
    tokio::spawn(connection);
    let ask = async |client: h2::client::SendRequest<_>| {
        let request = http::Request::post(format!("http://{}/", server.grpc)).body(()).unwrap();
        let (response, _) = client.ready().await?.send_request(request, true)?;
        response.await
    };
    ask(client.clone()).await.unwrap();
    let mut kept = [connect(server.http).await, connect(server.admin).await];
    for stream in &mut kept {
        get(stream).await.unwrap();
    }
    for address in [server.grpc, server.http, server.admin] {
        read_to_end(&mut connect(address).await).await;
    }
    ask(client).await.expect("the connection is closed");
    for stream in &mut kept {
        get(stream).await.expect("the connection is closed");
    }
}

#[tokio::test]
async fn no_request_of_a_connection_may_have_headers_that_never_end() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, resource_limits: { handshake_timeout: 1s, idle_timeout: 1h } }",
    );
    for address in [server.http, server.admin] {
        let mut stream = connect(address).await;
        for _ in 0..2 {
            get(&mut stream).await.unwrap();
        }
        stream.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        let (mut reads, mut writes) = stream.into_split();
        let trickle = async {
            while writes.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            end = timeout(PATIENCE, reads.read_u8()) => {
                assert!(end.expect("the connection is not closed").is_err());
            }
            () = trickle => {}
        }
    }
}

/// The time of a request is none in which the connection is idle, or its response would come with the end of it.
#[tokio::test]
async fn a_request_that_takes_longer_than_the_idle_timeout_ends_no_connection() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, resource_limits: { idle_timeout: 1s, request_timeout: 1h } }",
    );
    let mut slow = connect(server.http).await;
    let head = b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                 content-length: 29\r\n\r\n{";
    slow.write_all(head).await.unwrap();
    for _ in 0..2 {
        let mut idle = connect(server.http).await;
        get(&mut idle).await.unwrap();
        read_to_end(&mut idle).await;
    }
    slow.write_all(br#""policy": "a", "key": "ada"}"#).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(slow.read_u8().await.unwrap());
    }
    let response = String::from_utf8(response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200") && !response.contains("close"), "{response}");
}

#[tokio::test]
async fn a_low_soft_limit_of_open_files_does_not_limit_connections() {
    let settings = "
policies: { a: { q: 9/s } }
resource_limits: { connections: 100, connections_per_address: 100, handshake_timeout: 1h, idle_timeout: 1h }
";
    let server = Server::after("ulimit -S -n 64", settings);
    let mut held = Vec::new();
    for _ in 0..90 {
        let mut stream = connect(server.http).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let answer = timeout(PATIENCE, stream.read_u8()).await;
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
                "{{ policies: {{ a: {{ q: 9/s }} }}, resource_limits: {{ connections: {connections} }} }}"
            ),
        );
        let warning = server.log.iter().find(|line| line.contains("too few open files"));
        assert_eq!(warning.is_none(), fit, "{warning:?}");
        if let Some(warning) = warning {
            assert!(
                warning.contains("to 428, or set `resource_limits.connections` to at most 24"),
                "{warning}"
            );
        }
        are_served(&server).await;
    }
}

/// Otherwise a new instance gets no connection for as long as those to the others last.
#[tokio::test]
async fn an_old_connection_over_grpc_ends_without_losing_a_check_and_one_over_http_stays() {
    let server = Server::with_settings(
        "{ policies: { a: { q: 9/s } }, resource_limits: { connection_age: 100ms } }",
    );
    let mut over_http = connect(server.http).await;
    get(&mut over_http).await.unwrap();
    let stream = connect(server.grpc).await;
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let request = || http::Request::post(format!("http://server/{path}")).body(()).unwrap();
    let (response, mut body) =
        client.clone().ready().await.unwrap().send_request(request(), false).unwrap();
    // The server asks for another connection, while the check on this one goes on.
    until(async || {
        let Ok(mut client) = client.clone().ready().await else { return true };
        client.send_request(request(), true).is_err()
    })
    .await;
    body.send_data("".into(), true).unwrap();
    assert_eq!(timeout(PATIENCE, response).await.unwrap().unwrap().status(), 200);
    drop(client);
    let ended = timeout(PATIENCE, connection).await.expect("the connection does not end");
    ended.unwrap().unwrap();
    get(&mut over_http).await.unwrap();
}

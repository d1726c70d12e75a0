//! TLS for clients.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::common::{Authority, Files, PATIENCE, Redis, Server, check, request, until};
use crate::redis_servers::tls::TlsFiles;

/// A server with a certificate for `localhost`, and that certificate.
fn server() -> (Server, CertificateDer<'static>) {
    let (server, certificate, _) = server_with_files();
    (server, certificate)
}

fn server_with_files() -> (Server, CertificateDer<'static>, Files) {
    let files = Files::new(&[("d.yaml", "domain: d\ndescriptors: [{ key: user, policy: day }]")]);
    let issued = files.issue_certificate("localhost");
    let [certificate, key] = ["server.pem", "server.key"].map(|name| files.path(name));
    let settings = format!(
        "policies: {{ day: {{ requests: 1/day }} }}\ndomains: [d.yaml]\n\
         resource_limits: {{ handshake_timeout: 2s, idle_timeout: 1h }}\n\
         tls: {{ certificate: {certificate:?}, key: {key:?} }}"
    );
    files.write("settings.yaml", &settings);
    let server = Server::start(&files.path("settings.yaml"), &[]);
    (server, issued, files)
}

async fn connect(
    address: std::net::SocketAddr,
    certificate: CertificateDer<'static>,
    protocol: &[u8],
) -> TlsStream<TcpStream> {
    try_connect(address, certificate, protocol).await.unwrap()
}

async fn try_connect(
    address: std::net::SocketAddr,
    certificate: CertificateDer<'static>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[tokio::test]
async fn checks_are_encrypted_if_the_settings_have_a_certificate() {
    let (server, certificate) = server();
    let (address, trusted) = (server.grpc, certificate.clone());
    let connector = tower::service_fn(move |_| {
        let trusted = trusted.clone();
        async move { std::io::Result::Ok(TokioIo::new(connect(address, trusted, b"h2").await)) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let mut client = RateLimitServiceClient::new(channel);
    for expected in [Code::Ok, Code::OverLimit] {
        let response = client.should_rate_limit(request("d", &[&[("user", "ada")]])).await.unwrap();
        assert_eq!(response.get_ref().overall_code(), expected);
    }

    let mut stream = connect(server.http, certificate, b"http/1.1").await;
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

#[tokio::test]
async fn an_admin_port_that_others_can_reach_is_encrypted_too() {
    let files = Files::new(&[]);
    let trusted = files.issue_certificate("localhost");
    let [certificate, key] = ["server.pem", "server.key"].map(|name| files.path(name));
    let settings = format!(
        "policies: {{ day: {{ requests: 1/day }} }}\nadmin: {{ token: t0p-0123456789ab }}\n\
         tls: {{ certificate: {certificate:?}, key: {key:?} }}"
    );
    for (address, is_encrypted) in [("0.0.0.0:0", true), ("127.0.0.1:0", false)] {
        let env = [
            ("FLEETLIMIT_GRPC", "127.0.0.1:0"),
            ("FLEETLIMIT_HTTP", "127.0.0.1:0"),
            ("FLEETLIMIT_ADMIN", address),
            ("FLEETLIMIT_SETTINGS", settings.as_str()),
        ];
        let server = Server::with_env(&env);
        let address = (std::net::Ipv4Addr::LOCALHOST, server.admin.port()).into();
        let connected = try_connect(address, trusted.clone(), b"http/1.1").await;
        assert_eq!(connected.is_ok(), is_encrypted);
    }
}

#[tokio::test]
async fn redis_can_have_an_authority_of_its_own_and_ask_for_a_certificate() {
    let files = Files::new(&[]);
    files.issue_certificate("127.0.0.1");
    let [certificate, key] = ["server.pem", "server.key"].map(|name| files.path(name));
    let [certificate_text, key_text] =
        [&certificate, &key].map(|file| std::fs::read_to_string(file).unwrap());
    let tls = TlsFiles::new(&certificate_text, &key_text, &certificate_text);
    let redis = Redis::with_tls(&tls, &[] as &[&str]).await;
    redis.command(&["CONFIG", "SET", "tls-auth-clients", "yes"]).await;
    let ca = format!("ca: {certificate:?}");
    let client = format!("client: {{ certificate: {certificate:?}, key: {key:?} }}");
    for (tls, expected) in [
        (format!("{ca}, {client}"), None),
        (String::new(), Some("UnknownIssuer")),
        (client.clone(), Some("UnknownIssuer")),
        (ca.clone(), Some("CertificateRequired")),
    ] {
        let server = Server::with_settings(&format!(
            "store: {{ redis: '{}', tls: {{ {tls} }} }}\n\
             checks: {{ timeout: 2s, failure_mode: closed }}\npolicies: {{ a: {{ q: 1/s }} }}",
            redis.url()
        ));
        match expected {
            None => until(async || is_ready(&server).await).await,
            Some(error) => {
                let line = server.wait_for_line("the store cannot be used");
                assert!(line.contains(error), "{tls}: {line}");
                assert!(!is_ready(&server).await);
            }
        }
    }
}

async fn is_ready(server: &Server) -> bool {
    reqwest::get(server.http("/readyz")).await.unwrap().status().is_success()
}

#[tokio::test]
async fn other_contents_of_the_certificates_for_redis_need_a_restart() {
    let files = Files::new(&[]);
    files.issue_certificate("localhost");
    let certificate = files.path("server.pem");
    files.write(
        "settings.yaml",
        &format!(
            "store: {{ redis: 'rediss://127.0.0.1:1', tls: {{ ca: {certificate:?} }} }}\n\
             policies: {{ a: {{ q: 1/s }} }}"
        ),
    );
    let server = Server::start(&files.path("settings.yaml"), &[]);
    let restart_needed = async || {
        let status = reqwest::get(server.admin("/api/status")).await.unwrap();
        status.json::<serde_json::Value>().await.unwrap()["restart_needed"].clone()
    };
    let reload = async || {
        let reload = reqwest::Client::new().post(server.admin("/api/reload")).send().await;
        assert!(reload.unwrap().status().is_success());
    };
    reload().await;
    assert_eq!(restart_needed().await, serde_json::json!([]));
    files.issue_certificate("localhost");
    reload().await;
    assert_eq!(restart_needed().await, serde_json::json!(["store"]));
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart_and_an_invalid_one_is_not() {
    let (server, first, files) = server_with_files();
    connect(server.http, first.clone(), b"http/1.1").await;
    let second = files.issue_certificate("localhost");
    let reload = || reqwest::Client::new().post(server.admin("/api/reload")).send();
    assert!(reload().await.unwrap().status().is_success());
    for (address, protocol) in [(server.http, &b"http/1.1"[..]), (server.grpc, b"h2")] {
        connect(address, second.clone(), protocol).await;
        assert!(try_connect(address, first.clone(), protocol).await.is_err());
    }
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    files.write("server.key", &other.signing_key.serialize_pem());
    assert!(!reload().await.unwrap().status().is_success());
    connect(server.http, second, b"http/1.1").await;
}

#[tokio::test]
async fn a_client_without_tls_is_not_answered() {
    let (server, _) = server();
    let plain = reqwest::get(server.http("/healthz")).await;
    assert!(plain.is_err(), "{plain:?}");
    let mut stream = TcpStream::connect(server.grpc).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut reply = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut reply)).await;
    assert!(end.is_ok(), "the connection is not closed");
    // The content type of an alert (RFC 8446, 5.1).
    assert!(reply.is_empty() || reply[0] == 21, "{reply:?}");
}

#[tokio::test]
async fn a_client_that_does_not_end_the_handshake_is_disconnected() {
    let (server, _) = server();
    for address in [server.grpc, server.http] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The start of a record with a handshake (RFC 8446, 5.1).
        stream.write_all(&[22, 3, 1]).await.unwrap();
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "the connection is not closed");
    }
}

/// A client of gRPC with this TLS.
async fn channel(server: &Server, tls: ClientTlsConfig) -> Channel {
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", server.grpc.port()));
    endpoint.unwrap().tls_config(tls).unwrap().connect_lazy()
}

async fn is_served(server: &Server, tls: ClientTlsConfig) -> bool {
    let mut client = RateLimitServiceClient::new(channel(server, tls).await);
    client.should_rate_limit(request("d", &[&[("user", "ada")]])).await.is_ok()
}

/// Asks on the HTTP port, with a certificate of this authority for this name.
async fn is_healthy_over_tls(server: &Server, authority: &Authority, name: &str) -> bool {
    let [certificate, key] = authority.issue(name);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    let stream = TcpStream::connect(server.http).await.unwrap();
    let host = ServerName::try_from("limits").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(host, stream).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: limits\r\nconnection: close\r\n\r\n";
    // The server may have closed the connection by now.
    let _ = stream.write_all(request).await;
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response).await;
    response.starts_with("HTTP/1.1 200")
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_the_authority_and_the_name_are_served() {
    let (ours, other) = (Authority::new(), Authority::new());
    let files = Files::new(&[("d.yaml", "domain: d\ndescriptors: [{ key: user }]")]);
    ours.write(&files, "server", "limits");
    let [ca, certificate, key] =
        ["ca.pem", "server.pem", "server.key"].map(|name| files.path(name));
    let write = |more: &str| {
        let pair = format!("certificate: {certificate:?}, key: {key:?}");
        let settings = format!("domains: [d.yaml]\ntls: {{ {pair}, client_ca: {ca:?}, {more} }}");
        files.write("settings.yaml", &settings);
    };
    write("client_name: envoy");
    let server = Server::start(&files.path("settings.yaml"), &[]);
    let anonymous = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&ours.pem))
        .domain_name("limits");
    // Signed by another authority, for a server of ours.
    let forged = {
        let [certificate, key] = other.issue("envoy");
        anonymous.clone().identity(tonic::transport::Identity::from_pem(certificate, key))
    };
    assert!(is_served(&server, ours.client_tls("envoy", "limits")).await);
    assert!(!is_served(&server, ours.client_tls("nginx", "limits")).await);
    assert!(!is_served(&server, anonymous.clone()).await);
    assert!(!is_served(&server, forged.clone()).await);
    assert!(reqwest::get(server.http("/healthz")).await.is_err(), "the HTTP port has TLS, too");
    assert!(is_healthy_over_tls(&server, &ours, "envoy").await);
    assert!(!is_healthy_over_tls(&server, &ours, "nginx").await);
    // A gateway without a certificate lets requests pass, so somebody has to know.
    let line = server.wait_for_line("tls_handshake_failed");
    assert!(line.contains("port=\"grpc\"") && line.contains("peer=127.0.0.1"), "{line}");
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    let failures = "fleetlimit_server_tls_failures_total{port=\"grpc\"}";
    assert!(metrics.contains(failures), "{metrics}");

    // Another authority, and another name: the certificates are renewed, and the name needs a restart.
    files.write("ca.pem", &other.pem);
    let reload = reqwest::Client::new().post(server.admin("/api/reload")).send().await.unwrap();
    assert!(reload.status().is_success());
    assert!(!is_served(&server, ours.client_tls("envoy", "limits")).await);
    assert!(is_served(&server, forged).await);

    // Of gRPC only, so that probes need no certificate.
    write("ports: [grpc]");
    let server = Server::start(&files.path("settings.yaml"), &[]);
    assert_eq!(reqwest::get(server.http("/healthz")).await.unwrap().status(), 200);
    assert!(!is_served(&server, anonymous).await);
}

#[test]
fn settings_of_client_certificates_that_cannot_work_are_errors() {
    let files = Files::new(&[]);
    Authority::new().write(&files, "server", "limits");
    let [ca, certificate, key] =
        ["ca.pem", "server.pem", "server.key"].map(|name| files.path(name));
    for (more, expected) in [
        (format!("client_ca: {key:?}"), "there is no certificate"),
        ("client_ca: none.pem".to_owned(), "none.pem: No such file"),
        ("client_name: envoy".to_owned(), "tls.client_name: needs `client_ca`"),
        (format!("client_ca: {ca:?}, client_name: a b"), "tls.client_name: the name is neither"),
        ("ports: []".to_owned(), "tls.ports: name at least one"),
        ("ports: [https]".to_owned(), "unknown variant `https`"),
    ] {
        let pair = format!("certificate: {certificate:?}, key: {key:?}");
        let settings = format!("policies: {{ p: {{ q: 1/s }} }}\ntls: {{ {pair}, {more} }}");
        files.write("settings.yaml", &settings);
        let output = check(&files.path("settings.yaml"));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(expected), "{more}: {text}");
    }
}

//! Which servers a store trusts, and what it logs about the others.

use std::error::Error as StdError;

#[cfg(feature = "sentinel")]
use fleetlimit::SentinelService;
use fleetlimit::{ErrorKind, FailureMode, Limiter, Quota, RedisServer, RedisStore, Source};
use redis::{ClientTlsConfig, TlsCertificates};

use crate::certificates::{Authority, Certificate};
#[cfg(feature = "sentinel")]
use crate::common::Sentinel;
use crate::common::tls::TlsFiles;
use crate::common::{BOUND, Cluster, Server, wait_until};
use crate::log::Log;

const HOST: &str = "127.0.0.1";

/// `redis` uses rustls if it can.
const RUSTLS: bool = cfg!(feature = "tls-rustls");

/// A server's address with the only authority to trust, and perhaps a certificate of the client.
pub(crate) fn trusting(
    url: String,
    authority: &Authority,
    client: Option<Certificate>,
) -> RedisServer {
    let client_tls = client.map(|client| ClientTlsConfig {
        client_cert: client.certificate.into_bytes(),
        client_key: client.key.into_bytes(),
    });
    let root_cert = Some(authority.pem().into_bytes());
    let certificates = TlsCertificates { client_tls, root_cert };
    RedisServer::from(url).certificates(certificates)
}

fn all_trusting(urls: Vec<String>, authority: &Authority) -> Vec<RedisServer> {
    urls.into_iter().map(|url| trusting(url, authority, None)).collect()
}

fn insecure(url: String) -> String {
    format!("{url}#insecure")
}

fn limiter(store: RedisStore) -> Limiter {
    let builder = Limiter::builder(store, Quota::per_day(9));
    builder.timeout(BOUND).failure_mode(FailureMode::Closed).build().unwrap()
}

/// Checks enough keys to reach each node of a cluster. A busy machine may take longer for a TLS
/// handshake than an attempt to connect may take, so it may take several attempts.
async fn assert_decides(store: RedisStore) {
    let limiter = limiter(store);
    for key in (0..30).map(|n| format!("key {n}")) {
        wait_until("the node of the key is connected", BOUND, async || {
            limiter.peek(&key).await.is_ok()
        })
        .await;
        let decision = limiter.check(key).await.unwrap();
        assert_eq!((decision.source(), decision.remaining()), (Source::Store, 8));
    }
}

/// Checks that TLS is why no key can be checked. Here too it may take several attempts.
async fn assert_refused(store: RedisStore) {
    let limiter = limiter(store);
    let is_refused = async || {
        let error = limiter.peek("key").await.unwrap_err();
        error.to_string() == "no TLS connection to Redis"
    };
    wait_until("the server is refused", BOUND, is_refused).await;
}

#[tokio::test]
async fn one_server_of_a_private_authority_is_trusted() {
    let authority = Authority::new();
    let server = Server::with_tls::<&str>(&authority.server(HOST), &[]).await;
    assert_decides(RedisStore::open(trusting(server.url(), &authority, None)).unwrap()).await;
}

#[tokio::test]
async fn all_nodes_of_a_cluster_of_a_private_authority_are_trusted() {
    let authority = Authority::new();
    let cluster = Cluster::with_tls(&authority.server(HOST)).await;
    // The other nodes are found through this one.
    let seeds = all_trusting(vec![cluster.node(0).url()], &authority);
    assert_decides(RedisStore::open_cluster(seeds).unwrap()).await;
}

#[tokio::test]
async fn a_client_certificate_is_sent_to_a_server_that_requires_one() {
    let authority = Authority::new();
    let server = Server::with_tls::<&str>(&authority.server(HOST), &[]).await;
    server.command(&["CONFIG", "SET", "tls-auth-clients", "yes"]).await;
    let without = RedisStore::open(trusting(server.url(), &authority, None)).unwrap();
    let error = limiter(without).check("key").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let with = trusting(server.url(), &authority, Some(authority.client()));
    assert_decides(RedisStore::open(with).unwrap()).await;
}

/// The servers' own certificates are of an authority that nobody trusts.
#[tokio::test]
async fn insecure_trusts_every_certificate_and_is_logged_once_per_url() {
    let files = Authority::new().server("another.example");
    let (log, _guard) = Log::capture();
    let server = Server::with_tls::<&str>(&files, &[]).await;
    let store = RedisStore::open(insecure(server.url())).unwrap();
    assert_decides(store).await;
    let events = log.events();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert!(event.contains("WARN fleetlimit: TLS certificates are not verified"), "{event}");
    assert!(event.contains(&format!("server=127.0.0.1:{}", server.port())), "{event}");

    let cluster = Cluster::with_tls(&files).await;
    let seed = insecure(cluster.node(0).url());
    assert_decides(RedisStore::open_cluster([seed]).unwrap()).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn insecure_applies_to_the_sentinels_and_to_the_primary() {
    let sentinel = Sentinel::with_tls(&Authority::new().server("another.example")).await;
    let urls = sentinel.urls().into_iter().map(insecure);
    assert_decides(RedisStore::open_sentinel(urls, sentinel.service_name()).unwrap()).await;
}

/// Checks that the log and the error name the server and say what is wrong.
async fn assert_rejects(files: &TlsFiles, trusted: &Authority, reasons: [&str; 2]) {
    let reason = reasons[usize::from(!RUSTLS)];
    let server = Server::with_tls::<&str>(files, &[]).await;
    let store = RedisStore::open(trusting(server.url(), trusted, None)).unwrap();
    let (log, _guard) = Log::capture();
    let error = limiter(store).check("key").await.unwrap_err();

    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.server(), Some(address.as_str()));
    assert_eq!(error.to_string(), "no TLS connection to Redis");
    let source = error.source().unwrap().to_string();
    assert!(source.contains(reason), "{source}");

    let of_breaker = |event: &String| event.contains("circuit breaker");
    let events: Vec<_> = log.events().into_iter().filter(|event| !of_breaker(event)).collect();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert!(event.contains("WARN fleetlimit: rate limit unavailable, failing closed"), "{event}");
    assert!(event.contains(&format!("server=\"{address}\"")), "{event}");
    assert!(event.contains("no TLS connection to Redis: ") && event.contains(reason), "{event}");
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_rejected_with_a_clear_reason() {
    let (known, unknown) = (Authority::new(), Authority::new());
    let reasons = ["invalid peer certificate: UnknownIssuer", "certificate in certificate chain"];
    assert_rejects(&unknown.server(HOST), &known, reasons).await;
}

#[tokio::test]
async fn a_certificate_of_another_host_is_rejected_with_a_clear_reason() {
    let authority = Authority::new();
    let reasons = ["certificate not valid for name", "IP address mismatch"];
    assert_rejects(&authority.server("another.example"), &authority, reasons).await;
}

#[tokio::test]
async fn an_expired_certificate_is_rejected_with_a_clear_reason() {
    let authority = Authority::new();
    let reasons = ["certificate expired", "certificate has expired"];
    assert_rejects(&authority.expired_server(HOST), &authority, reasons).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn sentinels_and_a_primary_of_a_private_authority_are_trusted() {
    let authority = Authority::new();
    let sentinel = Sentinel::with_tls(&authority.server(HOST)).await;
    let sentinels = all_trusting(sentinel.urls(), &authority);
    assert_decides(RedisStore::open_sentinel(sentinels, sentinel.service_name()).unwrap()).await;
}

/// The certificates are for a name, and clients know the servers by IP address.
const NAME: &str = "redis.example";

#[tokio::test]
async fn a_server_that_is_known_by_address_is_verified_by_its_tls_name() {
    let authority = Authority::new();
    let server = Server::with_tls::<&str>(&authority.server(NAME), &[]).await;
    let trusting = |authority: &Authority| trusting(server.url(), authority, None);
    assert_decides(RedisStore::open(trusting(&authority).tls_name(NAME)).unwrap()).await;
    let stranger = Authority::new();
    for refused in [
        trusting(&authority),
        trusting(&authority).tls_name("another.example"),
        trusting(&stranger).tls_name(NAME),
    ] {
        assert_refused(RedisStore::open(refused).unwrap()).await;
    }
}

#[tokio::test]
async fn nodes_that_are_announced_by_address_are_verified_by_their_tls_name() {
    let authority = Authority::new();
    let cluster = Cluster::with_tls(&authority.server(NAME)).await;
    let seed = trusting(cluster.node(0).url(), &authority, None).tls_name(NAME);
    assert_decides(RedisStore::open_cluster([seed]).unwrap()).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn a_primary_that_is_announced_by_address_is_verified_by_its_tls_name() {
    let authority = Authority::new();
    let sentinel = Sentinel::with_tls(&authority.server(NAME)).await;
    let named = |url| trusting(url, &authority, None).tls_name(NAME);
    let sentinels = || sentinel.urls().into_iter().map(named);
    assert_decides(RedisStore::open_sentinel(sentinels(), sentinel.service_name()).unwrap()).await;
    let primary = trusting("rediss://primary.invalid".into(), &authority, None);
    let service = || SentinelService::new(sentinel.service_name());
    let service_by_name = service().primary(primary.clone().tls_name(NAME));
    let store = RedisStore::open_sentinel(sentinels(), service_by_name).unwrap();
    assert_decides(store.key_prefix("other")).await;
    // Nothing of the sentinels applies to a primary of its own.
    let store = RedisStore::open_sentinel(sentinels(), service().primary(primary)).unwrap();
    assert_refused(store).await;
}

#[test]
fn a_tls_name_that_nothing_is_verified_against_is_an_error() {
    for (url, name, reason) in [
        ("redis://127.0.0.1", NAME, "needs TLS"),
        ("rediss://127.0.0.1/#insecure", NAME, "has no effect"),
        ("rediss://127.0.0.1", "", "invalid TLS name"),
        ("rediss://127.0.0.1", "redis.example:6379", "invalid TLS name"),
    ] {
        let error = RedisStore::open(RedisServer::from(url).tls_name(name)).unwrap_err();
        assert!(error.to_string().contains(reason), "{url} {name:?}: {error}");
    }
    let without_tls = trusting("redis://127.0.0.1".into(), &Authority::new(), None);
    let error = RedisStore::open(without_tls).unwrap_err();
    assert!(error.to_string().contains("invalid TLS certificates"), "{error}");
}

//! The configuration with which connections begin.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::TlsAcceptor;

use super::client_verifier::ClientVerifier;
use super::provider;
use crate::protocol::Protocol;

/// A certificate with its key.
#[derive(Clone, Debug)]
pub(crate) struct KeyPair(Arc<CertifiedKey>);

impl KeyPair {
    /// # Errors
    ///
    /// If the key does not match the certificate.
    pub(crate) fn new(
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, String> {
        let key = CertifiedKey::from_der(certificates, key, &provider());
        key.map(|key| Self(key.into())).map_err(|error| error.to_string())
    }
}

/// The certificates in use. Connections that begin after a reload get the new ones, and cannot resume sessions of before.
#[derive(Debug)]
pub(crate) struct ServerTls {
    http1: ArcSwap<ServerConfig>,
    http2: ArcSwap<ServerConfig>,
}

impl ServerTls {
    /// # Errors
    ///
    /// If the library supports no version of TLS.
    pub(crate) fn new(
        KeyPair(key): KeyPair,
        clients: Option<ClientVerifier>,
    ) -> Result<Self, rustls::Error> {
        let key: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(key));
        let clients = clients.map(Arc::new);
        let config = |protocol: &[u8]| {
            let builder = ServerConfig::builder_with_provider(provider().into())
                .with_safe_default_protocol_versions()?;
            let builder = match clients.clone() {
                Some(clients) => builder.with_client_cert_verifier(clients),
                None => builder.with_no_client_auth(),
            };
            let mut config = builder.with_cert_resolver(key.clone());
            config.alpn_protocols = vec![protocol.to_vec()];
            Ok::<_, rustls::Error>(ArcSwap::from_pointee(config))
        };
        Ok(Self { http1: config(b"http/1.1")?, http2: config(b"h2")? })
    }

    pub(crate) fn replace(&self, new: &Self) {
        self.http1.store(new.http1.load_full());
        self.http2.store(new.http2.load_full());
    }

    /// The acceptor of one connection.
    pub(crate) fn acceptor(&self, protocol: Protocol) -> TlsAcceptor {
        let config = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        TlsAcceptor::from(config.load_full())
    }
}

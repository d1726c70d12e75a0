//! TLS for clients of this service.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::serve::Protocol;

/// # Errors
///
/// If the PEM file is invalid or has no certificate.
pub(crate) fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(file).collect();
    let certificates = certificates.map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        Err("there is no certificate".to_owned())
    } else {
        Ok(certificates)
    }
}

/// # Errors
///
/// If the PEM file is invalid or has no private key.
pub(crate) fn key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(file).map_err(|error| match error {
        pem::Error::NoItemsFound => "there is no private key".to_owned(),
        error => error.to_string(),
    })
}

/// # Errors
///
/// If the key does not match the certificate.
pub(crate) fn config(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, String> {
    ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(certificates, key))
        .map_err(|error| error.to_string())
}

pub(crate) fn acceptor(config: &ServerConfig, protocol: Protocol) -> TlsAcceptor {
    let mut config = config.clone();
    config.alpn_protocols = match protocol {
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec()],
    };
    TlsAcceptor::from(Arc::new(config))
}

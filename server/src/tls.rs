//! TLS for clients of this service.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::protocol::Protocol;

/// # Errors
///
/// If the PEM file is invalid or has no certificate.
pub(crate) fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(file).collect();
    // Its text would have what is in the file, which may be a key.
    let certificates = certificates.map_err(|_| "it is not a PEM file".to_owned())?;
    if certificates.is_empty() {
        Err("there is no certificate".to_owned())
    } else {
        Ok(certificates)
    }
}

/// # Errors
///
/// If the PEM file is invalid, or one of its certificates cannot be trusted.
pub(crate) fn check_authorities(file: &[u8]) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// # Errors
///
/// If the PEM file is invalid or has no private key.
pub(crate) fn key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(file).map_err(|error| match error {
        pem::Error::NoItemsFound => "there is no private key".to_owned(),
        // Its text would have some of the file.
        _ => "it is not a PEM file".to_owned(),
    })
}

/// The certificate in use. Connections that begin after a reload get the new one.
#[derive(Debug)]
pub(crate) struct Certificate(ArcSwap<CertifiedKey>);

impl Certificate {
    /// # Errors
    ///
    /// If the key does not match the certificate.
    pub(crate) fn new(
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, String> {
        let key = CertifiedKey::from_der(certificates, key, &provider());
        key.map(|key| Self(ArcSwap::from_pointee(key))).map_err(|error| error.to_string())
    }

    pub(crate) fn replace(&self, new: &Self) {
        self.0.store(new.0.load_full());
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// # Errors
///
/// If the library supports no version of TLS.
pub(crate) fn acceptor(
    certificate: &Arc<Certificate>,
    protocol: Protocol,
) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider().into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate.clone());
    config.alpn_protocols = match protocol {
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec()],
    };
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

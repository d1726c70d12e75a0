//! TLS for clients of this service.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::serve::Protocol;
use crate::settings::Tls;

/// # Errors
///
/// If the files cannot be read, or the key does not match the certificate.
pub(crate) fn acceptor(files: &Tls, protocol: Protocol) -> Result<TlsAcceptor, String> {
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| in_file(&files.certificate, &error))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| in_file(&files.key, &error))?;
    let mut config =
        ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(|error| in_file(&files.certificate, &error))?;
    config.alpn_protocols = match protocol {
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec()],
    };
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn in_file(path: &Path, error: &dyn Display) -> String {
    format!("{}: {error}", path.display())
}

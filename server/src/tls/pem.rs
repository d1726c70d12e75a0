//! PEM files: certificates, and private keys.

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

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
pub(crate) fn authorities(file: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
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

//! TLS for clients of this service: `pem` reads the files, `server_config` is what connections begin with, and
//! `client_verifier` decides which client certificates are accepted.

mod client_verifier;
mod pem;
mod server_config;

use rustls::crypto::CryptoProvider;

pub(crate) use client_verifier::ClientVerifier;
pub(crate) use pem::{authorities, certificates, key};
pub(crate) use server_config::{KeyPair, ServerTls};

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

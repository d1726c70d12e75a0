//! A certificate authority.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use super::Files;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "a test");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Issues a certificate for this name, with its key.
    pub(crate) fn issue(&self, name: &str) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        [params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem()]
    }

    /// Writes `ca.pem`, and a certificate and its key with these names of files.
    pub(crate) fn write(&self, files: &Files, file: &str, name: &str) {
        let [certificate, key] = self.issue(name);
        files.write("ca.pem", &self.pem);
        files.write(&format!("{file}.pem"), &certificate);
        files.write(&format!("{file}.key"), &key);
    }

    /// Returns the TLS of a server with this name, for clients of this authority.
    pub(crate) fn server_tls(&self, name: &str) -> ServerTlsConfig {
        let [certificate, key] = self.issue(name);
        let ca = Certificate::from_pem(&self.pem);
        ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)).client_ca_root(ca)
    }

    /// Returns the TLS of a client with this name, for a server of this authority with that name.
    pub(crate) fn client_tls(&self, name: &str, server: &str) -> ClientTlsConfig {
        let [certificate, key] = self.issue(name);
        let ca = Certificate::from_pem(&self.pem);
        let tls = ClientTlsConfig::new().ca_certificate(ca).domain_name(server);
        tls.identity(Identity::from_pem(certificate, key))
    }
}

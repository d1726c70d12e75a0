//! The files of a server that speaks only TLS.

use std::fs;

use super::temp_dir::TempDir;

/// The certificate and key of a server, and the authority that it trusts, as files.
#[derive(Debug)]
pub(crate) struct TlsFiles(TempDir);

impl TlsFiles {
    /// Writes these texts in PEM format. The files are removed on drop.
    pub(crate) fn new(certificate: &str, key: &str, authority: &str) -> Self {
        let dir = TempDir::new();
        for (name, text) in [(CERTIFICATE, certificate), (KEY, key), (AUTHORITY, authority)] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Self(dir)
    }

    /// Returns the options of a server that speaks only TLS on this port, also to other servers.
    pub(crate) fn args(&self, port: u16) -> Vec<String> {
        let options = self.options(port).into_iter();
        options.flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }

    /// Returns the same options for a configuration file.
    pub(crate) fn configuration(&self, port: u16) -> String {
        let options = self.options(port).into_iter();
        options.map(|(name, value)| format!("{name} {value}\n")).collect()
    }

    fn options(&self, port: u16) -> [(&'static str, String); 8] {
        let path = |name| self.0.path().join(name).to_str().unwrap().to_owned();
        [
            ("port", "0".into()),
            ("tls-port", port.to_string()),
            ("tls-cert-file", path(CERTIFICATE)),
            ("tls-key-file", path(KEY)),
            ("tls-ca-cert-file", path(AUTHORITY)),
            ("tls-auth-clients", "no".into()),
            ("tls-cluster", "yes".into()),
            ("tls-replication", "yes".into()),
        ]
    }
}

const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
const AUTHORITY: &str = "authority.pem";

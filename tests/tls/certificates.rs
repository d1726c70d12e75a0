//! A certificate authority, and the certificates that it issues to the servers and clients of the tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

use crate::common::tls::TlsFiles;

/// A private certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM format.
pub(crate) struct Certificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        let key = KeyPair::generate().unwrap();
        // The certificates of two authorities of one name would seem to be tampered with.
        let name = format!("authority {:x?}", &key.public_key_raw()[1..9]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Returns the authority's own certificate, in PEM format.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns the files of a server with this name, a host or an address.
    pub(crate) fn server(&self, name: &str) -> TlsFiles {
        self.files(&self.issue(params(name)))
    }

    /// Like [`server`](Self::server), with a certificate that has expired.
    pub(crate) fn expired_server(&self, name: &str) -> TlsFiles {
        let mut params = params(name);
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.files(&self.issue(params))
    }

    pub(crate) fn client(&self) -> Certificate {
        self.issue(params("client"))
    }

    fn issue(&self, params: CertificateParams) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Certificate { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn files(&self, server: &Certificate) -> TlsFiles {
        TlsFiles::new(&server.certificate, &server.key, &self.pem())
    }
}

fn params(name: &str) -> CertificateParams {
    CertificateParams::new([name.to_owned()]).unwrap()
}

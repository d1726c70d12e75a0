//! TLS: what cannot work, what is not safe, and what rustls needs.

use std::net::IpAddr;

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use redis::{Client, TlsCertificates};
use redis::{ConnectionAddr, ConnectionInfo};

use crate::ConfigError;

/// The features of this crate. The application may enable others of `redis` directly.
#[derive(Clone, Copy)]
struct Features {
    rustls: bool,
    native_tls: bool,
    webpki_roots: bool,
}

const FEATURES: Features = Features {
    rustls: cfg!(feature = "tls-rustls"),
    native_tls: cfg!(feature = "tls-native-tls"),
    webpki_roots: cfg!(feature = "tls-rustls-webpki-roots"),
};

/// Rejects TLS settings with which no connection could be made.
pub(super) fn check(server: &ConnectionInfo) -> Result<(), ConfigError> {
    check_with(FEATURES, server.addr())
}

/// Rejects a name that no certificate is verified against, or that none could have.
pub(super) fn check_name(server: &ConnectionInfo, name: &str) -> Result<(), ConfigError> {
    let is_label = |label: &str| {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..64).contains(&label.len()) && label.bytes().all(is_valid)
    };
    let error = match server.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            "a TLS name has no effect with `#insecure`, which verifies no certificate: remove one of them"
        }
        ConnectionAddr::TcpTls { .. } => {
            if name.parse::<IpAddr>().is_ok() || name.split('.').all(is_label) {
                return Ok(());
            }
            "invalid TLS name: it must be a host name such as `redis.internal`, or an IP address, without a port"
        }
        _ => "a TLS name needs TLS: use rediss://",
    };
    Err(ConfigError::new(error))
}

/// Sets the certificates of a server that is reached through TLS.
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(super) fn with_certificates(
    server: ConnectionInfo,
    certificates: TlsCertificates,
) -> Result<ConnectionInfo, ConfigError> {
    let invalid = |error| ConfigError::new(format!("invalid TLS certificates: {error}"));
    let client = Client::build_with_tls(server, certificates).map_err(invalid)?;
    Ok(client.get_connection_info().clone())
}

/// Logs that the server's certificate is not verified.
pub(crate) fn warn_if_insecure(server: &ConnectionInfo) {
    if let ConnectionAddr::TcpTls { insecure: true, .. } = server.addr() {
        tracing::warn!(
            target: "fleetlimit",
            event = "certificates_not_verified",
            server = %server.addr(),
            "TLS certificates are not verified (`#insecure`): the connection is encrypted, but \
             anyone on the network path can pose as the server"
        );
    }
}

/// Installs a provider of cryptography, because rustls panics if none is installed and the features of
/// several are enabled. It does so as late as possible: the application's own choice comes first.
#[cfg_attr(not(feature = "tls-rustls"), allow(unused_variables))]
pub(super) fn ensure_crypto_provider(address: &ConnectionAddr) {
    #[cfg(feature = "tls-rustls")]
    {
        use rustls::crypto::{CryptoProvider, ring};

        if matches!(address, ConnectionAddr::TcpTls { .. })
            && CryptoProvider::get_default().is_none()
        {
            // An error means that another thread was faster, which is as good.
            let _ = ring::default_provider().install_default();
        }
    }
}

fn check_with(features: Features, address: &ConnectionAddr) -> Result<(), ConfigError> {
    let ConnectionAddr::TcpTls { insecure, tls_params, .. } = address else { return Ok(()) };
    let Features { rustls, native_tls, webpki_roots } = features;
    let error = if !address.is_supported() {
        "rediss:// needs the feature `tls-rustls` or `tls-native-tls`"
    } else if *insecure && !rustls && !native_tls {
        "rediss:// with #insecure needs the feature `tls-rustls` or `tls-native-tls` of fleetlimit"
    } else if rustls && native_tls && !webpki_roots && !insecure && tls_params.is_none() {
        "rediss:// would trust no certificate: with the features `tls-rustls` and \
         `tls-native-tls` together, redis uses rustls without the system's certificates; disable \
         one of them, or enable `tls-rustls-webpki-roots`"
    } else {
        return Ok(());
    };
    Err(ConfigError::new(error))
}

#[cfg(test)]
mod tests {
    use redis::{ConnectionAddr, IntoConnectionInfo};

    use super::{Features, check_with};

    const NONE: Features = Features { rustls: false, native_tls: false, webpki_roots: false };
    const RUSTLS: Features = Features { rustls: true, ..NONE };
    const NATIVE_TLS: Features = Features { native_tls: true, ..NONE };
    const BOTH: Features = Features { native_tls: true, ..RUSTLS };

    fn tls(insecure: bool) -> ConnectionAddr {
        ConnectionAddr::TcpTls { host: "redis".into(), port: 6379, insecure, tls_params: None }
    }

    fn error(features: Features, insecure: bool) -> Option<String> {
        check_with(features, &tls(insecure)).err().map(|error| error.to_string())
    }

    #[test]
    fn a_server_without_tls_needs_no_feature() {
        let server = "redis://redis".into_connection_info().unwrap();
        for features in [NONE, RUSTLS, NATIVE_TLS, BOTH] {
            assert!(check_with(features, server.addr()).is_ok());
        }
    }

    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
    #[test]
    fn tls_without_its_feature_is_an_error() {
        assert!(error(NONE, false).unwrap().contains("needs the feature `tls-rustls`"));
        // `redis` itself rejects the URL, but not an address that was built otherwise.
        let server = "redis://redis".into_connection_info().unwrap();
        let addresses = [false, true].map(|insecure| server.clone().set_addr(tls(insecure)));
        let errors = addresses.map(|address| crate::RedisStore::open(address).unwrap_err());
        let urls = ["rediss://redis", "rediss://redis/#insecure"];
        let of_urls = urls.map(|url| crate::RedisStore::open(url).unwrap_err());
        for error in errors.iter().chain(&of_urls).map(ToString::to_string) {
            assert!(error.contains("needs the feature `tls-rustls`"), "{error}");
        }
    }

    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    #[test]
    fn tls_that_could_not_work_is_an_error_and_all_else_is_not() {
        assert!(error(NONE, true).unwrap().contains("#insecure needs"));
        assert!(error(BOTH, false).unwrap().contains("would trust no certificate"));
        for (features, insecure) in [
            (RUSTLS, false),
            (RUSTLS, true),
            (NATIVE_TLS, false),
            (NATIVE_TLS, true),
            (BOTH, true),
            (Features { webpki_roots: true, ..BOTH }, false),
        ] {
            assert_eq!(error(features, insecure), None);
        }
    }
}

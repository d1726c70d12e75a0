//! Connections to the control plane.

use std::time::Duration;
use std::{fs, io};

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::secret::{Secret, excerpt};
use crate::settings::{ClientTls, Xds};

/// The time without any byte after which the system asks the peer whether it is still there. Pings of HTTP/2 would be
/// more usual, but servers in Go close connections that send them more often than every five minutes.
const TCP_KEEPALIVE: Duration = Duration::from_secs(20);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE_RETRIES: u32 = 3;

/// The bounds of pauses between attempts to connect.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Checks the settings as far as that is possible without connecting.
///
/// # Errors
///
/// The name of the setting that is wrong, and why.
pub(crate) fn check(settings: &Xds) -> Result<(), (&'static str, String)> {
    let is_address = settings.server.rsplit_once(':').is_some_and(|(host, port)| {
        // A URL may have a password, and this is shown.
        let is_host = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
        is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !is_address {
        let server = excerpt(&settings.server);
        let message = format!("`{server}` is not a host with a port, such as envoy-gateway:18001");
        return Err(("xds.server", message));
    }
    metadata(settings).map_err(|error| ("xds.headers", error))?;
    if settings.max_message_bytes == 0 {
        return Err(("xds.max_message_bytes", "must be more than 0".to_owned()));
    }
    let is_pause = |pause| (MIN_PAUSE..=MAX_PAUSE).contains(&pause);
    if !is_pause(settings.retry.first) || !is_pause(settings.retry.longest) {
        return Err(("xds.retry", "`first` and `longest` must be 10ms to 1h".to_owned()));
    }
    endpoint(settings).map(|_| ()).map_err(|error| ("xds.server", error.to_string()))
}

/// The headers of requests.
pub(crate) fn metadata(settings: &Xds) -> Result<MetadataMap, String> {
    let mut metadata = MetadataMap::new();
    for (name, value) in &settings.headers {
        let key = AsciiMetadataKey::from_bytes(name.to_lowercase().as_bytes());
        let key = key.map_err(|_| format!("`{}` is not the name of a header", excerpt(name)))?;
        let value = AsciiMetadataValue::try_from(Secret::expose(value));
        let message = || {
            format!("the value of `{}` has a character that a header cannot carry", excerpt(name))
        };
        metadata.insert(key, value.map_err(|_| message())?);
    }
    Ok(metadata)
}

/// Reads the certificates, which may have been renewed since the last connection.
pub(crate) fn endpoint(
    settings: &Xds,
) -> Result<Endpoint, Box<dyn std::error::Error + Send + Sync>> {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", settings.server))?
        .tcp_keepalive(Some(TCP_KEEPALIVE))
        .tcp_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL))
        .tcp_keepalive_retries(Some(TCP_KEEPALIVE_RETRIES))
        .tcp_nodelay(true);
    Ok(match &settings.tls {
        Some(files) => endpoint.tls_config(tls(files)?)?,
        None => endpoint,
    })
}

fn tls(files: &ClientTls) -> io::Result<ClientTlsConfig> {
    let mut tls = ClientTlsConfig::new();
    tls = match &files.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(fs::read(ca)?)),
        None => tls.with_webpki_roots(),
    };
    if let Some(client) = &files.client {
        let (certificate, key) = (fs::read(&client.certificate)?, fs::read(&client.key)?);
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Ok(match &files.name {
        Some(name) => tls.domain_name(name),
        None => tls,
    })
}

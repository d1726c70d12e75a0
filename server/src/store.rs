//! The store of the settings.

use std::error::Error;

use fleetlimit::{AnyStore, MemoryStore, RedisStore};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use crate::secret::RedisUrl;
use crate::settings::{Sentinel, StoreSettings};

/// # Errors
///
/// If the URLs do not fit together, or do not fit the certificates.
pub(crate) fn open(
    settings: &StoreSettings,
    tls: Option<&TlsCertificates>,
) -> Result<AnyStore, Box<dyn Error>> {
    let StoreSettings { redis, cluster, sentinel, max_keys, .. } = settings;
    let servers =
        |urls: &[RedisUrl]| urls.iter().map(|url| server(url, tls)).collect::<Result<Vec<_>, _>>();
    let store = if let Some(Sentinel { urls, service }) = sentinel {
        RedisStore::open_sentinel(servers(urls)?, service.as_str())?
    } else if !cluster.is_empty() {
        RedisStore::open_cluster(servers(cluster)?)?
    } else if let Some(url) = redis {
        RedisStore::open(server(url, tls)?)?
    } else {
        let store = max_keys.map_or_else(MemoryStore::new, MemoryStore::with_max_keys);
        return Ok(store.into());
    };
    let store = match &settings.key_prefix {
        Some(prefix) => store.key_prefix(prefix.as_str()),
        None => store,
    };
    let store = match settings.connections {
        Some(connections) => store.connections(connections),
        None => store,
    };
    let store = match settings.instances {
        Some(instances) => store.instances(instances),
        None => store,
    };
    Ok(match max_keys {
        Some(keys) => store.local_keys(*keys).into(),
        None => store.into(),
    })
}

/// Store name for logs and status.
pub(crate) fn kind(store: &AnyStore) -> &'static str {
    if matches!(store, AnyStore::Memory(_)) { "memory" } else { "redis" }
}

fn server(url: &RedisUrl, tls: Option<&TlsCertificates>) -> Result<ConnectionInfo, Box<dyn Error>> {
    let info = url.expose().into_connection_info()?;
    let Some(tls) = tls else { return Ok(info) };
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } if tls.root_cert.is_some() => {
            Err(format!("store.tls.ca: remove `#insecure` from {url}, which trusts everyone")
                .into())
        }
        ConnectionAddr::TcpTls { .. } => {
            Ok(Client::build_with_tls(info, tls.clone())?.get_connection_info().clone())
        }
        _ => Err(format!("store.tls: {url} is not encrypted: use rediss://").into()),
    }
}

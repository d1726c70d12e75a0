//! The store of the settings.

use std::error::Error;

use fleetlimit::{BlockList, Limiter, LimiterBuilder, MemoryStore, Policy, RedisStore};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use crate::secret::RedisUrl;
use crate::settings::{Sentinel, StoreSettings};

#[derive(Clone, Debug)]
pub(crate) enum AnyStore {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl AnyStore {
    /// # Errors
    ///
    /// If the URLs do not fit together, or do not fit the certificates.
    pub(crate) fn open(
        settings: &StoreSettings,
        tls: Option<&TlsCertificates>,
    ) -> Result<Self, Box<dyn Error>> {
        let StoreSettings { redis, cluster, sentinel, max_keys, .. } = settings;
        let servers = |urls: &[RedisUrl]| {
            urls.iter().map(|url| server(url, tls)).collect::<Result<Vec<_>, _>>()
        };
        let store = if let Some(Sentinel { urls, service }) = sentinel {
            RedisStore::open_sentinel(servers(urls)?, service.as_str())?
        } else if !cluster.is_empty() {
            RedisStore::open_cluster(servers(cluster)?)?
        } else if let Some(url) = redis {
            RedisStore::open(server(url, tls)?)?
        } else {
            return Ok(Self::Memory(match max_keys {
                None => MemoryStore::new(),
                Some(keys) => MemoryStore::with_max_keys(*keys),
            }));
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
        Ok(Self::Redis(match max_keys {
            Some(keys) => store.local_keys(*keys),
            None => store,
        }))
    }

    pub(crate) fn block_list(&self) -> BlockList {
        match self {
            Self::Memory(store) => BlockList::new(store),
            Self::Redis(store) => BlockList::new(store),
        }
    }

    pub(crate) fn limiter(&self, policy: Policy) -> LimiterBuilder {
        match self {
            Self::Memory(store) => Limiter::builder(store.clone(), policy),
            Self::Redis(store) => Limiter::builder(store.clone(), policy),
        }
    }

    /// Store name for logs and status.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis(_) => "redis",
        }
    }

    /// Deregisters this instance, so that the others take over its share, and charges what it took while
    /// Redis failed.
    pub(crate) async fn shutdown(&self) {
        if let Self::Redis(store) = self {
            store.shutdown().await;
        }
    }
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

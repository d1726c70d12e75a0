//! The store of the settings.

use std::error::Error;
use std::path::Path;
use std::{fs, io};

use fleetlimit::{
    AnyStore, Limiter, MemoryStore, Quota, RedisCredentials, RedisServer, RedisStore,
    SentinelService,
};
use redis::{ConnectionAddr, IntoConnectionInfo, RedisError, TlsCertificates};
use tokio::task::spawn_blocking;

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
    let server = |url: &RedisUrl| server(url, settings, tls);
    let store = if let Some(Sentinel { urls, service, primary, password_file }) = sentinel {
        let service = SentinelService::new(service.as_str());
        let sentinel = |url| sentinel_server(url, password_file.as_deref(), tls);
        RedisStore::open_sentinel(
            urls.iter().map(sentinel).collect::<Result<Vec<_>, _>>()?,
            match primary.as_ref().or(urls.first()) {
                Some(url) => service.primary(server(url)?),
                None => service,
            },
        )?
    } else if !cluster.is_empty() {
        RedisStore::open_cluster(cluster.iter().map(server).collect::<Result<Vec<_>, _>>()?)?
    } else if let Some(url) = redis {
        RedisStore::open(server(url)?)?
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
    let store = match settings.max_connection_age {
        Some(age) => store.max_connection_age(age),
        None => store,
    };
    let store = match settings.keepalive {
        Some(idle) => store.keepalive(idle),
        None => store,
    };
    let store = if settings.one_key_per_call { store.one_key_per_call() } else { store };
    let store = match settings.instances {
        Some(instances) => store.instances(instances),
        None => store,
    };
    Ok(match max_keys {
        Some(keys) => store.local_keys(*keys).into(),
        None => store.into(),
    })
}

/// Only a limiter checks the prefix of its keys. This one has a store of its own: during a reload, a limiter on the
/// new store would make it the second one of this process for the same keys, which is logged.
///
/// # Errors
///
/// If keys cannot start with it.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), Box<dyn Error>> {
    let store = RedisStore::open("redis://localhost")?.key_prefix(prefix);
    Limiter::new(store, Quota::per_second(1))?;
    Ok(())
}

/// Store name for logs and status.
pub(crate) fn kind(store: &AnyStore) -> &'static str {
    if matches!(store, AnyStore::Memory(_)) { "memory" } else { "redis" }
}

/// A server with buckets: its URL with all settings of the file.
fn server(
    url: &RedisUrl,
    settings: &StoreSettings,
    tls: Option<&TlsCertificates>,
) -> Result<RedisServer, Box<dyn Error>> {
    let sentinels = settings.sentinel.as_ref().filter(|sentinel| sentinel.primary.is_none());
    if sentinels.is_some() && tls.is_some() && !is_encrypted(url)? {
        return Err(format!(
            "store.tls: set `store.sentinel.primary` to a rediss:// URL, because the sentinel {url} is not \
             encrypted, and the primary is like it"
        )
        .into());
    }
    let mut server = encrypted(url, tls)?;
    if let Some(name) = settings.tls.as_ref().and_then(|tls| tls.name.as_deref()) {
        server = server.tls_name(name);
    }
    match &settings.password_file {
        Some(file) => {
            let advice = match sentinels.is_some() {
                true => {
                    "set `store.sentinel.primary`, whose password is in the file, because the sentinels have one of their own:"
                }
                false => "remove the password from",
            };
            with_password(server, url, file, &format!("store.password_file: {advice}"))
        }
        // The primary is like the first sentinel.
        None => match sentinels.and_then(|sentinels| sentinels.password_file.as_deref()) {
            Some(file) => with_password_of_sentinels(server, url, file),
            None => Ok(server),
        },
    }
}

fn with_password_of_sentinels(
    server: RedisServer,
    url: &RedisUrl,
    file: &Path,
) -> Result<RedisServer, Box<dyn Error>> {
    with_password(server, url, file, "store.sentinel.password_file: remove the password from")
}

/// The server of this URL with the password of a file. `conflict` precedes the URL in the error if that has a
/// password, too.
fn with_password(
    server: RedisServer,
    url: &RedisUrl,
    file: &Path,
    conflict: &str,
) -> Result<RedisServer, Box<dyn Error>> {
    let info = url.expose().into_connection_info()?;
    if info.redis_settings().password().is_some() {
        return Err(format!("{conflict} {url}").into());
    }
    let user = info.redis_settings().username().map(str::to_owned);
    let file = file.to_owned();
    Ok(server.credentials(move || {
        let (user, file) = (user.clone(), file.clone());
        async move {
            let password = spawn_blocking(move || password(&file)).await??;
            Ok::<_, io::Error>(match user {
                Some(user) => RedisCredentials::new(user, password),
                None => RedisCredentials::password(password),
            })
        }
    }))
}

/// Reads the password of `store.password_file` or `store.sentinel.password_file`.
pub(crate) fn password(file: &Path) -> io::Result<String> {
    let mut text = fs::read_to_string(file)?;
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    if text.is_empty() {
        return Err(io::Error::other("the file is empty"));
    }
    Ok(text)
}

/// A sentinel, which need not be encrypted as the servers with buckets are.
fn sentinel_server(
    url: &RedisUrl,
    password_file: Option<&Path>,
    tls: Option<&TlsCertificates>,
) -> Result<RedisServer, Box<dyn Error>> {
    let server = encrypted(url, tls.filter(|_| is_encrypted(url).unwrap_or(true)))?;
    match password_file {
        Some(file) => with_password_of_sentinels(server, url, file),
        None => Ok(server),
    }
}

fn is_encrypted(url: &RedisUrl) -> Result<bool, RedisError> {
    let info = url.expose().into_connection_info()?;
    Ok(matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
}

/// A server of any kind with these certificates.
fn encrypted(url: &RedisUrl, tls: Option<&TlsCertificates>) -> Result<RedisServer, Box<dyn Error>> {
    let server = RedisServer::from(url.expose());
    let Some(tls) = tls else { return Ok(server) };
    match url.expose().into_connection_info()?.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } if tls.root_cert.is_some() => {
            Err(format!("store.tls.ca: remove `#insecure` from {url}, which trusts everyone")
                .into())
        }
        ConnectionAddr::TcpTls { .. } => Ok(server.certificates(tls.clone())),
        _ => Err(format!("store.tls: {url} is not encrypted: use rediss://").into()),
    }
}

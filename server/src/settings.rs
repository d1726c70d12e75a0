//! The settings file: how the service runs, and what it limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_saphyr::Spanned;
use tollgate::Limiter;

use crate::range::Range;

/// Everything in the file. A setting that is left out has the value of `Default`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    #[serde(deserialize_with = "or_default")]
    pub(crate) listen: Listen,
    #[serde(deserialize_with = "or_default")]
    pub(crate) store: StoreSettings,
    #[serde(deserialize_with = "or_default")]
    pub(crate) checks: Checks,
    #[serde(deserialize_with = "or_default")]
    pub(crate) limits: Limits,
    #[serde(deserialize_with = "or_default")]
    pub(crate) shutdown: Shutdown,
    pub(crate) tls: Option<Tls>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) admin: Admin,
    #[serde(deserialize_with = "or_default")]
    pub(crate) auth: Auth,
    /// Policies of this crate by name, each with its quotas as text.
    pub(crate) policies: IndexMap<Spanned<String>, IndexMap<Spanned<String>, Spanned<String>>>,
    /// Files in the format of envoyproxy/ratelimit, or directories of them, relative to this file.
    pub(crate) domains: Vec<Spanned<PathBuf>>,
    /// Keys and addresses that are always allowed and consume nothing.
    pub(crate) allow: Vec<String>,
    /// Keys and addresses that are always denied.
    pub(crate) deny: Vec<String>,
}

/// A section of which all lines are comments has the defaults, too.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    section: D,
) -> Result<T, D::Error> {
    Option::deserialize(section).map(Option::unwrap_or_default)
}

impl Settings {
    /// What is wrong with them, apart from the policies.
    pub(crate) fn errors(&self) -> Vec<String> {
        let Self { store, checks, admin, listen, .. } = self;
        let servers = [store.redis.is_some(), !store.cluster.is_empty(), store.sentinel.is_some()];
        let mut errors = Vec::new();
        if servers.iter().filter(|is_given| **is_given).count() > 1 {
            errors.push("store: give only one of `redis`, `cluster` and `sentinel`".to_owned());
        }
        if checks.timeout.is_zero() {
            errors.push("checks.timeout: no check can be decided in no time".to_owned());
        }
        if admin.token.is_none() && !listen.admin.ip().is_loopback() {
            errors.push(format!(
                "admin.token is missing: others can reach {}. Set it, or listen on 127.0.0.1",
                listen.admin
            ));
        }
        if admin.token.as_ref().is_some_and(String::is_empty) {
            errors.push("admin.token is empty".to_owned());
        }
        if self.policies.is_empty() && self.domains.is_empty() {
            errors.push(
                "there are neither `policies` nor `domains`, so nothing is limited".to_owned(),
            );
        }
        let Limits { request_timeout, idle_timeout, request_bytes, descriptors, .. } = &self.limits;
        let has_no_time = request_timeout.is_zero() || idle_timeout.is_zero();
        if has_no_time || *request_bytes == 0 || *descriptors == 0 {
            let message = "limits: with a `request_timeout`, `idle_timeout`, `request_bytes` or \
                           `descriptors` of 0, no request can be answered";
            errors.push(message.to_owned());
        }
        errors
    }

    /// The settings that are not those of the start, and that a reload does not change.
    pub(crate) fn need_restart(&self, started_with: &Self) -> Vec<&'static str> {
        let limits = Limits { descriptors: started_with.limits.descriptors, ..self.limits.clone() };
        let changed = [
            ("listen", self.listen != started_with.listen),
            ("store", self.store != started_with.store),
            ("limits", limits != started_with.limits),
            ("shutdown", self.shutdown != started_with.shutdown),
            ("tls", self.tls != started_with.tls),
            ("admin", self.admin != started_with.admin),
        ];
        changed.into_iter().filter(|(_, has_changed)| *has_changed).map(|(name, _)| name).collect()
    }
}

/// The addresses of the listeners. Port 0 picks a free port.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Listen {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Default for Listen {
    /// The ports of envoyproxy/ratelimit.
    fn default() -> Self {
        let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        Self {
            grpc: (any, 8081).into(),
            http: (any, 8080).into(),
            admin: (Ipv4Addr::LOCALHOST, 6070).into(),
        }
    }
}

/// Where rate limit state is stored: in memory by default.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSettings {
    /// The URL of a Redis server.
    pub(crate) redis: Option<String>,
    /// The URLs of some nodes of a Redis cluster.
    pub(crate) cluster: Vec<String>,
    pub(crate) sentinel: Option<Sentinel>,
    pub(crate) key_prefix: Option<String>,
    /// Connections to each server.
    pub(crate) connections: Option<NonZeroUsize>,
    /// Number of instances to assume until Redis has been reached.
    pub(crate) instances: Option<NonZeroUsize>,
    /// Most keys kept in memory (with Redis: only during an outage).
    pub(crate) max_keys: Option<NonZeroUsize>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    /// The URLs of the sentinels.
    pub(crate) urls: Vec<String>,
    /// The name of the primary.
    pub(crate) service: String,
}

/// How limits are checked.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Checks {
    #[serde(with = "humantime_serde")]
    pub(crate) timeout: Duration,
    pub(crate) failure_mode: FailureMode,
    #[serde(with = "humantime_serde")]
    pub(crate) cache_denials: Duration,
}

impl Checks {
    pub(crate) fn are_of(&self, limiter: &Limiter) -> bool {
        limiter.timeout() == self.timeout
            && limiter.failure_mode() == self.failure_mode.into()
            && limiter.cache_denials() == self.cache_denials
    }
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(50),
            failure_mode: FailureMode::Local,
            cache_denials: Duration::from_secs(1),
        }
    }
}

/// What happens to checks while the store fails.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureMode {
    Local,
    Open,
    Closed,
}

impl From<FailureMode> for tollgate::FailureMode {
    fn from(mode: FailureMode) -> Self {
        match mode {
            FailureMode::Local => Self::Local,
            FailureMode::Open => Self::Open,
            FailureMode::Closed => Self::Closed,
        }
    }
}

/// Resource limits per client or listener.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Connections per port. More wait to be accepted.
    pub(crate) connections: NonZeroUsize,
    /// Concurrent requests of an HTTP/2 connection.
    pub(crate) streams: NonZeroU32,
    pub(crate) header_bytes: u32,
    /// The size of a request's body.
    pub(crate) request_bytes: usize,
    /// Descriptors in a request.
    pub(crate) descriptors: usize,
    /// From a request's header to its response.
    #[serde(with = "humantime_serde")]
    pub(crate) request_timeout: Duration,
    /// A connection on which no request begins for this long is closed, within twice this time.
    #[serde(with = "humantime_serde")]
    pub(crate) idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: NonZeroUsize::new(4_096).unwrap_or(NonZeroUsize::MIN),
            streams: NonZeroU32::new(1_024).unwrap_or(NonZeroU32::MIN),
            header_bytes: 16 * 1_024,
            request_bytes: 64 * 1_024,
            descriptors: 64,
            request_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Shutdown {
    /// How long to keep accepting connections after `/readyz` starts to fail.
    #[serde(with = "humantime_serde")]
    pub(crate) delay: Duration,
    /// How long to wait for requests in flight.
    #[serde(with = "humantime_serde")]
    pub(crate) timeout: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { delay: Duration::ZERO, timeout: Duration::from_secs(10) }
    }
}

/// PEM files, for gRPC and HTTP.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Admin {
    /// What clients of the admin API send as `Authorization: Bearer`. Required unless it listens on
    /// a loopback address.
    pub(crate) token: Option<String>,
}

/// What `/auth` checks, unless the URL says otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Auth {
    pub(crate) policy: Option<Spanned<String>>,
    /// The header with the key. The client's IP address if there is none.
    pub(crate) key_header: Option<KeyHeader>,
    /// The addresses of the gateways, and of proxies before them, whose `X-Forwarded-For` counts.
    pub(crate) trusted_proxies: Vec<Range>,
}

/// The name of a header with keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct KeyHeader(pub(crate) HeaderName);

impl TryFrom<String> for KeyHeader {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let invalid = |_| format!("`{name}` is not the name of a header");
        HeaderName::try_from(&name).map(Self).map_err(invalid)
    }
}

impl Default for Auth {
    fn default() -> Self {
        let loopback = ["127.0.0.0/8", "::1"].iter().filter_map(|range| range.parse().ok());
        Self { policy: None, key_header: None, trusted_proxies: loopback.collect() }
    }
}

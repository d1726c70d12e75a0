//! The settings file: how the service runs, and what it limits.
//!
//! A new setting is a field with its default here, and its range in `config/validation.rs`, or in
//! `config/reader.rs` if it depends on files. One that can be overridden is in `config/overrides.rs`, too.
//! `restore` names the sections that a reload does not change, and the settings of these that it changes.
//! `docs/server/settings.md` lists all settings, and those of `resource_limits` that follow a reload a second time;
//! `tests/it/admin.rs` has the JSON of all of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use fleetlimit::Limiter;
use http::HeaderName;
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_saphyr::Spanned;

use crate::lists::Entry;
use crate::range::Range;
use crate::secret::{RedisUrl, Secret, excerpt};

/// Everything in the file. A setting that is left out has the value of `Default`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    #[serde(deserialize_with = "or_default")]
    pub(crate) listen: Listen,
    #[serde(deserialize_with = "or_default")]
    pub(crate) store: StoreSettings,
    #[serde(deserialize_with = "or_default")]
    pub(crate) checks: Checks,
    #[serde(deserialize_with = "or_default")]
    pub(crate) resource_limits: ResourceLimits,
    #[serde(deserialize_with = "or_default")]
    pub(crate) shutdown: Shutdown,
    pub(crate) tls: Option<ListenerTls>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) admin: Admin,
    #[serde(deserialize_with = "or_default")]
    pub(crate) holds: Holds,
    #[serde(deserialize_with = "or_default")]
    pub(crate) auth: Auth,
    #[serde(deserialize_with = "or_default")]
    pub(crate) http: Http,
    #[serde(deserialize_with = "or_default")]
    pub(crate) envoy: Envoy,
    pub(crate) xds: Option<Xds>,
    pub(crate) otlp: Option<Otlp>,
    /// Policies of this crate by name, each with its quotas as text.
    pub(crate) policies: IndexMap<Spanned<String>, IndexMap<Spanned<String>, Spanned<String>>>,
    /// The policies that only count what they would deny.
    pub(crate) shadow: Vec<Spanned<String>>,
    /// Files in the format of envoyproxy/ratelimit, or directories of them, relative to this file.
    pub(crate) domains: Vec<Spanned<PathBuf>>,
    /// Keys and addresses that are always allowed and consume nothing.
    pub(crate) allow: Vec<Entry>,
    /// Keys and addresses that are always denied.
    pub(crate) deny: Vec<Entry>,
}

/// A section of which all lines are comments has the defaults, too.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    section: D,
) -> Result<T, D::Error> {
    Option::deserialize(section).map(Option::unwrap_or_default)
}

impl Settings {
    /// Returns true if a check ends before its request.
    pub(crate) fn failure_mode_answers(&self) -> bool {
        self.checks.timeout < self.resource_limits.request_timeout
    }

    /// Puts the settings of the start in place of those that a reload does not change, and returns the
    /// names of the sections that differ.
    pub(crate) fn restore(&mut self, started_with: &Self) -> Vec<&'static str> {
        fn set<T: PartialEq>(setting: &mut T, started_with: T) -> bool {
            let differs = *setting != started_with;
            *setting = started_with;
            differs
        }
        let Self {
            listen,
            store,
            resource_limits,
            shutdown,
            tls,
            admin,
            holds,
            http,
            xds,
            otlp,
            ..
        } = started_with.clone();
        let ResourceLimits { descriptors, entries, .. } = self.resource_limits;
        let restored = [
            ("listen", set(&mut self.listen, listen)),
            ("store", set(&mut self.store, store)),
            (
                "resource_limits",
                set(
                    &mut self.resource_limits,
                    ResourceLimits { descriptors, entries, ..resource_limits },
                ),
            ),
            ("shutdown", set(&mut self.shutdown, shutdown)),
            ("tls", set(&mut self.tls, tls)),
            ("admin", set(&mut self.admin, admin)),
            ("holds", set(&mut self.holds, holds)),
            ("http", set(&mut self.http, http)),
            ("xds", set(&mut self.xds, xds)),
            ("otlp", set(&mut self.otlp, otlp)),
        ];
        restored.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// The addresses of the listeners. Port 0 picks a free port.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Listen {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// The address of a port that has only metrics.
    pub(crate) metrics: Option<SocketAddr>,
    /// The path on that port.
    pub(crate) metrics_path: String,
}

impl Default for Listen {
    /// The ports of envoyproxy/ratelimit.
    fn default() -> Self {
        let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        Self {
            grpc: (any, 8081).into(),
            http: (any, 8080).into(),
            admin: (Ipv4Addr::LOCALHOST, 6070).into(),
            metrics: None,
            metrics_path: "/metrics".to_owned(),
        }
    }
}

/// The store of the buckets: in memory by default.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSettings {
    /// The URL of a Redis server.
    pub(crate) redis: Option<RedisUrl>,
    /// The URLs of some nodes of a Redis cluster.
    pub(crate) cluster: Vec<RedisUrl>,
    pub(crate) sentinel: Option<Sentinel>,
    pub(crate) tls: Option<ClientTls>,
    /// A file with the password of the servers with buckets, which is read for each connection.
    pub(crate) password_file: Option<PathBuf>,
    /// The age before which a connection is replaced.
    #[serde(with = "humantime_serde")]
    pub(crate) max_connection_age: Option<Duration>,
    /// The time after which an idle connection gets a ping.
    #[serde(with = "humantime_serde")]
    pub(crate) keepalive: Option<Duration>,
    pub(crate) key_prefix: Option<String>,
    /// Connections to each server.
    pub(crate) connections: Option<NonZeroUsize>,
    /// True if a proxy routes scripts by their first key.
    pub(crate) one_key_per_call: bool,
    /// The number of instances to assume until Redis has been reached.
    pub(crate) instances: Option<NonZeroUsize>,
    /// The most keys in memory. With Redis, these are the keys of an outage.
    pub(crate) max_keys: Option<NonZeroUsize>,
}

impl StoreSettings {
    /// The setting that says where the servers are.
    pub(crate) fn servers(&self) -> &'static str {
        if self.sentinel.is_some() {
            "store.sentinel"
        } else if !self.cluster.is_empty() {
            "store.cluster"
        } else {
            "store.redis"
        }
    }

    pub(crate) fn is_redis(&self) -> bool {
        self.redis.is_some() || !self.cluster.is_empty() || self.sentinel.is_some()
    }

    /// The settings in the file that matter only with Redis, apart from those of its servers.
    pub(crate) fn of_redis(&self) -> impl Iterator<Item = &'static str> {
        let settings = [
            ("store.tls", self.tls.is_some()),
            ("store.password_file", self.password_file.is_some()),
            ("store.max_connection_age", self.max_connection_age.is_some()),
            ("store.keepalive", self.keepalive.is_some()),
            ("store.key_prefix", self.key_prefix.is_some()),
            ("store.connections", self.connections.is_some()),
            ("store.one_key_per_call", self.one_key_per_call),
            ("store.instances", self.instances.is_some()),
        ];
        settings.into_iter().filter(|(_, is_set)| *is_set).map(|(setting, _)| setting)
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    /// The URLs of the sentinels.
    pub(crate) urls: Vec<RedisUrl>,
    /// The name of the primary.
    pub(crate) service: String,
    /// A URL with the user, password and database of the primary, if they differ from the sentinels'.
    pub(crate) primary: Option<RedisUrl>,
    /// A file with the password of the sentinels, which is read for each connection.
    pub(crate) password_file: Option<PathBuf>,
}

/// PEM files for connections to other servers: to Redis with `rediss://`, and to the control plane.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClientTls {
    /// The authorities that sign the certificates of the servers, instead of the public ones.
    pub(crate) ca: Option<PathBuf>,
    /// The certificate that this process shows to the servers.
    pub(crate) client: Option<Tls>,
    /// The name in the certificates of the servers, instead of their host.
    pub(crate) name: Option<String>,
    /// A digest of the files, so that other contents are another setting. Only for Redis: the others are read for each
    /// connection.
    #[serde(skip)]
    pub(crate) digest: Vec<u8>,
}

/// The settings of checks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Checks {
    #[serde(with = "humantime_serde")]
    pub(crate) timeout: Duration,
    pub(crate) failure_mode: FailureMode,
    #[serde(with = "humantime_serde")]
    pub(crate) cache_denials: Duration,
    /// The part of a limit above which what is used counts as near the limit.
    pub(crate) near_limit_ratio: f64,
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
            near_limit_ratio: 0.8,
        }
    }
}

/// The way in which checks are decided while the store fails.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureMode {
    Local,
    Open,
    Closed,
}

impl From<FailureMode> for fleetlimit::FailureMode {
    fn from(mode: FailureMode) -> Self {
        match mode {
            FailureMode::Local => Self::Local,
            FailureMode::Open => Self::Open,
            FailureMode::Closed => Self::Closed,
        }
    }
}

/// Resource limits per client or listener.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ResourceLimits {
    /// Connections per port. More wait to be accepted.
    pub(crate) connections: NonZeroUsize,
    /// Connections per port of one client address. Half of `connections` if there is none.
    connections_per_address: Option<NonZeroUsize>,
    /// Concurrent requests of an HTTP/2 connection.
    pub(crate) streams: NonZeroU32,
    pub(crate) header_bytes: u32,
    /// The size of a request's body.
    pub(crate) request_bytes: usize,
    /// Descriptors in a request.
    pub(crate) descriptors: usize,
    /// Entries in a descriptor.
    pub(crate) entries: usize,
    /// The longest time from a request's header to its response.
    #[serde(with = "humantime_serde")]
    pub(crate) request_timeout: Duration,
    /// The longest time from the start of a connection to the headers of its first request. Over HTTP/1 also from the
    /// first byte of each later one to the end of its headers.
    #[serde(with = "humantime_serde")]
    pub(crate) handshake_timeout: Duration,
    /// The time after which a connection without requests is closed, which takes up to twice as long. Longer than
    /// load balancers keep a connection, or they would send requests on connections that are being closed.
    #[serde(with = "humantime_serde")]
    pub(crate) idle_timeout: Duration,
    /// The age after which a client is asked to use another connection, over gRPC only: over HTTP/1, a request can be
    /// lost when its connection ends.
    #[serde(with = "humantime_serde")]
    pub(crate) connection_age: Duration,
}

impl ResourceLimits {
    pub(crate) fn connections_per_address(&self) -> usize {
        let half = self.connections.get().div_ceil(2);
        self.connections_per_address.map_or(half, NonZeroUsize::get)
    }
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            connections: NonZeroUsize::new(4_096).unwrap_or(NonZeroUsize::MIN),
            connections_per_address: None,
            streams: NonZeroU32::new(1_024).unwrap_or(NonZeroU32::MIN),
            header_bytes: 64 * 1_024,
            request_bytes: 256 * 1_024,
            descriptors: 64,
            entries: 64,
            request_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            connection_age: Duration::from_secs(60 * 60),
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Shutdown {
    /// The time for which connections are still accepted after `/readyz` has begun to fail.
    #[serde(with = "humantime_serde")]
    pub(crate) delay: Duration,
    /// The longest wait for requests in flight.
    #[serde(with = "humantime_serde")]
    pub(crate) timeout: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { delay: Duration::ZERO, timeout: Duration::from_secs(10) }
    }
}

/// PEM files with a certificate and its key.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// TLS for clients of this service.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerTls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// A PEM file with the authorities whose clients are accepted. Without it, clients need no certificate.
    #[serde(default)]
    pub(crate) client_ca: Option<PathBuf>,
    /// A name that the certificates of clients must have.
    #[serde(default)]
    pub(crate) client_name: Option<String>,
    /// The ports with TLS. The admin port has none on a loopback address.
    #[serde(default = "all_ports")]
    pub(crate) ports: Vec<Port>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Port {
    Grpc,
    Http,
    Admin,
}

fn all_ports() -> Vec<Port> {
    vec![Port::Grpc, Port::Http, Port::Admin]
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Admin {
    /// The token that clients of the admin API send as `Authorization: Bearer`. Required unless it
    /// listens on a loopback address.
    pub(crate) token: Option<Secret>,
}

/// The settings of `/v1/hold`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Holds {
    /// The secret that signs tokens, the same for all instances. With the store in memory, a random one will do.
    pub(crate) secret: Option<Secret>,
}

/// The settings of `/v1/check` and `/v1/hold`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    /// The token that clients send as `Authorization: Bearer`. Gateways that call `/auth` need none.
    pub(crate) token: Option<Secret>,
}

/// The settings of checks over gRPC.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Envoy {
    /// True if no limit of a domain denies anything.
    pub(crate) shadow_mode: bool,
    /// True if all limits of domains are in quota mode.
    pub(crate) quota_mode: bool,
    /// True if several files or resources may have the same domain.
    pub(crate) merge_domains: bool,
    /// The `count_denied` of domains that do not say it.
    pub(crate) count_denied: Option<bool>,
    /// The headers of envoyproxy/ratelimit, in addition to `RateLimit` and `RateLimit-Policy`.
    pub(crate) headers: Option<EnvoyHeaders>,
}

/// The names of headers about the limit that is closest to being reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EnvoyHeaders {
    pub(crate) limit: HeaderOption,
    pub(crate) remaining: HeaderOption,
    pub(crate) reset: HeaderOption,
}

impl Default for EnvoyHeaders {
    fn default() -> Self {
        let [limit, remaining, reset] =
            ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]
                .map(|name| HeaderOption(HeaderName::from_static(name)));
        Self { limit, remaining, reset }
    }
}

/// The control plane that sends domains, in addition to those in files.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Xds {
    /// The host and port of the control plane.
    pub(crate) server: String,
    /// The name by which the control plane knows this server.
    pub(crate) node_id: String,
    pub(crate) node_metadata: BTreeMap<String, String>,
    /// Headers of the requests to the control plane, such as a token.
    pub(crate) headers: BTreeMap<String, Secret>,
    /// Certificates. Without this section, the connection is not encrypted.
    pub(crate) tls: Option<ClientTls>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) retry: Retry,
    /// The largest size of a response, which has all domains.
    pub(crate) max_message_bytes: usize,
    /// True if the server is ready before it has received a configuration.
    pub(crate) ready_without: bool,
}

impl Default for Xds {
    fn default() -> Self {
        Self {
            // As in envoyproxy/ratelimit.
            server: "localhost:18000".to_owned(),
            node_id: "default".to_owned(),
            node_metadata: BTreeMap::new(),
            headers: BTreeMap::new(),
            tls: None,
            retry: Retry::default(),
            // As in other clients of gRPC.
            max_message_bytes: 4 << 20,
            ready_without: false,
        }
    }
}

/// The pauses between attempts to connect, which double from the first to the longest.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Retry {
    #[serde(with = "humantime_serde")]
    pub(crate) first: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(30) }
    }
}

/// The collector of OpenTelemetry to which traces and metrics are sent.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Otlp {
    /// The URL of the collector, without the path of a signal. That of `OTEL_EXPORTER_OTLP_ENDPOINT` by default.
    pub(crate) endpoint: Option<String>,
    pub(crate) protocol: OtlpProtocol,
    pub(crate) traces: bool,
    pub(crate) metrics: bool,
    /// The part of the requests without a `traceparent` that are traced.
    pub(crate) sampling_ratio: f64,
    pub(crate) service_name: String,
    pub(crate) service_namespace: Option<String>,
    pub(crate) service_instance_id: Option<String>,
}

impl Default for Otlp {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: OtlpProtocol::Grpc,
            traces: true,
            metrics: true,
            sampling_ratio: 1.0,
            service_name: env!("CARGO_PKG_NAME").to_owned(),
            service_namespace: None,
            service_instance_id: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OtlpProtocol {
    Grpc,
    /// Protobuf over HTTP/1, without TLS.
    Http,
}

/// The defaults of `/auth`, which the URL of a request can replace.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Auth {
    pub(crate) policy: Option<Spanned<String>>,
    /// The header with the name of the policy, instead of `policy`. Requests without it are rejected.
    pub(crate) policy_header: Option<HeaderOption>,
    /// The header with the key. The client's IP address if there is none.
    pub(crate) key_header: Option<HeaderOption>,
    /// The addresses that may call `/auth`.
    pub(crate) gateways: Vec<Range>,
    /// The addresses of proxies before the gateways, which are skipped in `X-Forwarded-For`.
    pub(crate) trusted_proxies: Vec<Range>,
    /// The prefix lengths of networks that are one client.
    pub(crate) ipv4_prefix: u8,
    pub(crate) ipv6_prefix: u8,
}

/// The name of a header that gateways set.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct HeaderOption(pub(crate) HeaderName);

impl TryFrom<String> for HeaderOption {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let invalid = |_| format!("`{}` is not the name of a header", excerpt(&name));
        HeaderName::try_from(&name).map(Self).map_err(invalid)
    }
}

impl From<HeaderOption> for String {
    fn from(HeaderOption(name): HeaderOption) -> Self {
        name.as_str().to_owned()
    }
}

impl Default for Auth {
    fn default() -> Self {
        let loopback = ["127.0.0.0/8", "::1"].iter().filter_map(|range| range.parse().ok());
        Self {
            policy: None,
            policy_header: None,
            key_header: None,
            gateways: loopback.collect(),
            trusted_proxies: Vec::new(),
            ipv4_prefix: 32,
            ipv6_prefix: 64,
        }
    }
}

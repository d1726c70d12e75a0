//! The variables of envoyproxy/ratelimit that have no effect here.

use super::{FALSE, TRUE};

/// The variables that have no effect here, each with the values that ask for what happens anyway, and the reason.
pub(super) const WITHOUT_EFFECT: &[(&str, &[&str], &str)] = &[
    ("DISABLE_STATS", FALSE, METRICS),
    ("EXPIRATION_JITTER_MAX_SECONDS", &[], "a key in Redis expires when it has no effect any more"),
    ("EXTRA_TAGS", &[], METRICS),
    (
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        &[],
        "a connection ends when its requests have ended, at most `resource_limits.request_timeout` later",
    ),
    (
        "GRPC_SERVER_TLS_CA_CERT",
        &[],
        "envoyproxy/ratelimit does not read it: clients need a certificate with GRPC_CLIENT_TLS_CACERT",
    ),
    ("LOCAL_CACHE_SIZE_IN_BYTES", &["0"], "denials are always cached, for `checks.cache_denials`"),
    ("MEMCACHE_HOST_PORT", &[], MEMCACHE),
    ("MEMCACHE_MAX_IDLE_CONNS", &[], MEMCACHE),
    ("MEMCACHE_SRV", &[], MEMCACHE),
    ("MEMCACHE_SRV_REFRESH", &[], MEMCACHE),
    ("MEMCACHE_TLS", FALSE, MEMCACHE),
    ("MEMCACHE_TLS_CACERT", &[], MEMCACHE),
    ("MEMCACHE_TLS_CLIENT_CERT", &[], MEMCACHE),
    ("MEMCACHE_TLS_CLIENT_KEY", &[], MEMCACHE),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", FALSE, MEMCACHE),
    ("PROMETHEUS_MAPPER_YAML", &[], METRICS),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", FALSE, METRICS),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", &[], POOL),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        FALSE,
        "/healthcheck does not depend on Redis, because the failure mode decides then: see /readyz",
    ),
    ("REDIS_PIPELINE_LIMIT", &["0"], POOL),
    ("REDIS_PIPELINE_WINDOW", &["0"], POOL),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", &["WAIT"], POOL),
    ("REDIS_POOL_SIZE", &[], POOL),
    ("REDIS_PERSECOND", FALSE, PERSECOND),
    ("REDIS_PERSECOND_AUTH", &[], PERSECOND),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", &[], PERSECOND),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", &[], PERSECOND),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", &[], PERSECOND),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", &[], PERSECOND),
    ("REDIS_PERSECOND_POOL_SIZE", &[], PERSECOND),
    ("REDIS_PERSECOND_SENTINEL_AUTH", &[], PERSECOND),
    ("REDIS_PERSECOND_SOCKET_TYPE", &[], PERSECOND),
    ("REDIS_PERSECOND_TIMEOUT", &[], PERSECOND),
    ("REDIS_PERSECOND_TLS", &[], PERSECOND),
    ("REDIS_PERSECOND_TYPE", &[], PERSECOND),
    ("REDIS_PERSECOND_URL", &[], PERSECOND),
    ("REDIS_STARTUP_INITIAL_INTERVAL", &[], START),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", &[], START),
    ("REDIS_STARTUP_MAX_INTERVAL", &[], START),
    (
        "REDIS_TIMEOUT",
        &[],
        "a check waits for Redis for at most `checks.timeout` (FLEETLIMIT_TIMEOUT)",
    ),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        FALSE,
        "the name in the certificate is always checked: `store.tls.name` can say which it is",
    ),
    (
        "RESPONSE_DYNAMIC_METADATA",
        FALSE,
        "responses have dynamic metadata if descriptors configure `metadata`",
    ),
    (
        "RUNTIME_WATCH_ROOT",
        &["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"],
        "files are watched in any case",
    ),
    ("RUNTIME_IGNOREDOTFILES", TRUE, "hidden files are never read"),
    ("STATSD_HOST", &[], METRICS),
    ("STATSD_PORT", &[], METRICS),
    ("STATS_FLUSH_INTERVAL", &[], METRICS),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", TRUE, "requests that are denied are never counted"),
    ("USE_DOG_STATSD", FALSE, METRICS),
    ("USE_DOG_STATSD_MOGRIFIERS", &[], METRICS),
    ("USE_STATSD", FALSE, METRICS),
    ("XDS_CLIENT_BACKOFF_JITTER", TRUE, "pauses before the next attempt always have jitter"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", &[], "pauses double, and have jitter"),
];
const MEMCACHE: &str = "limits are in Redis, or in memory with BACKEND_TYPE=memory";
const PERSECOND: &str = "limits per second are in the same Redis as the others";
const METRICS: &str = "metrics are for Prometheus only, with other names: USE_PROMETHEUS=true serves them on port 9090";
const POOL: &str =
    "checks share a few connections, in as few calls as possible: see `store.connections`";
const START: &str = "the server starts without Redis, and connects again whenever that is possible";

/// Variables that have an effect only if another one has one of these values, as in envoyproxy/ratelimit.
pub(super) struct Needed {
    pub(super) variable: &'static str,
    pub(super) values: &'static [&'static str],
    pub(super) by: &'static [&'static str],
    pub(super) advice: &'static str,
}

pub(super) const NEEDED: &[Needed] = &[
    Needed {
        variable: "CONFIG_TYPE",
        values: &["GRPC_XDS_SOTW"],
        by: &[
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "CONFIG_GRPC_XDS_NODE_ID",
            "CONFIG_GRPC_XDS_NODE_METADATA",
            "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
            "CONFIG_GRPC_XDS_SERVER_URL",
            "CONFIG_GRPC_XDS_SERVER_USE_TLS",
            "FORCE_START_WITHOUT_INITIAL_CONFIG",
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        ],
        advice: "it needs CONFIG_TYPE=GRPC_XDS_SOTW",
    },
    Needed {
        variable: "CONFIG_GRPC_XDS_SERVER_USE_TLS",
        values: TRUE,
        by: &[
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        ],
        advice: "it needs CONFIG_GRPC_XDS_SERVER_USE_TLS=true: the connection is not encrypted",
    },
    Needed {
        variable: "GRPC_SERVER_USE_TLS",
        values: TRUE,
        by: &[
            "GRPC_CLIENT_TLS_CACERT",
            "GRPC_CLIENT_TLS_SAN",
            "GRPC_SERVER_TLS_CERT",
            "GRPC_SERVER_TLS_KEY",
        ],
        advice: "it needs GRPC_SERVER_USE_TLS=true: the port is not encrypted, and serves everyone",
    },
    Needed {
        variable: "LIMIT_RESPONSE_HEADERS_ENABLED",
        values: TRUE,
        by: &["LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"],
        advice: "it needs LIMIT_RESPONSE_HEADERS_ENABLED=true",
    },
    Needed {
        variable: "REDIS_TLS",
        values: TRUE,
        by: &["REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"],
        advice: "it needs REDIS_TLS=true: the connection is not encrypted",
    },
    Needed {
        variable: "REDIS_TYPE",
        values: &["SENTINEL"],
        by: &["REDIS_SENTINEL_AUTH"],
        advice: "it needs REDIS_TYPE=SENTINEL",
    },
    Needed {
        variable: "TRACING_ENABLED",
        values: TRUE,
        by: &[
            "TRACING_EXPORTER_PROTOCOL",
            "TRACING_SAMPLING_RATE",
            "TRACING_SERVICE_INSTANCE_ID",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
        ],
        advice: "it needs TRACING_ENABLED=true",
    },
    Needed {
        variable: "USE_PROMETHEUS",
        values: TRUE,
        by: &["PROMETHEUS_ADDR", "PROMETHEUS_PATH"],
        advice: "it needs USE_PROMETHEUS=true: metrics are on the admin port only",
    },
];

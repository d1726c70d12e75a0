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
    ("REDIS_PERSECOND", FALSE, "limits per second are in the same Redis as the others"),
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
const METRICS: &str = "metrics are for Prometheus only, and have names of their own";
const POOL: &str =
    "checks share a few connections, in as few calls as possible: see `store.connections`";
const START: &str = "the server starts without Redis, and connects again whenever that is possible";

//! The names, units and descriptions of all metrics. They follow the semantic conventions of
//! OpenTelemetry, and the units are those of UCUM.

pub(crate) struct Descriptor {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) description: &'static str,
}

const fn metric(name: &'static str, unit: &'static str, description: &'static str) -> Descriptor {
    Descriptor { name, unit, description }
}

pub(super) const DECISIONS: Descriptor =
    metric("fleetlimit.decisions", "{decision}", "Decisions about checks");
pub(super) const CHECK_FAILURES: Descriptor =
    metric("fleetlimit.check.failures", "{check}", "Checks that the store failed to decide");
pub(super) const CHECK_DURATION: Descriptor = metric(
    "fleetlimit.check.duration",
    "s",
    "How long checks waited for the store, of one in 256 checks that did",
);
pub(crate) const EVICTIONS: Descriptor = metric(
    "fleetlimit.evictions",
    "{bucket}",
    "Buckets that were evicted from the memory of this process",
);
pub(super) const REPAIRS: Descriptor = metric(
    "fleetlimit.redis.repairs",
    "{bucket}",
    "Values in Redis that were corrupt, and count as buckets without permits",
);
pub(super) const UNCHARGED: Descriptor = metric(
    "fleetlimit.redis.uncharged",
    "{permit}",
    "Permits taken locally while Redis failed that might remain uncharged there",
);

pub(super) const FORGIVEN: Descriptor = metric(
    "fleetlimit.charges.forgiven",
    "{permit}",
    "Permits that were not charged, because the key already owed as much as it can",
);

#[cfg(feature = "redis")]
pub(super) mod redis {
    use super::{Descriptor, metric};

    pub(crate) const CALL_DURATION: Descriptor = metric(
        "fleetlimit.redis.call.duration",
        "s",
        "How long Redis took to reply to a batch, including the network",
    );
    pub(crate) const BATCH_SIZE: Descriptor =
        metric("fleetlimit.redis.batch.size", "{check}", "Checks that were sent together");
    pub(crate) const QUEUE_LENGTH: Descriptor = metric(
        "fleetlimit.redis.queue.length",
        "{check}",
        "Checks that still waited to be sent when a batch was sent",
    );
    pub(crate) const BREAKERS_OPEN: Descriptor =
        metric("fleetlimit.redis.breaker.open", "{breaker}", "Circuit breakers that are open");
    pub(crate) const BREAKER_OPENINGS: Descriptor = metric(
        "fleetlimit.redis.breaker.openings",
        "{opening}",
        "How often circuit breakers opened",
    );
    pub(crate) const UNKNOWN_SCRIPTS: Descriptor = metric(
        "fleetlimit.redis.noscript",
        "{reply}",
        "NOSCRIPT replies, after which the script is sent again as a whole",
    );
    pub(crate) const REDIRECTIONS: Descriptor = metric(
        "fleetlimit.redis.redirections",
        "{reply}",
        "MOVED and ASK replies of cluster nodes",
    );
    pub(crate) const CONNECTIONS: Descriptor =
        metric("fleetlimit.redis.connections", "{connection}", "Established connections");
    pub(crate) const CONNECTION_FAILURES: Descriptor =
        metric("fleetlimit.redis.connection.failures", "{attempt}", "Failed attempts to connect");
    pub(crate) const INSTANCES: Descriptor = metric(
        "fleetlimit.fleet.instances",
        "{instance}",
        "Instances that share the limits, as this one knows them",
    );
    pub(crate) const SHARE: Descriptor = metric(
        "fleetlimit.fleet.share",
        "1",
        "The share of a limit that this instance enforces while Redis fails",
    );
}

pub(super) const POLICY: &str = "fleetlimit.policy";
pub(super) const OUTCOME: &str = "fleetlimit.outcome";
pub(super) const SOURCE: &str = "fleetlimit.source";
pub(super) const ERROR_TYPE: &str = "error.type";
#[cfg(feature = "redis")]
pub(super) const SERVER: &str = "fleetlimit.server";
#[cfg(feature = "redis")]
pub(super) const KEY_PREFIX: &str = "fleetlimit.key_prefix";

//! The names, units, descriptions and labels of all metrics. They follow the semantic conventions of
//! OpenTelemetry. The guide documents them for users.

use std::iter;

use metrics::{Label, Recorder, Unit};

use super::instruments::{InstrumentGroup, Registration};
use super::memory::MemoryMetrics;
use super::policy::{LeasedPermits, OutcomeLabel, PolicyInstruments};
#[cfg(feature = "redis")]
use super::{FleetMetrics, ServerMetrics, server_label::server_label};
use crate::{ErrorKind, Source};

impl InstrumentGroup for PolicyInstruments {
    fn register(&self, recorder: &dyn Recorder) {
        let policy = || Label::new("fleetlimit.policy", self.policy.clone());
        for (source, counters) in iter::zip(Source::ALL, &self.decisions) {
            for (outcome, counter) in iter::zip(OutcomeLabel::ALL, counters) {
                let source = Label::new("fleetlimit.source", source.name());
                let outcome = Label::new("fleetlimit.outcome", outcome.name());
                let registration = Registration::new(recorder, [policy(), source, outcome]);
                counter.register(&registration, "fleetlimit.decisions", "Decisions about checks");
            }
        }
        for (kind, counter) in iter::zip(ErrorKind::ALL, &self.failures) {
            // The store does not fail with these.
            if matches!(kind, ErrorKind::Denied | ErrorKind::Rejected) {
                continue;
            }
            let kind = Label::new("error.type", kind.name());
            counter.register(
                &Registration::new(recorder, [policy(), kind]),
                "fleetlimit.check.failures",
                "Checks that the store failed to decide",
            );
        }
        let registration = Registration::new(recorder, [policy()]);
        self.duration.register(
            &registration,
            "fleetlimit.check.duration",
            Unit::Seconds,
            "How long checks waited for the store, of one in 256 checks that did",
        );
        self.repairs.register(
            &registration,
            "fleetlimit.redis.repairs",
            "Values in Redis that were corrupt, and count as buckets with no permits left",
        );
        self.uncharged.register(
            &registration,
            "fleetlimit.redis.uncharged",
            "Permits that were taken locally while Redis failed, and that Redis might never charge",
        );
        self.forgiven.register(
            &registration,
            "fleetlimit.charges.forgiven",
            "Permits that were not charged, because the key already owed as much as it can",
        );
        self.held.register(
            &registration,
            "fleetlimit.permits.held",
            "Permits that are held, such as those of requests in flight",
        );
        for (kind, counter) in iter::zip(LeasedPermits::ALL, &self.leases) {
            let kind = Label::new("fleetlimit.lease.event", kind.name());
            counter.register(
                &Registration::new(recorder, [policy(), kind]),
                "fleetlimit.lease.permits",
                "Permits that were leased, and what happened to them",
            );
        }
    }
}

impl InstrumentGroup for MemoryMetrics {
    fn register(&self, recorder: &dyn Recorder) {
        self.evictions.register(
            &Registration::new(recorder, []),
            "fleetlimit.evictions",
            "Buckets that were evicted from the memory of this process",
        );
    }
}

#[cfg(feature = "redis")]
impl InstrumentGroup for ServerMetrics {
    fn register(&self, recorder: &dyn Recorder) {
        let server = Label::new("fleetlimit.server", server_label(&self.server).to_owned());
        let registration = Registration::new(recorder, [server]);
        self.call_duration.register(
            &registration,
            "fleetlimit.redis.call.duration",
            Unit::Seconds,
            "How long Redis took to reply to a batch, including the network",
        );
        self.batch_size.register(
            &registration,
            "fleetlimit.redis.batch.size",
            Unit::Count,
            "Checks that were sent together",
        );
        self.queue_length.register(
            &registration,
            "fleetlimit.redis.queue.length",
            Unit::Count,
            "Checks that still waited to be sent when a batch was sent",
        );
        self.breakers_open.register(
            &registration,
            "fleetlimit.redis.breaker.open",
            "Circuit breakers that are open",
        );
        self.breaker_openings.register(
            &registration,
            "fleetlimit.redis.breaker.openings",
            "How often circuit breakers opened",
        );
        self.unknown_scripts.register(
            &registration,
            "fleetlimit.redis.noscript",
            "NOSCRIPT replies, after which the script is sent again as a whole",
        );
        self.redirections.register(
            &registration,
            "fleetlimit.redis.redirections",
            "MOVED and ASK replies of cluster nodes",
        );
        self.connections.register(
            &registration,
            "fleetlimit.redis.connections",
            "Established connections",
        );
        self.connection_failures.register(
            &registration,
            "fleetlimit.redis.connection.failures",
            "Failed attempts to connect",
        );
    }
}

#[cfg(feature = "redis")]
impl InstrumentGroup for FleetMetrics {
    fn register(&self, recorder: &dyn Recorder) {
        let key_prefix = Label::new("fleetlimit.key_prefix", self.key_prefix.clone());
        let server = Label::new("fleetlimit.server", self.server.clone());
        let registration = Registration::new(recorder, [key_prefix, server]);
        self.instances.register(
            &registration,
            "fleetlimit.fleet.instances",
            "Instances that share the limits, as this one knows them",
        );
        self.share.register(
            &registration,
            "fleetlimit.fleet.share",
            "The share of a limit that this instance enforces while Redis fails",
        );
    }
}

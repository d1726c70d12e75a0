//! The counter of checks that are allowed near a limit, so that operators see a limit before it denies anything.

use std::sync::{Arc, OnceLock};

use fleetlimit::{Decision, QuotaStatus, Source};
use metrics::Counter;

use crate::telemetry;

/// The counter of a policy.
#[derive(Clone)]
pub(crate) struct NearLimit {
    policy: Arc<str>,
    /// It has a series from its first check on: a control plane may send very many policies.
    counter: Arc<OnceLock<Counter>>,
    /// The part of a limit that may be used before a check counts.
    ratio: f64,
}

impl NearLimit {
    pub(crate) fn new(policy: &Arc<str>, ratio: f64) -> Self {
        Self { policy: policy.clone(), counter: Arc::default(), ratio }
    }

    /// Counts a decision that allows a check, if more than the ratio of any quota is used then. The failure mode does not
    /// know what is used.
    pub(crate) fn count(&self, decision: &Decision) {
        let is_near = |quota: QuotaStatus<'_>| {
            let used = quota.limit().saturating_sub(quota.remaining());
            used as f64 > quota.limit() as f64 * self.ratio
        };
        let is_known = decision.source() != Source::FailureMode;
        if is_known && !decision.would_be_denied() && decision.quotas().any(is_near) {
            self.counter.get_or_init(|| telemetry::near_limit(&self.policy)).increment(1);
        }
    }
}

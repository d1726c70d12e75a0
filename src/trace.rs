//! Spans and events about checks, with the feature `tracing`. Without it this is empty.

#[cfg(feature = "tracing")]
use std::time::Duration;

#[cfg(feature = "tracing")]
use tracing::{
    Level,
    span::{Entered, Span},
};

use crate::{Decision, Policy};
#[cfg(feature = "tracing")]
use crate::{Source, metrics::Outcome, verdict::QuotaInfo};

/// The time during which a check waits for the store.
#[derive(Debug)]
pub(crate) struct CheckSpan {
    /// Only if somebody is interested: it is large to move with each check.
    #[cfg(feature = "tracing")]
    span: Option<Box<Span>>,
}

#[cfg(feature = "tracing")]
impl CheckSpan {
    #[inline]
    pub(crate) fn new(policy: &Policy) -> Self {
        let is_enabled = tracing::enabled!(target: "tollgate", Level::DEBUG);
        let span = || {
            let policy = policy.name();
            Box::new(tracing::debug_span!(target: "tollgate", "rate_limit_check", policy))
        };
        Self { span: is_enabled.then(span) }
    }

    #[inline]
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        self.span.as_ref().map(|span| span.enter())
    }
}

#[cfg(not(feature = "tracing"))]
impl CheckSpan {
    pub(crate) fn new(_: &Policy) -> Self {
        Self {}
    }

    pub(crate) fn enter(&self) -> &Self {
        self
    }
}

#[inline]
pub(crate) fn decided(policy: &Policy, decision: &Decision) {
    #[cfg(feature = "tracing")]
    if tracing::enabled!(target: "tollgate", Level::DEBUG) {
        // Copies: a reference would keep every decision in memory, even if nothing is traced.
        report(
            policy,
            decision.quota.clone(),
            Outcome::of(decision),
            decision.source(),
            decision.remaining(),
            decision.retry_after(),
        );
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (policy, decision);
}

/// The key is not reported: it may identify a person, or be a secret.
#[cfg(feature = "tracing")]
#[cold]
fn report(
    policy: &Policy,
    quota: QuotaInfo,
    outcome: Outcome,
    source: Source,
    remaining: u64,
    retry_after: Option<Duration>,
) {
    tracing::debug!(
        target: "tollgate",
        policy = policy.name(),
        quota = quota.name(),
        outcome = outcome.name(),
        source = source.name(),
        remaining,
        retry_after_ms = retry_after.map(|wait| wait.as_micros().div_ceil(1_000) as u64),
        "rate limit decision"
    );
}

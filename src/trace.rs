//! Spans and events about checks, with the feature `tracing`. Without it this is empty, so the code that
//! reports has no `cfg`.

use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
#[cfg(any(feature = "metrics", feature = "tracing"))]
use tracing::span::{EnteredSpan, Span};

use crate::metrics::OutcomeLabel;
use crate::verdict::{Numbers, QuotaInfo};
use crate::{Policy, Source};

/// The time during which a check waits for the store.
#[cfg(any(feature = "metrics", feature = "tracing"))]
#[derive(Debug)]
pub(crate) struct CheckSpan(Span);

#[cfg(any(feature = "metrics", feature = "tracing"))]
impl CheckSpan {
    /// Starts the span. `None` if no subscriber wants it.
    pub(crate) fn new(policy: &Policy) -> Option<Self> {
        if !is_possible() {
            return None;
        }
        let policy = policy.name();
        let span = tracing::debug_span!(target: "fleetlimit", "rate_limit_check", policy);
        (!span.is_disabled()).then_some(Self(span))
    }

    pub(crate) fn enter(&self) -> EnteredSpan {
        self.0.clone().entered()
    }
}

/// Returns true if a subscriber wants DEBUG, maybe only of another crate. The macros of `tracing` look at the
/// rest, which takes much more code.
#[inline]
pub(crate) fn is_possible() -> bool {
    cfg!(feature = "tracing")
        && LevelFilter::DEBUG <= STATIC_MAX_LEVEL
        && LevelFilter::DEBUG <= LevelFilter::current()
}

/// Reports a decision about a check.
#[inline(always)]
pub(crate) fn decided(
    policy: &Policy,
    quota: &QuotaInfo,
    outcome: OutcomeLabel,
    source: Source,
    numbers: Numbers,
) {
    if is_possible() {
        report(policy, quota, outcome, source, numbers);
    }
}

/// Writes the event. It does not have the key, which may identify a person, or be a secret.
#[cold]
fn report(
    policy: &Policy,
    quota: &QuotaInfo,
    outcome: OutcomeLabel,
    source: Source,
    numbers: Numbers,
) {
    let Numbers { remaining, retry_after, .. } = numbers;
    let has_to_wait = matches!(outcome, OutcomeLabel::Denied) && retry_after != u64::MAX;
    tracing::debug!(
        target: "fleetlimit",
        policy = policy.name(),
        quota = quota.name(),
        outcome = outcome.name(),
        source = source.name(),
        remaining,
        retry_after_ms = has_to_wait.then_some(retry_after.div_ceil(1_000)),
        "rate limit decision"
    );
}

//! Spans and events about checks, with the feature `tracing`. Without it this is empty, so the code that
//! reports has no `cfg`.

#[cfg(feature = "tracing")]
use tracing::{
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
    span::Span,
};

use crate::metrics::Outcome;
use crate::verdict::{Numbers, QuotaInfo};
use crate::{Policy, Source};

#[cfg(feature = "tracing")]
pub(crate) use tracing::span::EnteredSpan as Entered;

/// The time during which a check waits for the store.
#[cfg(feature = "tracing")]
#[derive(Debug)]
pub(crate) struct CheckSpan(Span);

#[cfg(feature = "tracing")]
impl CheckSpan {
    /// `None` if nobody is interested.
    pub(crate) fn new(policy: &Policy) -> Option<Self> {
        let policy = policy.name();
        let span = tracing::debug_span!(target: "fleetlimit", "rate_limit_check", policy);
        (!span.is_disabled()).then_some(Self(span))
    }

    pub(crate) fn enter(&self) -> Entered {
        self.0.clone().entered()
    }
}

/// Whether anybody is interested in DEBUG, maybe only of another crate. The macros of `tracing` look at the
/// rest, which takes much more code.
#[cfg(feature = "tracing")]
#[inline]
pub(crate) fn is_possible() -> bool {
    LevelFilter::DEBUG <= STATIC_MAX_LEVEL && LevelFilter::DEBUG <= LevelFilter::current()
}

#[cfg(all(feature = "metrics", not(feature = "tracing")))]
#[derive(Debug)]
pub(crate) struct CheckSpan;

#[cfg(all(feature = "metrics", not(feature = "tracing")))]
pub(crate) type Entered = ();

#[cfg(all(feature = "metrics", not(feature = "tracing")))]
#[inline]
pub(crate) fn is_possible() -> bool {
    false
}

#[cfg(all(feature = "metrics", not(feature = "tracing")))]
impl CheckSpan {
    pub(crate) fn new(_: &Policy) -> Option<Self> {
        None
    }

    pub(crate) fn enter(&self) -> Entered {}
}

/// A check has a decision.
#[inline(always)]
pub(crate) fn decided(
    policy: &Policy,
    quota: &QuotaInfo,
    outcome: Outcome,
    source: Source,
    numbers: Numbers,
) {
    #[cfg(feature = "tracing")]
    if is_possible() {
        report(policy, quota, outcome, source, numbers);
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (policy, quota, outcome, source, numbers);
}

/// The key is not reported: it may identify a person, or be a secret.
#[cfg(feature = "tracing")]
#[cold]
fn report(policy: &Policy, quota: &QuotaInfo, outcome: Outcome, source: Source, numbers: Numbers) {
    let Numbers { remaining, retry_after, .. } = numbers;
    let has_to_wait = matches!(outcome, Outcome::Denied) && retry_after != u64::MAX;
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

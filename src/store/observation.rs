//! The observation of a check while it waits for the store: its latency, and a span.

use tracing::span::EnteredSpan;

use crate::Policy;
use crate::metrics::{PolicyMetrics, Stopwatch};
use crate::trace::{self, CheckSpan};

/// `None` for most checks.
pub(crate) type Observation = Option<Observed>;

/// Small, because it moves with the check.
#[derive(Debug)]
pub(crate) struct Observed(Box<ObservedParts>);

#[derive(Debug)]
struct ObservedParts {
    stopwatch: Option<Stopwatch>,
    span: Option<CheckSpan>,
}

/// Starts to observe a check, or not.
#[inline]
pub(crate) fn observe(policy: &Policy) -> Observation {
    let is_measured = Stopwatch::is_due();
    if is_measured || trace::is_possible() { Observed::new(policy, is_measured) } else { None }
}

impl Observed {
    #[cold]
    fn new(policy: &Policy, is_measured: bool) -> Observation {
        let (stopwatch, span) = (is_measured.then(Stopwatch::start), CheckSpan::new(policy));
        let is_observed = stopwatch.is_some() || span.is_some();
        is_observed.then(|| Self(ObservedParts { stopwatch, span }.into()))
    }

    /// Enters the span of the check. What happens until the result is dropped belongs to it.
    pub(crate) fn enter(&self) -> Option<EnteredSpan> {
        self.0.span.as_ref().map(CheckSpan::enter)
    }

    /// The store has decided, or failed.
    pub(crate) fn end(&self, metrics: &PolicyMetrics) {
        if let Some(stopwatch) = &self.0.stopwatch {
            metrics.waited(stopwatch.elapsed());
        }
    }
}

//! What is observed of a check while it waits for the store: its latency, and a span. Without the features
//! this is empty.

use crate::Policy;
use crate::metrics::PolicyMetrics;
#[cfg(any(feature = "metrics", feature = "tracing"))]
use crate::metrics::Stopwatch;
#[cfg(any(feature = "metrics", feature = "tracing"))]
use crate::trace::{CheckSpan, Entered};

#[derive(Debug)]
pub(super) struct Observation {
    /// Of most checks nothing. In a box, because it moves with the check.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    observed: Option<Box<Observed>>,
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
#[derive(Debug)]
struct Observed {
    stopwatch: Option<Stopwatch>,
    span: Option<CheckSpan>,
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
impl Observation {
    #[inline]
    pub(super) fn start(policy: &Policy) -> Self {
        let (stopwatch, span) = (Stopwatch::start(), CheckSpan::new(policy));
        let is_observed = stopwatch.is_some() || span.is_some();
        Self { observed: if is_observed { Observed::new(stopwatch, span) } else { None } }
    }

    /// Until the result is dropped, what happens belongs to the check.
    #[inline]
    pub(super) fn enter(&self) -> Option<Entered<'_>> {
        self.observed.as_ref()?.span.as_ref().map(CheckSpan::enter)
    }

    /// The store has decided, or failed.
    #[inline]
    pub(super) fn end(&self, metrics: &PolicyMetrics) {
        if let Some(observed) = &self.observed
            && let Some(stopwatch) = &observed.stopwatch
        {
            metrics.waited(stopwatch);
        }
    }
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
impl Observed {
    #[cold]
    fn new(stopwatch: Option<Stopwatch>, span: Option<CheckSpan>) -> Option<Box<Self>> {
        Some(Box::new(Self { stopwatch, span }))
    }
}

#[cfg(not(any(feature = "metrics", feature = "tracing")))]
impl Observation {
    pub(super) fn start(_: &Policy) -> Self {
        Self {}
    }

    pub(super) fn enter(&self) -> &Self {
        self
    }

    pub(super) fn end(&self, _: &PolicyMetrics) {}
}

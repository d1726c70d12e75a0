//! The spans of checks. A check is a child of the span in its request's `traceparent` (W3C Trace Context), and is traced
//! if that is.

use std::time::{Duration, SystemTime};

use fleetlimit::{Decision, Error, Source};
use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

const NAME: &str = "rate_limit_check";

/// A recorder of spans.
#[derive(Debug)]
pub(crate) struct Traces {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Traces {
    pub(super) fn new(provider: &SdkTracerProvider, scope: &'static str) -> Self {
        Self { tracer: provider.tracer(scope), propagator: TraceContextPropagator::new() }
    }

    /// The context of the caller, in which the checks of a request have to run.
    pub(crate) fn parent(&self, headers: &HeaderMap) -> Context {
        self.propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers))
    }

    /// Records a check that ends now, without its key, which may be personal.
    pub(crate) fn record(
        &self,
        policy: &str,
        duration: Duration,
        result: Result<&Decision, &Error>,
    ) {
        let (outcome, source) = match result {
            Ok(decision) => (outcome(decision), decision.source().name()),
            Err(_) => ("failed", Source::FailureMode.name()),
        };
        let end = SystemTime::now();
        let mut span = self
            .tracer
            .span_builder(NAME)
            .with_kind(SpanKind::Server)
            .with_start_time(end.checked_sub(duration).unwrap_or(end))
            .with_attributes([
                KeyValue::new("fleetlimit.policy", policy.to_owned()),
                KeyValue::new("fleetlimit.outcome", outcome),
                KeyValue::new("fleetlimit.source", source),
            ])
            .start_with_context(&self.tracer, &Context::current());
        if let Err(error) = result {
            span.set_status(Status::error(error.to_string()));
        }
        span.end_with_timestamp(end);
    }
}

fn outcome(decision: &Decision) -> &'static str {
    match (decision.is_allowed(), decision.would_be_denied()) {
        (true, true) => "would_be_denied",
        (true, false) => "allowed",
        (false, _) => "denied",
    }
}

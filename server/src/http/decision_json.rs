//! Decisions as JSON.

use std::time::Duration;

use fleetlimit::{Decision, Source};
use serde::Serialize;

/// A decision. Times are in seconds.
#[derive(Serialize)]
pub(crate) struct DecisionJson<'a> {
    allowed: bool,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<f64>,
    refill_after: f64,
    reset_after: f64,
    source: &'static str,
    quotas: Vec<QuotaJson<'a>>,
}

#[derive(Serialize)]
struct QuotaJson<'a> {
    name: &'a str,
    limit: u64,
    remaining: u64,
    violated: bool,
    refill_after: f64,
    reset_after: f64,
}

impl<'a> DecisionJson<'a> {
    pub(crate) fn new(decision: &'a Decision) -> Self {
        let seconds = |time: Duration| time.as_secs_f64();
        let quotas = decision.quotas().map(|quota| QuotaJson {
            name: quota.name(),
            limit: quota.limit(),
            remaining: quota.remaining(),
            violated: quota.is_violated(),
            refill_after: seconds(quota.refill_after()),
            reset_after: seconds(quota.reset_after()),
        });
        Self {
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after().map(seconds),
            refill_after: seconds(decision.refill_after()),
            reset_after: seconds(decision.reset_after()),
            source: source(decision.source()),
            quotas: quotas.collect(),
        }
    }
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Store => "store",
        Source::Cached => "cached",
        Source::Local => "local",
        Source::Quota => "quota",
        Source::FailureMode => "failure_mode",
        Source::Blocked => "block",
        Source::Lease => "lease",
        _ => "other",
    }
}

//! Decisions as JSON.

use std::time::Duration;

use fleetlimit::{Decision, QuotaStatus, Source};
use serde::Serialize;

/// A decision. Times are in seconds.
#[derive(Serialize)]
pub(crate) struct DecisionJson<'a> {
    allowed: bool,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<f64>,
    #[serde(flatten)]
    refill: Refill,
    source: &'static str,
    quotas: Vec<QuotaJson<'a>>,
}

#[derive(Serialize)]
struct QuotaJson<'a> {
    name: &'a str,
    limit: u64,
    remaining: u64,
    violated: bool,
    #[serde(flatten)]
    refill: Refill,
}

/// The times that are known, unless permits are given back by whoever holds them.
#[derive(Default, Serialize)]
struct Refill {
    #[serde(skip_serializing_if = "Option::is_none")]
    refill_after: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_after: Option<f64>,
}

impl<'a> DecisionJson<'a> {
    pub(crate) fn new(decision: &'a Decision) -> Self {
        let seconds = |time: Duration| time.as_secs_f64();
        let quotas = decision.quotas().map(|quota| QuotaJson {
            name: quota.name(),
            limit: quota.limit(),
            remaining: quota.remaining(),
            violated: quota.is_violated(),
            refill: Refill::of(&quota),
        });
        let tightest = |quota: &QuotaStatus<'_>| quota.name() == decision.quota_name();
        Self {
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after().map(seconds),
            refill: decision
                .quotas()
                .find(tightest)
                .map(|quota| Refill::of(&quota))
                .unwrap_or_default(),
            source: source(decision.source()),
            quotas: quotas.collect(),
        }
    }
}

impl Refill {
    fn of(quota: &QuotaStatus<'_>) -> Self {
        let known = |time: Duration| (!quota.is_concurrent()).then_some(time.as_secs_f64());
        Self { refill_after: known(quota.refill_after()), reset_after: known(quota.reset_after()) }
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

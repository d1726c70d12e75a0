//! The status of one descriptor.

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::google::protobuf;
use tollgate::Decision;

use crate::domain::{Rule, Unit};

/// What was decided about a descriptor.
pub(super) enum Outcome<'a> {
    /// No limit applies. `matched` tells whether the configuration says so.
    Unlimited {
        matched: bool,
    },
    Blocked {
        rule: Option<&'a Rule>,
        time: Option<Duration>,
    },
    /// The limit is 0 requests.
    Never {
        rule: Option<&'a Rule>,
        limit: (u32, Unit),
    },
    Decided {
        rule: Option<&'a Rule>,
        limit: Option<(u32, Unit)>,
        decision: Decision,
    },
}

impl<'a> Outcome<'a> {
    pub(super) fn never(rule: Option<&'a Rule>, permits: u32, unit: Unit) -> Self {
        Self::Never { rule, limit: (permits, unit) }
    }

    pub(super) fn rule(&self) -> Option<&'a Rule> {
        match self {
            Self::Unlimited { .. } => None,
            Self::Blocked { rule, .. } | Self::Never { rule, .. } | Self::Decided { rule, .. } => {
                *rule
            }
        }
    }

    pub(super) fn is_allowed(&self) -> bool {
        match self {
            Self::Unlimited { .. } => true,
            Self::Blocked { .. } => false,
            Self::Never { rule, .. } => rule.is_some_and(|rule| rule.shadow_mode),
            Self::Decided { decision, .. } => decision.is_allowed(),
        }
    }
}

pub(super) fn status(outcome: &Outcome<'_>) -> DescriptorStatus {
    let code = if outcome.is_allowed() { Code::Ok } else { Code::OverLimit };
    let status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    let name = || outcome.rule().map(|rule| rule.name.clone()).unwrap_or_default();
    let current_limit = |(permits, unit): (u32, Unit)| RateLimit {
        name: name(),
        requests_per_unit: permits,
        unit: unit.to_proto().into(),
    };
    match outcome {
        Outcome::Unlimited { matched: false } => status,
        Outcome::Unlimited { matched: true } => {
            DescriptorStatus { limit_remaining: u32::MAX, ..status }
        }
        Outcome::Blocked { time, .. } => {
            DescriptorStatus { duration_until_reset: time.map(duration), ..status }
        }
        Outcome::Never { limit, .. } => {
            DescriptorStatus { current_limit: Some(current_limit(*limit)), ..status }
        }
        Outcome::Decided { limit, decision, .. } => {
            let wait = decision.retry_after().unwrap_or_else(|| decision.reset_after());
            DescriptorStatus {
                current_limit: limit.map(current_limit),
                limit_remaining: u32::try_from(decision.remaining()).unwrap_or(u32::MAX),
                duration_until_reset: Some(duration(wait)),
                ..status
            }
        }
    }
}

/// In whole seconds, rounded up, because Envoy drops fractions.
fn duration(time: Duration) -> protobuf::Duration {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    protobuf::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

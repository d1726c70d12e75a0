//! The status of one descriptor.

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::google::protobuf;
use fleetlimit::Decision;

use crate::checker::seconds;
use crate::domain::{Rule, Unit};

/// The decision about a descriptor.
pub(super) enum Outcome<'a> {
    /// No limit applies. `is_matched` is true if the configuration says so.
    Unlimited {
        rule: Option<&'a Rule>,
        is_matched: bool,
    },
    /// On the deny list, or blocked by an operator for so long from now on.
    Blocked(Option<Duration>),
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
    /// The descriptor is not checked, because another one is blocked, or the check has failed.
    Undecided {
        rule: Option<&'a Rule>,
        has_failed: bool,
    },
}

impl<'a> Outcome<'a> {
    pub(super) fn rule(&self) -> Option<&'a Rule> {
        match self {
            Self::Blocked(_) => None,
            Self::Unlimited { rule, .. }
            | Self::Never { rule, .. }
            | Self::Decided { rule, .. }
            | Self::Undecided { rule, .. } => *rule,
        }
    }

    pub(super) fn is_decided(&self) -> bool {
        !matches!(self, Self::Undecided { .. })
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(self, Self::Undecided { has_failed: true, .. })
    }

    pub(super) fn is_allowed(&self) -> bool {
        match self {
            Self::Unlimited { .. } => true,
            Self::Blocked(_) | Self::Undecided { .. } => false,
            Self::Never { rule, .. } => rule.is_some_and(|rule| rule.shadow_mode),
            Self::Decided { decision, .. } => decision.is_allowed(),
        }
    }

    /// Returns true if the limit is exceeded, also in shadow mode.
    pub(super) fn would_be_denied(&self) -> bool {
        match self {
            Self::Unlimited { .. } | Self::Undecided { .. } => false,
            Self::Blocked(_) | Self::Never { .. } => true,
            Self::Decided { decision, .. } => decision.would_be_denied(),
        }
    }
}

pub(super) fn status(outcome: &Outcome<'_>) -> DescriptorStatus {
    let code = match (outcome.is_decided(), outcome.is_allowed()) {
        (false, _) => Code::Unknown,
        (true, true) => Code::Ok,
        (true, false) => Code::OverLimit,
    };
    let status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    let name = || outcome.rule().map(|rule| rule.name.clone()).unwrap_or_default();
    let current_limit = |(permits, unit): (u32, Unit)| RateLimit {
        name: name(),
        requests_per_unit: permits,
        unit: unit.to_proto().into(),
    };
    match outcome {
        Outcome::Unlimited { is_matched: false, .. } | Outcome::Undecided { .. } => status,
        Outcome::Blocked(time) => {
            DescriptorStatus { duration_until_reset: time.map(duration), ..status }
        }
        Outcome::Unlimited { is_matched: true, .. } => {
            DescriptorStatus { limit_remaining: u32::MAX, ..status }
        }
        Outcome::Never { limit, .. } => {
            DescriptorStatus { current_limit: Some(current_limit(*limit)), ..status }
        }
        Outcome::Decided { limit, decision, .. } => DescriptorStatus {
            current_limit: limit.map(current_limit),
            limit_remaining: remaining(decision),
            duration_until_reset: until_reset(decision).map(duration),
            ..status
        },
    }
}

/// The permits that are left for another request of this cost.
fn remaining(decision: &Decision) -> u32 {
    match decision.would_be_denied() {
        true => 0,
        false => u32::try_from(decision.remaining()).unwrap_or(u32::MAX),
    }
}

/// The time until the request is allowed or the limit is reset. `None` if it will never be allowed.
fn until_reset(decision: &Decision) -> Option<Duration> {
    match decision.would_be_denied() {
        // In shadow mode, the request need not wait.
        true => decision.retry_after().or(decision.is_allowed().then(|| decision.reset_after())),
        false => Some(decision.reset_after()),
    }
}

/// A duration in whole seconds, rounded up, because Envoy drops fractions.
fn duration(time: Duration) -> protobuf::Duration {
    protobuf::Duration { seconds: i64::try_from(seconds(time)).unwrap_or(i64::MAX), nanos: 0 }
}

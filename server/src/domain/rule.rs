//! The limit of a descriptor, with its options, read from `format`.

use fleetlimit::Policy;
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::context::Context;
use super::format::{Descriptor, RateLimit};
use super::policy_name::policy_name;
use super::unit::Unit;
use crate::holds;
use crate::secret::excerpt;

/// A descriptor of the configuration that has a limit.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) limit: Limit,
    /// The name that others replace it by, or empty.
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    /// True if hits that are denied are counted, too, `None` if the configuration does not say it.
    pub(crate) count_denied: Option<bool>,
    /// True if denied requests of several hits are counted, unless `count_denied` is false: gateways report usage with
    /// them, and nobody could configure it.
    pub(crate) has_reports: bool,
    /// True if metrics tell all values of the descriptor apart.
    pub(crate) detailed_metric: bool,
    /// The metadata of responses, if the limit allows the request.
    pub(crate) metadata: Map<String, Value>,
}

#[derive(Debug)]
pub(crate) enum Limit {
    Unlimited,
    /// A fixed window.
    PerUnit {
        permits: u32,
        unit: Unit,
        policy: String,
    },
    /// A policy of the settings.
    Policy(String),
}

impl Rule {
    /// Returns `None` if the descriptor has no limit, or an invalid one, which is among the errors then.
    pub(super) fn new(descriptor: &Descriptor, context: &mut Context<'_>) -> Option<Self> {
        let Descriptor { shadow_mode, quota_mode, count_denied, detailed_metric, .. } = *descriptor;
        let (limit, rate_limit) = match (&descriptor.rate_limit, &descriptor.policy) {
            (None, None) => {
                if let Some(metadata) = &descriptor.metadata
                    && context.known.all_fields
                {
                    context.error(metadata.referenced, "`metadata` needs `rate_limit` or `policy`");
                }
                return None;
            }
            (Some(_), Some(policy)) => {
                let message = "a descriptor has either `rate_limit` or `policy`";
                context.error(policy.referenced, message);
                return None;
            }
            (None, Some(policy)) => (of_settings(policy, shadow_mode, context), None),
            (Some(rate_limit), None) => {
                check_replaced(&rate_limit.value, context);
                (per_unit(rate_limit, context)?, Some(&rate_limit.value))
            }
        };
        let replaces = rate_limit.into_iter().flat_map(|rate_limit| &rate_limit.replaces);
        let metadata = descriptor.metadata.as_ref();
        Some(Self {
            limit,
            name: rate_limit.map(|rate_limit| rate_limit.name.clone()).unwrap_or_default(),
            replaces: replaces.map(|replaced| replaced.name.value.clone()).collect(),
            // Other routes use a policy of the settings, too.
            shadow_mode: shadow_mode || context.options.shadow_mode && descriptor.policy.is_none(),
            quota_mode: quota_mode || context.options.quota_mode,
            count_denied: count_denied
                .or(context.domain.count_denied)
                .or(context.options.count_denied),
            has_reports: context.domain.is_resource,
            detailed_metric,
            metadata: metadata.map(|metadata| metadata.value.clone()).unwrap_or_default(),
        })
    }

    /// The name of the policy that decides, or `None` if no policy is needed.
    pub(crate) fn policy_name(&self) -> Option<&str> {
        match &self.limit {
            Limit::Unlimited | Limit::PerUnit { permits: 0, .. } => None,
            Limit::PerUnit { policy, .. } | Limit::Policy(policy) => Some(policy),
        }
    }

    /// The name of the limit in metrics.
    pub(crate) fn label(&self) -> &str {
        match &self.limit {
            Limit::Unlimited => "unlimited",
            Limit::PerUnit { policy, .. } | Limit::Policy(policy) => policy,
        }
    }

    /// The policy that decides, unless it is one of the settings.
    pub(crate) fn own_policy(&self) -> Option<Policy> {
        match &self.limit {
            Limit::PerUnit { permits: permits @ 1.., unit, policy } => {
                let quota = unit.quota(u64::from(*permits));
                // With another unit it is another quota. Otherwise a change to a shorter one would wait for
                // the end of the longer window.
                Some(Policy::new(policy.clone()).quota(unit.name(), quota))
            }
            _ => None,
        }
    }
}

/// The limit of a policy of the settings.
fn of_settings(policy: &Spanned<String>, shadow_mode: bool, context: &mut Context<'_>) -> Limit {
    let (name, at) = (&policy.value, policy.referenced);
    match context.known.policies.map(|policies| policies.get(name)) {
        Some(None) => {
            let name = excerpt(name);
            context.error(at, format_args!("there is no policy `{name}` in the settings"));
        }
        Some(Some(policy)) if holds::are_in(policy) => {
            context.error(at, holds::unreleased(&excerpt(name)));
        }
        _ => {}
    }
    if shadow_mode {
        context.error(at, "`shadow_mode` needs `rate_limit`: other routes use the policy, too");
    }
    Limit::Policy(name.clone())
}

fn check_replaced(rate_limit: &RateLimit, context: &mut Context<'_>) {
    for replaced in &rate_limit.replaces {
        let name = &replaced.name;
        if name.value.is_empty() {
            context.error(name.referenced, "the name is empty");
        } else if name.value == rate_limit.name {
            context.error(name.referenced, "a limit cannot replace itself");
        }
    }
}

/// The limit of a `rate_limit`: a number per unit, or none.
fn per_unit(rate_limit: &Spanned<RateLimit>, context: &mut Context<'_>) -> Option<Limit> {
    let (rate_limit, at) = (&rate_limit.value, rate_limit.referenced);
    let unit = rate_limit.unit.as_ref().and_then(|unit| parsed(unit, context));
    match (rate_limit.unlimited, unit) {
        (true, None) => Some(Limit::Unlimited),
        (true, Some(_)) => {
            context.error(at, "an unlimited descriptor has no `unit`");
            Some(Limit::Unlimited)
        }
        (false, Some(unit)) => {
            let Some(permits) = rate_limit.requests_per_unit else {
                context.error(at, "`requests_per_unit` is missing: 0 denies all requests");
                return None;
            };
            let policy = policy_name(&context.domain.domain.value, &context.path);
            Some(Limit::PerUnit { permits, unit, policy })
        }
        (false, None) => {
            if rate_limit.unit.is_none() {
                context.error(at, "`unit` is missing");
            }
            None
        }
    }
}

fn parsed(unit: &Spanned<String>, context: &mut Context<'_>) -> Option<Unit> {
    let parsed = Unit::parse(&unit.value);
    if parsed.is_none() {
        let text = excerpt(&unit.value);
        context.error(
            unit.referenced,
            format_args!(
                "invalid unit `{text}`: write second, minute, hour, day, week, month or year"
            ),
        );
    }
    parsed
}

//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::collections::HashSet;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::future::try_join_all;
use tollgate::{Costs, Error, Key, Limiter};
use tonic::Status;

use super::details::Details;
use super::headers::headers;
use super::metadata::metadata;
use super::overall::{Overall, overall};
use super::status::{Outcome, status};
use crate::checker::{self, Answer};
use crate::domain::{Limit, Match, Rule, Unit};
use crate::lists::Listed;
use crate::live::{Active, ActivePolicy, Live};
use crate::settings::FailureMode;
use crate::telemetry;

pub(crate) struct RateLimitService {
    live: Arc<Live>,
    details: Details,
}

impl RateLimitService {
    pub(super) fn new(live: Arc<Live>) -> Self {
        Self { live, details: Details::default() }
    }

    /// Each descriptor is decided on its own, all of them at the same time. So one that is allowed is
    /// counted even if another one denies the request.
    pub(super) async fn should_rate_limit(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let active = self.live.active();
        validate(&request, &active)?;
        let mut planned = plan(&active, &request)?;
        drop_replaced(&mut planned);
        let hits_addend = u64::from(request.hits_addend.max(1));
        let decide = |index: usize| {
            let descriptor = &request.descriptors[index];
            let hits = descriptor.hits_addend.map_or(hits_addend, |hits| hits.value);
            self.decide(&active, &planned[index], descriptor, hits)
        };
        let outcomes = match planned.len() {
            // Most requests have only one, which needs no list of futures.
            1 => vec![decide(0).await?],
            many => try_join_all((0..many).map(decide)).await?,
        };
        for (planned, outcome) in planned.iter().zip(&outcomes) {
            if let Planned::Rule(Match { rule, label: Some(label), .. }) = planned {
                self.details.count(rule.label(), label, !outcome.would_be_denied());
            }
        }
        Ok(response(&request, &outcomes))
    }
}

fn validate(request: &RateLimitRequest, active: &Active) -> Result<(), Status> {
    let max_descriptors = active.settings.limits.descriptors;
    if request.domain.is_empty() {
        return Err(Status::invalid_argument("the domain is empty"));
    }
    match request.descriptors.len() {
        0 => Err(Status::invalid_argument("there is no descriptor")),
        many if many > max_descriptors => {
            let message = format!("{many} descriptors, of at most {max_descriptors}");
            if active.warnings.descriptors.is_first() {
                tracing::warn!(
                    domain = ?request.domain, descriptors = many,
                    "a request has more descriptors than `limits.descriptors`, so it is not checked: raise the limit"
                );
            }
            Err(Status::invalid_argument(message))
        }
        _ => Ok(()),
    }
}

/// What applies to a descriptor.
enum Planned<'a> {
    /// No limit of the configuration.
    Nothing,
    /// A value is on a list.
    Listed(Listed, Option<&'a Rule>),
    Rule(Match<'a>),
    /// A limit of the request.
    Override(&'a ActivePolicy, Limiter, Key, u32, Unit),
    /// Such a limit of 0 requests.
    Never(u32, Unit),
}

fn plan<'a>(active: &'a Active, request: &'a RateLimitRequest) -> Result<Vec<Planned<'a>>, Status> {
    if !active.domains.has(&request.domain) && active.warnings.domain.is_first() {
        let domain = &request.domain;
        tracing::warn!(?domain, "the configuration does not have this domain: nothing is limited");
    }
    request
        .descriptors
        .iter()
        .map(|descriptor| plan_one(active, &request.domain, descriptor))
        .collect()
}

fn plan_one<'a>(
    active: &'a Active,
    domain: &str,
    descriptor: &'a RateLimitDescriptor,
) -> Result<Planned<'a>, Status> {
    let entries = || descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
    let listed = entries().filter_map(|(key, value)| active.lists.of_entry(key, value)).max();
    if listed == Some(Listed::Denied) {
        return Ok(Planned::Listed(Listed::Denied, None));
    }
    let planned = match &descriptor.limit {
        Some(limit) => plan_override(active, domain, descriptor, limit)?,
        None => active.domains.find(domain, entries()).map_or(Planned::Nothing, Planned::Rule),
    };
    Ok(match (listed, planned) {
        (Some(listed), Planned::Rule(found)) => Planned::Listed(listed, Some(found.rule)),
        (Some(listed), _) => Planned::Listed(listed, None),
        (None, Planned::Nothing) => {
            let has_domain = active.domains.has(domain);
            telemetry::unmatched(if has_domain { "descriptor" } else { "domain" });
            Planned::Nothing
        }
        (None, planned) => planned,
    })
}

fn plan_override<'a>(
    active: &'a Active,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    limit: &RateLimitOverride,
) -> Result<Planned<'a>, Status> {
    let Some(policy) = active.domains.override_policy(domain).and_then(|name| active.policy(name))
    else {
        return Ok(Planned::Nothing);
    };
    let unit = Unit::from_proto(limit.unit)
        .ok_or_else(|| Status::invalid_argument("a limit of the request has no unit"))?;
    let permits = limit.requests_per_unit;
    if permits == 0 {
        return Ok(Planned::Never(permits, unit));
    }
    let limiter = policy.limiter.with_quota(unit.quota(permits.into()));
    let limiter = limiter.map_err(|error| Status::invalid_argument(error.to_string()))?;
    let entries = descriptor.entries.iter();
    let parts = entries.flat_map(|entry| [entry.key.as_str(), entry.value.as_str()]);
    let parts: Vec<_> = std::iter::once(unit.name()).chain(parts).map(Key::from).collect();
    Ok(Planned::Override(policy, limiter, Key::join(&parts), permits, unit))
}

/// Limits can replace others of the same request, by name.
fn drop_replaced(planned: &mut [Planned<'_>]) {
    let rules = planned.iter().filter_map(|planned| match planned {
        Planned::Rule(found) => Some(found.rule),
        Planned::Listed(_, rule) => *rule,
        _ => None,
    });
    let replaced: HashSet<&str> =
        rules.flat_map(|rule| &rule.replaces).map(String::as_str).collect();
    if replaced.is_empty() {
        return;
    }
    for planned in planned {
        if let Planned::Rule(found) = planned
            && replaced.contains(found.rule.name.as_str())
        {
            *planned = Planned::Nothing;
        }
    }
}

impl RateLimitService {
    async fn decide<'a>(
        &self,
        active: &Active,
        planned: &Planned<'a>,
        descriptor: &RateLimitDescriptor,
        hits: u64,
    ) -> Result<Outcome<'a>, Status> {
        let (rule, policy, limiter, key) = match planned {
            Planned::Nothing => return Ok(Outcome::Unlimited { rule: None, is_matched: false }),
            Planned::Listed(listed, rule) => {
                telemetry::overruled(listed.list());
                return Ok(match listed {
                    Listed::Denied => Outcome::Blocked(None),
                    Listed::Allowed => Outcome::Unlimited { rule: *rule, is_matched: true },
                });
            }
            Planned::Never(permits, unit) => {
                return Ok(Outcome::Never { rule: None, limit: (*permits, *unit) });
            }
            Planned::Override(policy, limiter, key, ..) => (None, *policy, limiter, key),
            Planned::Rule(Match { rule, key, .. }) => match &rule.limit {
                Limit::Unlimited => {
                    return Ok(Outcome::Unlimited { rule: Some(rule), is_matched: true });
                }
                Limit::PerUnit { permits: 0, unit, .. } => {
                    return Ok(Outcome::Never { rule: Some(rule), limit: (0, *unit) });
                }
                Limit::PerUnit { policy, .. } | Limit::Policy(policy) => {
                    let policy = active.policy(policy);
                    let policy = policy.ok_or_else(|| Status::internal("a policy is missing"))?;
                    (Some(*rule), policy, &policy.limiter, key)
                }
            },
        };
        let gives_back = descriptor.is_negative_hits;
        if gives_back {
            // Boxed, like the charge below: they are rare, and would make every check larger.
            let result = Box::pin(limiter.credit(key, hits)).await;
            adjusted(result, active, policy)?;
        }
        let costs = match hits {
            // Only asks, for hits that are reported afterwards.
            0 => Costs::new(0).charged_later(),
            _ if gives_back => Costs::new(0),
            hits => Costs::new(hits),
        };
        let answer = checker::check(&self.live, policy, limiter, key, costs).await;
        let decision = match answer.map_err(|_| unavailable())? {
            Answer::Blocked(remaining) => return Ok(Outcome::Blocked(Some(remaining))),
            Answer::Decided(decision) => decision,
        };
        if decision.would_be_denied() && rule.is_some_and(|rule| rule.count_denied) {
            let result = Box::pin(limiter.charge(key, hits)).await;
            adjusted(result, active, policy)?;
        }
        let limit = match planned {
            Planned::Override(_, _, _, permits, unit) => Some((*permits, *unit)),
            _ => policy.per_unit(),
        };
        Ok(Outcome::Decided { rule, limit, decision })
    }
}

/// A failed charge or credit fails only requests that a failed check would fail, too.
fn adjusted(
    result: Result<(), Error>,
    active: &Active,
    policy: &ActivePolicy,
) -> Result<(), Status> {
    let is_let_through =
        policy.is_shadow() || active.settings.checks.failure_mode == FailureMode::Open;
    if is_let_through { Ok(()) } else { result.map_err(|_| unavailable()) }
}

/// Hides the cause from clients. It is logged.
fn unavailable() -> Status {
    Status::unavailable("the rate limit cannot be checked at the moment")
}

fn response(request: &RateLimitRequest, outcomes: &[Outcome<'_>]) -> RateLimitResponse {
    let overall = overall(outcomes);
    let code = if overall == Overall::Allowed { Code::Ok } else { Code::OverLimit };
    RateLimitResponse {
        overall_code: code.into(),
        statuses: outcomes.iter().map(status).collect(),
        response_headers_to_add: headers(outcomes, overall),
        dynamic_metadata: metadata(request, outcomes),
        ..RateLimitResponse::default()
    }
}

//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use fleetlimit::{Costs, Decision, Error, Key, Limiter, Source};
use futures_util::future::join_all;
use tonic::Status;

use super::headers::headers;
use super::metadata::metadata;
use super::overall::{Overall, overall};
use super::plan::{Override, Planned, plan, start_of};
use super::status::{Outcome, status};
use crate::checker;
use crate::domain::{Limit, Match, Rule, Unit};
use crate::lists::Listed;
use crate::live::{Active, ActivePolicy, Live};
use crate::settings::FailureMode;
use crate::telemetry;
use crate::warnings::Cause;

pub(crate) struct RateLimitService {
    live: Arc<Live>,
}

impl RateLimitService {
    pub(super) fn new(live: Arc<Live>) -> Self {
        Self { live }
    }

    pub(super) fn active(&self) -> Arc<Active> {
        self.live.active()
    }

    /// Each descriptor is decided on its own, all of them at the same time. So one that is allowed is
    /// counted even if another one denies the request.
    ///
    /// If one is blocked, the others are not checked: a client that an operator denies must not use up limits
    /// that it shares with others. Then it does not matter either whether the request makes sense, because gateways
    /// may let one pass that does not.
    pub(super) async fn should_rate_limit(
        &self,
        active: &Active,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let (planned, invalid) = plan(active, request);
        let refusal = validate(request).err().or(invalid);
        let hits_addend = u64::from(request.hits_addend.max(1));
        let steps = planned.iter().map(|planned| self.step(active, planned));
        let steps: Vec<_> = steps.collect::<Result<_, _>>()?;
        let is_overruled = steps.iter().any(Step::is_blocked);
        if !is_overruled && let Some(status) = refusal {
            return Err(status);
        }
        let finish = |(step, descriptor): (_, &RateLimitDescriptor)| {
            let count = descriptor.hits_addend.map_or(hits_addend, |hits| hits.value);
            let hits = match descriptor.is_negative_hits {
                false => Hits { count, gives_back: false },
                true if active.domains.has_negative_hits(&request.domain) => {
                    Hits { count, gives_back: true }
                }
                true => {
                    refused_negative(request, active, count);
                    Hits { count: 0, gives_back: false }
                }
            };
            self.finish(active, step, hits, is_overruled)
        };
        let mut steps = steps.into_iter().zip(&request.descriptors);
        let outcomes = match (steps.len(), steps.next()) {
            // Most requests have only one, which needs no list of futures.
            (1, Some(only)) => vec![finish(only).await],
            (_, first) => join_all(first.into_iter().chain(steps).map(finish)).await,
        };
        let is_blocked = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Blocked(_)));
        let overall = match overall(&outcomes, active.settings.envoy.quota_mode) {
            // What an operator denies is denied in any case.
            Some(Overall::Denied(_)) if active.settings.envoy.shadow_mode && !is_blocked => {
                Overall::Allowed
            }
            overall => overall.ok_or_else(unavailable)?,
        };
        for (planned, outcome) in planned.iter().zip(&outcomes) {
            if let Planned::Rule(Match { rule, label: Some(label), .. }) = planned
                && outcome.is_decided()
            {
                self.live.details.count(rule.label(), label, !outcome.would_be_denied());
            }
        }
        Ok(response(active, request, &outcomes, overall))
    }
}

fn validate(request: &RateLimitRequest) -> Result<(), Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid_argument("the domain is empty"));
    }
    if request.descriptors.is_empty() {
        return Err(Status::invalid_argument("there is no descriptor"));
    }
    Ok(())
}

/// The next step for a descriptor.
enum Step<'a> {
    Settled(Outcome<'a>),
    Check(Check<'a>),
}

/// A check of a policy.
struct Check<'a> {
    rule: Option<&'a Rule>,
    policy: &'a ActivePolicy,
    limiter: &'a Limiter,
    key: &'a Key,
    /// The limit as gateways know it.
    limit: Option<(u32, Unit)>,
    /// True if hits that are denied are counted, too. `None` if the configuration does not say it.
    count_denied: Option<bool>,
}

impl Step<'_> {
    fn is_blocked(&self) -> bool {
        matches!(self, Self::Settled(Outcome::Blocked(_)))
    }
}

#[derive(Clone, Copy)]
struct Hits {
    count: u64,
    gives_back: bool,
}

impl Hits {
    /// Counts hits that are lost. A single hit is a request, and not what one has used.
    fn are_uncounted(self, reason: &'static str) {
        if self.count > 1 {
            telemetry::uncounted(reason, self.count);
        }
    }
}

impl RateLimitService {
    /// Settles what needs no check.
    fn step<'a>(&self, active: &'a Active, planned: &'a Planned<'a>) -> Result<Step<'a>, Status> {
        let check = match planned {
            Planned::Nothing => {
                return Ok(Step::Settled(Outcome::Unlimited { rule: None, is_matched: false }));
            }
            Planned::Listed(listed, rule) => {
                telemetry::overruled(listed.list());
                return Ok(Step::Settled(match listed {
                    Listed::Denied => Outcome::Blocked(None),
                    Listed::Allowed => Outcome::Unlimited { rule: *rule, is_matched: true },
                }));
            }
            Planned::Never(permits, unit) => return Ok(never(None, *permits, *unit)),
            Planned::Override(planned) => {
                let Override { policy, limiter, key, limit, count_denied } = planned;
                let (limit, count_denied) = (Some(*limit), *count_denied);
                Check { rule: None, policy, limiter, key, limit, count_denied }
            }
            Planned::Rule(Match { rule, key, .. }) => match &rule.limit {
                Limit::Unlimited => {
                    let outcome = Outcome::Unlimited { rule: Some(rule), is_matched: true };
                    return Ok(Step::Settled(outcome));
                }
                Limit::PerUnit { permits: 0, unit, .. } => return Ok(never(Some(rule), 0, *unit)),
                Limit::PerUnit { policy, .. } | Limit::Policy(policy) => {
                    let policy = active.policy(policy);
                    let policy = policy.ok_or_else(|| Status::internal("a policy is missing"))?;
                    let (limiter, limit) = (&policy.limiter, policy.per_unit());
                    let count_denied = rule.count_denied;
                    Check { rule: Some(rule), policy, limiter, key, limit, count_denied }
                }
            },
        };
        Ok(match checker::blocked(&self.live, check.policy, check.key) {
            Some(remaining) => Step::Settled(Outcome::Blocked(Some(remaining))),
            None => Step::Check(check),
        })
    }

    /// Takes the step. `is_overruled` is true if another descriptor is blocked.
    async fn finish<'a>(
        &self,
        active: &Active,
        step: Step<'a>,
        hits: Hits,
        is_overruled: bool,
    ) -> Outcome<'a> {
        let check = match step {
            Step::Settled(outcome) => {
                if matches!(outcome, Outcome::Blocked(_)) && !hits.gives_back {
                    hits.are_uncounted("denied");
                }
                return outcome;
            }
            Step::Check(check) => check,
        };
        let rule = check.rule;
        if hits.gives_back {
            // Boxed, like the charge below: they are rare, and would make every check larger.
            let result = Box::pin(check.limiter.credit(check.key, hits.count)).await;
            if result.is_err() && !is_let_through(active, check.policy) {
                return Outcome::Undecided { rule, has_failed: true };
            }
        }
        let decided = match is_overruled {
            true => None,
            false => Some(self.decide(&check, hits).await),
        };
        if let Some(Ok(decision)) = &decided
            && decision.source() == Source::Blocked
        {
            // Since the request was read.
            if !hits.gives_back {
                hits.are_uncounted("denied");
            }
            return Outcome::Blocked(decision.retry_after());
        }
        if !hits.gives_back {
            match &decided {
                Some(Err(_)) => hits.are_uncounted("failed"),
                Some(Ok(decision)) if !decision.would_be_denied() => {
                    if decision.source() == Source::FailureMode {
                        hits.are_uncounted("failed");
                    }
                }
                _ => Box::pin(self.denied(active, &check, hits, is_overruled)).await,
            }
        }
        match decided {
            Some(Ok(decision)) => Outcome::Decided { rule, limit: check.limit, decision },
            failed => Outcome::Undecided { rule, has_failed: failed.is_some() },
        }
    }

    /// Charges hits that are denied, if they may be reports of what has been used, which gateways send with the tokens of
    /// a response: those of a request with a limit of its own, or of a domain of a control plane. A single hit is none, and once it is denied, nothing
    /// is left that it could take. Nor is a request that is overruled, unless the configuration says so: the client
    /// that an operator denies could use up what others share.
    async fn denied(&self, active: &Active, check: &Check<'_>, hits: Hits, is_overruled: bool) {
        let may_be_report = check.rule.is_none_or(|rule| rule.has_reports);
        let is_report = !is_overruled && may_be_report && hits.count > 1;
        if !check.count_denied.unwrap_or(is_report) {
            hits.are_uncounted("denied");
            if hits.count > 1
                && check.count_denied.is_none()
                && let Some(count) = active.warnings.add(Cause::DeniedHits)
            {
                tracing::warn!(
                    event = "denied_hits_not_counted",
                    count,
                    policy = check.policy.name(),
                    hits = hits.count,
                    "a request of several hits is denied, and they are not counted: set `count_denied` of its \
                     descriptor or domain to true if gateways report hits after the response, and otherwise to false"
                );
            }
        // The error is logged. The request is denied all the same.
        } else if check.limiter.charge(check.key, hits.count).await.is_err() {
            hits.are_uncounted("failed");
        }
    }

    async fn decide(&self, check: &Check<'_>, hits: Hits) -> Result<Decision, Error> {
        let Check { policy, limiter, key, .. } = check;
        let costs = match hits.count {
            // Only asks, for hits that are reported afterwards.
            0 => Costs::new(0).charged_later(),
            _ if hits.gives_back => Costs::new(0),
            count => Costs::new(count),
        };
        checker::decide(&self.live, policy, limiter, key, costs).await
    }
}

/// A limit of 0 requests.
fn never<'a>(rule: Option<&'a Rule>, permits: u32, unit: Unit) -> Step<'a> {
    if !rule.is_some_and(|rule| rule.shadow_mode) {
        telemetry::overruled("zero");
    }
    Step::Settled(Outcome::Never { rule, limit: (permits, unit) })
}

fn refused_negative(request: &RateLimitRequest, active: &Active, hits: u64) {
    telemetry::uncounted("negative", hits);
    if let Some(count) = active.warnings.add(Cause::NegativeHits) {
        tracing::warn!(
            event = "negative_hits_ignored", count, domain = ?start_of(&request.domain), hits,
            "a request with `is_negative_hits` gives nothing back: set `negative_hits` of its domain to true if it may"
        );
    }
}

/// Returns true if the check of a policy is allowed when the store fails. Then a failed credit does not matter either.
fn is_let_through(active: &Active, policy: &ActivePolicy) -> bool {
    policy.is_shadow() || active.settings.checks.failure_mode == FailureMode::Open
}

/// Hides the cause from clients. It is logged.
fn unavailable() -> Status {
    Status::unavailable("the rate limit cannot be checked at the moment")
}

fn response(
    active: &Active,
    request: &RateLimitRequest,
    outcomes: &[Outcome<'_>],
    overall: Overall,
) -> RateLimitResponse {
    let further_headers = active.settings.envoy.headers.as_ref();
    let code = if overall == Overall::Allowed { Code::Ok } else { Code::OverLimit };
    RateLimitResponse {
        overall_code: code.into(),
        statuses: outcomes.iter().map(status).collect(),
        response_headers_to_add: headers(outcomes, overall, further_headers),
        dynamic_metadata: metadata(request, outcomes),
        ..RateLimitResponse::default()
    }
}

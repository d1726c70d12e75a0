//! The plan of a request: for each descriptor a list, a limit of the configuration or of the request, or nothing.

use std::borrow::Cow;
use std::collections::HashSet;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use fleetlimit::{Key, Limiter};
use tonic::Status;

use crate::domain::{Match, Rule, Unit};
use crate::lists::Listed;
use crate::live::{Active, ActivePolicy};
use crate::secret::start;
use crate::telemetry;
use crate::warnings::Cause;

/// A line of the log has at most this many characters of a domain, which may be as long as a request.
const MAX_LOGGED: usize = 100;

/// The limit or list that applies to a descriptor.
pub(super) enum Planned<'a> {
    /// No limit of the configuration.
    Nothing,
    /// A value is on a list.
    Listed(Listed, Option<&'a Rule>),
    Rule(Match<'a>),
    Override(Override<'a>),
    /// A limit of the request, of 0 requests.
    Never(u32, Unit),
}

/// A limit of the request.
pub(super) struct Override<'a> {
    pub(super) policy: &'a ActivePolicy,
    pub(super) limiter: Limiter,
    pub(super) key: Key,
    pub(super) limit: (u32, Unit),
    /// True if hits that are denied are counted, too. `None` if the configuration does not say it.
    pub(super) count_denied: Option<bool>,
}

/// Plans each descriptor of a request. The error is that of the first one whose limit makes no sense, to which
/// nothing applies then, or that the limits are not known yet.
pub(super) fn plan<'a>(
    active: &'a Active,
    request: &'a RateLimitRequest,
) -> (Vec<Planned<'a>>, Option<Status>) {
    let mut first_error = None;
    if !active.domains.has(&request.domain) && active.awaits_control_plane {
        first_error = Some(Status::unavailable("there is no configuration yet"));
    } else if !active.domains.has(&request.domain) {
        telemetry::unmatched("domain");
        if let Some(count) = active.warnings.add(Cause::UnknownDomain) {
            let domain = start_of(&request.domain);
            tracing::warn!(
                event = "unknown_domain",
                ?domain,
                count,
                "the configuration does not have this domain: nothing is limited"
            );
        }
    }
    let plan = |descriptor| {
        plan_one(active, &request.domain, descriptor).unwrap_or_else(|error| {
            first_error.get_or_insert(error);
            Planned::Nothing
        })
    };
    let mut planned: Vec<_> = request.descriptors.iter().map(plan).collect();
    drop_replaced(&mut planned);
    (planned, first_error)
}

/// The start of a domain, for the log.
pub(super) fn start_of(domain: &str) -> Cow<'_, str> {
    start(domain, None, MAX_LOGGED)
}

fn plan_one<'a>(
    active: &'a Active,
    domain: &str,
    descriptor: &'a RateLimitDescriptor,
) -> Result<Planned<'a>, Status> {
    let listed = listed(active, descriptor);
    if listed == Some(Listed::Denied) {
        return Ok(Planned::Listed(Listed::Denied, None));
    }
    let planned = match &descriptor.limit {
        Some(limit) => plan_override(active, domain, descriptor, limit)?,
        None => {
            active.domains.find(domain, entries(descriptor)).map_or(Planned::Nothing, Planned::Rule)
        }
    };
    Ok(match (listed, planned) {
        (Some(listed), Planned::Rule(found)) => Planned::Listed(listed, Some(found.rule)),
        (Some(listed), _) => Planned::Listed(listed, None),
        (None, Planned::Nothing) => {
            if active.domains.has(domain) {
                telemetry::unmatched("descriptor");
            }
            Planned::Nothing
        }
        (None, planned) => planned,
    })
}

fn listed(active: &Active, descriptor: &RateLimitDescriptor) -> Option<Listed> {
    entries(descriptor).filter_map(|(key, value)| active.lists.of_entry(key, value)).max()
}

fn entries(descriptor: &RateLimitDescriptor) -> impl Iterator<Item = (&str, &str)> {
    descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value))
}

fn plan_override<'a>(
    active: &'a Active,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    limit: &RateLimitOverride,
) -> Result<Planned<'a>, Status> {
    let Some((name, count_denied)) = active.domains.overrides(domain) else {
        return Ok(Planned::Nothing);
    };
    let Some(policy) = active.policy(name) else { return Ok(Planned::Nothing) };
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
    let (key, limit) = (Key::join(&parts), (permits, unit));
    Ok(Planned::Override(Override { policy, limiter, key, limit, count_denied }))
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

//! The headers that the gateway adds to responses.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use fleetlimit::layer::HeaderStyle;
use http::HeaderMap;

use super::overall::Overall;
use super::status::{Outcome, status};
use crate::checker::seconds;
use crate::settings::EnvoyHeaders;

/// `RateLimit` and `RateLimit-Policy` with an item for each limit that applies, and `Retry-After` if the
/// request is denied, unless no wait is long enough.
pub(super) fn headers(
    outcomes: &[Outcome<'_>],
    overall: Overall,
    further: Option<&EnvoyHeaders>,
) -> Vec<HeaderValue> {
    let decisions = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Decided { decision, .. } => Some(decision),
        _ => None,
    });
    let maps: Vec<HeaderMap> =
        decisions.map(|decision| decision.headers(HeaderStyle::Ietf)).collect();
    let mut headers: Vec<_> = ["ratelimit", "ratelimit-policy"]
        .into_iter()
        .filter_map(|name| {
            let values = maps.iter().flat_map(|map| map.get_all(name));
            let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
            (!values.is_empty()).then(|| header(name, values.join(", ")))
        })
        .collect();
    if let Overall::Denied(Some(wait)) = overall {
        headers.push(header("retry-after", seconds(wait).to_string()));
    }
    if let Some(names) = further {
        headers.extend(of_closest(outcomes, names));
    }
    headers
}

/// The headers of envoyproxy/ratelimit about the limit that is closest to being reached, or is exceeded.
fn of_closest(outcomes: &[Outcome<'_>], names: &EnvoyHeaders) -> Vec<HeaderValue> {
    let statuses = outcomes.iter().map(status);
    let limited = statuses.filter_map(|status| Some((status.current_limit.clone()?, status)));
    let remaining = |(_, status): &(RateLimit, DescriptorStatus)| {
        (status.code != i32::from(Code::OverLimit), status.limit_remaining)
    };
    let Some((limit, status)) = limited.min_by_key(remaining) else { return Vec::new() };
    // A limit of 0 requests is never reset.
    let reset = status.duration_until_reset.map(|time| time.seconds.to_string());
    let headers = [
        (&names.limit, Some(limit.requests_per_unit.to_string())),
        (&names.remaining, Some(status.limit_remaining.to_string())),
        (&names.reset, reset),
    ];
    let given = headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
    given.map(|(name, value)| header(name.0.as_str(), value)).collect()
}

fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, ..HeaderValue::default() }
}

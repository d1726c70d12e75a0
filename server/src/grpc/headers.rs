//! The headers that the gateway adds to responses.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use fleetlimit::layer::HeaderStyle;
use http::HeaderMap;

use super::overall::Overall;
use super::status::Outcome;
use crate::checker::seconds;

/// `RateLimit` and `RateLimit-Policy` with an item for each limit that applies, and `Retry-After` if the
/// request is denied, unless no wait is long enough.
pub(super) fn headers(outcomes: &[Outcome<'_>], overall: Overall) -> Vec<HeaderValue> {
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
    headers
}

fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, ..HeaderValue::default() }
}

//! Makes HTTP responses with problem details (RFC 9457), of the types that draft-ietf-httpapi-ratelimit-headers
//! registers.
//!
//! `precomputed` keeps the bodies of denials by policies with a single quota. Over gRPC, `grpc` responds. The
//! README shows a denial. `fleetlimit-server` has problem details of its own, for other errors
//! (`server/src/http/problem.rs`).

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};

use super::no_store;
use crate::verdict::QuotaInfo;
use crate::{Decision, Rejection, Source};

/// The body for a denial. The names of quotas need no escaping: their characters are validated.
pub(super) fn denied_body(decision: &Decision) -> String {
    if decision.source == Source::Blocked {
        // No quota is exceeded, and the client need not know what an operator thinks of it.
        return r#"{"type":"about:blank","title":"Too Many Requests","status":429}"#.into();
    }
    let violated = decision.quotas().filter(|quota| quota.is_violated());
    body(decision.exceeds_capacity(), violated.map(|quota| quota.name()))
}

/// The body for all denials by a policy that has one quota.
pub(super) fn body_of_quota(quota: &QuotaInfo, exceeds_capacity: bool) -> String {
    body(exceeds_capacity, [quota.name()])
}

fn body<'a>(exceeds_capacity: bool, violated: impl IntoIterator<Item = &'a str>) -> String {
    let violated: Vec<_> = violated.into_iter().map(|name| format!("\"{name}\"")).collect();
    let violated = violated.join(",");
    let detail = if exceeds_capacity {
        r#","detail":"The request costs more than the rate limit can ever allow.""#
    } else {
        ""
    };
    format!(
        r#"{{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Rate limit exceeded","status":429{detail},"violated-policies":[{violated}]}}"#
    )
}

pub(super) fn denied(body: impl Into<Bytes>) -> Response<Bytes> {
    problem(StatusCode::TOO_MANY_REQUESTS, body)
}

pub(super) fn unavailable() -> Response<Bytes> {
    problem(
        StatusCode::SERVICE_UNAVAILABLE,
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Rate limiting is temporarily unavailable","status":503}"#,
    )
}

pub(super) fn rejected(rejection: &Rejection) -> Response<Bytes> {
    let status = rejection.status();
    let title = status.canonical_reason().unwrap_or("Rejected");
    let detail = match rejection.message() {
        "" => String::new(),
        message => format!(r#","detail":"{}""#, escaped(message)),
    };
    let status_code = status.as_u16();
    problem(
        status,
        format!(r#"{{"type":"about:blank","title":"{title}","status":{status_code}{detail}}}"#),
    )
}

fn problem(status: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, no_store::NO_STORE);
    response
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

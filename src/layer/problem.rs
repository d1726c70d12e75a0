//! Problem details for HTTP (RFC 9457), of the types that draft-ietf-httpapi-ratelimit-headers
//! registers.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::{Decision, Refusal};

/// The denials of one policy.
#[derive(Debug)]
pub(super) struct Problems {
    denied: Bytes,
    over_limit: Bytes,
}

impl Problems {
    pub(super) fn new(policy: &str) -> Self {
        // The policy's name needs no escapes: its characters are checked.
        let text = |detail| {
            format!(
                r#"{{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests: the quota is exceeded","status":429{detail},"violated-policies":["{policy}"]}}"#
            )
        };
        let detail = r#","detail":"The request costs more than the limit allows at once: waiting does not help.""#;
        Self { denied: text("").into(), over_limit: text(detail).into() }
    }

    pub(super) fn denied(&self, decision: &Decision) -> Response<Bytes> {
        let body = if decision.is_over_limit() { &self.over_limit } else { &self.denied };
        problem(StatusCode::TOO_MANY_REQUESTS, body.clone())
    }
}

pub(super) fn unavailable() -> Response<Bytes> {
    problem(
        StatusCode::SERVICE_UNAVAILABLE,
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"The request cannot be admitted at the moment","status":503}"#,
    )
}

pub(super) fn refused(refusal: &Refusal) -> Response<Bytes> {
    let status = refusal.status();
    let mut title = String::with_capacity(refusal.reason().len());
    for c in refusal.reason().chars() {
        match c {
            '"' => title.push_str("\\\""),
            '\\' => title.push_str("\\\\"),
            c if c.is_control() => title.push(' '),
            c => title.push(c),
        }
    }
    problem(
        status,
        format!(r#"{{"type":"about:blank","title":"{title}","status":{}}}"#, status.as_u16()),
    )
}

fn problem(status: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

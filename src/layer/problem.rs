//! Problem details for HTTP (RFC 9457), of the types that draft-ietf-httpapi-ratelimit-headers
//! registers.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::{Decision, Refusal};

pub(super) fn denied(decision: &Decision, policy: &str) -> Response<Bytes> {
    let detail = if decision.is_over_limit() {
        r#","detail":"The request costs more than the limit allows at once: waiting does not help.""#
    } else {
        ""
    };
    // The policy's name needs no escapes: its characters are checked.
    problem(
        StatusCode::TOO_MANY_REQUESTS,
        format!(
            r#"{{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests: the quota is exceeded","status":429{detail},"violated-policies":["{policy}"]}}"#
        ),
    )
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

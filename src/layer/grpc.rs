//! Makes gRPC responses without a message: HTTP 200, an empty body, and the status in the headers
//! ("Trailers-Only" in the gRPC specification). The status details are a `google.rpc.Status` with a
//! `google.rpc.RetryInfo`. They are encoded here because that takes less than a page, and a protobuf library
//! would be a dependency of every build. The tests decode them with tonic's types.

use std::fmt::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::{Decision, Rejection};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(super) const RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const UNKNOWN: u8 = 2;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;

/// The content type for the response if the request claims to be a gRPC or gRPC-Web request. These are
/// always POST. Any other request could turn the status of an error into a 200, which caches store.
pub(super) fn content_type(request: &Parts) -> Option<HeaderValue> {
    if request.method != Method::POST {
        return None;
    }
    let requested = request.headers.get(CONTENT_TYPE)?.as_bytes();
    let content_types = [
        // The longest first, because each begins with the next.
        "application/grpc-web-text",
        "application/grpc-web",
        "application/grpc",
    ];
    let is_requested = |name: &&str| match requested.split_at_checked(name.len()) {
        Some((start, rest)) => {
            start.eq_ignore_ascii_case(name.as_bytes())
                && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
        }
        None => false,
    };
    content_types.into_iter().find(is_requested).map(HeaderValue::from_static)
}

pub(super) fn denied(decision: &Decision, content_type: HeaderValue) -> Response<Bytes> {
    let Some(wait) = decision.retry_after() else {
        let message = "the request costs more than the rate limit can ever allow";
        let mut response = status(RESOURCE_EXHAUSTED, message, content_type);
        // A negative number means: do not retry.
        response.headers_mut().insert(RETRY_PUSHBACK_MS, HeaderValue::from_static("-1"));
        return response;
    };
    let message = "rate limit exceeded";
    let mut response = status(RESOURCE_EXHAUSTED, message, content_type);
    let details = STANDARD_NO_PAD.encode(status_with_retry_info(message, wait));
    if let Ok(details) = HeaderValue::try_from(details) {
        response.headers_mut().insert(DETAILS, details);
    }
    let millis = wait.as_micros().div_ceil(1_000) as u64;
    response.headers_mut().insert(RETRY_PUSHBACK_MS, HeaderValue::from(millis));
    response
}

pub(super) fn unavailable(content_type: HeaderValue) -> Response<Bytes> {
    status(UNAVAILABLE, "rate limiting is temporarily unavailable", content_type)
}

/// Tells a gRPC client to try again after so many seconds, or never.
pub(super) fn push_back(headers: &mut HeaderMap, seconds: Option<u64>) {
    if headers.contains_key(&STATUS) {
        let never = HeaderValue::from_static("-1");
        let millis = seconds.map_or(never, |seconds| HeaderValue::from(seconds * 1_000));
        headers.entry(RETRY_PUSHBACK_MS).or_insert(millis);
    }
}

/// The codes are those of the gRPC project's `doc/http-grpc-status-mapping.md`.
pub(super) fn rejected(rejection: &Rejection, content_type: HeaderValue) -> Response<Bytes> {
    let code = match rejection.status() {
        StatusCode::BAD_REQUEST => INTERNAL,
        StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
        StatusCode::FORBIDDEN => PERMISSION_DENIED,
        StatusCode::NOT_FOUND => UNIMPLEMENTED,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => UNAVAILABLE,
        _ => UNKNOWN,
    };
    status(code, rejection.message(), content_type)
}

fn status(code: u8, message: &str, content_type: HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(STATUS, HeaderValue::from(u16::from(code)));
    if let Ok(message) = HeaderValue::try_from(percent_encoded(message)) {
        headers.insert(MESSAGE, message);
    }
    response
}

fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn status_with_retry_info(message: &str, delay: Duration) -> Vec<u8> {
    let mut duration = Vec::new();
    push_varint(&mut duration, 1, delay.as_secs());
    push_varint(&mut duration, 2, delay.subsec_nanos().into());
    let mut retry_info = Vec::new();
    push_bytes(&mut retry_info, 1, &duration);
    let mut any = Vec::new();
    push_bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    push_bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    push_varint(&mut status, 1, RESOURCE_EXHAUSTED.into());
    push_bytes(&mut status, 2, message.as_bytes());
    push_bytes(&mut status, 3, &any);
    status
}

fn push_varint(message: &mut Vec<u8>, field: u8, mut value: u64) {
    message.push(field << 3);
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// Everything encoded here is shorter than 128 bytes, so its length takes one byte.
fn push_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    debug_assert!(bytes.len() < 0x80);
    message.push(field << 3 | 2);
    message.push(bytes.len() as u8);
    message.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Limit, TokenBucket};
    use crate::{Quota, Source};
    use tonic::{Code, Status};
    use tonic_types::StatusExt;

    const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

    fn decoded(response: &Response<Bytes>) -> Status {
        Status::from_header_map(response.headers()).unwrap()
    }

    fn content_type_for(requested: &[u8]) -> Option<HeaderValue> {
        let value = HeaderValue::from_bytes(requested).unwrap();
        let mut request = http::Request::post("/").body(()).unwrap().into_parts().0;
        request.headers.insert(CONTENT_TYPE, value);
        content_type(&request)
    }

    #[test]
    fn tonic_reads_the_wait_of_a_denial_to_the_nanosecond() {
        for period in [1, 999_999, 1_000_000, 86_400_000_007] {
            let quota = Quota::new(1, Duration::from_micros(period));
            let bucket = TokenBucket::new(&quota).unwrap();
            let verdict = bucket.check(&mut bucket.empty(0), 1);
            let quota = Limit::TokenBucket(bucket).info("q");
            let decision = Decision::new(verdict, Source::Store, true, quota);
            let status = decoded(&denied(&decision, GRPC));
            assert_eq!(status.code(), Code::ResourceExhausted);
            let info = status.get_details_retry_info().unwrap();
            assert_eq!(info.retry_delay, decision.retry_after());
        }
    }

    #[test]
    fn a_cost_above_the_capacity_tells_clients_not_to_retry() {
        let response = denied(&Decision::exceeding_capacity(1), GRPC);
        assert_eq!(response.headers()[RETRY_PUSHBACK_MS], "-1");
        assert!(decoded(&response).get_details_retry_info().is_none());
    }

    #[test]
    fn a_message_with_any_characters_arrives_unchanged() {
        let message = "100% \u{e4}\n\"quoted\"";
        let status = decoded(&rejected(&Rejection::forbidden(message), GRPC));
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, message));
    }

    #[test]
    fn grpc_requests_are_recognized_and_others_are_not() {
        for (requested, expected) in [
            ("application/grpc", "application/grpc"),
            ("application/grpc+proto", "application/grpc"),
            ("Application/GRPC; charset=utf-8", "application/grpc"),
            ("application/grpc-web", "application/grpc-web"),
            ("application/grpc-web+proto", "application/grpc-web"),
            ("application/grpc-web-text+proto", "application/grpc-web-text"),
        ] {
            assert_eq!(content_type_for(requested.as_bytes()).unwrap(), expected, "{requested}");
        }
        for other in
            ["", "application/json", "application/grpcx", "application/gr", "grpc", "\u{ff}"]
        {
            assert_eq!(content_type_for(other.as_bytes()), None, "{other}");
        }
        let mut request = http::Request::get("/").body(()).unwrap().into_parts().0;
        assert_eq!(content_type(&request), None);
        request.headers.insert(CONTENT_TYPE, GRPC);
        assert_eq!(content_type(&request), None, "gRPC uses POST");
    }
}

//! Responses of gRPC that consist of trailers only: HTTP 200, an empty body, and the status in the
//! headers. The details are a `google.rpc.Status` with a `google.rpc.RetryInfo`, written by hand:
//! it takes less than a page, and spares every build a protobuf library.

use std::fmt::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::{Decision, Refusal};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const INVALID_ARGUMENT: u8 = 3;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;

pub(super) fn denied(decision: &Decision) -> Response<Bytes> {
    if decision.is_over_limit() {
        let mut response = trailers(
            RESOURCE_EXHAUSTED,
            "the request costs more than the rate limit allows at once",
        );
        // A negative number: do not retry.
        response.headers_mut().insert(PUSHBACK, HeaderValue::from_static("-1"));
        return response;
    }
    let message = "the rate limit is exceeded";
    let mut response = trailers(RESOURCE_EXHAUSTED, message);
    let details = STANDARD_NO_PAD.encode(status_with_retry_info(message, decision.retry_after()));
    if let Ok(details) = HeaderValue::try_from(details) {
        response.headers_mut().insert(DETAILS, details);
    }
    let millis = decision.retry_after().as_micros().div_ceil(1_000) as u64;
    response.headers_mut().insert(PUSHBACK, HeaderValue::from(millis));
    response
}

pub(super) fn unavailable() -> Response<Bytes> {
    trailers(UNAVAILABLE, "the request cannot be admitted at the moment")
}

pub(super) fn refused(refusal: &Refusal) -> Response<Bytes> {
    let code = match refusal.status() {
        StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
        StatusCode::FORBIDDEN => PERMISSION_DENIED,
        StatusCode::TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
        StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        status if status.is_server_error() => INTERNAL,
        _ => INVALID_ARGUMENT,
    };
    trailers(code, refusal.reason())
}

fn trailers(code: u8, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
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

/// All that is written here is shorter than 128 bytes, so its length is one byte.
fn push_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    debug_assert!(bytes.len() < 0x80);
    message.push(field << 3 | 2);
    message.push(bytes.len() as u8);
    message.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::{Quota, Resolution};
    use tonic::{Code, Status};
    use tonic_types::StatusExt;

    fn status(response: &Response<Bytes>) -> Status {
        Status::from_header_map(response.headers()).unwrap()
    }

    #[test]
    fn tonic_reads_the_wait_of_a_denial_to_the_nanosecond() {
        for period in [1, 999_999, 1_000_000, 86_400_000_007] {
            let quota = Quota::new(1, Duration::from_micros(period));
            let bucket = TokenBucket::new("", &quota).unwrap();
            let decision = bucket.check(&mut bucket.capacity(), 1);
            let status = status(&denied(&decision));
            assert_eq!(status.code(), Code::ResourceExhausted);
            let info = status.get_details_retry_info().unwrap();
            assert_eq!(info.retry_delay, Some(decision.retry_after()));
        }
    }

    #[test]
    fn a_denial_for_good_tells_clients_not_to_retry() {
        let bucket = TokenBucket::new("", &Quota::per_second(1)).unwrap();
        let response = denied(&bucket.check(&mut 0, 2));
        assert_eq!(response.headers()[PUSHBACK], "-1");
        assert!(status(&response).get_details_retry_info().is_none());
    }

    #[test]
    fn a_reason_with_any_characters_arrives_whole() {
        let reason = "100% ä\n\"quoted\"";
        let Resolution::Refused(refusal) = Resolution::refused(StatusCode::FORBIDDEN, reason)
        else {
            unreachable!()
        };
        let status = status(&refused(&refusal));
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, reason));
    }
}

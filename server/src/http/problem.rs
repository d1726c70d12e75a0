//! Errors as problem details (RFC 9457). Those of denials are in the library (`src/layer/problem.rs`).

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::json;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The response to one client is not for others.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

pub(crate) fn unknown_policy(name: &str) -> Response {
    problem(StatusCode::NOT_FOUND, &format!("there is no policy `{name}`"))
}

/// The response to a request without the token.
pub(crate) fn unauthorized() -> Response {
    let response = problem(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong");
    ([(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))], response).into_response()
}

pub(crate) fn problem(status: StatusCode, detail: &str) -> Response {
    let title = status.canonical_reason().unwrap_or_default();
    let body = json!({ "title": title, "status": status.as_u16(), "detail": detail });
    (status, [(CONTENT_TYPE, PROBLEM_JSON), (CACHE_CONTROL, NO_STORE)], Json(body)).into_response()
}

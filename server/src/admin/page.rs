//! The live page. It has no data itself, so it needs no token.

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};

const HTML: &str = include_str!("../../assets/page.html");
const CSS: &str = include_str!("../../assets/page.css");
const JS: &str = include_str!("../../assets/page.js");

/// Only what this server sends, and not in a frame of another page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

pub(super) fn router() -> Router {
    Router::new()
        .route("/", get(async || asset("text/html; charset=utf-8", HTML)))
        .route("/page.css", get(async || asset("text/css; charset=utf-8", CSS)))
        .route("/page.js", get(async || asset("text/javascript; charset=utf-8", JS)))
}

fn asset(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text)
}

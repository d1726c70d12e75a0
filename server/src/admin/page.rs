//! The live page. It has no data itself, so it needs no token.
//!
//! `page.js` asks for the data, and imports the others: each shows a part of the page, apart from `api.js` (calls of the
//! server), `dom.js` (elements and texts) and `metrics.js` (which reads `/metrics`).

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// The paths, with the type and the text of each.
const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, include_str!("../../assets/page.html")),
    ("/page.css", CSS, include_str!("../../assets/page.css")),
    ("/page.js", JS, include_str!("../../assets/page.js")),
    ("/actions.js", JS, include_str!("../../assets/actions.js")),
    ("/api.js", JS, include_str!("../../assets/api.js")),
    ("/banner.js", JS, include_str!("../../assets/banner.js")),
    ("/dom.js", JS, include_str!("../../assets/dom.js")),
    ("/history.js", JS, include_str!("../../assets/history.js")),
    ("/metrics.js", JS, include_str!("../../assets/metrics.js")),
    ("/store.js", JS, include_str!("../../assets/store.js")),
    ("/tables.js", JS, include_str!("../../assets/tables.js")),
];

/// Only what this server sends, and not in a frame of another page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

pub(super) fn router() -> Router {
    FILES.into_iter().fold(Router::new(), |router, (path, content_type, text)| {
        router.route(path, get(async move || asset(content_type, text)))
    })
}

fn asset(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text)
}

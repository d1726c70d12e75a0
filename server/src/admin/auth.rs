//! The bearer token of the admin API, and what is allowed without it.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderValue, StatusCode};

use crate::bearer::BearerToken;
use crate::http::{problem, unauthorized};
use crate::secret::Secret;

/// Decides which requests may use the API, and which may read metrics.
#[derive(Clone)]
pub(super) struct Guard {
    /// Without a token, the port is on a loopback address.
    token: Option<BearerToken>,
    is_loopback: bool,
}

impl Guard {
    pub(super) fn new(token: Option<&Secret>, is_loopback: bool) -> Self {
        Self { token: token.map(BearerToken::new), is_loopback }
    }

    fn has_token(&self, request: &Request) -> bool {
        self.token.as_ref().is_some_and(|token| token.is_in(request.headers()))
    }

    /// Returns false if a page of another site may have made a browser send the request, or may read the response
    /// by a name that points here. On an address that others can reach, scrapers may use any name.
    fn is_same_site(&self, request: &Request) -> bool {
        let text = |name| {
            request
                .headers()
                .get(name)
                .map(|value: &HeaderValue| value.to_str().unwrap_or_default())
        };
        let host = text(HOST).unwrap_or_default();
        let authority = host.parse::<Authority>().ok();
        let name = authority.as_ref().map_or("", Authority::host);
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = name == "localhost"
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let is_of_host = |origin: &str| {
            origin.strip_prefix("http://").or(origin.strip_prefix("https://")) == Some(host)
        };
        (is_loopback || !self.is_loopback) && text(ORIGIN).is_none_or(is_of_host)
    }
}

pub(super) async fn require_token(
    State(guard): State<Guard>,
    request: Request,
    next: Next,
) -> Response {
    if guard.has_token(&request) { next.run(request).await } else { unauthorized() }
}

pub(super) async fn require_same_site(
    State(guard): State<Guard>,
    request: Request,
    next: Next,
) -> Response {
    if guard.is_same_site(&request) || guard.has_token(&request) {
        next.run(request).await
    } else {
        let advice = "without the admin token, only requests that do not come from other sites are answered, \
                      on a loopback address only those to localhost or a loopback address";
        problem(StatusCode::FORBIDDEN, advice)
    }
}

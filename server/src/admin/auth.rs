//! The bearer token of the admin API.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use crate::http::problem;
use crate::secret::Secret;

/// `None`: no token is required, on a loopback address.
#[derive(Clone)]
pub(super) struct Token(Option<Arc<[u8]>>);

impl Token {
    pub(super) fn new(token: Option<&Secret>) -> Self {
        Self(token.map(|token| Sha256::digest(token.expose()).as_slice().into()))
    }

    /// Compares hashes, so timing reveals nothing about the token.
    fn accepts(&self, request: &Request) -> bool {
        let Some(expected) = &self.0 else { return true };
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = header.and_then(|value| value.strip_prefix("Bearer "));
        given.is_some_and(|given| Sha256::digest(given).as_slice() == &**expected)
    }
}

pub(super) async fn require(State(token): State<Token>, request: Request, next: Next) -> Response {
    if token.accepts(&request) {
        next.run(request).await
    } else {
        problem(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong")
    }
}

/// Without a token, a page of another site could make a browser on this machine send requests, or read
/// the answers by a name that points here.
pub(super) async fn require_same_site(request: Request, next: Next) -> Response {
    if is_same_site(&request) {
        next.run(request).await
    } else {
        let advice = "without an admin token, only requests to localhost or a loopback address, and \
                      not from other sites, are answered";
        problem(StatusCode::FORBIDDEN, advice)
    }
}

fn is_same_site(request: &Request) -> bool {
    let text = |name| {
        request.headers().get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default())
    };
    let host = text(HOST).unwrap_or_default();
    let authority = host.parse::<Authority>().ok();
    let name = authority.as_ref().map_or("", Authority::host);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback && text(ORIGIN).is_none_or(|origin| origin == format!("http://{host}"))
}

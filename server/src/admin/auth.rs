//! The bearer token of the admin API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::StatusCode;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use sha2::{Digest, Sha256};

use crate::http::problem;

/// None on a loopback address.
#[derive(Clone)]
pub(super) struct Token(Option<Arc<[u8]>>);

impl Token {
    pub(super) fn new(token: Option<String>) -> Self {
        Self(token.map(|token| Sha256::digest(token).as_slice().into()))
    }

    /// Compares hashes, so the time tells nothing about the token.
    fn accepts(&self, request: &Request) -> bool {
        let Some(expected) = &self.0 else { return true };
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = header.and_then(|value| value.strip_prefix("Bearer "));
        given.is_some_and(|given| Sha256::digest(given).as_slice() == &**expected)
    }
}

pub(super) async fn require(State(token): State<Token>, request: Request, next: Next) -> Response {
    if !token.accepts(&request) {
        return problem(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong");
    }
    // Without a token, a page of another site could make a browser on this machine send requests.
    if token.0.is_none() && is_of_another_site(&request) {
        return problem(StatusCode::FORBIDDEN, "requests from other sites need a token");
    }
    next.run(request).await
}

fn is_of_another_site(request: &Request) -> bool {
    let text = |name| {
        request.headers().get(name).and_then(|value: &http::HeaderValue| value.to_str().ok())
    };
    let host = text(HOST).unwrap_or_default();
    let is_loopback = {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let name = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    let origin = text(ORIGIN).and_then(|origin| origin.split_once("://"));
    !is_loopback || origin.is_some_and(|(_, origin)| origin != host)
}

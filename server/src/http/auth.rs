//! `/auth`: whether a gateway may pass a request on, for nginx's `auth_request`, Caddy's
//! `forward_auth` and Traefik's ForwardAuth.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderName, StatusCode};
use serde::Deserialize;
use tollgate::layer::HeaderStyle;
use tollgate::{Costs, Key, KeyResolver, Resolution};

use super::{problem, unknown_policy};
use crate::checker::{self, Answer};
use crate::lists::Listed;
use crate::live::{Active, Live};
use crate::range::is_address;
use crate::settings::KeyHeader;
use crate::telemetry;

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// What the gateway's configuration chooses. The client's own query is never part of this URL.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuthQuery {
    policy: Option<String>,
    /// The header with the key, instead of the client's IP address.
    key_header: Option<KeyHeader>,
    #[serde(default = "super::one")]
    cost: u64,
    /// The status of a denial, for gateways that do not pass 429 on.
    #[serde(default = "too_many_requests")]
    denied: u16,
}

fn too_many_requests() -> u16 {
    StatusCode::TOO_MANY_REQUESTS.as_u16()
}

pub(super) async fn auth(
    State(live): State<Arc<Live>>,
    query: Result<Query<AuthQuery>, QueryRejection>,
    request: Request,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return problem(rejection.status(), &rejection.body_text()),
    };
    let denied = match StatusCode::from_u16(query.denied) {
        Ok(status) if status.is_client_error() => status,
        _ => return problem(StatusCode::BAD_REQUEST, "`denied` is not a status of 400 to 499"),
    };
    let active = live.active();
    let Some(name) =
        query.policy.as_ref().or(active.settings.auth.policy.as_ref().map(|policy| &policy.value))
    else {
        let advice = "no policy: add `?policy=NAME` to the URL, or `auth.policy` to the settings";
        return problem(StatusCode::BAD_REQUEST, advice);
    };
    let Some(policy) = active.policy(name) else {
        return unknown_policy(name);
    };
    let (parts, _) = request.into_parts();
    let (key, listed) = match key(&active, &query, &parts) {
        Ok(KeyOf::Header(name, value)) => {
            let listed = active.lists.of_key(&value);
            (Key::join(&[Key::from(name.as_str()), value]), listed)
        }
        Ok(KeyOf::Address(key)) => {
            let listed = active.lists.of_address(&key);
            (key, listed)
        }
        Err(response) => return *response,
    };
    if let Some(listed) = listed {
        telemetry::overruled(listed.list());
    }
    match listed {
        Some(Listed::Allowed) => return StatusCode::OK.into_response(),
        Some(Listed::Denied) => return problem(denied, "this key is on the deny list"),
        None => {}
    }
    let costs = Costs::new(query.cost);
    match checker::check(&live, policy, &policy.limiter, &key, costs).await {
        Ok(Answer::Blocked(remaining)) => {
            let mut response = problem(denied, "this key is blocked");
            let seconds = checker::seconds(remaining).into();
            response.headers_mut().insert(RETRY_AFTER, seconds);
            response
        }
        Ok(Answer::Decided(decision)) if decision.is_allowed() => {
            decision.headers(HeaderStyle::Ietf).into_response()
        }
        Ok(Answer::Decided(decision)) => {
            let mut response = decision.response().map(Into::into);
            *response.status_mut() = denied;
            response
        }
        Err(error) => error.response().map(Into::into),
    }
}

enum KeyOf<'a> {
    /// The name of the header, and its value. Both are in the key, so that no value is the key of an
    /// address, or of somebody who is known by another header.
    Header(&'a HeaderName, Key),
    Address(Key),
}

/// The key, or the response to a request without one.
fn key<'a>(
    active: &'a Active,
    query: &'a AuthQuery,
    parts: &Parts,
) -> Result<KeyOf<'a>, Box<Response>> {
    let bad_request = |detail: &str| Box::new(problem(StatusCode::BAD_REQUEST, detail));
    if let Some(KeyHeader(name)) =
        query.key_header.as_ref().or(active.settings.auth.key_header.as_ref())
    {
        let mut values = parts.headers.get_all(name).into_iter();
        return match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => {
                Ok(KeyOf::Header(name, Key::from(value.as_bytes())))
            }
            (Some(_), None) => Err(bad_request(&format!("the header `{name}` is empty"))),
            (None, _) => Err(bad_request(&format!("the header `{name}` is missing"))),
            (Some(_), Some(_)) => Err(bad_request(&format!("the header `{name}` occurs twice"))),
        };
    }
    // Otherwise all clients of that gateway would be one.
    if let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<SocketAddr>>()
        && !active
            .settings
            .auth
            .trusted_proxies
            .iter()
            .any(|range| range.contains_address(peer.ip()))
    {
        let peer = peer.ip();
        if active.warns_of_gateways() {
            tracing::warn!(%peer, "a gateway is not in `auth.trusted_proxies`: its requests are rejected");
        }
        return Err(bad_request(&format!("`auth.trusted_proxies` does not have {peer}")));
    }
    let forwarded = parts.headers.get_all(X_FORWARDED_FOR).iter().next_back();
    let forwarded = forwarded.and_then(|value| value.to_str().ok());
    let last = forwarded.and_then(|value| value.rsplit(',').next()).map(str::trim);
    if !last.is_some_and(is_address) {
        return Err(bad_request("the gateway has to send X-Forwarded-For, ending with an address"));
    }
    match active.client_ip.resolve(parts) {
        Resolution::Key(key) => Ok(KeyOf::Address(key)),
        Resolution::Missing(rejection) | Resolution::Reject(rejection) => {
            Err(Box::new(problem(rejection.status(), rejection.message())))
        }
        _ => Err(bad_request("the client has no address")),
    }
}

//! `/auth`: whether a gateway may pass a request on, for nginx's `auth_request`, Caddy's
//! `forward_auth` and Traefik's ForwardAuth.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::response::{IntoResponse, Response};
use fleetlimit::layer::{Drain, HeaderStyle};
use fleetlimit::{Costs, Key, KeyResolver, Resolution};
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;

use super::{problem, unknown_policy};
use crate::checker::{self, Answer};
use crate::lists::Listed;
use crate::live::{Active, Live};
use crate::range::is_address;
use crate::settings::HeaderOption;
use crate::telemetry;

const X_FORWARDED_FOR: &str = "x-forwarded-for";
const X_FORWARDED_URI: &str = "x-forwarded-uri";

/// What the gateway's configuration chooses.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuthQuery {
    policy: Option<String>,
    /// The header with the name of the policy. Requests without it have `policy`.
    policy_header: Option<HeaderOption>,
    /// The header with the key, instead of the client's IP address.
    key_header: Option<HeaderOption>,
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
    let (parts, body) = request.into_parts();
    let response = response(&live, query, &parts).await;
    // Not all gateways leave the body of the request out, and one that is still sending it would lose the
    // response.
    Drain::default().read(&parts, body).await;
    response
}

async fn response(
    live: &Live,
    query: Result<Query<AuthQuery>, QueryRejection>,
    parts: &Parts,
) -> Response {
    if has_query_of_client(parts) {
        return problem(
            StatusCode::BAD_REQUEST,
            "the gateway passes the client's query on, so the client could choose its own limit: end \
             the URL of /auth in the gateway's configuration with `?`",
        );
    }
    let query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return problem(rejection.status(), &rejection.body_text()),
    };
    let denied = match StatusCode::from_u16(query.denied) {
        Ok(status) if status.is_client_error() => status,
        _ => return problem(StatusCode::BAD_REQUEST, "`denied` is not a status of 400 to 499"),
    };
    let active = live.active();
    let name = match policy_name(&active, &query, parts) {
        Ok(name) => name,
        Err(response) => return *response,
    };
    let Some(policy) = active.policy(&name) else {
        return unknown_policy(&name);
    };
    let (key, listed) = match key(&active, &query, parts) {
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
    match checker::check(live, policy, &policy.limiter, &key, costs).await {
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

/// Caddy keeps the client's query if the URL in its configuration has none.
fn has_query_of_client(request: &Parts) -> bool {
    let Some(query) = request.uri.query().filter(|query| !query.is_empty()) else { return false };
    let mut of_clients = request.headers.get_all(X_FORWARDED_URI).iter().filter_map(|uri| {
        let (_, query) = split(uri.as_bytes(), b'?')?;
        // A fragment is no part of a query. Gateways may pass it on here, but not in the URL of /auth.
        Some(split(query, b'#').map_or(query, |(query, _)| query))
    });
    of_clients.any(|of_client| of_client == query.as_bytes())
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = text.iter().position(|byte| *byte == at)?;
    Some((&text[..position], &text[position + 1..]))
}

/// What the URL says has precedence over the settings.
fn policy_name<'a>(
    active: &'a Active,
    query: &'a AuthQuery,
    parts: &'a Parts,
) -> Result<Cow<'a, str>, Box<Response>> {
    let (auth, policy) = (&active.settings.auth, query.policy.as_ref());
    let of_settings = || auth.policy_header.as_ref().filter(|_| policy.is_none());
    if let Some(HeaderOption(name)) = query.policy_header.as_ref().or_else(of_settings)
        && let Some(value) = only_value(parts, name)?
    {
        return Ok(String::from_utf8_lossy(value.as_bytes()));
    }
    let policy = policy.or(auth.policy.as_ref().map(|policy| &policy.value));
    policy.map(Cow::from).ok_or_else(|| {
        bad_request("no policy: add `?policy=NAME` to the URL, or `auth.policy` to the settings")
    })
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
    if let Some(HeaderOption(name)) =
        query.key_header.as_ref().or(active.settings.auth.key_header.as_ref())
    {
        let missing = || bad_request(&format!("the header `{name}` is missing"));
        let value = only_value(parts, name)?.ok_or_else(missing)?;
        return Ok(KeyOf::Header(name, Key::from(value.as_bytes())));
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
        if active.warnings.gateway.is_first() {
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

/// The value of a header, if there is one.
fn only_value<'a>(
    parts: &'a Parts,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Box<Response>> {
    let mut values = parts.headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(bad_request(&format!("the header `{name}` occurs twice"))),
        (Some(value), _) if value.is_empty() => {
            Err(bad_request(&format!("the header `{name}` is empty")))
        }
        (value, None) => Ok(value),
    }
}

fn bad_request(detail: &str) -> Box<Response> {
    Box::new(problem(StatusCode::BAD_REQUEST, detail))
}

//! `/auth`: whether a gateway may pass a request on, for nginx's `auth_request`, Caddy's
//! `forward_auth` and Traefik's ForwardAuth.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::response::{IntoResponse, Response};
use fleetlimit::layer::{Drain, HeaderStyle};
use fleetlimit::{Costs, Error, Key, KeyResolver, Resolution};
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;

use super::problem;
use super::unchecked::Unchecked;
use crate::checker::{self, Answer};
use crate::holds;
use crate::lists::Listed;
use crate::live::{Active, Live};
use crate::range::{Range, is_address};
use crate::settings::{Auth, HeaderOption};
use crate::telemetry;
use crate::warnings::Cause;

const X_FORWARDED_FOR: &str = "x-forwarded-for";
const X_FORWARDED_URI: &str = "x-forwarded-uri";
/// The message to clients, who are not to know whether a list or a block denies them.
const DENIED: &str = "This request is denied.";

/// The parameters in the gateway's configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuthQuery {
    policy: Option<String>,
    /// The header with the name of the policy. Requests without it have the `policy` of the query, if there is one.
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
    let active = live.active();
    let response = response(&live, &active, query, &parts).await;
    let response = response.unwrap_or_else(|unchecked| unchecked.into_response(&active));
    // Not all gateways leave the body of the request out, and one that is still sending it would lose the
    // response.
    Drain::default().read(&parts, body).await;
    response
}

async fn response(
    live: &Live,
    active: &Active,
    query: Result<Query<AuthQuery>, QueryRejection>,
    parts: &Parts,
) -> Result<Response, Unchecked> {
    check_caller(&active.settings.auth, parts)?;
    if has_query_of_client(parts) {
        return Err(Unchecked::new(
            Cause::ClientQuery,
            "the gateway passes the client's query on, so the client could choose its own limit: end \
             the URL of /auth in the gateway's configuration with `?`",
        ));
    }
    let Query(query) =
        query.map_err(|rejection| Unchecked::new(Cause::Parameters, rejection.body_text()))?;
    let denied = StatusCode::from_u16(query.denied).ok().filter(StatusCode::is_client_error);
    let denied = denied.ok_or_else(|| {
        Unchecked::new(Cause::Parameters, "`denied` is not a status of 400 to 499")
    })?;
    let name = policy_name(&active.settings.auth, &query, parts)?;
    let unknown = || Unchecked::new(Cause::UnknownPolicy, format!("there is no policy `{name}`"));
    let policy = active.policy(&name).ok_or_else(unknown)?;
    if policy.has_holds() {
        return Err(Unchecked::new(Cause::UnknownPolicy, holds::unreleased(&name)));
    }
    let (key, listed) = match key(active, &query, parts)? {
        KeyOf::Header(name, value) => {
            let listed = active.lists.of_key(&value);
            (Key::join(&[Key::from(name.as_str()), value]), listed)
        }
        KeyOf::Address(key) => {
            let listed = active.lists.of_address(&key);
            (key, listed)
        }
    };
    if let Some(listed) = listed {
        telemetry::overruled(listed.list());
    }
    match listed {
        Some(Listed::Allowed) => return Ok(StatusCode::OK.into_response()),
        Some(Listed::Denied) => return Ok(problem(denied, DENIED)),
        None => {}
    }
    let result = checker::check(live, policy, &policy.limiter, &key, Costs::new(query.cost)).await;
    Ok(answer(result, denied))
}

/// The response to a checked request. Its status is `denied` if the request is.
fn answer(result: Result<Answer, Error>, denied: StatusCode) -> Response {
    match result {
        Ok(Answer::Blocked(remaining)) => {
            let mut response = problem(denied, DENIED);
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

/// Rejects callers other than gateways, who could use up the permits of any client, and claim any address.
fn check_caller(auth: &Auth, parts: &Parts) -> Result<(), Unchecked> {
    let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() else {
        return Err(Unchecked::new(Cause::Caller, "the caller has no address"));
    };
    let (peer, has) = (peer.ip(), |range: &Range| range.contains_address(peer.ip()));
    if auth.gateways.iter().any(has) {
        return Ok(());
    }
    let advice = if auth.trusted_proxies.iter().any(has) {
        ", but `auth.trusted_proxies` does: move the gateway from there, and leave only proxies before it"
    } else {
        ""
    };
    let reason = format!("`auth.gateways` does not have {peer}{advice}");
    Err(Unchecked::new(Cause::Caller, reason))
}

/// Returns true if the query is the client's, which Caddy keeps if the URL in its configuration has none.
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

/// The name of the policy: that of the URL, or of the settings. Only the URL may have both a header and a policy for
/// requests without it: that policy is a second limit for whoever can make the gateway drop the header.
fn policy_name<'a>(
    auth: &'a Auth,
    query: &'a AuthQuery,
    parts: &'a Parts,
) -> Result<Cow<'a, str>, Unchecked> {
    let (policy, header) = match (query.policy.as_deref(), query.policy_header.as_ref()) {
        (None, None) => {
            (auth.policy.as_ref().map(|policy| policy.value.as_str()), auth.policy_header.as_ref())
        }
        of_url => of_url,
    };
    if let Some(HeaderOption(name)) = header {
        match only_value(parts, name, Cause::PolicyHeader) {
            Ok(value) => return Ok(String::from_utf8_lossy(value.as_bytes())),
            Err(unchecked) if policy.is_none() || parts.headers.contains_key(name) => {
                return Err(unchecked);
            }
            Err(_) => {}
        }
    }
    policy.map(Cow::from).ok_or_else(|| {
        let reason = "no policy: add `?policy=NAME` to the URL, or `auth.policy` to the settings";
        Unchecked::new(Cause::NoPolicy, reason)
    })
}

enum KeyOf<'a> {
    /// The name of the header, and its value. Both are in the key, so that no value is the key of an
    /// address, or of somebody who is known by another header.
    Header(&'a HeaderName, Key),
    Address(Key),
}

fn key<'a>(
    active: &'a Active,
    query: &'a AuthQuery,
    parts: &Parts,
) -> Result<KeyOf<'a>, Unchecked> {
    if let Some(HeaderOption(name)) =
        query.key_header.as_ref().or(active.settings.auth.key_header.as_ref())
    {
        let value = only_value(parts, name, Cause::KeyHeader)?;
        return Ok(KeyOf::Header(name, Key::from(value.as_bytes())));
    }
    // Otherwise all clients of that gateway would be one.
    let forwarded = parts.headers.get_all(X_FORWARDED_FOR).iter().next_back();
    let forwarded = forwarded.and_then(|value| value.to_str().ok());
    let last = forwarded.and_then(|value| value.rsplit(',').next()).map(str::trim);
    if !last.is_some_and(is_address) {
        let reason = "the gateway has to send X-Forwarded-For, ending with an address";
        return Err(Unchecked::new(Cause::Address, reason));
    }
    match active.client_ip.resolve(parts) {
        Resolution::Key(key) => Ok(KeyOf::Address(key)),
        Resolution::Missing(rejection) | Resolution::Reject(rejection) => {
            Err(Unchecked::new(Cause::Address, rejection.message()))
        }
        _ => Err(Unchecked::new(Cause::Address, "the client has no address")),
    }
}

/// The value of a header.
fn only_value<'a>(
    parts: &'a Parts,
    name: &HeaderName,
    cause: Cause,
) -> Result<&'a HeaderValue, Unchecked> {
    let mut values = parts.headers.get_all(name).into_iter();
    let problem = match (values.next(), values.next()) {
        (None, _) => "is missing",
        (Some(_), Some(_)) => "occurs twice",
        (Some(value), None) if value.is_empty() => "is empty",
        (Some(value), None) => return Ok(value),
    };
    Err(Unchecked::new(cause, format!("the header `{name}` {problem}")))
}

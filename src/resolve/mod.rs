//! Resolvers: from a request to its rate limit key.
//!
//! A [`KeyResolver`] sees the request and returns a [`Resolution`]: a key, skip, missing, or reject.
//! Closures are resolvers, and so are tuples of resolvers, which combine their keys.
//!
//! ```
//! use http::request::Parts;
//! use fleetlimit::resolve::{Extension, PeerIp, from_fn};
//! use fleetlimit::{KeyResolver, Rejection, Resolution};
//!
//! // The address of the client, except for the health check.
//! let by_address = PeerIp::new().skip(|parts: &Parts| parts.uri.path() == "/health");
//!
//! // The user that an authentication layer found, or the address of an anonymous client.
//! #[derive(Clone)]
//! struct UserId(u64);
//! let by_user = Extension::map(|user: &UserId| user.0).or(PeerIp::new());
//!
//! // A closure.
//! let by_host = from_fn(|parts| match parts.uri.host() {
//!     Some(host) => Resolution::from(host),
//!     None => Rejection::bad_request("missing host").into(),
//! });
//! # fn check(_: impl KeyResolver) {}
//! # check(by_address);
//! # check(by_user);
//! # check(by_host);
//! ```
//!
//! # Keys that clients choose
//!
//! A client that can choose its key has no limit, because every new key has a full bucket. This
//! includes headers that nobody has verified: `Header::new(API_KEY).or(PeerIp::new())` does not
//! limit a client that invents API keys. Add an outer limit by address, and limit by what has been
//! authenticated: see the [guide](crate::guide#by-api-key).
//!
//! # Tuples
//!
//! `(PeerIp::new(), MatchedPath)` gives every address a bucket for every route. A tuple has two to
//! six parts. All parts are resolved, and the first rule that applies decides:
//!
//! 1. A part rejects: reject. A skip cannot let through what another part rejects.
//! 2. A part skips: skip.
//! 3. A part has no key: missing. The other parts alone never make a key.
//! 4. All parts have keys: the keys joined by [`Key::join`].

// The files. Each resolver has one: `client_ip`, `peer_ip`, `header`, `path`, `extension`, `global`. `combine`
// has `or`, `or_skip`, `skip` and tuples, and `rejection` is the response to a request without a key. `peer`
// is the other end of the connection, and `trusted_proxies` are those whose header is used.
// `forwarding_header` says which header fields these are and how they are read (`rfc7239`: `Forwarded`).
// `prefix` makes an address a key, and `proxy_log` reports proxies that hide their clients.

mod client_ip;
mod combine;
mod extension;
mod forwarding_header;
mod global;
mod header;
mod path;
mod peer;
mod peer_ip;
mod prefix;
mod proxy_log;
mod rejection;
mod rfc7239;
mod trusted_proxies;

use std::sync::Arc;

use crate::Key;

pub use crate::canonical::canonical;
pub use client_ip::ClientIp;
pub use combine::{Or, OrSkip, Skip};
pub use extension::Extension;
pub use global::Global;
pub use header::Header;
#[cfg(feature = "axum")]
pub use path::MatchedPath;
pub use path::Path;
pub use peer::UnixSocket;
pub use peer_ip::PeerIp;
pub use rejection::Rejection;

/// Finds the rate limit key of a request.
///
/// `R` is [`http::request::Parts`] for HTTP and gRPC, and the request itself for any other tower
/// service. Implementations are the resolvers in [`resolve`](crate::resolve), tuples of resolvers,
/// `Box<dyn KeyResolver<R>>`, `Arc<dyn KeyResolver<R>>`, and closures `Fn(&R) -> T` where `T`
/// converts into a [`Resolution`]: a key or anything that converts into one, an `Option` of it
/// (`None`: no key), or a `Result` of it with a [`Rejection`]. [`from_fn`] infers the type of a closure's
/// argument.
///
/// ```
/// use std::sync::Arc;
/// use fleetlimit::resolve::{Global, PeerIp};
/// use fleetlimit::KeyResolver;
///
/// // Chosen at startup.
/// let per_client = std::env::args().any(|arg| arg == "--per-client");
/// let resolver: Arc<dyn KeyResolver> =
///     if per_client { Arc::new(PeerIp::new()) } else { Arc::new(Global) };
/// # fn check(_: impl KeyResolver) {}
/// # check(resolver);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not resolve a key from `{R}`",
    label = "not a key resolver for `{R}`",
    note = "write a closure over HTTP requests as `fleetlimit::resolve::from_fn(|parts| ..)`, which infers \
            the type of its argument; it returns something that converts into a `Resolution`, such as an \
            `Option<String>`",
    note = "over HTTP a resolver sees `http::request::Parts`, not the whole request"
)]
pub trait KeyResolver<R = http::request::Parts>: Send + Sync {
    /// Resolves one request.
    fn resolve(&self, request: &R) -> Resolution;

    /// Lets requests without a key pass without a check. Rejected requests stay rejected.
    ///
    /// This includes requests that have no key because the server is misconfigured, such as a
    /// missing peer address. They are not limited, and nothing is logged.
    fn or_skip(self) -> OrSkip<Self>
    where
        Self: Sized,
    {
        OrSkip::new(self)
    }

    /// Tries another resolver for requests without a key.
    ///
    /// Both resolvers share one set of keys. If they can return the same key, such as the user `7`
    /// and the header value `7`, those clients share a bucket: add a prefix such as `user:`. `or`
    /// also replaces the 500 for a missing extension, so a forgotten authentication layer goes
    /// unreported.
    fn or<B: KeyResolver<R>>(self, other: B) -> Or<Self, B>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }

    /// Lets requests for which the predicate holds pass without a check. They are not resolved, so
    /// they are never rejected either.
    fn skip<F: Fn(&R) -> bool + Send + Sync>(self, predicate: F) -> Skip<Self, F>
    where
        Self: Sized,
    {
        Skip::new(self, predicate)
    }
}

impl<R, F, T> KeyResolver<R> for F
where
    F: Fn(&R) -> T + Send + Sync,
    T: Into<Resolution>,
{
    fn resolve(&self, request: &R) -> Resolution {
        self(request).into()
    }
}

/// Makes a resolver of a closure over HTTP requests, whose argument needs no type.
///
/// The closure returns anything that converts into a [`Resolution`].
///
/// ```
/// use fleetlimit::resolve::from_fn;
/// use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
///
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let by_tenant = from_fn(|parts| {
///     let tenant = parts.headers.get("x-tenant")?;
///     Some(format!("tenant:{}", tenant.to_str().ok()?))
/// });
/// let layer = RateLimitLayer::new(limiter, by_tenant);
/// # Ok::<(), fleetlimit::ConfigError>(())
/// ```
///
/// A key cannot borrow from the request. This does not compile ("lifetime may not live long enough"):
///
/// ```compile_fail
/// # use fleetlimit::resolve::from_fn;
/// let by_tenant = from_fn(|parts| parts.headers.get("x-tenant")?.to_str().ok());
/// ```
///
/// ```
/// # use fleetlimit::resolve::from_fn;
/// let by_tenant = from_fn(|parts| Some(parts.headers.get("x-tenant")?.to_str().ok()?.to_owned()));
/// ```
///
/// Without `from_fn`, the argument of the closure needs a type. This does not compile ("type annotations
/// needed"):
///
/// ```compile_fail
/// # use fleetlimit::{Limiter, RateLimitLayer};
/// # fn layer(limiter: Limiter) {
/// RateLimitLayer::new(limiter, |parts| parts.uri.path().to_owned());
/// # }
/// ```
///
/// ```
/// # use fleetlimit::{Limiter, RateLimitLayer};
/// # fn layer(limiter: Limiter) {
/// RateLimitLayer::new(limiter, |parts: &http::request::Parts| parts.uri.path().to_owned());
/// # }
/// ```
pub fn from_fn<F, T>(resolver: F) -> F
where
    F: Fn(&http::request::Parts) -> T + Send + Sync,
    T: Into<Resolution>,
{
    resolver
}

impl<R> KeyResolver<R> for Box<dyn KeyResolver<R>> {
    fn resolve(&self, request: &R) -> Resolution {
        (**self).resolve(request)
    }
}

impl<R> KeyResolver<R> for Arc<dyn KeyResolver<R>> {
    fn resolve(&self, request: &R) -> Resolution {
        (**self).resolve(request)
    }
}

/// The result of resolving a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// The request is checked under this key.
    Key(Key),
    /// The request passes without a check.
    Skip,
    /// There is no key. The request is rejected, unless [`KeyResolver::or`] or
    /// [`KeyResolver::or_skip`] applies.
    Missing(Rejection),
    /// The request is rejected.
    Reject(Rejection),
}

impl<K: Into<Key>> From<K> for Resolution {
    fn from(key: K) -> Self {
        Self::Key(key.into())
    }
}

/// Converts `None` into [`Missing`](Resolution::Missing) with status 400.
impl<K: Into<Key>> From<Option<K>> for Resolution {
    fn from(key: Option<K>) -> Self {
        match key {
            Some(key) => Self::Key(key.into()),
            None => Self::Missing(Rejection::bad_request("no rate limit key for this request")),
        }
    }
}

/// Converts an error into [`Reject`](Resolution::Reject).
impl<K: Into<Key>> From<Result<K, Rejection>> for Resolution {
    fn from(key: Result<K, Rejection>) -> Self {
        match key {
            Ok(key) => Self::Key(key.into()),
            Err(rejection) => Self::Reject(rejection),
        }
    }
}

impl From<Rejection> for Resolution {
    fn from(rejection: Rejection) -> Self {
        Self::Reject(rejection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::request::Parts;

    async fn resolve_in_task(resolver: impl KeyResolver) -> Resolution {
        std::future::ready(()).await;
        resolver.resolve(&http::Request::new(()).into_parts().0)
    }

    #[tokio::test]
    async fn a_closure_that_returns_a_static_str_works_in_a_spawned_task() {
        let resolved = tokio::spawn(async {
            let by_nothing = |_: &Parts| "all";
            resolve_in_task(by_nothing).await
        });
        assert_eq!(resolved.await.unwrap(), Resolution::Key("all".into()));
    }

    /// As users write closures.
    #[test]
    fn a_closure_needs_no_type_for_its_argument() {
        let resolver = from_fn(|parts| parts.uri.query()?.parse::<u64>().ok())
            .or(from_fn(|parts| parts.uri.path().to_owned()))
            .skip(|parts| parts.uri.path() == "/health");
        let resolve = |uri: &str| {
            let (parts, ()) = http::Request::get(uri).body(()).unwrap().into_parts();
            resolver.resolve(&parts)
        };
        assert_eq!(resolve("/a?7"), Resolution::from("7"));
        assert_eq!(resolve("/a?b"), Resolution::from("/a"));
        assert_eq!(resolve("/health"), Resolution::Skip);
    }

    #[test]
    fn whatever_converts_into_a_key_converts_into_a_resolution() {
        let text = String::from("7");
        let expected = Resolution::Key("7".into());
        assert_eq!(Resolution::from(&text), expected);
        assert_eq!(Resolution::from(b"7"), expected);
        assert_eq!(Resolution::from(7u8), expected);
        assert_eq!(Resolution::from(&Key::from(7)), expected);
        assert_eq!(Resolution::from(Some(text.as_str())), expected);
    }

    #[test]
    fn a_resolver_chosen_at_run_time_is_a_resolver() {
        let resolvers: [Box<dyn KeyResolver>; 2] = [Box::new(Global), Box::new(|_: &Parts| 7)];
        let parts = http::Request::new(()).into_parts().0;
        let keys = resolvers.map(|resolver| resolver.or_skip().resolve(&parts));
        assert_eq!(keys, [Resolution::from("global"), Resolution::from("7")]);
        let shared: Arc<dyn KeyResolver> = Arc::new(Global);
        assert_eq!((shared, Global).resolve(&parts), Resolution::from("global|global"));
    }
}

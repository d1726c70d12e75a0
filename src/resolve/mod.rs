//! From a request to the key that it is counted under.
//!
//! A [`KeyResolver`] sees the request and answers with a [`Resolution`]: a key, exempt, no key, or
//! refused. Closures are resolvers, and so are tuples of resolvers, which combine their keys.
//!
//! ```
//! use http::request::Parts;
//! use tollgate::resolve::{Header, PeerIp};
//! use tollgate::{KeyResolver, Resolution};
//!
//! // The API key where there is one, else the address.
//! let by_caller = Header::new("x-api-key").or(PeerIp::new());
//!
//! // A closure: tenants are counted, the health check is not.
//! let by_tenant = |parts: &Parts| match parts.headers.get("x-tenant") {
//!     _ if parts.uri.path() == "/health" => Resolution::Exempt,
//!     Some(tenant) => Resolution::Key(tenant.as_bytes().into()),
//!     None => Resolution::missing("send the header x-tenant"),
//! };
//! # fn check(_: impl KeyResolver) {}
//! # check(by_caller);
//! # check(by_tenant);
//! ```
//!
//! # Tuples
//! `(PeerIp::new(), MatchedPath)` gives every address a bucket for every route. All of two to six
//! parts are asked, and the first of these that applies is the answer:
//! 1. one part refuses: refused, so that no exemption lets through what another part bans;
//! 2. one part exempts: exempt;
//! 3. one part has no key: no key, never a key of the others alone;
//! 4. the keys of all parts, joined by [`Key::join`].

mod client_ip;
mod combine;
mod extension;
mod forwarded;
mod global;
mod header;
mod hops;
mod ip;
mod path;
mod peer;
mod prefix;
mod trusted;

use std::borrow::Cow;
use std::net::IpAddr;

use http::StatusCode;

use crate::Key;

pub use client_ip::ClientIp;
pub use combine::{Or, OrExempt};
pub use extension::Extension;
pub use global::Global;
pub use header::Header;
pub use ip::PeerIp;
#[cfg(feature = "axum")]
pub use path::MatchedPath;
pub use path::Path;

/// Finds the key that a request is counted under.
///
/// `R` is [`http::request::Parts`] for HTTP and gRPC, and the request itself for any other tower
/// service. Implemented by the resolvers of [`resolve`](crate::resolve), by tuples of resolvers, and
/// by closures `Fn(&R) -> T`, where `T` is a [`Resolution`] or anything that becomes one: a key,
/// an `Option` of a key (`None`: there is none) or a `Result<_, Refusal>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not resolve a key from `{R}`",
    label = "not a key resolver for `{R}`",
    note = "a closure needs the type of its argument spelled out, and returns something that becomes a `Resolution`: \
            `|parts: &http::request::Parts| -> Option<String> {{ .. }}`",
    note = "over HTTP a resolver sees `http::request::Parts`, not the whole request"
)]
pub trait KeyResolver<R = http::request::Parts>: Send + Sync {
    /// Answers for one request.
    fn resolve(&self, request: &R) -> Resolution;

    /// Lets requests without a key pass, uncounted. One that is refused stays refused.
    fn or_exempt(self) -> OrExempt<Self>
    where
        Self: Sized,
    {
        OrExempt::new(self)
    }

    /// Asks another resolver about requests without a key.
    ///
    /// Both count in the same buckets: where a key of the one can equal a key of the other, a
    /// caller can choose between them.
    fn or<B: KeyResolver<R>>(self, other: B) -> Or<Self, B>
    where
        Self: Sized,
    {
        Or::new(self, other)
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

/// A resolver's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// Count the request under this key.
    Key(Key),
    /// Let the request pass, uncounted.
    Exempt,
    /// There is no key: the request is refused, unless [`KeyResolver::or`] or
    /// [`KeyResolver::or_exempt`] says otherwise.
    Missing(Refusal),
    /// The request must not pass.
    Refused(Refusal),
}

impl Resolution {
    /// There is no key, by the client's fault: 400 with this reason.
    pub fn missing(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Missing(Refusal::new(StatusCode::BAD_REQUEST, reason))
    }

    /// The request must not pass: this status, with this reason.
    pub fn refused(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(Refusal::new(status, reason))
    }
}

/// Why a request without a key is answered and with which status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    reason: Cow<'static, str>,
}

impl Refusal {
    /// A status of 4xx or 5xx, and a reason, which the client gets to see.
    pub fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: reason.into() }
    }

    /// The response's status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The reason, which the client gets to see.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

macro_rules! from_keys {
    ($($key:ty)*) => {$(
        impl From<$key> for Resolution {
            fn from(key: $key) -> Self {
                Self::Key(key.into())
            }
        }
    )*};
}

from_keys!(Key String &'static str Vec<u8> IpAddr u32 u64 u128 i32 i64);

impl<K: Into<Key>> From<Option<K>> for Resolution {
    fn from(key: Option<K>) -> Self {
        match key {
            Some(key) => Self::Key(key.into()),
            None => Self::missing("the request has nothing to count it under"),
        }
    }
}

impl<K: Into<Key>> From<Result<K, Refusal>> for Resolution {
    fn from(key: Result<K, Refusal>) -> Self {
        match key {
            Ok(key) => Self::Key(key.into()),
            Err(refusal) => Self::Refused(refusal),
        }
    }
}

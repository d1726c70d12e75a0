use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::Decision;

/// A limiter, store or resolver cannot be built from what it was given. The text says what to
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(Cow<'static, str>);

impl ConfigError {
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for ConfigError {}

/// A check that has no admission to show: the store did not answer, or, from a layer in
/// [`errors`](crate::RateLimitLayer::errors) mode, the request was denied or refused.
///
/// Cheap to clone: one failure may answer many callers.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    decision: Option<Decision>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What kind of [`Error`] it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store did not answer within the limiter's deadline. A check that was already on its way
    /// may have been charged.
    Timeout,
    /// The store cannot be reached, or the connection broke. A check that was already on its way
    /// may have been charged.
    Unavailable,
    /// The store answered with an error of its own: no permission, a key of another type, out of
    /// memory.
    Store,
    /// The request was denied. [`Error::decision`] has the details. Only from a layer in
    /// [`errors`](crate::RateLimitLayer::errors) mode.
    Denied,
    /// The resolver found no key, or refused the request. Only from a layer in
    /// [`errors`](crate::RateLimitLayer::errors) mode.
    Refused,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), decision: None, source: None }))
    }

    pub(crate) fn caused(
        kind: ErrorKind,
        message: &'static str,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let source = Some(source.into());
        Self(Arc::new(Inner { kind, message: message.into(), decision: None, source }))
    }

    pub(crate) fn denied(decision: Decision) -> Self {
        let message = if decision.is_over_limit() {
            "the request costs more than its rate limit allows at once".into()
        } else {
            "the rate limit is exceeded".into()
        };
        let decision = Some(decision);
        Self(Arc::new(Inner { kind: ErrorKind::Denied, message, decision, source: None }))
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The decision behind an [`ErrorKind::Denied`].
    pub fn decision(&self) -> Option<&Decision> {
        self.0.decision.as_ref()
    }

    /// Whether the same check may succeed later with nothing changed by anybody.
    pub fn is_transient(&self) -> bool {
        match self.kind() {
            ErrorKind::Timeout | ErrorKind::Unavailable => true,
            ErrorKind::Denied => self.decision().is_some_and(|decision| !decision.is_over_limit()),
            ErrorKind::Store | ErrorKind::Refused => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

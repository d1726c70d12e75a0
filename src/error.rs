use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::sync::Arc;

use crate::Decision;

/// An error of the application: of a body, or of a provider of credentials.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// Invalid configuration of a limiter, store or resolver. The text says what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(Cow<'static, str>);

impl ConfigError {
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }

    /// All errors as one, with a line for each.
    pub(crate) fn all_or_nothing(errors: Vec<String>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self::new(errors.join("\n"))) }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for ConfigError {}

/// The reason why a check produced no decision: the store failed. It also reports a denial where a denial has
/// to be an error: from [`Decision::ensure_allowed`], and from a layer made by
/// [`RateLimitLayer::with_errors`](crate::RateLimitLayer::with_errors).
///
/// The text is for operators. With the feature `axum` an error is an `IntoResponse` that reveals
/// nothing about the server: see [`response`](Self::response).
///
/// Cloning is cheap, since one failure can end many checks.
#[derive(Clone)]
pub struct Error(Arc<ErrorDetails>);

#[derive(Clone)]
struct ErrorDetails {
    kind: ErrorKind,
    is_transient: bool,
    message: Cow<'static, str>,
    server: Option<Arc<str>>,
    decision: Option<Decision>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store did not reply within the limiter's timeout. A check that was already sent may have
    /// been charged.
    Timeout,
    /// The store is unreachable, or the connection broke. A check that was already sent may have
    /// been charged.
    Unavailable,
    /// The store replied with an error: missing permissions, a key that holds the wrong type, out of
    /// memory.
    Server,
    /// More checks wait for the store than it can decide within the timeout, although it replies. A check
    /// that was already sent may have been charged.
    Overloaded,
    /// The check was denied. [`Error::decision`] returns the decision.
    Denied,
    /// The resolver of a layer made by [`RateLimitLayer::with_errors`](crate::RateLimitLayer::with_errors) found
    /// no key, or rejected the request. [`BlockList::block`](crate::BlockList::block) returns this kind if the
    /// time is too short or too long, or 1,000 keys are blocked already.
    Rejected,
    /// The [costs](crate::Costs) of a check, a charge or a credit name a quota that the policy does not have.
    UnknownQuota,
    /// The call needs a [hold](crate::Limiter::hold), because the policy has a
    /// [concurrent quota](crate::Quota::concurrent), or it extends a hold that has ended. Otherwise nobody would give the
    /// permits back.
    NotHeld,
}

impl ErrorKind {
    /// All kinds, in the order of their declaration.
    pub(crate) const ALL: [Self; 8] = [
        Self::Timeout,
        Self::Unavailable,
        Self::Server,
        Self::Overloaded,
        Self::Denied,
        Self::Rejected,
        Self::UnknownQuota,
        Self::NotHeld,
    ];

    /// Returns the value of the label `error.type` of metrics.
    #[cfg(feature = "metrics")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Server => "server",
            Self::Overloaded => "overloaded",
            Self::Denied => "denied",
            Self::Rejected => "rejected",
            Self::UnknownQuota => "unknown_quota",
            Self::NotHeld => "not_held",
        }
    }
}

/// The most characters that an error keeps of a text that others wrote. It may be logged for each check.
const MAX_CHARS: usize = 300;

/// The start of a text of any length. Writing to it fails once the text is longer.
#[derive(Default)]
struct Start {
    text: String,
    chars: usize,
    is_cut: bool,
}

/// The start of the texts of an error and its causes, in place of these.
#[cfg(feature = "redis")]
#[derive(Debug)]
struct CutError(String);

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let is_transient =
            matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Overloaded);
        let message = match message.into() {
            Cow::Owned(text) if text.len() > MAX_CHARS => Start::of(&text).into_text().into(),
            short => short,
        };
        Self(Arc::new(ErrorDetails {
            kind,
            is_transient,
            message,
            server: None,
            decision: None,
            source: None,
        }))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn caused_by(
        kind: ErrorKind,
        message: &'static str,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        let mut error = Self::new(kind, message);
        let text = Start::of_all(&source);
        Arc::make_mut(&mut error.0).source = Some(match text.is_cut {
            false => Arc::new(source),
            true => Arc::new(CutError(text.into_text())),
        });
        error
    }

    pub(crate) fn denied(decision: Decision) -> Self {
        let message = if decision.exceeds_capacity() {
            "the cost exceeds the capacity of the rate limit"
        } else {
            "rate limit exceeded"
        };
        let mut error = Self::new(ErrorKind::Denied, message);
        let inner = Arc::make_mut(&mut error.0);
        inner.is_transient = !decision.exceeds_capacity();
        inner.decision = Some(decision);
        error
    }

    /// Sets whether the error passes without a change.
    #[cfg(feature = "redis")]
    pub(crate) fn with_transience(mut self, is_transient: bool) -> Self {
        Arc::make_mut(&mut self.0).is_transient = is_transient;
        self
    }

    /// Sets the server that the error came from, unless one is known already.
    #[cfg(feature = "redis")]
    pub(crate) fn with_server(mut self, server: &Arc<str>) -> Self {
        if self.0.server.is_none() {
            Arc::make_mut(&mut self.0).server = Some(server.clone());
        }
        self
    }

    /// Replaces the text by one that is closer to its cause.
    #[cfg(feature = "redis")]
    pub(crate) fn with_message(mut self, message: &'static str) -> Self {
        Arc::make_mut(&mut self.0).message = message.into();
        self
    }

    /// Returns true if the server refused to do something that it may do later.
    #[cfg(feature = "redis")]
    pub(crate) fn is_transient_reply(&self) -> bool {
        self.0.kind == ErrorKind::Server && self.0.is_transient
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The server that failed, if one did: `host:port`, or a name for a Sentinel service, or for a cluster or
    /// Sentinel pool.
    pub fn server(&self) -> Option<&str> {
        self.0.server.as_deref()
    }

    /// The decision behind an [`ErrorKind::Denied`].
    pub fn decision(&self) -> Option<&Decision> {
        self.0.decision.as_ref()
    }

    /// Returns true if a retry may succeed without a change.
    ///
    /// It is true for timeouts, lost connections, overload and denials that a wait resolves. It is also true
    /// for error replies that describe a state which can pass: a failover (`READONLY`,
    /// `MASTERDOWN`), a start (`LOADING`), an unstable cluster (`CLUSTERDOWN`, `TRYAGAIN`) and a
    /// server that lacks time, memory, disk or replicas (`BUSY`, `OOM`, `MISCONF`, `NOREPLICAS`).
    /// It is false for other error replies, such as missing permissions or a key that holds the
    /// wrong type, and for a cost above the capacity.
    pub fn is_transient(&self) -> bool {
        self.0.is_transient
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorDetails { kind, is_transient, message, server, decision, source } = &*self.0;
        f.debug_struct("Error")
            .field("kind", kind)
            .field("is_transient", is_transient)
            .field("message", message)
            .field("server", server)
            .field("decision", decision)
            .field("source", source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Returns the text of an error and its causes, for logs.
pub fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = Start::of(&error).into_text();
    if let Some(source) = error.source() {
        let _ = write!(text, ": {}", Start::of_all(source).into_text());
    }
    text
}

impl Start {
    fn of(text: &impl fmt::Display) -> Self {
        let mut start = Self::default();
        // An error means that the text is too long.
        let _ = write!(start, "{text}");
        start
    }

    /// The start of the texts of an error and its causes.
    fn of_all(error: &dyn StdError) -> Self {
        let mut all = Self::of(&error);
        let mut cause = error.source();
        while let Some(error) = cause.filter(|_| !all.is_cut) {
            let message = Self::of(&error);
            // Some errors repeat their cause.
            if message.is_cut || !all.text.ends_with(&message.text) {
                let _ = write!(all, ": {}", message.text);
            }
            cause = error.source();
        }
        all
    }

    fn into_text(mut self) -> String {
        if self.is_cut {
            self.text.pop();
            self.text.push('\u{2026}');
        }
        self.text
    }
}

impl Write for Start {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = MAX_CHARS - self.chars;
        match more.char_indices().nth(room) {
            None => {
                self.text.push_str(more);
                self.chars += more.chars().count();
                Ok(())
            }
            Some((end, _)) => {
                self.text.push_str(&more[..end]);
                (self.chars, self.is_cut) = (MAX_CHARS, true);
                Err(fmt::Error)
            }
        }
    }
}

#[cfg(feature = "redis")]
impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(feature = "redis")]
impl StdError for CutError {}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    /// Each of 1,000 checks that fail together may log it.
    #[test]
    fn a_reply_of_a_megabyte_is_not_kept_in_the_error() {
        for text in ["x".repeat(1_000_000), "\u{e4}".repeat(1_000_000)] {
            let cut = |error: &dyn StdError| {
                let text = error.to_string();
                assert_eq!((text.chars().count(), text.chars().last()), (300, Some('\u{2026}')));
                assert!(text.len() <= 603, "{} bytes", text.len());
            };
            cut(&Error::new(ErrorKind::Server, text.clone()));
            let io = std::io::Error::other(text);
            let error = Error::caused_by(ErrorKind::Server, "Redis", redis::RedisError::from(io));
            cut(error.source().unwrap());
            assert!(error.source().unwrap().source().is_none());
            assert_eq!(with_causes(&error).chars().count(), "Redis: ".len() + 300);
            assert!(format!("{error:?}").len() < 1_000);
        }
    }

    #[test]
    fn a_text_that_is_long_but_not_too_long_is_kept_whole() {
        for chars in [1, 299, 300] {
            let text = "\u{e4}".repeat(chars);
            assert_eq!(Error::new(ErrorKind::Server, text.clone()).to_string(), text);
            let error =
                Error::caused_by(ErrorKind::Server, "Redis", std::io::Error::other(text.clone()));
            let source = error.source().unwrap();
            assert!(source.is::<std::io::Error>());
            // It repeats its cause.
            assert_eq!(with_causes(&error), format!("Redis: {text}"));
        }
    }

    /// The texts of the causes count too.
    #[test]
    fn a_short_error_with_a_long_cause_is_cut() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outer")
            }
        }
        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        for chars in [293, 294, 1_000_000] {
            let outer = Outer(std::io::Error::other("x".repeat(chars)));
            let error = Error::caused_by(ErrorKind::Server, "Redis", outer);
            let text = with_causes(&error);
            assert_eq!(text.chars().count(), "Redis: outer: ".len() + chars.min(293), "{chars}");
            assert_eq!(text.ends_with('\u{2026}'), chars > 293, "{chars}");
        }
    }
}

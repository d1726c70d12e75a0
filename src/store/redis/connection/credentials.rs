//! The user and password of a connection, which may change from one connection to the next.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use redis::RedisConnectionInfo;

use crate::error::BoxError;
use crate::{Error, ErrorKind};

/// A user and a password of Redis. See [`RedisServer::credentials`](crate::RedisServer::credentials).
#[derive(Clone)]
pub struct RedisCredentials {
    user: Option<String>,
    password: String,
}

impl RedisCredentials {
    /// Returns the credentials of a user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into() }
    }

    /// Returns the credentials of the default user (`requirepass`).
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }

    /// Returns the settings of a connection with this user and password instead of its own.
    pub(super) fn apply(&self, settings: RedisConnectionInfo) -> RedisConnectionInfo {
        let settings = settings.set_password(&self.password);
        match &self.user {
            Some(user) => settings.set_username(user),
            // The default user's name is the same as none, which some proxies need. A name cannot be unset.
            None if settings.username().is_some() => settings.set_username("default"),
            None => settings,
        }
    }
}

impl fmt::Debug for RedisCredentials {
    /// Shows no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

type Provided = Pin<Box<dyn Future<Output = Result<RedisCredentials, BoxError>> + Send>>;

/// Returns the credentials of each new connection.
#[derive(Clone)]
pub(super) struct CredentialsProvider(Arc<dyn Fn() -> Provided + Send + Sync>);

impl CredentialsProvider {
    pub(super) fn new<P, F, E>(provider: P) -> Self
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<RedisCredentials, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self(Arc::new(move || {
            let credentials = provider();
            Box::pin(async move { credentials.await.map_err(Into::into) })
        }))
    }

    pub(super) async fn provide(&self) -> Result<RedisCredentials, Error> {
        let failed = |error| {
            let message = "the provider of credentials for Redis failed";
            Error::caused_by(ErrorKind::Unavailable, message, CredentialsError(error))
        };
        (self.0)().await.map_err(failed)
    }
}

/// An error of the application's provider.
#[derive(Debug)]
struct CredentialsError(BoxError);

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for CredentialsError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_not_shown() {
        let credentials = RedisCredentials::new("app", "s3cret");
        assert_eq!(format!("{credentials:?}"), "RedisCredentials { user: Some(\"app\"), .. }");
    }
}

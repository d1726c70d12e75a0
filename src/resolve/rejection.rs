// A rejection has two texts. The message is for the client. The advice is for the operator: a missing connect
// info or authentication layer is a misconfiguration, which the client sees as a 500 without details. The
// layer logs each advice once.

use std::borrow::Cow;

use http::StatusCode;

use crate::ConfigError;

/// The response to a request that has no key, or must not pass: a status of 4xx or 5xx, and a
/// message for the client.
///
/// ```
/// use http::StatusCode;
/// use fleetlimit::Rejection;
///
/// let banned = Rejection::forbidden("this account is suspended");
/// assert_eq!(banned.status(), StatusCode::FORBIDDEN);
/// let gone = Rejection::new(StatusCode::GONE, "this API has been removed")?;
/// assert!(Rejection::new(StatusCode::OK, "welcome").is_err());
/// # Ok::<(), fleetlimit::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    status: StatusCode,
    message: Cow<'static, str>,
    advice: Option<Cow<'static, str>>,
}

impl Rejection {
    /// Makes a rejection with a status of 4xx or 5xx. The client sees the message.
    ///
    /// # Errors
    ///
    /// If the status is not an error status. A rejected request does not reach the service, so any
    /// other status would mislead the client.
    pub fn new(
        status: StatusCode,
        message: impl Into<Cow<'static, str>>,
    ) -> Result<Self, ConfigError> {
        if !status.is_client_error() && !status.is_server_error() {
            return Err(ConfigError::new(format!(
                "invalid status {} for a rejection: use 4xx or 5xx",
                status.as_u16()
            )));
        }
        Ok(Self::with_status(status, message))
    }

    /// Makes a rejection with status 400. The client sees the message.
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_status(StatusCode::BAD_REQUEST, message)
    }

    /// Makes a rejection with status 401. The client sees the message.
    pub fn unauthorized(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_status(StatusCode::UNAUTHORIZED, message)
    }

    /// Makes a rejection with status 403. The client sees the message.
    pub fn forbidden(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_status(StatusCode::FORBIDDEN, message)
    }

    /// Makes a rejection with status 404. The client sees the message.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_status(StatusCode::NOT_FOUND, message)
    }

    /// Makes a rejection because the server is misconfigured. The client gets status 500 and no message.
    /// The layer logs the advice at most once in ten minutes, under the target `fleetlimit`.
    pub fn misconfigured(advice: impl Into<Cow<'static, str>>) -> Self {
        Self::with_status(StatusCode::INTERNAL_SERVER_ERROR, "").with_advice(advice)
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the message, which the client sees.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the advice for the operator, if the server is misconfigured.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    pub(super) fn with_advice(self, advice: impl Into<Cow<'static, str>>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    fn with_status(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into(), advice: None }
    }
}

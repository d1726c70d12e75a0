//! Why `/auth` cannot check a request. Gateways pass its response on to their clients, so only the log says why.

use std::fmt::Display;

use axum::response::Response;
use http::StatusCode;

use super::problem;
use crate::live::Active;
use crate::secret::start;
use crate::warnings::Cause;

/// A line of the log has at most this many characters of a reason, which may be text of a client.
const MAX_REASON: usize = 300;

#[derive(Debug)]
pub(super) struct Unchecked {
    cause: Cause,
    reason: String,
}

impl Unchecked {
    pub(super) fn new(cause: Cause, reason: impl Display) -> Self {
        Self { cause, reason: reason.to_string() }
    }

    pub(super) fn into_response(self, active: &Active) -> Response {
        let Self { cause, reason } = self;
        let reason = start(&reason, None, MAX_REASON).replace(char::is_control, " ");
        match active.warnings.add(cause) {
            Some(count) => {
                tracing::warn!(
                    event = "auth_not_checked",
                    count,
                    "/auth cannot check requests: {reason}"
                );
            }
            None => tracing::debug!("/auth cannot check a request: {reason}"),
        }
        let status = match cause {
            Cause::UnknownPolicy => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        problem(status, "This request cannot be checked.")
    }
}

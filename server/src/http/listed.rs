//! The answer about a key that is on a list.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::lists::Listed;
use crate::telemetry;

/// Returns the decision of a list, which is counted.
pub(super) fn listed_response(listed: Listed) -> Response {
    telemetry::overruled(listed.list());
    let is_allowed = listed == Listed::Allowed;
    Json(json!({ "allowed": is_allowed, "source": "list" })).into_response()
}

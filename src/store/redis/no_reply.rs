//! The errors of a call that got no reply, other than those of its connection.

use std::sync::Arc;

use crate::{Error, ErrorKind};

pub(super) fn timed_out(server: &Arc<str>) -> Error {
    Error::new(ErrorKind::Timeout, "Redis did not reply in time").with_server(server)
}

/// The error of a check that has no verdict in time: because this process overloads the server, or because the
/// server is slow or unreachable.
pub(super) fn too_late(server: &Arc<str>, is_overloaded: bool) -> Error {
    if !is_overloaded {
        return timed_out(server);
    }
    let text = "too many checks are waiting for Redis to decide all of them in time";
    Error::new(ErrorKind::Overloaded, text).with_server(server)
}

pub(super) fn no_runtime() -> Error {
    Error::new(ErrorKind::Unavailable, "a check on Redis needs a Tokio runtime")
}

pub(super) fn shut_down() -> Error {
    Error::new(ErrorKind::Unavailable, "the Tokio runtime that ran the check has shut down")
}

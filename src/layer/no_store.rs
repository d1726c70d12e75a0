//! Responses to one client must not be served to others.

use http::header::{CACHE_CONTROL, Entry};
use http::{HeaderMap, HeaderValue};

/// Forbids caches to store a response. Without this they may store some rejections (404, 410), and some are
/// configured to store any status for a while.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Forbids caches to store a response, unless it says what caches may do.
pub(super) fn forbid(headers: &mut HeaderMap) {
    if let Entry::Vacant(entry) = headers.entry(CACHE_CONTROL) {
        entry.insert(NO_STORE);
    }
}

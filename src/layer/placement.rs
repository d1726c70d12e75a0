//! Where handlers and middleware find decisions: in the extensions of requests and responses.

use http::Extensions;

use crate::Decision;

/// The extensions into which a layer puts its [`Decision`]: see
/// [`RateLimitLayer::decision_in`](crate::RateLimitLayer::decision_in).
///
/// With several layers around one service, `axum::Extension<Decision>` is the decision of the layer
/// that ran last: the innermost in a request, the outermost in a response. [`decisions`] returns
/// all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecisionPlacement {
    /// Into the request's extensions, for handlers.
    #[default]
    Request,
    /// Into the response's extensions, for middleware outside of the layer. Responses to denied
    /// requests have it too.
    Response,
    /// Into both.
    Both,
    /// Nowhere, which saves an allocation per request.
    Neither,
}

impl DecisionPlacement {
    pub(super) fn in_request(self) -> bool {
        matches!(self, Self::Request | Self::Both)
    }

    pub(super) fn in_response(self) -> bool {
        matches!(self, Self::Response | Self::Both)
    }
}

/// The decisions of all layers, in the order in which they were inserted: the outermost layer's
/// first in a request, the innermost layer's first in a response.
///
/// ```
/// use axum::extract::Request;
/// use fleetlimit::layer::decisions;
///
/// async fn handler(request: Request) -> String {
///     decisions(request.extensions())
///         .map(|decision| format!("{}: {} left\n", decision.quota_name(), decision.remaining()))
///         .collect()
/// }
/// ```
pub fn decisions(extensions: &Extensions) -> impl Iterator<Item = &Decision> {
    let earlier = extensions.get::<Earlier>().into_iter().flat_map(|earlier| &earlier.0);
    earlier.chain(extensions.get::<Decision>())
}

/// All but the last decision. Kept apart, so that a single one costs nothing more.
#[derive(Clone, Default)]
struct Earlier(Vec<Decision>);

pub(super) fn insert(extensions: &mut Extensions, decision: Decision) {
    if let Some(previous) = extensions.insert(decision) {
        extensions.get_or_insert_default::<Earlier>().0.push(previous);
    }
}

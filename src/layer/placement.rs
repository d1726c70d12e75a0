//! The extensions in which handlers and middleware find decisions and holds.

use std::sync::Arc;

use http::Extensions;

use crate::{Decision, Hold};

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
    let earlier = extensions.get::<Earlier<Decision>>().into_iter().flat_map(|earlier| &earlier.0);
    earlier.chain(extensions.get::<Decision>())
}

/// Returns the holds of all layers whose policies have a [concurrent quota](crate::Quota::concurrent), the outermost
/// layer's first. `axum::Extension<Arc<Hold>>` is the last.
///
/// The handler of a connection that is upgraded keeps them while the connection is open:
///
/// ```
/// use std::sync::Arc;
/// use axum::extract::ws::WebSocketUpgrade;
/// use axum::http::Extensions;
/// use axum::response::Response;
/// use fleetlimit::Hold;
/// use fleetlimit::layer::holds;
///
/// async fn chat(extensions: Extensions, upgrade: WebSocketUpgrade) -> Response {
///     let holds: Vec<Arc<Hold>> = holds(&extensions).cloned().collect();
///     upgrade.on_upgrade(async move |socket| {
///         // The socket is served here.
///         drop((socket, holds));
///     })
/// }
/// # axum::Router::<()>::new().route("/chat", axum::routing::any(chat));
/// ```
pub fn holds(extensions: &Extensions) -> impl Iterator<Item = &Arc<Hold>> {
    let earlier = extensions.get::<Earlier<Arc<Hold>>>().into_iter();
    earlier.flat_map(|earlier| &earlier.0).chain(extensions.get::<Arc<Hold>>())
}

/// All but the last of several values. Kept apart, so that a single one costs nothing more.
#[derive(Clone)]
struct Earlier<T>(Vec<T>);

impl<T> Default for Earlier<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

pub(super) fn insert<T: Clone + Send + Sync + 'static>(extensions: &mut Extensions, value: T) {
    if let Some(previous) = extensions.insert(value) {
        extensions.get_or_insert_default::<Earlier<T>>().0.push(previous);
    }
}

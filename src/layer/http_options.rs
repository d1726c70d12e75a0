use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body;

use super::body::{BoxError, ErrorBody};
use super::{DecisionPlacement, ErrorContext, HeaderStyle, RateLimitLayer};

/// Responds in HTTP and gRPC: see [`RateLimitLayer::new`].
#[derive(Clone, Default)]
pub struct Http {
    pub(super) headers: HeaderStyle,
    pub(super) decision_in: DecisionPlacement,
    pub(super) error_response: Option<Arc<ErrorResponse>>,
}

type ErrorResponse = dyn Fn(&ErrorContext<'_>) -> Response<ErrorBody> + Send + Sync;

impl<K> RateLimitLayer<K, Parts, Http> {
    /// Sets which rate limit headers to send: [`HeaderStyle::Ietf`] by default. They are on every
    /// response, except for requests that were skipped or rejected, or not counted because the store
    /// failed. A denial has `Retry-After` in every style.
    #[must_use]
    pub fn headers(self, headers: HeaderStyle) -> Self {
        let mode = Http { headers, ..self.mode };
        Self { mode, ..self }
    }

    /// Sets where the [`Decision`](crate::Decision) goes: into the request's extensions by default,
    /// where handlers find it. The response's extensions are for middleware outside of this layer.
    /// Requests that were skipped have no decision: use `Option<axum::Extension<Decision>>` in their
    /// handlers.
    #[must_use]
    pub fn decision_in(self, placement: DecisionPlacement) -> Self {
        let mode = Http { decision_in: placement, ..self.mode };
        Self { mode, ..self }
    }

    /// Replaces the responses of the layer: for denied requests, requests without a key, rejected
    /// requests, and a store that failed.
    ///
    /// The layer completes the response to a denied request with `Retry-After` and the rate limit
    /// [`headers`](Self::headers), unless the response sets them. The body may be any
    /// [`http_body::Body`]: a `String`, a `Full<Bytes>`, or that of axum's `IntoResponse`. The hook is
    /// also called for gRPC requests; [`ErrorContext::default_response`] is a gRPC response for
    /// these.
    ///
    /// Do not describe the server in a response. The log tells the operator.
    ///
    /// ```
    /// use axum::Json;
    /// use axum::http::StatusCode;
    /// use axum::response::IntoResponse;
    /// use serde_json::json;
    /// use tollgate::layer::Cause;
    /// # use tollgate::{Limiter, RateLimitLayer, resolve::PeerIp};
    ///
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
    /// RateLimitLayer::new(limiter, PeerIp::new()).error_response(|context| match context.cause() {
    ///     Cause::Denied(decision) => {
    ///         let wait = decision.retry_after().map(|wait| wait.as_secs_f64().ceil());
    ///         let body = Json(json!({ "error": "slow down", "retry_after": wait }));
    ///         (StatusCode::TOO_MANY_REQUESTS, body).into_response()
    ///     }
    ///     _ => context.default_response().into_response(),
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn error_response<B>(
        self,
        response: impl Fn(&ErrorContext<'_>) -> Response<B> + Send + Sync + 'static,
    ) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let response: Arc<ErrorResponse> =
            Arc::new(move |context| response(context).map(ErrorBody::boxed));
        let mode = Http { error_response: Some(response), ..self.mode };
        Self { mode, ..self }
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("headers", &self.headers)
            .field("decision_in", &self.decision_in)
            .field("has_error_response", &self.error_response.is_some())
            .finish()
    }
}

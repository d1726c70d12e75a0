//! The options of a layer that only HTTP and gRPC have.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body;

use super::body::ErrorBody;
use super::retry_jitter::RetryJitter;
use super::settlement::{CostByResponse, SettlementOptions};
use super::{DecisionPlacement, Drain, ErrorContext, HeaderStyle, NoDrain, RateLimitLayer, Sent};
use crate::Costs;
use crate::error::BoxError;

/// Responds in HTTP and gRPC: see [`RateLimitLayer::new`].
///
/// `D` is what is done with the bodies of requests that do not reach the service: [`Drain`], or
/// [`NoDrain`].
#[derive(Clone, Default)]
pub struct Http<D = Drain> {
    pub(super) headers: HeaderStyle,
    pub(super) headers_if_not_enforced: bool,
    pub(super) retry_jitter: RetryJitter,
    pub(super) decision_in: DecisionPlacement,
    pub(super) any_route_is_grpc: bool,
    pub(super) error_response: Option<Arc<ErrorResponse>>,
    pub(super) settling: SettlementOptions,
    pub(super) drain: D,
}

type ErrorResponse = dyn Fn(&ErrorContext<'_>) -> Response<ErrorBody> + Send + Sync;

impl<K> RateLimitLayer<K, Parts, Http<Drain>> {
    /// Sets how much of a request the layer reads before it responds to it itself: up to 64 KiB of the
    /// body, for up to a second, by default.
    ///
    /// Without this, an HTTP/1 client that is still sending the body loses the response, because the
    /// server closes the connection. Behind nginx it then sees 502 instead of 429, and with several
    /// servers in an `upstream`, nginx takes this one out of use. The limit should be at least the
    /// largest body that a client or a proxy sends (`client_max_body_size` of nginx: 1 MB by default);
    /// the bytes are dropped as they arrive, so they take no memory. [`Drain`] has the details.
    ///
    /// A slow client gets its denial later, at most by this duration. Meanwhile it holds no resources
    /// of the service, such as a place of an inner concurrency limit. With 0 bytes nothing is read.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use fleetlimit::{Limiter, RateLimitLayer, resolve::PeerIp};
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
    /// RateLimitLayer::new(limiter, PeerIp::new()).drain(1_000_000, Duration::from_secs(2))
    /// # }
    /// ```
    #[must_use]
    pub fn drain(self, max_bytes: u64, longest: Duration) -> Self {
        let mode = Http { drain: Drain::up_to(max_bytes, longest), ..self.mode };
        Self { mode, ..self }
    }

    /// Responds without reading what is left of a request. Request bodies may then be of any type,
    /// instead of only [`http_body::Body`]. Use this in front of clients for
    /// [outgoing calls](crate::guide#outgoing-calls), where a body is not on its way yet.
    ///
    /// ```
    /// use fleetlimit::resolve::Global;
    /// use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
    /// use http::{Request, Response};
    /// use tower::{BoxError, Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(5))?;
    /// let client = service_fn(async |request: Request<Vec<u8>>| {
    ///     Ok::<_, BoxError>(Response::new(request.into_body()))
    /// });
    /// let client = RateLimitLayer::new(limiter, Global).without_drain().layer(client);
    /// let response = client.oneshot(Request::new(b"hello".to_vec())).await?;
    /// # assert_eq!(response.status(), 200);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn without_drain(self) -> RateLimitLayer<K, Parts, Http<NoDrain>> {
        self.map_mode(|mode| {
            let Http { headers, headers_if_not_enforced, retry_jitter, decision_in, .. } = mode;
            let Http { any_route_is_grpc, error_response, settling, .. } = mode;
            Http {
                headers,
                headers_if_not_enforced,
                retry_jitter,
                decision_in,
                any_route_is_grpc,
                error_response,
                settling,
                drain: NoDrain,
            }
        })
    }
}

impl<K, D> RateLimitLayer<K, Parts, Http<D>> {
    /// Sets which rate limit headers to send: [`HeaderStyle::Ietf`] by default. They are on every
    /// response, except for requests that were skipped or rejected, or not counted because the store
    /// failed, and for keys whose limit is not enforced (see
    /// [`headers_if_not_enforced`](Self::headers_if_not_enforced)). A denial has `Retry-After` in every style,
    /// unless waiting cannot help.
    #[must_use]
    pub fn headers(self, headers: HeaderStyle) -> Self {
        let mode = Http { headers, ..self.mode };
        Self { mode, ..self }
    }

    /// Sets the longest random delay that is added to `Retry-After`: 30 seconds by default. The delay is
    /// a random number of whole seconds, and at most a quarter of the wait: waits below 4 seconds have
    /// none. So clients
    /// that were denied at the same time, as at the end of a window, do not all return in the same
    /// second. Zero turns it off. gRPC clients get the same wait. The `Retry-After` of a 503, for a store
    /// that failed, is 1 second and up to 4 more, within the same limit.
    #[must_use]
    pub fn retry_jitter(self, longest: Duration) -> Self {
        let mode = Http { retry_jitter: RetryJitter::new(longest), ..self.mode };
        Self { mode, ..self }
    }

    /// Adds the headers also for keys for which the limiter does
    /// [not enforce](crate::LimiterBuilder::enforce_for_percent) the limit. By default their responses
    /// have none, because clients would mistake a limit that is being tried out for one that is enforced.
    #[must_use]
    pub fn headers_if_not_enforced(self) -> Self {
        let mode = Http { headers_if_not_enforced: true, ..self.mode };
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

    /// Charges requests by their responses: only failed logins, only cache misses, the bytes that were
    /// sent, or the points that a query has cost.
    ///
    /// Before the service is called, the check takes the [`cost`](Self::cost) of the request, as an
    /// estimate: 1 by default. When the body of the response has been sent, the closure returns
    /// what the request has cost. The difference is [charged](crate::Limiter::charge) or [given
    /// back](crate::Limiter::credit). The response does not wait for that.
    ///
    /// Choose the estimate by what must never happen. With an estimate of 1, requests in flight
    /// count, so concurrent requests cannot exceed the limit, and some may be denied although those
    /// before them turn out to be free. With 0, a request is allowed if every quota has a permit
    /// left, and its cost is charged afterwards, up to the most that a key can
    /// [owe](crate::Limiter::charge). A request is denied while any quota has no permit
    /// left, even if the estimate is 0. So with 0, all responses that start before the first one ends are
    /// sent in full, and together can exceed the limit many times: see the
    /// [guide](crate::guide#the-tokens-of-a-stream).
    ///
    /// If the service fails or the client disconnects before there is a response, the estimate
    /// stands: see [`cost_without_response`](Self::cost_without_response). If the client
    /// disconnects later, the closure is called with the bytes sent by then. A WebSocket has no body, so its cost
    /// is settled as soon as it is open.
    ///
    /// Permits that are available again by then, because the window has ended or the bucket has refilled, are not
    /// given back. A sliding window gives permits back only in the segment in which they were taken, and an
    /// approximate one only in the period. In the last moments of these, as long as the limiter's
    /// [timeout](crate::LimiterBuilder::timeout), it gives nothing back. So with segments that are not longer
    /// than the timeout, nothing is given back at all.
    ///
    /// If the store failed and the failure mode [`Open`](crate::FailureMode::Open) allowed the request, nothing
    /// was taken, so its whole cost is charged afterwards. If Redis charged the check although its reply was late,
    /// the request is charged twice. Costs that could not be charged are logged. If the costs name a quota that
    /// the policy does not have, the estimate stands and the log says so.
    ///
    /// The closure sees the head of the response with its extensions, where a handler can put what
    /// the closure needs to know. The status of a gRPC response may be in its trailers, which it
    /// does not see.
    ///
    /// ```
    /// use fleetlimit::layer::Sent;
    /// use fleetlimit::resolve::PeerIp;
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// // 1 GB per client and day.
    /// let policy = Policy::new("downloads").quota("bytes", Quota::per_day(1_000_000_000).calendar());
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    /// let layer = RateLimitLayer::new(limiter, PeerIp::new())
    ///     .cost(|_| 0)
    ///     .cost_by_response(|sent: &Sent<'_>| sent.body_bytes);
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    ///
    /// With [`Costs`], the quotas of the policy cost different numbers:
    ///
    /// ```
    /// # use fleetlimit::{Costs, Limiter, RateLimitLayer, resolve::PeerIp};
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
    /// RateLimitLayer::new(limiter, PeerIp::new())
    ///     .cost(|_| Costs::new(1).with("bytes", 0))
    ///     .cost_by_response(|sent| Costs::new(1).with("bytes", sent.body_bytes))
    /// # }
    /// ```
    #[must_use]
    pub fn cost_by_response<C: Into<Costs>>(
        self,
        cost: impl Fn(&Sent<'_>) -> C + Send + Sync + 'static,
    ) -> Self {
        let cost: Arc<CostByResponse> = Arc::new(move |sent| cost(sent).into());
        let settling = SettlementOptions { cost_by_response: Some(cost), ..self.mode.settling };
        let mode = Http { settling, ..self.mode };
        Self { mode, ..self }
    }

    /// Sets what a request costs that gets no response, because the service failed or the client
    /// disconnected: by default what the check has taken. It has no effect without
    /// [`cost_by_response`](Self::cost_by_response), nor if the client disconnects before the check is
    /// decided: then the estimate stands if the store has received the check.
    #[must_use]
    pub fn cost_without_response(self, cost: impl Into<Costs>) -> Self {
        let settling =
            SettlementOptions { cost_without_response: Some(cost.into()), ..self.mode.settling };
        let mode = Http { settling, ..self.mode };
        Self { mode, ..self }
    }

    /// Gives the permits of a request back if a layer inside of this one denies it. Without this, a
    /// request that an inner layer denies has taken permits of the outer ones. A request that an inner layer
    /// rejects for another reason (no key, or its store fails) keeps them.
    ///
    /// Layers with different keys, such as user, tenant and global, cannot be atomic, because the
    /// keys may be on different servers. So this is best effort, with the bounds of
    /// [`BestEffortChecks`](crate::BestEffortChecks). Put the narrowest limit outermost, where it
    /// is checked first. If middleware in between drops the extensions of the request or of the
    /// response, nothing is given back.
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use fleetlimit::resolve::{Global, PeerIp};
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// let store = MemoryStore::new();
    /// let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
    /// let per_client = limiter("client", Quota::per_second(10))?;
    /// let global = limiter("global", Quota::per_second(1_000))?;
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(RateLimitLayer::new(global, Global))
    ///     // The last layer runs first.
    ///     .layer(RateLimitLayer::new(per_client, PeerIp::new()).refund_inner_denials());
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn refund_inner_denials(self) -> Self {
        let settling = SettlementOptions { refunds: true, ..self.mode.settling };
        let mode = Http { settling, ..self.mode };
        Self { mode, ..self }
    }

    /// Sends gRPC responses to all requests that ask for gRPC: POST requests whose content type is
    /// `application/grpc`, with or without a suffix, or one of gRPC-Web.
    ///
    /// This is needed only where the layer cannot know that tonic serves the request. By default such
    /// requests get gRPC responses
    ///
    /// - on tonic's server, with the crate's feature `tonic`, if the path begins with the name of a
    ///   service such as `/package.Service/`;
    /// - in an axum router, on the routes that tonic adds to it for such a service.
    ///
    /// The name needs a package, and its last part begins with a capital letter. All other requests get
    /// HTTP responses. A layer knows the route only if it is added with `Router::layer` or
    /// `Router::route_layer` to the router that has it. [Around a whole app](Self#around-a-whole-app), on a
    /// fallback, and on routes that are nested under a path, gRPC needs this option.
    ///
    /// A gRPC response has the HTTP status 200 even for a denial, and a client
    /// chooses its content type: a client of an HTTP route could hide its denials from logs, and from
    /// programs that block addresses after too many errors. So do not use this on layers around HTTP
    /// routes.
    ///
    /// ```
    /// use fleetlimit::resolve::Global;
    /// use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
    ///
    /// // Around a service that is only gRPC, such as a proxy built on hyper.
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
    /// let layer = RateLimitLayer::new(limiter, Global).grpc();
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn grpc(self) -> Self {
        let mode = Http { any_route_is_grpc: true, ..self.mode };
        Self { mode, ..self }
    }

    /// Replaces the responses of the layer: for denied requests, requests without a key, rejected
    /// requests, and a store that failed.
    ///
    /// The layer completes the response to a denied request with `Retry-After` and the rate limit
    /// [`headers`](Self::headers), unless the response sets them. All responses get
    /// `Cache-Control: no-store`, unless they set it, so that no cache serves the response to one
    /// client to others. The body may be any
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
    /// use fleetlimit::layer::Cause;
    /// # use fleetlimit::{Limiter, RateLimitLayer, resolve::PeerIp};
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

impl<D: fmt::Debug> fmt::Debug for Http<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("headers", &self.headers)
            .field("retry_jitter", &self.retry_jitter)
            .field("decision_in", &self.decision_in)
            .field("has_error_response", &self.error_response.is_some())
            .field("has_cost_by_response", &self.settling.cost_by_response.is_some())
            .field("drain", &self.drain)
            .finish()
    }
}

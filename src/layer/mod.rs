//! The tower edge: the layer, its service and what they answer. Never names Redis.

mod body;
mod edge;
mod fields;
mod future;
mod gate;
mod grpc;
mod mode;
mod notes;
mod problem;
mod service;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tower_layer::Layer;

use crate::{Decision, KeyResolver, Limiter};

pub use body::ResponseBody;
pub use fields::HeaderStyle;
pub use future::{ErrorFuture, ResponseFuture};
pub use mode::{Errors, Grpc, Http};
pub use service::RateLimit;

/// Limits the requests to a service: a tower [`Layer`] for axum, hyper, tonic and any other tower
/// service.
///
/// Each request is resolved to a key, checked by the limiter, and only then handed on. Not to be
/// confused with `tower::limit::RateLimitLayer`, which limits one service as a whole in one
/// process, and makes callers wait.
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::resolve::{Header, PeerIp};
/// use tollgate::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let store = MemoryStore::new();
/// let search = Policy::new("search").quota("search", Quota::per_second(1).burst(5));
/// let search = Limiter::new(store.clone(), search)?;
/// let all = Limiter::new(store, Quota::per_second(10).burst(20))?;
///
/// let app: Router = Router::new()
///     .route("/search", get(async || "found").layer(RateLimitLayer::new(search, Header::new("x-api-key"))))
///     .layer(RateLimitLayer::new(all, PeerIp::new()));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// The service finds the [`Decision`] on a request in the request's extensions, except on one that
/// was exempt. A request that may not pass is answered, over HTTP, with
///
/// | | status | with |
/// |---|---|---|
/// | denied | 429 | `Retry-After`, problem details |
/// | without a key, refused | what the resolver says | problem details |
/// | the store is down and the failure mode is closed | 503 | problem details |
///
/// [`grpc`](Self::grpc) and [`errors`](Self::errors) answer in the terms of gRPC and of any tower
/// service.
///
/// `K` is the resolver, `R` what it sees of a request, `M` how the layer answers.
pub struct RateLimitLayer<K, R = Parts, M = Http> {
    limiter: Limiter,
    resolver: Arc<K>,
    cost: Option<Arc<Cost<R>>>,
    plan: Option<Arc<Plan<R>>>,
    denied_response: Option<Arc<DeniedResponse<R>>>,
    headers: HeaderStyle,
    mode: PhantomData<M>,
}

type Cost<R> = dyn Fn(&R) -> u32 + Send + Sync;
type Plan<R> = dyn Fn(&R) -> Option<Limiter> + Send + Sync;
type DeniedResponse<R> = dyn Fn(&Decision, &R) -> Response<Bytes> + Send + Sync;

impl<K, R> RateLimitLayer<K, R> {
    /// Limits requests under the keys that the resolver finds.
    pub fn new(limiter: Limiter, resolver: K) -> Self
    where
        K: KeyResolver<R>,
    {
        Self {
            limiter,
            resolver: Arc::new(resolver),
            cost: None,
            plan: None,
            denied_response: None,
            headers: HeaderStyle::default(),
            mode: PhantomData,
        }
    }

    /// Answers in the terms of gRPC, for tonic: a denial is `RESOURCE_EXHAUSTED` with a
    /// `google.rpc.RetryInfo` and `grpc-retry-pushback-ms`, a store that is down `UNAVAILABLE`.
    #[must_use]
    pub fn grpc(self) -> RateLimitLayer<K, R, Grpc> {
        self.with_mode()
    }

    /// Answers with an [`Error`](crate::Error) through the service's own error type, for services
    /// that are not HTTP. The resolver sees the request itself.
    ///
    /// ```
    /// use tollgate::{ErrorKind, Limiter, MemoryStore, Quota, RateLimitLayer};
    /// use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
    ///
    /// struct Job { tenant: String }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1))?;
    /// let service = ServiceBuilder::new()
    ///     .layer(RateLimitLayer::new(limiter, |job: &Job| job.tenant.clone()).errors())
    ///     .service(service_fn(async |_: Job| Ok::<_, BoxError>("done")));
    ///
    /// let job = || Job { tenant: "acme".into() };
    /// assert_eq!(service.clone().oneshot(job()).await?, "done");
    /// let error = service.oneshot(job()).await.unwrap_err();
    /// let error = error.downcast::<tollgate::Error>()?;
    /// assert_eq!(error.kind(), ErrorKind::Denied);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn errors(self) -> RateLimitLayer<K, R, Errors> {
        self.with_mode()
    }

    /// Makes the response to a denied request. Its headers are completed by the layer:
    /// `Retry-After` and those of [`headers`](RateLimitLayer::headers), where it does not set them.
    #[must_use]
    pub fn denied_response<B: Into<Bytes>>(
        self,
        response: impl Fn(&Decision, &R) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        let response: Arc<DeniedResponse<R>> =
            Arc::new(move |decision, request| response(decision, request).map(Into::into));
        Self { denied_response: Some(response), ..self }
    }
}

impl<K, R, M> RateLimitLayer<K, R, M> {
    /// How many permits a request costs: by default 1. A request of cost 0 passes uncounted; one
    /// whose cost is over the burst never passes.
    ///
    /// A closure needs the type of its argument spelled out:
    /// `.cost(|parts: &http::request::Parts| if parts.method == "POST" { 5 } else { 1 })`.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&R) -> u32 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    /// Chooses the limiter by the request, such as by what the caller has paid for; `None` is the
    /// layer's own. Give each a policy name of its own.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate::resolve::Header;
    /// use tollgate::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct Paid;
    ///
    /// let store = MemoryStore::new();
    /// let free = Policy::new("free").quota("free", Quota::per_second(10));
    /// let paid = Policy::new("paid").quota("paid", Quota::per_second(100));
    /// let free = Limiter::new(store.clone(), free)?;
    /// let paid = Limiter::new(store, paid)?;
    ///
    /// let layer = RateLimitLayer::new(free, Header::new("x-api-key"))
    ///     .plan(move |parts: &Parts| parts.extensions.get::<Paid>().map(|_| paid.clone()));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn plan(self, plan: impl Fn(&R) -> Option<Limiter> + Send + Sync + 'static) -> Self {
        Self { plan: Some(Arc::new(plan)), ..self }
    }

    /// Which headers tell a client where it stands: by default [`HeaderStyle::Draft11`]. They are
    /// on every response, but for requests that were exempt, refused, or not counted because the
    /// store was down. `Retry-After` is on a denial in every style.
    #[must_use]
    pub fn headers(self, headers: HeaderStyle) -> Self {
        Self { headers, ..self }
    }

    fn with_mode<N>(self) -> RateLimitLayer<K, R, N> {
        let Self { limiter, resolver, cost, plan, denied_response, headers, mode: _ } = self;
        RateLimitLayer {
            limiter,
            resolver,
            cost,
            plan,
            denied_response,
            headers,
            mode: PhantomData,
        }
    }
}

impl<K, R, M> Clone for RateLimitLayer<K, R, M> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            resolver: self.resolver.clone(),
            cost: self.cost.clone(),
            plan: self.plan.clone(),
            denied_response: self.denied_response.clone(),
            headers: self.headers,
            mode: PhantomData,
        }
    }
}

impl<K, R, M> fmt::Debug for RateLimitLayer<K, R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.limiter)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

impl<S, K, R, M> Layer<S> for RateLimitLayer<K, R, M> {
    type Service = RateLimit<S, K, R, M>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.clone()))
    }
}

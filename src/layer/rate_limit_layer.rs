//! The layer, with the options that all protocols have.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tower_layer::Layer;

use super::logged::Logged;
use super::{Http, RateLimit};
use crate::{ConfigError, Costs, Decision, Key, KeyResolver, Limiter, Policy, Quota, Rejection};

/// Limits the requests to a service: a tower [`Layer`] for axum, hyper, tonic and any other tower
/// service.
///
/// A resolver turns each request into a key, the limiter checks the key, and only then is the
/// service called. This is not `tower::limit::RateLimitLayer`, which limits one service as a whole,
/// in one process.
///
/// ```
/// use axum::{Router, routing::get};
/// use fleetlimit::resolve::PeerIp;
/// use fleetlimit::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let store = MemoryStore::new();
/// let search = Policy::new("search").quota("search", Quota::per_second(1).burst(5));
/// let search = Limiter::new(store.clone(), search)?;
/// let all = Limiter::new(store, Quota::per_second(10).burst(20))?;
///
/// let app: Router = Router::new()
///     .route("/search", get(async || "found").layer(RateLimitLayer::new(search, PeerIp::new())))
///     .layer(RateLimitLayer::new(all, PeerIp::new()));
/// # Ok::<(), fleetlimit::ConfigError>(())
/// ```
///
/// # Responses
///
/// The layer responds to requests that do not reach the service:
///
/// | cause | HTTP | gRPC |
/// |---|---|---|
/// | denied | 429 with `Retry-After` | `RESOURCE_EXHAUSTED` with `RetryInfo` |
/// | no key, or rejected | the status of the [`Rejection`] | [the code] for that status |
/// | the store failed and the failure mode is closed, or the costs name an unknown quota | 503 | `UNAVAILABLE` |
///
/// HTTP responses have problem details (RFC 9457), and `Cache-Control: no-store`. gRPC and gRPC-Web
/// requests get gRPC responses where tonic serves them, or where [`grpc`](Self::grpc) says so.
/// [`error_response`](Self::error_response) replaces these responses.
/// [`with_errors`](Self::with_errors) makes a layer for services that are not HTTP.
///
/// # Bounds
///
/// The service must be `Clone`: while a check is pending, a clone takes the place of the service
/// that was ready. Bodies of responses must have `Data = Bytes` and an error that converts into a
/// boxed error, as those of axum, hyper and tonic do. Bodies of requests must be
/// [`http_body::Body`], because the layer reads what is left of them before it
/// [responds](Self::drain). With [`without_drain`](Self::without_drain) they may be of any type. If one
/// of these bounds is not met, the compiler reports that [`RateLimit`](crate::RateLimit) is not a
/// `Service`.
///
/// # Around a whole app
///
/// A layer that is added with `Router::layer` sees only the routes that were added before. Around a
/// finished router, as in `layer.layer(router)`, it sees all requests. The result is no `Router`, and so
/// `axum::serve` does not take it ("the trait bound `RateLimit<Router<_>, ..>: Service<IncomingStream<..>>` is
/// not satisfied"). Make it the fallback of a new router:
///
/// ```no_run
/// use std::net::SocketAddr;
/// use axum::{Router, routing::get};
/// use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer, resolve::PeerIp};
/// use tower::Layer;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let router = Router::new().route("/", get(async || "hello"));
/// let limited = RateLimitLayer::new(limiter, PeerIp::new()).layer(router);
/// let app = Router::new().fallback_service(limited);
///
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
/// # Ok(()) }
/// ```
///
/// # Optional layers
///
/// `tower::util::option_layer` does not fit, because the body type of the response changes. In axum
/// add the layer conditionally instead:
///
/// ```
/// # use axum::Router;
/// # use fleetlimit::{RateLimitLayer, resolve::PeerIp};
/// fn limited(app: Router, layer: Option<RateLimitLayer<PeerIp>>) -> Router {
///     match layer {
///         Some(layer) => app.layer(layer),
///         None => app,
///     }
/// }
/// ```
///
/// In a `ServiceBuilder`, convert the body:
///
/// ```
/// use axum::body::Body;
/// use axum::response::Response;
/// use fleetlimit::layer::ResponseBody;
/// use tower::ServiceBuilder;
/// use tower::util::option_layer;
/// # use axum::Router;
/// # use fleetlimit::{RateLimitLayer, resolve::PeerIp};
///
/// # fn limited(app: Router, layer: Option<RateLimitLayer<PeerIp>>) -> Router {
/// let layer = layer.map(|layer| {
///     ServiceBuilder::new()
///         .map_response(|response: Response<ResponseBody<Body>>| response.map(Body::new))
///         .layer(layer)
/// });
/// # app.layer(
/// ServiceBuilder::new().layer(option_layer(layer))
/// # )
/// # }
/// ```
///
/// # Type parameters
///
/// `K` is the resolver, `R` the part of the request that it sees, and `M` how the layer responds:
/// [`Http`] or [`Errors`].
///
/// [the code]: https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md
// So that the reference count, which pending requests write, is on another cache line than what
// every request reads.
#[repr(align(128))]
pub struct RateLimitLayer<K, R = Parts, M = Http> {
    pub(super) limiter: Limiter,
    pub(super) resolver: Arc<K>,
    pub(super) cost: Option<Arc<CostOf<R>>>,
    pub(super) limiter_for: Option<Arc<LimiterFor<R>>>,
    pub(super) quota_for: Option<Arc<QuotaFor<R>>>,
    pub(super) on_decision: Option<Arc<OnDecision<R>>>,
    pub(super) mode: M,
    /// Comes from resolvers, not from requests.
    pub(super) logged_advice: Arc<Logged<String>>,
    /// The keys whose own quotas are invalid.
    pub(super) logged_keys: Arc<Logged<Key>>,
}

type CostOf<R> = dyn Fn(&R) -> Costs + Send + Sync;
type LimiterFor<R> = dyn Fn(&R) -> Option<Limiter> + Send + Sync;
type QuotaFor<R> = dyn Fn(&R) -> Option<Quota> + Send + Sync;
type OnDecision<R> = dyn Fn(&Checked<'_, R>) + Send + Sync;

/// Returns errors of the service's error type: see [`RateLimitLayer::with_errors`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Errors;

/// A request and the decision about it: see [`RateLimitLayer::on_decision`].
#[non_exhaustive]
pub struct Checked<'a, R = Parts> {
    /// The request, as the resolver sees it.
    pub request: &'a R,
    /// The key of the request.
    pub key: &'a Key,
    /// The policy that was checked.
    pub policy: &'a Policy,
    /// The decision.
    pub decision: &'a Decision,
}

/// Leaves out the request, whose headers may be secret.
impl<R> fmt::Debug for Checked<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checked")
            .field("key", &self.key)
            .field("policy", &self.policy.name())
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

impl<K: KeyResolver> RateLimitLayer<K> {
    /// Limits HTTP and gRPC requests by the keys that the resolver finds.
    pub fn new(limiter: Limiter, resolver: K) -> Self {
        Self::with_mode(limiter, resolver, Http::default())
    }
}

impl<K, R> RateLimitLayer<K, R, Errors> {
    /// Limits requests to services that are not HTTP. The resolver sees the request itself, and a
    /// request that does not reach the service ends with an [`Error`](crate::Error) converted into
    /// the service's error type.
    ///
    /// ```
    /// use fleetlimit::{ErrorKind, Limiter, MemoryStore, Quota, RateLimitLayer};
    /// use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
    ///
    /// struct Job { tenant: String }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1))?;
    /// let service = ServiceBuilder::new()
    ///     .layer(RateLimitLayer::with_errors(limiter, |job: &Job| job.tenant.clone()))
    ///     .service(service_fn(async |_: Job| Ok::<_, BoxError>("done")));
    ///
    /// let job = || Job { tenant: "acme".into() };
    /// assert_eq!(service.clone().oneshot(job()).await?, "done");
    /// let error = service.oneshot(job()).await.unwrap_err();
    /// let error = error.downcast::<fleetlimit::Error>()?;
    /// assert_eq!(error.kind(), ErrorKind::Denied);
    /// # Ok(()) }
    /// ```
    ///
    /// There are no responses, so the options for responses do not compile here:
    ///
    /// ```compile_fail
    /// # use fleetlimit::{Limiter, RateLimitLayer, layer::HeaderStyle, resolve::Global};
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<Global, (), fleetlimit::layer::Errors> {
    /// RateLimitLayer::with_errors(limiter, Global).headers(HeaderStyle::None)
    /// # }
    /// ```
    ///
    /// ```
    /// # use fleetlimit::{Limiter, RateLimitLayer, layer::HeaderStyle, resolve::Global};
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<Global, (), fleetlimit::layer::Errors> {
    /// RateLimitLayer::with_errors(limiter, Global)
    /// # }
    /// ```
    pub fn with_errors(limiter: Limiter, resolver: K) -> Self
    where
        K: KeyResolver<R>,
    {
        Self::with_mode(limiter, resolver, Errors)
    }
}

impl<K, R, M> RateLimitLayer<K, R, M> {
    fn with_mode(limiter: Limiter, resolver: K, mode: M) -> Self {
        Self {
            limiter,
            resolver: Arc::new(resolver),
            cost: None,
            limiter_for: None,
            quota_for: None,
            on_decision: None,
            mode,
            logged_advice: Arc::default(),
            logged_keys: Arc::default(),
        }
    }

    pub(super) fn map_mode<N>(self, mode: impl FnOnce(M) -> N) -> RateLimitLayer<K, R, N> {
        RateLimitLayer {
            limiter: self.limiter,
            resolver: self.resolver,
            cost: self.cost,
            limiter_for: self.limiter_for,
            quota_for: self.quota_for,
            on_decision: self.on_decision,
            mode: mode(self.mode),
            logged_advice: self.logged_advice,
            logged_keys: self.logged_keys,
        }
    }

    /// Sets how many permits a request costs: 1 by default. The closure returns a number, or [`Costs`] that
    /// differ per quota. A cost of 0 is always allowed and consumes nothing, unless responses are
    /// [charged](RateLimitLayer::cost_by_response). A cost above the burst can never be paid at once, so it is
    /// always denied. (What may be borrowed or waited for adds to the burst.)
    ///
    /// ```
    /// # use http::request::Parts;
    /// # use fleetlimit::{Limiter, RateLimitLayer, resolve::PeerIp};
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
    /// RateLimitLayer::new(limiter, PeerIp::new())
    ///     .cost(|parts: &Parts| if parts.uri.path() == "/export" { 5 } else { 1 })
    /// # }
    /// ```
    ///
    /// If the costs name a quota that the policy does not have, the check fails with
    /// [`UnknownQuota`](crate::ErrorKind::UnknownQuota), and the layer responds with 503, whatever the
    /// failure mode.
    ///
    /// ```
    /// # use http::request::Parts;
    /// # use fleetlimit::{Costs, Limiter, RateLimitLayer, resolve::PeerIp};
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
    /// RateLimitLayer::new(limiter, PeerIp::new()).cost(|parts: &Parts| {
    ///     let length = parts.headers.get("content-length");
    ///     let bytes = length.and_then(|length| length.to_str().ok()?.parse().ok());
    ///     // A body of unknown length must not be free.
    ///     Costs::new(1).with("bytes", bytes.unwrap_or(1_000_000))
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn cost<C: Into<Costs>>(self, cost: impl Fn(&R) -> C + Send + Sync + 'static) -> Self {
        Self { cost: Some(Arc::new(move |head| cost(head).into())), ..self }
    }

    /// Chooses the limiter by request, for example by what the account has paid for. `None` means
    /// the layer's own limiter. Give every limiter a distinct policy name.
    ///
    /// The closure is not async. Load what it needs in a middleware outside of this layer, and read
    /// it from the request's extensions.
    ///
    /// ```
    /// use http::request::Parts;
    /// use fleetlimit::resolve::Extension;
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct Account {
    ///     id: u64,
    ///     has_paid: bool,
    /// }
    ///
    /// let store = MemoryStore::new();
    /// let free = Policy::new("free").quota("free", Quota::per_second(10));
    /// let paid = Policy::new("paid").quota("paid", Quota::per_second(100));
    /// let free = Limiter::new(store.clone(), free)?;
    /// let paid = Limiter::new(store, paid)?;
    ///
    /// let layer = RateLimitLayer::new(free, Extension::map(|account: &Account| account.id))
    ///     .limiter_for(move |parts: &Parts| {
    ///         let account = parts.extensions.get::<Account>()?;
    ///         account.has_paid.then(|| paid.clone())
    ///     });
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn limiter_for(
        self,
        limiter_for: impl Fn(&R) -> Option<Limiter> + Send + Sync + 'static,
    ) -> Self {
        Self { limiter_for: Some(Arc::new(limiter_for)), ..self }
    }

    /// Sets the numbers of a request's quota, for example those of the customer's contract. `None`
    /// means the numbers of the policy. The policy must have a single quota. The requests share the
    /// buckets, connections and calls of the limiter: see [`Limiter::with_quota`]. For policies of
    /// several quotas, use [`limiter_for`](Self::limiter_for) and [`Limiter::with_policy`].
    ///
    /// If the quota is invalid, or the policy has several, the policy's own numbers apply, and the
    /// log says what to change, with the [digest](Key::digest) of the key. A layer logs this at most
    /// once in ten minutes for each key, and for at most 16 keys.
    ///
    /// The closure is not async. Load the numbers in a middleware outside of this layer.
    ///
    /// ```
    /// use http::request::Parts;
    /// use fleetlimit::resolve::Extension;
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// /// A row of the table `accounts`.
    /// #[derive(Clone)]
    /// struct Account {
    ///     id: u64,
    ///     requests_per_second: u64,
    /// }
    ///
    /// let policy = Policy::new("api").quota("requests", Quota::per_second(1));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    /// let layer = RateLimitLayer::new(limiter, Extension::map(|account: &Account| account.id))
    ///     .quota_for(|parts: &Parts| {
    ///         let account = parts.extensions.get::<Account>()?;
    ///         Some(Quota::per_second(account.requests_per_second))
    ///     });
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn quota_for(
        self,
        quota_for: impl Fn(&R) -> Option<Quota> + Send + Sync + 'static,
    ) -> Self {
        Self { quota_for: Some(Arc::new(quota_for)), ..self }
    }

    /// The limiter of a request, if it is not the layer's own.
    #[inline]
    pub(super) fn limiter_of(&self, head: &R, key: &Key) -> Option<Limiter> {
        let chosen = self.limiter_for.as_ref().and_then(|limiter_for| limiter_for(head));
        let Some(quota) = self.quota_for.as_ref().and_then(|quota_for| quota_for(head)) else {
            return chosen;
        };
        let limiter = chosen.as_ref().unwrap_or(&self.limiter);
        match limiter.with_quota(quota) {
            Ok(limiter) => Some(limiter),
            Err(error) => {
                self.log_invalid_quota(limiter, key, &error);
                chosen
            }
        }
    }

    /// Observes every decision, including cached denials, for example to count it. It runs in the
    /// request's task, so it must not block. It is not called for requests that were skipped or
    /// rejected, nor when the store failed and the failure mode is closed.
    ///
    /// ```
    /// # use fleetlimit::{Limiter, RateLimitLayer, resolve::PeerIp};
    /// # fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
    /// RateLimitLayer::new(limiter, PeerIp::new()).on_decision(|checked| {
    ///     if checked.decision.is_denied() {
    ///         println!("{} denied {:?}", checked.policy.name(), checked.key);
    ///     }
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn on_decision(self, observer: impl Fn(&Checked<'_, R>) + Send + Sync + 'static) -> Self {
        Self { on_decision: Some(Arc::new(observer)), ..self }
    }

    /// Logs now and then what the operator has to change, if that is why a request was rejected.
    pub(super) fn log_misconfiguration(&self, rejection: &Rejection) {
        let Some(advice) = rejection.advice() else { return };
        let Some(count) = self.logged_advice.occurred(advice) else { return };
        let (policy, status) = (self.limiter.policy(), rejection.status());
        let (policy, code) = (policy.name(), status.as_u16());
        let message = "rejecting requests that have no rate limit key";
        // Unknown paths, for example, may be normal.
        if status.is_server_error() {
            tracing::error!(
                target: "fleetlimit", event = "requests_without_key", policy, status = code, count, advice,
                "{message}"
            );
        } else {
            tracing::info!(
                target: "fleetlimit", event = "requests_without_key", policy, status = code, count, advice,
                "{message}"
            );
        }
    }
}

impl<K, R, M> RateLimitLayer<K, R, M> {
    fn log_invalid_quota(&self, limiter: &Limiter, key: &Key, error: &ConfigError) {
        if let Some(count) = self.logged_keys.occurred(key) {
            let (policy, advice, key) = (limiter.policy(), error.to_string(), key.digest());
            let (policy, message) = (policy.name(), "using the quota of the policy instead");
            tracing::error!(
                target: "fleetlimit", event = "invalid_quota_ignored", policy, key, count, advice,
                "{message}"
            );
        }
    }
}

impl<K, R, M: Clone> Clone for RateLimitLayer<K, R, M> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            resolver: self.resolver.clone(),
            cost: self.cost.clone(),
            limiter_for: self.limiter_for.clone(),
            quota_for: self.quota_for.clone(),
            on_decision: self.on_decision.clone(),
            mode: self.mode.clone(),
            logged_advice: self.logged_advice.clone(),
            logged_keys: self.logged_keys.clone(),
        }
    }
}

impl<K, R, M: fmt::Debug> fmt::Debug for RateLimitLayer<K, R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.limiter)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl<S, K, R, M: Clone> Layer<S> for RateLimitLayer<K, R, M> {
    type Service = RateLimit<S, K, R, M>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.clone()))
    }
}

//! The tower service: its readiness is that of the inner service, and each call is an `admission`.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use tower_service::Service;

use super::admission::Admission;
use super::future::{ErrorFuture, ResponseFuture};
use super::{DrainBody, Errors, Http, RateLimitLayer, ResponseBody};
use crate::{Error, KeyResolver};

/// A service behind a [`RateLimitLayer`].
///
/// It is ready when the inner service is. The inner service is called only after the request was
/// allowed. If the future is dropped before, the check is cancelled.
pub struct RateLimit<S, K, R = Parts, M = Http> {
    inner: S,
    layer: Arc<RateLimitLayer<K, R, M>>,
}

impl<S, K, R, M> RateLimit<S, K, R, M> {
    pub(super) fn new(inner: S, layer: Arc<RateLimitLayer<K, R, M>>) -> Self {
        Self { inner, layer }
    }
}

impl<S, K, D, B, C> Service<Request<B>> for RateLimit<S, K, Parts, Http<D>>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    K: KeyResolver<Parts>,
    D: DrainBody<B>,
{
    type Response = Response<ResponseBody<C>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, K, B, D>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture { admission: Admission::new(&self.layer, request, &mut self.inner) }
    }
}

impl<S, K, R> Service<R> for RateLimit<S, K, R, Errors>
where
    S: Service<R> + Clone,
    S::Error: From<Error>,
    K: KeyResolver<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ErrorFuture<S, K, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        ErrorFuture { admission: Admission::new(&self.layer, request, &mut self.inner) }
    }
}

impl<S: Clone, K, R, M> Clone for RateLimit<S, K, R, M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, K, R, M: fmt::Debug> fmt::Debug for RateLimit<S, K, R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

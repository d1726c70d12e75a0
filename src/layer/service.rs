use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use tower_service::Service;

use super::future::{ErrorFuture, ResponseFuture};
use super::gate::Gate;
use super::mode::{Errors, Respond};
use super::{RateLimitLayer, ResponseBody};
use crate::{Error, KeyResolver};

/// A service whose requests a [`RateLimitLayer`] limits.
///
/// It is ready when the service is. The service is called only once the limiter has admitted the
/// request; dropping the future before that cancels the check.
pub struct RateLimit<S, K, R, M> {
    inner: S,
    layer: Arc<RateLimitLayer<K, R, M>>,
}

impl<S, K, R, M> RateLimit<S, K, R, M> {
    pub(super) fn new(inner: S, layer: Arc<RateLimitLayer<K, R, M>>) -> Self {
        Self { inner, layer }
    }
}

impl<S, K, M, B, C> Service<Request<B>> for RateLimit<S, K, Parts, M>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    K: KeyResolver<Parts>,
    M: Respond,
{
    type Response = Response<ResponseBody<C>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, K, M, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture { gate: Gate::new(&self.layer, request, &mut self.inner) }
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
        ErrorFuture { gate: Gate::new(&self.layer, request, &mut self.inner) }
    }
}

impl<S: Clone, K, R, M> Clone for RateLimit<S, K, R, M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, K, R, M> fmt::Debug for RateLimit<S, K, R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

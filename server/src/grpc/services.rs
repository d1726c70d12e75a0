//! The services of the gRPC port, by path.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either};
use tower::Service;

use super::method::ShouldRateLimit;

/// Checks do not pass through the router, to save a few percent of the processor time.
#[derive(Clone)]
pub(crate) struct Services {
    pub(super) check: ShouldRateLimit,
    pub(super) others: Router,
}

impl Service<Request> for Services {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<BoxFuture<'static, Result<Response, Infallible>>, RouteFuture<Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match request.uri().path() {
            ShouldRateLimit::PATH => Either::Left(self.check.clone().call(request).map(Ok).boxed()),
            _ => Either::Right(self.others.call(request)),
        }
    }
}

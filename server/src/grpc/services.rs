//! The services of the gRPC port, by path.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt as _, TryFutureExt as _};
use opentelemetry::context::FutureExt as _;
use tonic::Status;
use tower::Service;

use super::method::ShouldRateLimit;
use crate::held_bytes::HeldBytes;
use crate::live::Live;

/// The bytes that a request to another service holds: its headers, the buffers of its streams, and responses.
const OTHER_BYTES: usize = 128 * 1_024;

/// Checks do not pass through the router, to save a few percent of the processor time.
#[derive(Clone)]
pub(crate) struct Services {
    pub(super) live: Arc<Live>,
    pub(super) check: ShouldRateLimit,
    pub(super) others: Router,
}

impl Service<Request> for Services {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let Some(held) = request.extensions().get::<HeldBytes>().cloned() else {
            return ready(Ok(Status::internal("not a connection").into_http())).boxed();
        };
        if request.uri().path() == ShouldRateLimit::PATH {
            let parent = self.live.traces.as_ref().map(|traces| traces.parent(request.headers()));
            let response = self.check.call(request, &held).map(Ok);
            return match parent {
                Some(parent) => response.with_context(parent).boxed(),
                None => response.boxed(),
            };
        }
        let mut charge = held.charge();
        match charge.set(OTHER_BYTES) {
            Ok(()) => self
                .others
                .call(request)
                .map_ok(|response| response.map(|body| charge.keep_body(body)))
                .boxed(),
            Err(status) => ready(Ok(status.into_http())).boxed(),
        }
    }
}

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::gate::Gate;
use super::mode::{Errors, Respond};
use super::{RateLimitLayer, ResponseBody};
use crate::Error;

pin_project! {
    /// The future of a response, over HTTP or gRPC.
    pub struct ResponseFuture<S, K, M, B>
    where
        S: Service<Request<B>>,
        M: Respond,
    {
        #[pin]
        pub(super) gate: Gate<S, Request<B>, RateLimitLayer<K, Parts, M>>,
    }
}

impl<S, K, M, B, C> Future for ResponseFuture<S, K, M, B>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    M: Respond,
{
    type Output = Result<Response<ResponseBody<C>>, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().gate.poll(cx)) {
            Ok((response, told)) => response.map(|mut response| {
                if let Some(told) = told {
                    told.write(response.headers_mut());
                }
                response.map(ResponseBody::service)
            }),
            Err(rejection) => Ok(rejection.map(ResponseBody::layer)),
        })
    }
}

impl<S: Service<Request<B>>, K, M: Respond, B> fmt::Debug for ResponseFuture<S, K, M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of an answer in [`errors`](RateLimitLayer::errors) mode.
    pub struct ErrorFuture<S, K, R>
    where
        S: Service<R>,
    {
        #[pin]
        pub(super) gate: Gate<S, R, RateLimitLayer<K, R, Errors>>,
    }
}

impl<S, K, R> Future for ErrorFuture<S, K, R>
where
    S: Service<R> + Clone,
    S::Error: From<Error>,
{
    type Output = Result<S::Response, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().gate.poll(cx)) {
            Ok((answer, _)) => answer,
            Err(error) => Err(error.into()),
        })
    }
}

impl<S: Service<R>, K, R> fmt::Debug for ErrorFuture<S, K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorFuture").finish_non_exhaustive()
    }
}

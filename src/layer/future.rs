use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::gate::{Gate, Rejection};
use super::mode::Respond;
use super::{RateLimitLayer, ResponseBody};
use crate::{Error, ErrorKind};

pin_project! {
    /// The future of a response, over HTTP or gRPC.
    pub struct ResponseFuture<S, K, M, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        gate: Gate<S, Request<B>>,
        layer: Arc<RateLimitLayer<K, Parts, M>>,
    }
}

impl<S: Service<Request<B>>, K, M, B> ResponseFuture<S, K, M, B> {
    pub(super) fn new(gate: Gate<S, Request<B>>, layer: Arc<RateLimitLayer<K, Parts, M>>) -> Self {
        Self { gate, layer }
    }
}

impl<S, K, M, B, C> Future for ResponseFuture<S, K, M, B>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    M: Respond,
{
    type Output = Result<Response<ResponseBody<C>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let style = this.layer.headers;
        Poll::Ready(match ready!(this.gate.poll(cx)) {
            Ok((response, passed)) => response.map(|mut response| {
                if let Some(passed) = passed {
                    passed.fields.write(style, &passed.decision, response.headers_mut());
                }
                response.map(ResponseBody::service)
            }),
            Err(Rejection::Denied { decision, request, fields }) => {
                let mut response = match &this.layer.denied_response {
                    Some(denied) => denied(&decision, &request.into_parts().0),
                    None => M::denied(&decision, fields.name()),
                };
                // What the response says itself stands.
                let own = mem::take(response.headers_mut());
                fields.write(style, &decision, response.headers_mut());
                response.headers_mut().extend(own);
                Ok(response.map(ResponseBody::layer))
            }
            Err(Rejection::Refused(refusal)) => Ok(M::refused(&refusal).map(ResponseBody::layer)),
            Err(Rejection::Unavailable(error)) => {
                Ok(M::unavailable(&error).map(ResponseBody::layer))
            }
        })
    }
}

impl<S: Service<Request<B>>, K, M, B> fmt::Debug for ResponseFuture<S, K, M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of an answer in [`errors`](RateLimitLayer::errors) mode.
    pub struct ErrorFuture<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        gate: Gate<S, R>,
    }
}

impl<S: Service<R>, R> ErrorFuture<S, R> {
    pub(super) fn new(gate: Gate<S, R>) -> Self {
        Self { gate }
    }
}

impl<S, R> Future for ErrorFuture<S, R>
where
    S: Service<R> + Clone,
    S::Error: From<Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let error = match ready!(self.project().gate.poll(cx)) {
            Ok((answer, _)) => return Poll::Ready(answer),
            Err(Rejection::Denied { decision, .. }) => Error::denied(decision),
            Err(Rejection::Refused(refusal)) => {
                Error::new(ErrorKind::Refused, refusal.reason().to_owned())
            }
            Err(Rejection::Unavailable(error)) => error,
        };
        Poll::Ready(Err(error.into()))
    }
}

impl<S: Service<R>, R> fmt::Debug for ErrorFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorFuture").finish_non_exhaustive()
    }
}

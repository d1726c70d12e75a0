//! The futures of a layer: after the admission they add to the response what belongs there.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::admission::Admission;
use super::protocol::ResponseContext;
use super::{Drain, DrainBody, Errors, Http, RateLimitLayer, ResponseBody, placement};
use crate::Error;

pin_project! {
    /// The future of a response: see [`RateLimitLayer::new`].
    pub struct ResponseFuture<S, K, B, D = Drain>
    where
        S: Service<Request<B>>,
        D: DrainBody<B>,
    {
        #[pin]
        pub(super) admission: Admission<S, Request<B>, RateLimitLayer<K, Parts, Http<D>>>,
    }
}

impl<S, K, B, C, D> Future for ResponseFuture<S, K, B, D>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    D: DrainBody<B>,
{
    type Output = Result<Response<ResponseBody<C>>, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().admission.poll(cx)) {
            Ok((result, context)) => result.map(|mut response| {
                let mut meter = None;
                if let Some(ResponseContext { headers, decision, settlement }) = context {
                    if let Some(settlement) = settlement {
                        let (parts, body) = response.into_parts();
                        meter = settlement.responded(&parts);
                        response = Response::from_parts(parts, body);
                    }
                    headers.insert_into(response.headers_mut());
                    if let Some(decision) = decision {
                        placement::insert(response.extensions_mut(), *decision);
                    }
                }
                response.map(|body| ResponseBody::service(body, meter))
            }),
            Err(response) => Ok(response.map(ResponseBody::from)),
        })
    }
}

impl<S: Service<Request<B>>, K, B, D: DrainBody<B>> fmt::Debug for ResponseFuture<S, K, B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of a service that is not HTTP: see [`RateLimitLayer::with_errors`].
    pub struct ErrorFuture<S, K, R>
    where
        S: Service<R>,
    {
        #[pin]
        pub(super) admission: Admission<S, R, RateLimitLayer<K, R, Errors>>,
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
        Poll::Ready(match ready!(self.project().admission.poll(cx)) {
            Ok((result, _)) => result,
            Err(error) => Err(error.into()),
        })
    }
}

impl<S: Service<R>, K, R> fmt::Debug for ErrorFuture<S, K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorFuture").finish_non_exhaustive()
    }
}

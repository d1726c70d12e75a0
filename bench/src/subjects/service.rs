//! The service that the layers wrap, and the requests to it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use tower::{Service, ServiceExt};

use super::{BoxError, Operation, address};

/// Responds with status 200 and an empty body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OkService;

impl Service<Request<Body>> for OkService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// A request with the peer address, as axum provides it.
pub(crate) fn request(key: u32) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address(key), 4_711))));
    request
}

/// Sends a request to a service, which can have layers.
#[derive(Clone)]
pub(crate) struct ServiceCall<S>(pub(crate) S);

impl<S, B> Operation for ServiceCall<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send,
{
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let response = self.0.ready().await?.call(request(key)).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::TOO_MANY_REQUESTS => Ok(false),
            status => Err(format!("unexpected status: {status}").into()),
        }
    }
}

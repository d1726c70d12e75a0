//! The service that all layers are put around, and the way of a request through them.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use tower::{Service, ServiceExt};

use super::{Fault, Subject, address};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// A request as axum hands it on: it says who is at the other end of the connection.
pub(crate) fn request(caller: u32) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address(caller), 4_711))));
    request
}

/// A service with whatever layers, asked by requests.
#[derive(Clone)]
pub(crate) struct Through<S>(pub(crate) S);

impl<S, B> Subject for Through<S>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send,
{
    async fn decide(&mut self, caller: u32) -> Result<bool, Fault> {
        let response = self.0.ready().await?.call(request(caller)).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::TOO_MANY_REQUESTS => Ok(false),
            status => Err(format!("answered {status}").into()),
        }
    }
}

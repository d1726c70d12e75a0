//! One connection, until it is closed or idle, or the process ends.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use http::StatusCode;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;
use tower::{Layer as _, Service, ServiceExt as _};
use tower_http::timeout::TimeoutLayer;

use crate::header_timeout::HeaderTimeout;
use crate::held_bytes::HeldBytes;
use crate::protocol::Protocol;
use crate::requests::Requests;
use crate::settings::ResourceLimits;

/// The time that a client has to end the connection, in addition to the time for its requests.
const END_MARGIN: Duration = Duration::from_secs(2);
/// A connection may hold the bytes of this many requests of full size, or of this size if that is larger.
const HELD_REQUESTS: usize = 64;
const MIN_REQUEST_BYTES: usize = 64 * 1_024;

/// A service that responds to the requests of a connection. It is always ready.
pub(crate) trait Handler:
    Service<Request, Response = Response, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + 'static
{
}

impl<S> Handler for S where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + 'static
{
}

pub(crate) struct Connection<H> {
    pub(crate) peer: SocketAddr,
    pub(crate) handler: H,
    pub(crate) builder: auto::Builder<TokioExecutor>,
    pub(crate) protocol: Protocol,
    pub(crate) limits: ResourceLimits,
    pub(crate) first_request_by: Instant,
}

impl<H: Handler> Connection<H> {
    /// Serves requests until `shutdown`, or until none has begun by `first_request_by`, or until there was
    /// none for `resource_limits.idle_timeout`, or until its age is `resource_limits.connection_age`. Requests that have begun may then finish.
    ///
    /// # Errors
    ///
    /// If the client breaks the protocol, or keeps the connection open after that.
    pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Self { peer, handler, builder, protocol, limits, first_request_by } = self;
        let requests = Arc::new(Requests::default());
        let held = limits.request_bytes.max(MIN_REQUEST_BYTES).saturating_mul(HELD_REQUESTS);
        let held = HeldBytes::new(held);
        let timeouts =
            TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, limits.request_timeout);
        let service = timeouts.layer(handler).map_response(move |response| match protocol {
            Protocol::Http1 => response,
            Protocol::Http2 => with_grpc_status(response),
        });
        let counted = requests.clone();
        // The handler gets a request as soon as its headers are read, so that it can drop what it does not need.
        let service = service_fn(move |mut request: Request<_>| {
            let in_flight = counted.begin();
            request.extensions_mut().insert(ConnectInfo(peer));
            request.extensions_mut().insert(held.clone());
            let response = service.clone().call(request.map(Body::new));
            async move {
                let _in_flight = in_flight;
                response.await
            }
        });
        let stream = HeaderTimeout::new(stream, protocol, &limits, requests.clone());
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = shutdown => {}
            () = without_request(&requests, first_request_by) => {}
            () = idle(&requests, limits.idle_timeout) => {}
            () = aged(protocol, limits.connection_age) => {}
        }
        connection.as_mut().graceful_shutdown();
        let end = async {
            sleep(END_MARGIN).await;
            if requests.begun() > 0 {
                sleep(limits.request_timeout).await;
            }
        };
        tokio::select! {
            result = connection => result,
            () = end => Err("the client did not close the connection in time".into()),
        }
    }
}

/// Clients of gRPC expect its own status of a timeout.
fn with_grpc_status(response: Response) -> Response {
    match response.status() {
        StatusCode::REQUEST_TIMEOUT => {
            Status::deadline_exceeded("the request took too long").into_http::<Body>()
        }
        _ => response,
    }
}

/// Returns at this time if no request has begun, and otherwise never.
async fn without_request(requests: &Requests, first_request_by: Instant) {
    sleep_until(first_request_by).await;
    if requests.begun() > 0 {
        pending().await
    }
}

/// Returns at this age, with jitter, so that connections that began together do not all end together.
async fn aged(protocol: Protocol, age: Duration) {
    match protocol {
        Protocol::Http1 => pending().await,
        Protocol::Http2 => {
            sleep(age.mul_f64(0.9 + 0.2 * fleetlimit::internal::random_unit())).await
        }
    }
}

/// Returns once there was no request for this time, which it notices at most as much later.
async fn idle(requests: &Requests, time: Duration) {
    let mut before = 0;
    loop {
        sleep(time).await;
        let now = requests.begun_and_ended();
        if now == before && !requests.are_in_flight() {
            return;
        }
        before = now;
    }
}

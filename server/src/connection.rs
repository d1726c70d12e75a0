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
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;
use tower::{Layer as _, Service, ServiceExt as _};
use tower_http::timeout::TimeoutLayer;

use crate::body_bytes::BodyBytes;
use crate::header_timeout::HeaderTimeout;
use crate::requests::Requests;
use crate::serve::Protocol;
use crate::settings::Limits;

/// How long a client may take to end the connection, in addition to the time for its requests.
const END_MARGIN: Duration = Duration::from_secs(2);
/// The bytes of incomplete bodies are at most those of this many requests of full size. Few are ever
/// incomplete, because clients send a request at once.
const INCOMPLETE_REQUESTS: usize = 4;
/// Some clients send the end of a request on its own.
const MIN_INCOMPLETE_BYTES: usize = 64 * 1_024;

/// What answers the requests of a connection.
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
    pub(crate) limits: Limits,
    pub(crate) first_request_by: Instant,
}

impl<H: Handler> Connection<H> {
    /// Serves requests until `shutdown`, or until none has begun by `first_request_by`, or until there was
    /// none for `limits.idle_timeout`. Requests that have begun may then finish.
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
        let most = limits.request_bytes.saturating_mul(INCOMPLETE_REQUESTS);
        let bytes = BodyBytes::new(most.max(MIN_INCOMPLETE_BYTES));
        let service = handler.map_request(move |mut request: Request<_>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            request.map(|body| Body::new(bytes.count(body)))
        });
        let timeouts =
            TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, limits.request_timeout);
        let service = timeouts.layer(service).map_response(move |response| match protocol {
            Protocol::Http1 => response,
            Protocol::Http2 => with_grpc_status(response),
        });
        let counted = requests.clone();
        let service = service.map_future(move |response| {
            let in_flight = counted.begin();
            async move {
                let _in_flight = in_flight;
                response.await
            }
        });
        let service = TowerToHyperService::new(service);
        let stream = HeaderTimeout::new(stream, protocol, &limits, requests.clone());
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = shutdown => {}
            () = without_request(&requests, first_request_by) => {}
            () = idle(&requests, limits.idle_timeout) => {}
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

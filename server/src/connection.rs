//! One connection, until it is closed, is idle, or the process ends.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use crate::settings::Limits;

/// Serves the requests of a connection until `shutdown`, or until none has begun for
/// `limits.idle_timeout`. Then those that have begun may finish.
///
/// # Errors
///
/// If the client breaks the protocol, or does not let the connection end.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    router: Router,
    builder: &auto::Builder<TokioExecutor>,
    limits: &Limits,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let begun = Arc::new(AtomicU64::new(0));
    let counted = begun.clone();
    let service = router.map_request(move |mut request: Request<_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        request.extensions_mut().insert(ConnectInfo(peer));
        request.map(axum::body::Body::new)
    });
    let service = TowerToHyperService::new(service);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        result = connection.as_mut() => return result,
        () = shutdown => {}
        () = idle(&begun, limits.idle_timeout) => {}
    }
    connection.as_mut().graceful_shutdown();
    // A request takes at most one timeout, and its response has another to be read.
    timeout(2 * limits.request_timeout, connection).await?
}

/// Waits until no request has begun for between one and two of these times.
async fn idle(begun: &AtomicU64, time: Duration) {
    let mut before = 0;
    loop {
        sleep(time).await;
        let now = begun.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

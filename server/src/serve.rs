//! Accepts connections and serves them, with a limit for everything that a client could use up.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::settings::Limits;

/// Timeout of the TLS handshake, and for the headers of an HTTP/1 request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of HTTP/2 keep-alive pings. Live connections answer them, so they are never silent.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// A connection from which nothing arrives for so long is closed.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The smallest buffer of a connection that hyper supports.
const MIN_BUFFER: usize = 8 * 1_024;
/// Of HTTP/2 (RFC 9113): the initial size, and the largest.
const MIN_WINDOW: u32 = 65_535;
const MAX_WINDOW: u32 = (1 << 31) - 1;
/// Delay after a failed `accept`, for example with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a listener speaks. Each has only one protocol, because a slow client could stall its detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A port, and what is served on it.
pub(crate) struct Endpoint {
    pub(crate) listener: TcpListener,
    pub(crate) router: Router,
    pub(crate) protocol: Protocol,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Endpoint {
    /// Serves until `shutdown`, then finishes the requests that have begun.
    pub(crate) async fn serve(self, limits: &Limits, shutdown: impl Future<Output = ()>) {
        let Self { listener, router, protocol, tls } = self;
        let connections = Arc::new(Semaphore::new(limits.connections.get()));
        let builder = builder(protocol, limits);
        let graceful = GracefulShutdown::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let permit = tokio::select! {
                permit = connections.clone().acquire_owned() => permit,
                () = &mut shutdown => break,
            };
            let (stream, peer) = tokio::select! {
                accepted = accept(&listener) => accepted,
                () = &mut shutdown => break,
            };
            let (router, tls, builder) = (router.clone(), tls.clone(), builder.clone());
            let watcher = graceful.watcher();
            tokio::spawn(async move {
                let _permit = permit;
                let result = match tls {
                    None => connection(stream, peer, router, &builder, watcher).await,
                    Some(tls) => match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        Ok(Ok(stream)) => connection(stream, peer, router, &builder, watcher).await,
                        Ok(Err(error)) => Err(error.into()),
                        Err(elapsed) => Err(elapsed.into()),
                    },
                };
                if let Err(error) = result {
                    tracing::debug!(%peer, %error, "connection failed");
                }
            });
        }
        drop(listener);
        graceful.shutdown().await;
    }
}

fn builder(protocol: Protocol, limits: &Limits) -> auto::Builder<TokioExecutor> {
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut builder = match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE_TIMEOUT)
        .max_buf_size((limits.header_bytes as usize).max(MIN_BUFFER));
    // A request fits into a window.
    let window =
        u32::try_from(limits.request_bytes).unwrap_or(u32::MAX).clamp(MIN_WINDOW, MAX_WINDOW);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams.get())
        .max_header_list_size(limits.header_bytes)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window.saturating_mul(4).min(MAX_WINDOW))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Otherwise a reply waits for the acknowledgement of the one before, up to 40 ms.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "TCP_NODELAY is not set");
                }
                return (stream, peer);
            }
            Err(error) if is_of_client(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The client has closed the connection already.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    router: Router,
    builder: &auto::Builder<TokioExecutor>,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_read_timeout(Some(SILENCE_TIMEOUT));
    stream.set_write_timeout(Some(SILENCE_TIMEOUT));
    let service = router.map_request(move |mut request: Request<_>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request.map(axum::body::Body::new)
    });
    let io = TokioIo::new(Box::pin(stream));
    watcher.watch(builder.serve_connection(io, TowerToHyperService::new(service))).await
}

//! Accepts connections and serves them, with a limit for everything that a client could use up.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::connection::Connection;
use crate::settings::Limits;

/// Timeout of the TLS handshake, and for the headers of an HTTP/1 request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of HTTP/2 pings, and how long a client may take to answer one.
const PING_INTERVAL: Duration = Duration::from_secs(20);
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
    /// Serves until `stop` is true. Its connections keep a receiver until the requests that have begun
    /// are finished.
    pub(crate) async fn serve(self, limits: Limits, mut stop: watch::Receiver<bool>) {
        let Self { listener, router, protocol, tls } = self;
        let connections = Arc::new(Semaphore::new(limits.connections.get()));
        let builder = builder(protocol, &limits);
        loop {
            let permit = tokio::select! {
                permit = connections.clone().acquire_owned() => permit,
                () = stopped(&mut stop) => return,
            };
            let (stream, peer) = tokio::select! {
                accepted = accept(&listener) => accepted,
                () = stopped(&mut stop) => return,
            };
            let (router, builder, limits) = (router.clone(), builder.clone(), limits.clone());
            let connection = Connection { peer, router, builder, limits };
            let (tls, mut stop) = (tls.clone(), stop.clone());
            tokio::spawn(async move {
                let _permit = permit;
                let result = match tls {
                    None => connection.serve(stream, stopped(&mut stop)).await,
                    Some(tls) => {
                        let accepted = tokio::select! {
                            accepted = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => accepted,
                            () = stopped(&mut stop) => return,
                        };
                        match accepted {
                            Ok(Ok(stream)) => connection.serve(stream, stopped(&mut stop)).await,
                            Ok(Err(error)) => Err(error.into()),
                            Err(elapsed) => Err(elapsed.into()),
                        }
                    }
                };
                if let Err(error) = result {
                    tracing::debug!(%peer, %error, "connection failed");
                }
            });
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end, too.
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
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

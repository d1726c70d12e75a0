//! Accepts connections and serves them, with a limit for everything that a client could use up.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fleetlimit::internal::LogThrottle;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::{Connection, Handler};
use crate::per_address::{PerAddress, TooMany};
use crate::protocol::Protocol;
use crate::settings::ResourceLimits;
use crate::telemetry;
use crate::tls::ServerTls;

/// Interval of HTTP/2 pings, and how long a client may take to answer one.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// The smallest buffer of a connection that hyper supports.
const MIN_BUFFER: usize = 8 * 1_024;
/// The initial size of a window of HTTP/2 (RFC 9113).
const MIN_WINDOW: u32 = 65_535;
/// The largest size of a window of HTTP/2.
const MAX_WINDOW: u32 = (1 << 31) - 1;
/// The number of times that a gateway can cancel all requests of a connection while the process does not run. With
/// more, the connection is closed. Their headers are all in memory until the first one is accepted.
const CANCELLED: u32 = 4;
/// The least time between two lines about clients that do not establish TLS.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Delay after a failed `accept`, for example with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port, and what is served on it.
pub(crate) struct Endpoint<H> {
    /// The name of the port in the settings.
    pub(crate) name: &'static str,
    pub(crate) listener: TcpListener,
    pub(crate) handler: H,
    pub(crate) protocol: Protocol,
    pub(crate) tls: Option<Arc<ServerTls>>,
}

impl<H: Handler> Endpoint<H> {
    /// Serves until `stop` is true. Its connections keep a receiver until the requests that have begun
    /// are finished.
    pub(crate) async fn serve(self, limits: ResourceLimits, mut stop: watch::Receiver<bool>) {
        let Self { name, listener, handler, protocol, tls } = self;
        let connections = Arc::new(Semaphore::new(limits.connections.get()));
        let per_address = PerAddress::new(limits.connections_per_address());
        let builder = builder(protocol, &limits);
        let failures =
            Arc::new(TlsFailures { port: name, throttle: LogThrottle::new(LOG_INTERVAL) });
        loop {
            let permit = tokio::select! {
                permit = connections.clone().acquire_owned() => permit,
                () = stopped(&mut stop) => return,
            };
            let (stream, peer) = tokio::select! {
                accepted = accept(&listener) => accepted,
                () = stopped(&mut stop) => return,
            };
            let place = match per_address.acquire(peer.ip()) {
                Ok(place) => place,
                Err(TooMany { is_first }) => {
                    telemetry::connection_refused(name);
                    if is_first {
                        tracing::warn!(
                            event = "too_many_connections", %peer, port = name,
                            "this client has too many connections, and more are closed: see \
                             `resource_limits.connections_per_address`"
                        );
                    }
                    continue;
                }
            };
            let (handler, builder, limits) = (handler.clone(), builder.clone(), limits.clone());
            let first_request_by = Instant::now() + limits.handshake_timeout;
            let connection =
                Connection { peer, handler, builder, protocol, limits, first_request_by };
            let (tls, stop, failures) = (tls.clone(), stop.clone(), failures.clone());
            tokio::spawn(async move {
                let _held = (permit, place);
                if let Err(error) = serve(connection, stream, tls, stop, &failures).await {
                    tracing::debug!(%peer, %error, "connection failed");
                }
            });
        }
    }
}

async fn serve<H: Handler>(
    connection: Connection<H>,
    stream: TcpStream,
    tls: Option<Arc<ServerTls>>,
    mut stop: watch::Receiver<bool>,
    failures: &TlsFailures,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(tls) = tls else { return connection.serve(stream, stopped(&mut stop)).await };
    let tls = tls.acceptor(connection.protocol);
    let stream = tokio::select! {
        accepted = timeout_at(connection.first_request_by, tls.accept(stream)) => {
            accepted?.inspect_err(|error| failures.add(connection.peer, error))?
        }
        () = stopped(&mut stop) => return Ok(()),
    };
    connection.serve(stream, stopped(&mut stop)).await
}

/// The connections of a port for which TLS was not established. A gateway that has no certificate, or the wrong one, lets
/// requests pass, so operators have to see it.
struct TlsFailures {
    port: &'static str,
    throttle: LogThrottle,
}

impl TlsFailures {
    fn add(&self, peer: SocketAddr, error: &io::Error) {
        telemetry::tls_failure(self.port);
        if let Some(count) = self.throttle.occurred(std::time::Instant::now()) {
            tracing::warn!(
                event = "tls_handshake_failed", count, %peer, port = self.port, %error,
                "a client has not established TLS"
            );
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end, too.
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}

fn builder(protocol: Protocol, limits: &ResourceLimits) -> auto::Builder<TokioExecutor> {
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut builder = match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
    };
    builder
        .http1()
        // `HeaderTimeout` has one that leaves idle connections open.
        .header_read_timeout(None)
        .max_buf_size((limits.header_bytes as usize).max(MIN_BUFFER));
    // A request fits into a window.
    let window =
        u32::try_from(limits.request_bytes).unwrap_or(u32::MAX).clamp(MIN_WINDOW, MAX_WINDOW);
    let cancelled = limits.streams.get().saturating_mul(CANCELLED);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams.get())
        .max_pending_accept_reset_streams(cancelled as usize)
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
                tracing::error!(event = "accept_failed", %error, "cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns true if the client has closed the connection already.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

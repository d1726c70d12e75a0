//! The longest time that the headers of a request over HTTP/1 may take.
//!
//! hyper's own timeout begins when a connection waits for its next request, so it would also close idle
//! connections. This one begins with the first byte. A byte that comes with the end of the request before, or
//! earlier, does not count as the first: until another one comes, the connection is idle.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::protocol::Protocol;
use crate::requests::Requests;
use crate::settings::ResourceLimits;

/// A stream whose reads fail if the headers of a request take too long.
pub(crate) struct HeaderTimeout<S> {
    stream: S,
    /// `None` over HTTP/2, where other frames come between requests.
    timeout: Option<Duration>,
    requests: Arc<Requests>,
    incomplete: Option<Headers>,
}

/// The headers that have begun to come.
struct Headers {
    /// The requests that had begun before.
    begun: u64,
    too_late: Pin<Box<Sleep>>,
}

impl<S> HeaderTimeout<S> {
    pub(crate) fn new(
        stream: S,
        protocol: Protocol,
        limits: &ResourceLimits,
        requests: Arc<Requests>,
    ) -> Self {
        let timeout = (protocol == Protocol::Http1).then_some(limits.handshake_timeout);
        Self { stream, timeout, requests, incomplete: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeaderTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let begun = self.requests.begun();
        self.incomplete.take_if(|headers| headers.begun != begun);
        if read.is_ready() {
            if buffer.filled().len() > before
                && self.incomplete.is_none()
                && !self.requests.are_in_flight()
            {
                self.incomplete = self
                    .timeout
                    .map(|timeout| Headers { begun, too_late: Box::pin(sleep(timeout)) });
            }
            return read;
        }
        let Some(headers) = &mut self.incomplete else { return Poll::Pending };
        ready!(headers.too_late.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeaderTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

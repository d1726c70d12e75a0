//! How many bytes of incomplete bodies a connection may have, so that a client cannot fill the memory with
//! requests that it does not finish.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tonic::Status;

/// The first bytes of a body do not count, so that small requests do not fail because of large ones of
/// other clients of the same gateway.
const FREE: usize = 4 * 1_024;

/// The bytes that have been read of the bodies of a connection.
#[derive(Clone, Debug)]
pub(crate) struct BodyBytes {
    most: usize,
    read: Arc<AtomicUsize>,
}

/// The body of a request. Its bytes count until it is dropped: when the message is complete or, for a stream of
/// messages, at the end of the stream.
#[derive(Debug)]
pub(crate) struct CountedBody<B> {
    body: B,
    read: usize,
    all: BodyBytes,
}

impl BodyBytes {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, read: Arc::default() }
    }

    pub(crate) fn count<B>(&self, body: B) -> CountedBody<B> {
        CountedBody { body, read: 0, all: self.clone() }
    }
}

impl<B> HttpBody for CountedBody<B>
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(frame) = frame.transpose().map_err(Into::into)? else { return Poll::Ready(None) };
        if let Some(data) = frame.data_ref() {
            let before = self.counted();
            self.read += data.len();
            let more = self.counted() - before;
            let all = self.all.read.fetch_add(more, Ordering::Relaxed) + more;
            if more > 0 && all > self.all.most {
                let message = "too many bytes of incomplete requests";
                // Clients of gRPC get this status.
                return Poll::Ready(Some(Err(Status::resource_exhausted(message).into())));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> CountedBody<B> {
    fn counted(&self) -> usize {
        self.read.saturating_sub(FREE)
    }
}

impl<B> Drop for CountedBody<B> {
    fn drop(&mut self) {
        self.all.read.fetch_sub(self.counted(), Ordering::Relaxed);
    }
}

//! Futures that start without a task.

use std::task::{Context, Poll, Waker};

/// Polls a future once, as spawning it would, and returns the rest of it.
pub(crate) fn start<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let mut future = Box::pin(future);
    let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    async move {
        match first {
            Poll::Ready(output) => output,
            Poll::Pending => future.await,
        }
    }
}

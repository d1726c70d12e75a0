use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::future::Either;

/// Polls a future once, as a task of its own would, and returns what is left of it.
pub(crate) fn start<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let mut future: Pin<Box<F>> = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Either::Left(ready(output)),
        Poll::Pending => Either::Right(future),
    }
}

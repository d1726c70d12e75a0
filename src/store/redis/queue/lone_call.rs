//! The call of a check that is alone in its queue, and so in its batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::node_queue::NodeQueue;

/// The call of a batch of one check. The check runs it itself, and nobody else depends on it. If
/// the check is dropped, a task takes over, because the reply shows whether the connection works.
///
/// The mutex is never locked: it makes the check `Sync`.
pub(super) struct LoneCall(Mutex<Pin<Box<dyn Alone>>>);

impl LoneCall {
    pub(super) fn new(
        queue: Arc<NodeQueue>,
        call: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self(Mutex::new(Box::pin(AloneCall { queue, call })))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx)
    }

    /// Runs the rest of the call in a task, because its check does not wait for it any more.
    pub(super) fn spawn(self) {
        let call = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let queue = call.queue().clone();
        queue.spawn(call);
    }
}

/// A call with its queue, in one allocation.
trait Alone: Future<Output = ()> + Send {
    fn queue(&self) -> &Arc<NodeQueue>;
}

pin_project! {
    struct AloneCall<F> {
        queue: Arc<NodeQueue>,
        #[pin]
        call: F,
    }
}

impl<F: Future<Output = ()>> Future for AloneCall<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().call.poll(cx)
    }
}

impl<F: Future<Output = ()> + Send> Alone for AloneCall<F> {
    fn queue(&self) -> &Arc<NodeQueue> {
        &self.queue
    }
}

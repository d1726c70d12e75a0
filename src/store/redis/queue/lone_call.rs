//! The call of a check that is alone in its queue, and so in its batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

use super::node_queue::NodeQueue;

/// The call of a batch of one check. The check runs it itself, and nobody else depends on it. If
/// the check is dropped, a task takes over, because the reply shows whether the connection works.
pub(super) struct LoneCall(Pin<Box<dyn Alone>>);

impl LoneCall {
    pub(super) fn new(
        queue: Arc<NodeQueue>,
        call: impl Future<Output = ()> + Send + Sync + 'static,
    ) -> Self {
        Self(Box::pin(AloneCall { queue, call }))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }

    /// Runs the rest of the call in a task, because its check does not wait for it any more.
    pub(super) fn spawn(self) {
        let queue = self.0.queue().clone();
        queue.spawn(self.0);
    }

    /// Runs the call in a task, and then wakes another one.
    pub(super) fn spawn_and_wake(self, waker: Waker) {
        let queue = self.0.queue().clone();
        queue.spawn(async move {
            self.0.await;
            waker.wake();
        });
    }
}

/// A call with its queue, in one allocation.
trait Alone: Future<Output = ()> + Send + Sync {
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

impl<F: Future<Output = ()> + Send + Sync> Alone for AloneCall<F> {
    fn queue(&self) -> &Arc<NodeQueue> {
        &self.queue
    }
}

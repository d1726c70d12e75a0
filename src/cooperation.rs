//! Checks that complete at once take part in Tokio's cooperative scheduling, so that a loop of them does
//! not starve other tasks.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

/// How many operations use up one unit of a task's budget, which has 128. A unit for each would cost a check in
/// memory 5 to 9%, and split the many checks of one task into small batches.
const OPERATIONS: u32 = 8;

thread_local! {
    /// The operations of this thread that are paid for.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Returns `Pending` if the task has to yield before its next operation.
#[inline(always)]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    match LEFT.get() {
        0 => poll_pay(cx),
        left => {
            LEFT.set(left - 1);
            Poll::Ready(())
        }
    }
}

#[cold]
fn poll_pay(cx: &mut Context<'_>) -> Poll<()> {
    ready!(coop::poll_proceed(cx)).made_progress();
    LEFT.set(OPERATIONS - 1);
    Poll::Ready(())
}

/// Yields if the task has to, before its next operation.
pub(crate) async fn proceed() {
    poll_fn(poll_proceed).await;
}

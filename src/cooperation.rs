//! Checks that complete at once take part in Tokio's cooperative scheduling. Otherwise a loop of checks in
//! memory, of cached denials, or of checks in an outage would never yield, and a task per worker would stop
//! all others. → `tests/it/cooperation.rs`

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll, ready};

use tokio::task::coop;

/// The number of operations that use up one unit of a task's budget, which has 128. A unit for each would cost a
/// check in memory 5 to 9%.
const OPERATIONS: u32 = 8;

thread_local! {
    /// The operations that are paid for, and that this thread has not completed yet.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Returns `Pending` if the task has to yield before its next operation.
#[inline(always)]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    if LEFT.get() == 0 { poll_pay(cx) } else { Poll::Ready(()) }
}

/// Counts an operation that has completed. One that waits costs nothing, so that a task can start any number of
/// checks, which are sent together.
#[inline(always)]
pub(crate) fn completed() {
    LEFT.set(LEFT.get().saturating_sub(1));
}

#[cold]
fn poll_pay(cx: &mut Context<'_>) -> Poll<()> {
    ready!(coop::poll_proceed(cx)).made_progress();
    LEFT.set(OPERATIONS);
    Poll::Ready(())
}

/// Runs an operation that may complete at once.
pub(crate) async fn cooperate<T>(operation: impl Future<Output = T>) -> T {
    poll_fn(poll_proceed).await;
    let output = operation.await;
    completed();
    output
}

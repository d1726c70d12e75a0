//! Alarms that ring on a thread of their own, so that no busy worker of a runtime delays them.
//!
//! A timer of Tokio is only as punctual as the worker that polls its driver. When that worker runs a
//! handler that blocks, the timers of the whole runtime wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Instant;

/// From this number of entries on, those of dropped alarms are removed when it doubles.
const COMPACT_FROM: usize = 1_024;

/// What happens when a time has come.
pub(super) trait Alarm: Send + Sync {
    /// Returns when to ring again.
    fn ring(self: Arc<Self>, now: Instant) -> Option<Instant>;
}

/// Rings the alarm at this time, unless it has been dropped by then. Each call is an entry of its
/// own: one that has become useless rings all the same.
pub(super) fn set(at: Instant, alarm: Weak<dyn Alarm>) {
    let timer = TIMER.get_or_init(Timer::start);
    let mut state = timer.state();
    let is_first = state.entries.peek().is_none_or(|Reverse(first)| at < first.at);
    state.push(at, alarm);
    drop(state);
    if is_first {
        timer.changed.notify_one();
    }
}

/// Runs a future until this time. `None` if it is not ready by then.
pub(super) async fn timeout_at<F: Future>(at: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut bell: Option<Arc<Bell>> = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if at <= Instant::now() {
            return Poll::Ready(None);
        }
        match &bell {
            Some(bell) => lock(&bell.waker).clone_from(cx.waker()),
            None => {
                let new = Arc::new(Bell { waker: Mutex::new(cx.waker().clone()) });
                let alarm: Arc<dyn Alarm> = new.clone();
                set(at, Arc::downgrade(&alarm));
                bell = Some(new);
            }
        }
        Poll::Pending
    })
    .await
}

pub(super) async fn sleep_until(at: Instant) {
    timeout_at(at, std::future::pending::<()>()).await;
}

/// The thread is started by the first alarm, and stays.
static TIMER: OnceLock<Timer> = OnceLock::new();

struct Timer {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    entries: BinaryHeap<Reverse<Entry>>,
    /// Distinguishes entries of the same time.
    next: u64,
    compact_at: usize,
}

struct Entry {
    at: Instant,
    number: u64,
    alarm: Weak<dyn Alarm>,
}

struct Bell {
    waker: Mutex<Waker>,
}

impl Alarm for Bell {
    fn ring(self: Arc<Self>, _: Instant) -> Option<Instant> {
        lock(&self.waker).wake_by_ref();
        None
    }
}

impl Timer {
    fn start() -> Self {
        let spawned =
            thread::Builder::new().name("tollgate-timer".into()).spawn(|| TIMER.wait().run());
        if let Err(error) = spawned {
            tracing::error!(
                target: "tollgate",
                error = &error as &dyn std::error::Error,
                "cannot start the timer thread: checks on Redis may wait longer than their timeout",
            );
        }
        let state = State { entries: BinaryHeap::new(), next: 0, compact_at: COMPACT_FROM };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let first = state.entries.peek().map(|Reverse(first)| first.at);
            state = match first {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(first) if first > now => {
                    let waited = self.changed.wait_timeout(state, first - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let due = state.entries.pop();
                    drop(state);
                    let alarm = due.and_then(|Reverse(entry)| entry.alarm.upgrade());
                    let again = alarm.and_then(|alarm| {
                        let weak = Arc::downgrade(&alarm);
                        // A waker of another crate may panic. The thread must not end with it.
                        let again = catch_unwind(AssertUnwindSafe(|| alarm.ring(now)));
                        again.ok().flatten().map(|at| (at, weak))
                    });
                    let mut state = self.state();
                    if let Some((at, alarm)) = again {
                        state.push(at, alarm);
                    }
                    state
                }
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn push(&mut self, at: Instant, alarm: Weak<dyn Alarm>) {
        if self.entries.len() >= self.compact_at {
            self.entries.retain(|Reverse(entry)| entry.alarm.strong_count() > 0);
            self.compact_at = COMPACT_FROM.max(2 * self.entries.len());
        }
        self.next += 1;
        self.entries.push(Reverse(Entry { at, number: self.next, alarm }));
    }
}

impl Entry {
    fn order(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

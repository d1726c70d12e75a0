//! Timers that fire on a thread of their own, so that no busy worker of a runtime delays them.
//!
//! A timer of Tokio is only as punctual as the worker that polls its driver. When that worker runs a handler
//! that blocks, the timers of the whole runtime wait. And a runtime may have none, which Tokio reports with a
//! panic only.
//!
//! The thread `fleetlimit-timer` serves the whole process, and starts with the first timer.

use std::collections::BTreeMap;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// The number of entries from which on those of dropped timers are removed, each time that it has doubled.
const COMPACT_FROM: usize = 1_024;

/// The longest sleep. The sum of an `Instant` and an arbitrary duration could overflow.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Something that fires at a certain time.
pub(crate) trait Timer: Send + Sync {
    /// Runs once the time has come, on the thread of the timers. Returns the time to fire again.
    fn fire(self: Arc<Self>, now: Instant) -> Option<Instant>;
}

/// Fires the timer at this time, unless it has been dropped by then. Each call adds an entry: one
/// that has become useless fires all the same.
pub(crate) fn arm(at: Instant, timer: Weak<dyn Timer>) {
    let thread = THREAD.get_or_init(TimerThread::start);
    let mut schedule = thread.schedule();
    let is_first = schedule.first().is_none_or(|first| at < first);
    schedule.insert(at, timer);
    drop(schedule);
    if is_first {
        thread.changed.notify_one();
    }
}

/// Runs a future until this time. `None` if it is not ready by then.
pub(crate) async fn timeout_at<F: Future>(at: Instant, future: F) -> Option<F::Output> {
    let (mut future, mut sleep) = (std::pin::pin!(future), sleep_until(at));
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| None),
    })
    .await
}

pub(crate) fn sleep_until(at: Instant) -> Sleep {
    Sleep { at, wake: None }
}

/// Sleeps for this long, or for a year if that is less.
pub(crate) fn sleep(duration: Duration) -> Sleep {
    Sleep { at: Instant::now() + duration.min(LONGEST), wake: None }
}

/// A future that is ready at a certain time. It needs no runtime.
#[derive(Debug)]
pub(crate) struct Sleep {
    at: Instant,
    /// The timer, from the first poll that has to wait. It is dropped with the future.
    wake: Option<Arc<Wake>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at <= Instant::now() {
            return Poll::Ready(());
        }
        match &self.wake {
            Some(wake) => {
                let waker = cx.waker().clone();
                let earlier = mem::replace(&mut *lock(&wake.waker), waker);
                drop(earlier);
                // It may have fired before that, and woken the other task.
                if self.at <= Instant::now() {
                    return Poll::Ready(());
                }
            }
            None => {
                let wake = Arc::new(Wake { waker: Mutex::new(cx.waker().clone()) });
                let timer: Arc<dyn Timer> = wake.clone();
                arm(self.at, Arc::downgrade(&timer));
                self.wake = Some(wake);
            }
        }
        Poll::Pending
    }
}

/// The thread, which the first timer starts. It never ends.
static THREAD: OnceLock<TimerThread> = OnceLock::new();

struct TimerThread {
    schedule: Mutex<Schedule>,
    changed: Condvar,
}

/// The timers that have not fired yet.
struct Schedule {
    /// The timers by their time, and a number that distinguishes those of the same time.
    entries: BTreeMap<(Instant, u64), Weak<dyn Timer>>,
    next: u64,
    compact_at: usize,
}

/// A timer that wakes a task.
#[derive(Debug)]
struct Wake {
    waker: Mutex<Waker>,
}

impl Timer for Wake {
    fn fire(self: Arc<Self>, _: Instant) -> Option<Instant> {
        // While no lock is held, because a waker belongs to the application.
        let waker = mem::replace(&mut *lock(&self.waker), Waker::noop().clone());
        waker.wake();
        None
    }
}

impl TimerThread {
    fn start() -> Self {
        let spawned =
            thread::Builder::new().name("fleetlimit-timer".into()).spawn(|| THREAD.wait().run());
        if let Err(error) = spawned {
            tracing::error!(
                target: "fleetlimit",
                event = "timer_thread_failed",
                error = &error as &dyn std::error::Error,
                "cannot start the timer thread: checks on Redis and denied uploads may wait longer than their timeout",
            );
        }
        let schedule = Schedule { entries: BTreeMap::new(), next: 0, compact_at: COMPACT_FROM };
        Self { schedule: Mutex::new(schedule), changed: Condvar::new() }
    }

    fn run(&self) {
        let mut schedule = self.schedule();
        loop {
            let now = Instant::now();
            schedule = match schedule.first() {
                None => self.changed.wait(schedule).unwrap_or_else(PoisonError::into_inner),
                Some(first) if first > now => {
                    let waited = self.changed.wait_timeout(schedule, first - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let due = schedule.entries.pop_first();
                    drop(schedule);
                    let timer = due.and_then(|(_, timer)| timer.upgrade());
                    let again = timer.and_then(|timer| {
                        let weak = Arc::downgrade(&timer);
                        // A waker of another crate may panic. The thread must not end with it.
                        let again = catch_unwind(AssertUnwindSafe(|| timer.fire(now)));
                        again.ok().flatten().map(|at| (at, weak))
                    });
                    let mut schedule = self.schedule();
                    if let Some((at, timer)) = again {
                        schedule.insert(at, timer);
                    }
                    schedule
                }
            };
        }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }
}

impl Schedule {
    fn insert(&mut self, at: Instant, timer: Weak<dyn Timer>) {
        if self.entries.len() >= self.compact_at {
            self.entries.retain(|_, timer| timer.strong_count() > 0);
            self.compact_at = COMPACT_FROM.max(2 * self.entries.len());
        }
        self.next += 1;
        self.entries.insert((at, self.next), timer);
    }

    fn first(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((at, _), _)| *at)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise clients could fill the memory with uploads that they abort.
    #[test]
    fn timers_that_are_dropped_before_their_time_are_removed() {
        let mut schedule = Schedule { entries: BTreeMap::new(), next: 0, compact_at: COMPACT_FROM };
        let at = Instant::now();
        let timer = || Arc::new(Wake { waker: Mutex::new(Waker::noop().clone()) });
        let kept: Vec<Arc<dyn Timer>> = (0..100).map(|_| timer() as _).collect();
        for timer in &kept {
            schedule.insert(at, Arc::downgrade(timer));
        }
        for _ in 0..10 * COMPACT_FROM {
            let dropped: Arc<dyn Timer> = timer();
            schedule.insert(at, Arc::downgrade(&dropped));
        }
        assert!(schedule.entries.len() <= COMPACT_FROM);
        let left = schedule.entries.values().filter_map(Weak::upgrade).count();
        assert_eq!(left, kept.len());
    }
}

//! The deadlines of many calls on one timer.
//!
//! A timer per call would wake the runtime's timer driver each time a call is sent on an idle
//! connection, which takes longer than Redis needs to reply. Here the timer is set for the earliest
//! deadline and not touched when its call completes. So it is set about once per timeout, and ends
//! when nothing is pending.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A clock that jumps by less is not noticed.
const MIN_JUMP: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(super) struct DeadlineTimer {
    state: Mutex<State>,
    clock_is_paused: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    pending: BTreeMap<(Instant, u64), Waker>,
    /// Distinguishes entries with the same deadline.
    next: u64,
    is_set: bool,
}

impl DeadlineTimer {
    /// Like [`tokio::time::timeout_at`]: `None` if the deadline passes before the future is ready.
    pub(super) fn timeout_at<'a, F: Future>(
        self: &'a Arc<Self>,
        deadline: Instant,
        future: Pin<&'a mut F>,
    ) -> impl Future<Output = Option<F::Output>> + use<'a, F> {
        Timeout { timer: self, future, deadline, place: None }
    }

    /// Whether the last deadline came sooner than by the system's clock, as it does when a test has
    /// paused the clock of Tokio.
    pub(super) fn clock_is_paused(&self) -> bool {
        self.clock_is_paused.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the waker at the deadline. It replaces the one registered in the same place.
    fn register(self: &Arc<Self>, deadline: Instant, place: Option<u64>, waker: &Waker) -> u64 {
        let mut state = self.state();
        let place = place.unwrap_or_else(|| {
            state.next += 1;
            state.next
        });
        state.pending.insert((deadline, place), waker.clone());
        if !std::mem::replace(&mut state.is_set, true) {
            drop(state);
            tokio::spawn(TimerTask(Arc::downgrade(self)).run());
        }
        place
    }
}

struct Timeout<'a, F> {
    timer: &'a Arc<DeadlineTimer>,
    future: Pin<&'a mut F>,
    deadline: Instant,
    place: Option<u64>,
}

impl<F: Future> Future for Timeout<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if self.deadline <= Instant::now() {
            return Poll::Ready(None);
        }
        self.place = Some(self.timer.register(self.deadline, self.place, cx.waker()));
        Poll::Pending
    }
}

impl<F> Drop for Timeout<'_, F> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.timer.state().pending.remove(&(self.deadline, place));
        }
    }
}

/// The task that runs the timer.
struct TimerTask(Weak<DeadlineTimer>);

impl TimerTask {
    async fn run(mut self) {
        while let Some(next) = self.next() {
            let (real_start, start) = (std::time::Instant::now(), Instant::now());
            sleep_until(next).await;
            let elapsed = start.elapsed();
            let is_paused = elapsed >= MIN_JUMP && real_start.elapsed() < elapsed / 2;
            if let Some(timer) = self.0.upgrade() {
                timer.clock_is_paused.store(is_paused, Ordering::Relaxed);
                let later = timer.state().pending.split_off(&(Instant::now(), u64::MAX));
                let due = std::mem::replace(&mut timer.state().pending, later);
                due.into_values().for_each(Waker::wake);
            }
        }
        // Not cut short. Another task may run the timer by now.
        self.0 = Weak::new();
    }

    /// The earliest deadline. If there is none the task ends, under the same lock.
    fn next(&self) -> Option<Instant> {
        let timer = self.0.upgrade()?;
        let mut state = timer.state();
        let next = state.pending.first_key_value().map(|((deadline, _), _)| *deadline);
        state.is_set = next.is_some();
        next
    }
}

impl Drop for TimerTask {
    /// If the runtime cut the task short, calls on other runtimes set the timer again.
    fn drop(&mut self) {
        if let Some(timer) = self.0.upgrade() {
            let mut state = timer.state();
            state.is_set = false;
            let pending = std::mem::take(&mut state.pending);
            drop(state);
            pending.into_values().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::{advance, sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_call_waits_for_its_own_deadline() {
        let timer = Arc::<DeadlineTimer>::default();
        let start = Instant::now();
        let tasks: Vec<_> = [30, 10, 20, 10]
            .map(|millis| {
                let (timer, deadline) = (timer.clone(), start + Duration::from_millis(millis));
                tokio::spawn(async move {
                    let never = timer.timeout_at(deadline, pin!(pending::<()>())).await;
                    assert_eq!((never, Instant::now()), (None, deadline));
                })
            })
            .into();
        let ready = timer.timeout_at(start + Duration::from_millis(5), pin!(async { 7 })).await;
        assert_eq!(ready, Some(7));
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_ends_when_idle_and_starts_again() {
        let timer = Arc::<DeadlineTimer>::default();
        for _ in 0..3 {
            let deadline = Instant::now() + Duration::from_millis(50);
            let quick = timer.timeout_at(deadline, pin!(sleep(Duration::from_millis(1)))).await;
            assert!(quick.is_some() && timer.state().pending.is_empty());
            assert!(timer.state().is_set, "not touched");
            advance(Duration::from_millis(60)).await;
            yield_now().await;
            assert!(!timer.state().is_set);
        }
    }

    /// A runtime that runs the timer.
    fn with_timer(timer: &Arc<DeadlineTimer>) -> Runtime {
        let runtime = runtime();
        runtime.block_on(async {
            let deadline = Instant::now() + Duration::from_secs(3_600);
            timer.timeout_at(deadline, pin!(yield_now())).await.unwrap();
        });
        runtime
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// A task that waits for a deadline which nothing but the timer will tell it of.
    fn pending_in(runtime: &Runtime, timer: &Arc<DeadlineTimer>) -> JoinHandle<Option<()>> {
        let timer = timer.clone();
        let pending = runtime.spawn(async move {
            let deadline = Instant::now() + Duration::from_millis(5);
            timer.timeout_at(deadline, pin!(pending())).await
        });
        runtime.block_on(yield_now());
        pending
    }

    fn completes(runtime: &Runtime, pending: JoinHandle<Option<()>>) -> bool {
        runtime.block_on(async { timeout(Duration::from_secs(10), pending).await.is_ok() })
    }

    #[test]
    fn deadlines_work_after_the_runtime_of_the_timer_shut_down() {
        let (timer, runtime) = (Arc::default(), runtime());
        drop(with_timer(&timer));
        let pending = pending_in(&runtime, &timer);
        assert!(completes(&runtime, pending));
    }

    #[test]
    fn deadlines_work_while_the_runtime_of_the_timer_shuts_down() {
        let (timer, runtime) = (Arc::default(), runtime());
        let first = with_timer(&timer);
        let pending = pending_in(&runtime, &timer);
        drop(first);
        assert!(completes(&runtime, pending));
    }
}

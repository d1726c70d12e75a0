//! Deadlines of many calls on one timer.
//!
//! A timer of its own for each call would wake the runtime's timer driver each time a call goes
//! out on an idle connection, which takes longer than Redis needs to answer. Here the timer is set
//! for the earliest deadline and left alone when its call is answered; so it is set about once in
//! a deadline's time, and ends when nothing waits.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, sleep_until};

#[derive(Debug, Default)]
pub(super) struct Alarm {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<(Instant, u64), Waker>,
    /// Tells waiters of the same deadline apart.
    next: u64,
    is_set: bool,
}

impl Alarm {
    /// As [`tokio::time::timeout_at`]: `None` if the deadline comes before the future is ready.
    pub(super) fn timeout_at<'a, F: Future>(
        self: &'a Arc<Self>,
        deadline: Instant,
        future: Pin<&'a mut F>,
    ) -> impl Future<Output = Option<F::Output>> + use<'a, F> {
        Timeout { alarm: self, future, deadline, place: None }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the waker called at the deadline, in place of the one that has this place already.
    fn wait(self: &Arc<Self>, deadline: Instant, place: Option<u64>, waker: &Waker) -> u64 {
        let mut state = self.state();
        let place = place.unwrap_or_else(|| {
            state.next += 1;
            state.next
        });
        state.waiting.insert((deadline, place), waker.clone());
        if !std::mem::replace(&mut state.is_set, true) {
            drop(state);
            tokio::spawn(Ringing(Arc::downgrade(self)).run());
        }
        place
    }
}

struct Timeout<'a, F> {
    alarm: &'a Arc<Alarm>,
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
        self.place = Some(self.alarm.wait(self.deadline, self.place, cx.waker()));
        Poll::Pending
    }
}

impl<F> Drop for Timeout<'_, F> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.alarm.state().waiting.remove(&(self.deadline, place));
        }
    }
}

/// The task that holds the timer.
struct Ringing(Weak<Alarm>);

impl Ringing {
    async fn run(mut self) {
        while let Some(next) = self.next() {
            sleep_until(next).await;
            if let Some(alarm) = self.0.upgrade() {
                let later = alarm.state().waiting.split_off(&(Instant::now(), u64::MAX));
                let due = std::mem::replace(&mut alarm.state().waiting, later);
                due.into_values().for_each(Waker::wake);
            }
        }
        // Not cut short: another task may hold the timer by now.
        self.0 = Weak::new();
    }

    /// The earliest deadline; none ends the task, under the same lock as the look.
    fn next(&self) -> Option<Instant> {
        let alarm = self.0.upgrade()?;
        let mut state = alarm.state();
        let next = state.waiting.first_key_value().map(|((deadline, _), _)| *deadline);
        state.is_set = next.is_some();
        next
    }
}

impl Drop for Ringing {
    /// When its runtime has cut it short, those that wait on another one set the timer again.
    fn drop(&mut self) {
        if let Some(alarm) = self.0.upgrade() {
            let mut state = alarm.state();
            state.is_set = false;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_values().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::{advance, sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_waits_for_its_own_deadline_and_not_for_another() {
        let alarm = Arc::<Alarm>::default();
        let start = Instant::now();
        let tasks: Vec<_> = [30, 10, 20, 10]
            .map(|millis| {
                let (alarm, deadline) = (alarm.clone(), start + Duration::from_millis(millis));
                tokio::spawn(async move {
                    let never = alarm.timeout_at(deadline, pin!(pending::<()>())).await;
                    assert_eq!((never, Instant::now()), (None, deadline));
                })
            })
            .into();
        let ready = alarm.timeout_at(start + Duration::from_millis(5), pin!(async { 7 })).await;
        assert_eq!(ready, Some(7));
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_nobody_waits_for_ends_and_one_that_is_wanted_again_starts() {
        let alarm = Arc::<Alarm>::default();
        for _ in 0..3 {
            let deadline = Instant::now() + Duration::from_millis(50);
            let quick = alarm.timeout_at(deadline, pin!(sleep(Duration::from_millis(1)))).await;
            assert!(quick.is_some() && alarm.state().waiting.is_empty());
            assert!(alarm.state().is_set, "left alone");
            advance(Duration::from_millis(60)).await;
            yield_now().await;
            assert!(!alarm.state().is_set);
        }
    }

    /// A runtime, and a timer set in it for a deadline that is left alone.
    fn with_timer(alarm: &Arc<Alarm>) -> Runtime {
        let runtime = runtime();
        runtime.block_on(async {
            let deadline = Instant::now() + Duration::from_secs(3_600);
            alarm.timeout_at(deadline, pin!(yield_now())).await.unwrap();
        });
        runtime
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// A task that waits for a deadline which nothing but the alarm will tell it of.
    fn waiting_in(runtime: &Runtime, alarm: &Arc<Alarm>) -> JoinHandle<Option<()>> {
        let alarm = alarm.clone();
        let waiting = runtime.spawn(async move {
            let deadline = Instant::now() + Duration::from_millis(5);
            alarm.timeout_at(deadline, pin!(pending())).await
        });
        runtime.block_on(yield_now());
        waiting
    }

    fn rings(runtime: &Runtime, waiting: JoinHandle<Option<()>>) -> bool {
        runtime.block_on(async { timeout(Duration::from_secs(10), waiting).await.is_ok() })
    }

    #[test]
    fn a_deadline_comes_though_the_runtime_that_held_the_timer_went_before() {
        let (alarm, runtime) = (Arc::default(), runtime());
        drop(with_timer(&alarm));
        let waiting = waiting_in(&runtime, &alarm);
        assert!(rings(&runtime, waiting));
    }

    #[test]
    fn a_deadline_comes_though_the_runtime_that_held_the_timer_goes_meanwhile() {
        let (alarm, runtime) = (Arc::default(), runtime());
        let first = with_timer(&alarm);
        let waiting = waiting_in(&runtime, &alarm);
        drop(first);
        assert!(rings(&runtime, waiting));
    }
}

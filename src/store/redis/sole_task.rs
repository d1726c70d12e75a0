//! Tasks that exist once for a store, whatever runtimes it is used in: to register in the fleet, to read the
//! block list or the slots, and to charge what was taken locally.
//!
//! Such a task runs on the runtime of the check that starts it. When that runtime ends, or has not polled the
//! task for too long, the next check starts another one. → `tests/it/runtimes.rs`

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::random;
use crate::timer::{self, Timer};

/// A busy runtime polls its tasks late.
const GRACE: Duration = Duration::from_secs(1);

/// A task of which one runs at a time, on the runtime of the caller that starts it. If that runtime ends, or
/// stands still, another caller starts another.
#[derive(Debug, Default)]
pub(super) struct SoleTask {
    is_running: AtomicBool,
    state: Mutex<TaskState>,
}

#[derive(Debug, Default)]
struct TaskState {
    /// Counts the tasks.
    latest: u64,
    /// The time at which another task may begin, unless the latest one goes on before.
    overdue: Option<Instant>,
    is_timer_armed: bool,
    /// The time at which the next round of [`repeat`](SoleTask::repeat) begins. The runtime of the task may end
    /// before.
    due: Option<Instant>,
}

/// The permission to be the only task, which the task holds.
#[derive(Debug)]
pub(super) struct Role {
    task: Arc<SoleTask>,
    number: u64,
}

impl SoleTask {
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Spawns the task in the runtime of the caller, unless one is running. Does nothing outside of a runtime.
    /// It takes so long, or [goes on](Role::go_on).
    #[inline]
    pub(super) fn spawn<F>(self: &Arc<Self>, time: Duration, task: impl FnOnce(Role) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.is_running() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some(role) = self.begin(time) {
            runtime.spawn(task(role));
        }
    }

    /// Spawns a task that repeats a round for as long as its owner exists, each within `longest`. A round
    /// returns the pause until the next one, or, if the task ends, until another task may have one.
    ///
    /// Pauses between rounds vary by a quarter, so that the instances of a fleet do not all come at the same
    /// times.
    pub(super) fn repeat<T, F>(
        self: &Arc<Self>,
        owner: &Weak<T>,
        longest: Duration,
        round: impl Fn(Arc<T>) -> F + Send + 'static,
    ) where
        T: Send + Sync + 'static,
        F: Future<Output = ControlFlow<Duration, Duration>> + Send + 'static,
    {
        self.spawn(longest, |role| role.repeat(owner.clone(), longest, round));
    }

    fn begin(self: &Arc<Self>, time: Duration) -> Option<Role> {
        let mut state = self.state();
        if self.is_running.swap(true, Ordering::Relaxed) {
            return None;
        }
        state.latest += 1;
        let role = Role { task: self.clone(), number: state.latest };
        self.unlock_and_watch(state, time);
        Some(role)
    }

    fn unlock_and_watch(self: &Arc<Self>, mut state: MutexGuard<'_, TaskState>, time: Duration) {
        let overdue = Instant::now() + time + GRACE;
        state.overdue = Some(overdue);
        let is_timer_armed = std::mem::replace(&mut state.is_timer_armed, true);
        drop(state);
        if !is_timer_armed {
            let timer: Arc<dyn Timer> = self.clone();
            timer::arm(overdue, Arc::downgrade(&timer));
        }
    }

    fn state(&self) -> MutexGuard<'_, TaskState> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer for SoleTask {
    fn fire(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        let later = state.overdue.filter(|overdue| *overdue > now);
        if later.is_none() {
            (state.overdue, state.is_timer_armed) = (None, false);
            self.is_running.store(false, Ordering::Relaxed);
        }
        later
    }
}

impl Role {
    /// Goes on for so long. Returns false if another task has begun instead, because this one was overdue.
    pub(super) fn go_on(&self, time: Duration) -> bool {
        let state = self.task.state();
        let is_latest = state.latest == self.number;
        if is_latest {
            self.task.is_running.store(true, Ordering::Relaxed);
            self.task.unlock_and_watch(state, time);
        }
        is_latest
    }

    async fn repeat<T, F>(self, owner: Weak<T>, longest: Duration, round: impl Fn(Arc<T>) -> F)
    where
        F: Future<Output = ControlFlow<Duration, Duration>>,
    {
        while owner.strong_count() > 0 {
            let now = Instant::now();
            let due = self.task.state().due.unwrap_or(now);
            if !self.go_on(due.saturating_duration_since(now) + longest) {
                return;
            }
            timer::sleep_until(due).await;
            let Some(owner) = owner.upgrade() else { return };
            let next = round(owner).await;
            let pause = match next {
                ControlFlow::Continue(pause) => pause.mul_f64(0.75 + 0.25 * random::unit()),
                ControlFlow::Break(pause) => pause,
            };
            self.task.state().due = Some(Instant::now() + pause);
            if next.is_break() {
                return;
            }
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let mut state = self.task.state();
        if state.latest == self.number {
            state.overdue = None;
            self.task.is_running.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn another_task_begins_once_the_last_one_has_ended_or_is_overdue() {
        let task = Arc::new(SoleTask::default());
        let first = task.begin(SECOND).unwrap();
        assert!(task.is_running() && task.begin(SECOND).is_none());
        drop(first);
        assert!(!task.is_running());
        // Its runtime is not polled.
        let second = task.begin(SECOND).unwrap();
        let now = Instant::now();
        assert!(task.clone().fire(now + SECOND).is_some(), "it may be late");
        assert!(task.begin(SECOND).is_none());
        assert!(task.clone().fire(now + 3 * SECOND).is_none());
        let third = task.begin(SECOND).unwrap();
        assert!(!second.go_on(SECOND), "it was replaced");
        drop(second);
        assert!(task.is_running());
        drop(third);
    }

    /// As when the whole process was stopped for a while.
    #[test]
    fn a_task_that_was_overdue_goes_on_unless_another_has_begun() {
        let task = Arc::new(SoleTask::default());
        let role = task.begin(SECOND).unwrap();
        task.clone().fire(Instant::now() + 60 * SECOND);
        assert!(!task.is_running());
        assert!(role.go_on(SECOND));
        assert!(task.is_running() && task.begin(SECOND).is_none());
    }
}

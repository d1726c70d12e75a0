//! Tasks that exist once for a store, whatever runtimes it is used in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::timer::{self, Timer};

/// A busy runtime polls its tasks late.
const GRACE: Duration = Duration::from_secs(1);

/// A task of which one runs at a time, on the runtime of the caller that starts it. If that runtime ends, or
/// stands still, another caller starts another.
#[derive(Debug, Default)]
pub(super) struct SoleTask {
    is_running: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the tasks.
    latest: u64,
    /// When another task may begin, unless the latest one goes on before.
    overdue: Option<Instant>,
    is_timer_armed: bool,
}

/// Held by the task.
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

    /// Begins a task, unless one is running. It takes so long, or [goes on](Role::go_on).
    pub(super) fn begin(self: &Arc<Self>, time: Duration) -> Option<Role> {
        let mut state = self.state();
        if self.is_running.swap(true, Ordering::Relaxed) {
            return None;
        }
        state.latest += 1;
        let role = Role { task: self.clone(), number: state.latest };
        self.unlock_and_watch(state, time);
        Some(role)
    }

    fn unlock_and_watch(self: &Arc<Self>, mut state: MutexGuard<'_, State>, time: Duration) {
        let overdue = Instant::now() + time + GRACE;
        state.overdue = Some(overdue);
        let is_timer_armed = std::mem::replace(&mut state.is_timer_armed, true);
        drop(state);
        if !is_timer_armed {
            let timer: Arc<dyn Timer> = self.clone();
            timer::arm(overdue, Arc::downgrade(&timer));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
    /// Takes so long again. Returns false if another task has begun instead, because this one was overdue.
    pub(super) fn go_on(&self, time: Duration) -> bool {
        let state = self.task.state();
        let is_latest = state.latest == self.number;
        if is_latest {
            self.task.is_running.store(true, Ordering::Relaxed);
            self.task.unlock_and_watch(state, time);
        }
        is_latest
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

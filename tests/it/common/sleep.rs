//! A timer that is more precise than Tokio's.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use tokio::sync::oneshot;

/// Waits until a time, with a precision of a tenth of a millisecond on a quiet machine. Tokio's own
/// timer rounds up to the next millisecond.
pub(super) async fn sleep_until(time: Instant) {
    static THREAD: OnceLock<&SleepThread> = OnceLock::new();
    if time > Instant::now() {
        let (sender, receiver) = oneshot::channel();
        THREAD.get_or_init(SleepThread::start).insert(time, sender);
        // The thread never ends.
        let _ = receiver.await;
    }
}

/// A thread that waits for the earliest of some times.
#[derive(Default)]
struct SleepThread {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The number distinguishes equal times.
    sleepers: BTreeMap<(Instant, u64), oneshot::Sender<()>>,
    next: u64,
}

impl SleepThread {
    fn start() -> &'static Self {
        let thread: &Self = Box::leak(Box::default());
        thread::spawn(|| thread.run());
        thread
    }

    fn insert(&self, time: Instant, sleeper: oneshot::Sender<()>) {
        let mut state = self.state.lock().unwrap();
        let key = (time, state.next);
        state.next += 1;
        state.sleepers.insert(key, sleeper);
        let is_first = state.sleepers.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_first {
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let mut state = self.state.lock().unwrap();
        loop {
            let now = Instant::now();
            state = match state.sleepers.first_entry() {
                None => self.changed.wait(state).unwrap(),
                Some(first) if first.key().0 > now => {
                    let rest = first.key().0 - now;
                    self.changed.wait_timeout(state, rest).unwrap().0
                }
                Some(first) => {
                    // Its receiver may have been dropped.
                    let _ = first.remove().send(());
                    state
                }
            };
        }
    }
}

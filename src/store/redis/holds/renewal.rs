//! The task that renews the permits that this process holds, and repeats calls that have failed.
//!
//! It renews them four times in their lifetime, so that one lost call does not matter. While calls fail, it makes
//! them more often, so that a server that is back soon knows what is held.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::holds::{HeldKey, Holds};
use crate::store::redis::sole_task::SoleTask;
use crate::timer;

/// A round begins so often in the lifetime of permits, and renews those that were not for a quarter of it.
const ROUNDS: u32 = 16;

/// The pause between two rounds while the server does not know what is held.
const SHORT_PAUSE: Duration = Duration::from_millis(100);

/// The number of keys that are renewed at a time, so that checks in the same queue do not wait long.
const KEYS: usize = 128;

/// The pause until the next keys, if calls are still in flight.
const CALL_PAUSE: Duration = Duration::from_millis(5);

/// The longest expected duration of a round. With longer timeouts, the next round may begin before the last one ends.
const LONGEST_ROUND: Duration = Duration::from_secs(10);

impl Holds {
    /// Starts the task if it is not running. It ends when nothing is held.
    #[inline]
    pub(super) fn start_renewal(self: &Arc<Self>) {
        if !self.task.is_running() {
            self.start_task();
        }
    }

    #[cold]
    fn start_task(self: &Arc<Self>) {
        let task: &Arc<SoleTask> = &self.task;
        task.repeat(
            &Arc::downgrade(self),
            LONGEST_ROUND,
            |holds| async move { holds.round().await },
        );
    }

    async fn round(&self) -> ControlFlow<Duration, Duration> {
        let now = Instant::now();
        let before = now.checked_sub(self.lifetime / 4).unwrap_or(now);
        let mut keys = self.all();
        keys.retain(|key| key.state().is_due(before));
        for keys in keys.chunks(KEYS) {
            keys.iter().for_each(|key| self.renew(key));
            self.wait_for(keys, Instant::now() + LONGEST_ROUND).await;
        }
        if self.remove_idle() {
            return ControlFlow::Break(Duration::ZERO);
        }
        let is_unstated = keys.iter().any(|key| key.state().is_unstated());
        ControlFlow::Continue(if is_unstated { SHORT_PAUSE } else { self.lifetime / ROUNDS })
    }

    /// Waits until no call of these keys is in flight.
    async fn wait_for(&self, keys: &[Arc<HeldKey>], deadline: Instant) {
        while keys.iter().any(|key| key.state().is_in_flight()) && Instant::now() < deadline {
            timer::sleep(CALL_PAUSE).await;
        }
    }

    /// Waits until the server knows what is held, because the process is about to end.
    pub(crate) async fn settle(&self, deadline: Instant) {
        let is_unknown = |key: &Arc<HeldKey>| {
            let state = key.state();
            state.is_in_flight() || state.is_unstated()
        };
        while Instant::now() < deadline {
            let keys = self.all();
            if !keys.iter().any(is_unknown) {
                return;
            }
            keys.iter().for_each(|key| self.send_next(key));
            timer::sleep(CALL_PAUSE).await;
        }
    }
}

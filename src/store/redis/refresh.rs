//! Asking a cluster for its slots: one task at a time does so, with a pause after each.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::timer;

/// The pause between two rounds of questions for the slots.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long a node may take to send the slots.
pub(super) const TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Refresh {
    is_running: AtomicBool,
    ended: Mutex<Option<Instant>>,
}

/// A cluster that can be asked for its slots.
pub(super) trait SlotSource: Send + Sync + 'static {
    fn refresh(&self) -> &Refresh;

    fn ask(&self) -> impl Future<Output = ()> + Send;
}

/// Asks soon, in a task, unless one is running. Outside a runtime it does nothing.
pub(super) fn start<T: SlotSource>(source: &Arc<T>) {
    let Ok(runtime) = Handle::try_current() else { return };
    if !source.refresh().is_running.swap(true, Ordering::AcqRel) {
        runtime.spawn(Task(Arc::downgrade(source)).run());
    }
}

struct Task<T: SlotSource>(Weak<T>);

impl Refresh {
    fn ended(&self) -> MutexGuard<'_, Option<Instant>> {
        // Nothing that panics runs under the lock.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: SlotSource> Task<T> {
    async fn run(self) {
        let ended = self.0.upgrade().and_then(|source| *source.refresh().ended());
        if let Some(ended) = ended {
            timer::sleep_until(ended + INTERVAL).await;
        }
        let Some(source) = self.0.upgrade() else { return };
        source.ask().await;
        *source.refresh().ended() = Some(Instant::now());
    }
}

impl<T: SlotSource> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(source) = self.0.upgrade() {
            source.refresh().is_running.store(false, Ordering::Release);
        }
    }
}

//! Reading the slots of a cluster, and refreshing them: one task at a time, with a pause between two of
//! them.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use super::routes::Routes;
use crate::store::redis::connection::ConnectionSet;
use crate::store::redis::sole_task::{Role, SoleTask};
use crate::timer;

/// The pause between two refreshes.
const INTERVAL: Duration = Duration::from_millis(100);

/// The longest time that a node may take to send the slots.
pub(super) const TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Refresh {
    task: Arc<SoleTask>,
    ended: Mutex<Option<Instant>>,
}

/// A cluster whose slots are refreshed.
pub(super) trait SlotSource: Send + Sync + 'static {
    fn routes(&self) -> &ArcSwap<Routes>;

    fn refresh(&self) -> &Refresh;

    fn refresh_slots(&self) -> impl Future<Output = ()> + Send;
}

/// Passes the connections of a slot to `read`, without a reference count that all checks would share. If
/// the node of the slot is not known, they lead to another one, which will redirect, or to all nodes.
pub(super) fn route<S: SlotSource, T>(
    source: &Arc<S>,
    slot: u16,
    read: impl FnOnce(&Arc<ConnectionSet>) -> T,
) -> T {
    let routes = source.routes().load();
    match routes.owner(slot) {
        Some(connections) => read(connections),
        None => {
            schedule(source);
            read(routes.any())
        }
    }
}

/// Spawns a task that refreshes the slots, unless one is running. Does nothing outside a runtime.
pub(super) fn schedule<T: SlotSource>(source: &Arc<T>) {
    let task = &source.refresh().task;
    if task.is_running() {
        return;
    }
    let Ok(runtime) = Handle::try_current() else { return };
    // A pool connects in addition.
    if let Some(role) = task.begin(INTERVAL + 2 * TIMEOUT) {
        runtime.spawn(run(Arc::downgrade(source), role));
    }
}

impl Refresh {
    fn ended(&self) -> MutexGuard<'_, Option<Instant>> {
        // Nothing that panics runs under the lock.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run<T: SlotSource>(source: Weak<T>, _role: Role) {
    let ended = source.upgrade().and_then(|source| *source.refresh().ended());
    if let Some(ended) = ended {
        timer::sleep_until(ended + INTERVAL).await;
    }
    let Some(source) = source.upgrade() else { return };
    source.refresh_slots().await;
    *source.refresh().ended() = Some(Instant::now());
}

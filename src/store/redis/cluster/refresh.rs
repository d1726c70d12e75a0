//! Reading the slots of a cluster, and refreshing them: one task at a time, with a pause between two of
//! them.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::routes::Routes;
use crate::store::redis::connection::ConnectionSet;
use crate::store::redis::sole_task::SoleTask;

/// The pause between two refreshes.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long a node may take to send the slots.
pub(super) const TIMEOUT: Duration = Duration::from_millis(500);

/// A cluster whose slots are refreshed.
pub(super) trait SlotSource: Send + Sync + 'static {
    fn routes(&self) -> &ArcSwap<Routes>;

    fn refresh(&self) -> &Arc<SoleTask>;

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
    let task = source.refresh();
    if !task.is_running() {
        // A pool connects in addition.
        task.repeat(&Arc::downgrade(source), 2 * TIMEOUT, |source| async move {
            source.refresh_slots().await;
            ControlFlow::Break(INTERVAL)
        });
    }
}

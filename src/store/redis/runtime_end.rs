//! Notices the end of a runtime. That is no fault of the server: the connections, queues and breakers of the
//! runtime are dropped with it, and those of the others are not affected.

use std::convert::Infallible;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Waits for the end of a runtime, until it is dropped.
#[derive(Debug)]
pub(super) struct EndWatch {
    _dropped: oneshot::Sender<Infallible>,
}

/// Runs `at_end` when the runtime ends, unless the watch has been dropped before: at once if the runtime has
/// ended already, so the caller must hold no lock that `at_end` needs.
pub(super) fn watch(runtime: &Handle, at_end: impl FnOnce() + Send + 'static) -> EndWatch {
    let (sender, dropped) = oneshot::channel();
    runtime.spawn(AtEnd(Some(at_end)).wait(dropped));
    EndWatch { _dropped: sender }
}

/// A runtime that ends drops its tasks.
struct AtEnd<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> AtEnd<F> {
    async fn wait(mut self, dropped: oneshot::Receiver<Infallible>) {
        let _ = dropped.await;
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(at_end) = self.0.take() {
            at_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    fn counted(runtime: &Handle, ends: &Arc<AtomicUsize>) -> EndWatch {
        let ends = ends.clone();
        watch(runtime, move || {
            ends.fetch_add(1, Ordering::Relaxed);
        })
    }

    #[test]
    fn the_end_of_a_runtime_is_noticed_once_also_if_it_has_passed() {
        let (runtime, ends) = (runtime(), Arc::default());
        let handle = runtime.handle().clone();
        let before = counted(&handle, &ends);
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(ends.load(Ordering::Relaxed), 0);
        drop(runtime);
        assert_eq!(ends.load(Ordering::Relaxed), 1);
        let after = counted(&handle, &ends);
        assert_eq!(ends.load(Ordering::Relaxed), 2);
        drop((before, after));
        assert_eq!(ends.load(Ordering::Relaxed), 2);
    }

    /// Or each store that is dropped would leave tasks behind.
    #[test]
    fn a_watch_that_is_dropped_leaves_no_task() {
        let (runtime, ends) = (runtime(), Arc::default());
        drop(counted(runtime.handle(), &ends));
        runtime.block_on(async {
            while runtime.metrics().num_alive_tasks() > 0 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        assert_eq!(ends.load(Ordering::Relaxed), 0);
    }
}

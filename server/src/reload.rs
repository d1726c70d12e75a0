//! Reloads on SIGHUP, when a file changes, and on request.

use std::io;
use std::sync::Arc;

use fleetlimit::FileWatch;
use fleetlimit::internal::Watched;
use tokio::runtime::Handle;
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;

use crate::config::Read;
use crate::live::{Live, Reloaded};

/// Reloads the files as they are now, also if they are half written: whoever requests it has written them.
///
/// # Errors
///
/// If a file is invalid. The current configuration stays in effect then.
pub(crate) async fn reload(live: &Arc<Live>) -> Reloaded {
    let live = live.clone();
    let result = spawn_blocking(move || live.reload()).await?;
    log(&result);
    result
}

/// Runs until the process exits.
pub(crate) async fn on_hangup(live: Arc<Live>, mut hangups: Signal) {
    while hangups.recv().await.is_some() {
        // The error is in the log.
        let _ = reload(&live).await;
    }
}

/// Reloads until this is dropped.
///
/// # Errors
///
/// If no thread can be started.
pub(crate) fn on_change(live: Arc<Live>) -> io::Result<FileWatch> {
    FileWatch::start("configuration", WatchedFiles { live, runtime: Handle::current() })
}

/// The files of the configuration.
struct WatchedFiles {
    live: Arc<Live>,
    /// New limiters start their tasks in it.
    runtime: Handle,
}

impl Watched for WatchedFiles {
    type Content = Read;

    fn changed(&mut self) -> Option<Read> {
        self.live.changed()
    }

    fn apply(&mut self, read: Read) {
        let _entered = self.runtime.enter();
        if let Some(result) = self.live.reload_settled(&read) {
            log(&result);
        }
    }
}

fn log(result: &Reloaded) {
    match result {
        Ok(()) => tracing::info!(event = "configuration_reloaded", "configuration reloaded"),
        Err(error) => tracing::error!(
            event = "configuration_rejected",
            "configuration not reloaded, the old one stays:\n{error}"
        ),
    }
}

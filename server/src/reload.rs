//! Reloads on SIGHUP, when a file changes, and on request.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::live::{Live, Reloaded};

/// How often files are read to see whether they have changed. This also works for mounted volumes and
/// swapped symlinks, which file watchers miss. A change applies when two reads in a row have found the same.
const INTERVAL: Duration = Duration::from_secs(2);

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

/// Runs until the process exits.
pub(crate) async fn on_change(live: Arc<Live>) {
    loop {
        sleep(INTERVAL).await;
        let watched = live.clone();
        let reloaded = spawn_blocking(move || watched.reload_if_settled()).await;
        if let Ok(Some(result)) = &reloaded {
            log(result);
        }
    }
}

fn log(result: &Reloaded) {
    match result {
        Ok(()) => tracing::info!("configuration reloaded"),
        Err(error) => tracing::error!("configuration not reloaded, the old one stays:\n{error}"),
    }
}

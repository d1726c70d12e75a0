//! Reloads on SIGHUP, when a file changes, and on request.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::sleep;

use crate::live::Live;

/// How often files are read to see whether they have changed. This also works for mounted volumes and
/// swapped symlinks, which file watchers miss.
const INTERVAL: Duration = Duration::from_secs(2);

/// # Errors
///
/// If a file is invalid. The current configuration stays in effect then.
pub(crate) async fn reload(live: &Arc<Live>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let live = live.clone();
    let result = tokio::task::spawn_blocking(move || live.reload()).await?;
    match &result {
        Ok(()) => tracing::info!("configuration reloaded"),
        Err(error) => tracing::error!("configuration not reloaded, the old one stays:\n{error}"),
    }
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
        let has_changed = tokio::task::spawn_blocking(move || watched.has_changed()).await;
        if has_changed.is_ok_and(|has_changed| has_changed) {
            // The error is in the log.
            let _ = reload(&live).await;
        }
    }
}

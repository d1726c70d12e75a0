//! Reloads on SIGHUP, when a file changes, and on request.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::live::Live;
use crate::telemetry;

/// How often files are read to see whether they have changed. This also works for files that are
/// mounted, or replaced by links, of which no notification arrives.
const INTERVAL: Duration = Duration::from_secs(2);

/// # Errors
///
/// If a file is invalid. The configuration stays as it is then.
pub(crate) async fn reload(live: &Arc<Live>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let live = live.clone();
    let result = tokio::task::spawn_blocking(move || live.reload()).await?;
    match &result {
        Ok(()) => tracing::info!("configuration reloaded"),
        Err(error) => tracing::error!("configuration not reloaded, the old one stays:\n{error}"),
    }
    telemetry::reloaded(result.is_ok());
    result
}

/// Never ends.
pub(crate) async fn on_hangup(live: Arc<Live>) -> Result<(), std::io::Error> {
    let mut hangups = signal(SignalKind::hangup())?;
    while hangups.recv().await.is_some() {
        // The error is in the log.
        let _ = reload(&live).await;
    }
    Ok(())
}

/// Never ends.
pub(crate) async fn on_change(live: Arc<Live>) {
    let mut seen = live.digest();
    loop {
        sleep(INTERVAL).await;
        let live_too = live.clone();
        let now = tokio::task::spawn_blocking(move || live_too.digest_of_files()).await;
        // An invalid file is reported once.
        if let Ok(now) = now
            && now != seen
        {
            seen = now;
            // The error is in the log.
            let _ = reload(&live).await;
        }
    }
}

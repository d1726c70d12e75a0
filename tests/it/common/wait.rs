//! Waiting for a condition instead of a time.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

/// Longer than any wait in a test takes on a busy machine. It only determines how soon a hang is
/// reported.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_millis(2);

/// Evaluates `condition` repeatedly until it holds.
///
/// # Panics
/// If it does not hold within `bound`, or hangs. The message contains `what`.
pub(crate) async fn wait_until(
    what: &str,
    bound: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) {
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let result = timeout(bound, async {
        while !condition().await {
            tick.tick().await;
        }
    });
    if result.await.is_err() {
        panic!("condition not met within {bound:?}: {what}");
    }
}

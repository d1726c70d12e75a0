use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

/// Longer than anything here takes on a busy machine; it only decides how soon a hang is reported.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_millis(2);

/// Asks `condition` again and again until it holds. Panics with `what` after `bound`, also when
/// the condition itself hangs.
pub(crate) async fn wait_until(
    what: &str,
    bound: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) {
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let held = timeout(bound, async {
        while !condition().await {
            tick.tick().await;
        }
    });
    if held.await.is_err() {
        panic!("waited {bound:?} in vain until {what}");
    }
}

//! The expiry of keys after Redis's clock has stepped back.

use std::time::Duration;

use fleetlimit::{Policy, Quota};

use crate::common::{Clock, Server};
use crate::exact::uncached;

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_secs(3_600);

async fn ttl(server: &Server, prefix: &str) -> Duration {
    let keys: Vec<String> = server.query(&["KEYS", &format!("{prefix}:*")]).await;
    let [key] = &*keys else { panic!("{prefix}: {keys:?}") };
    Duration::from_millis(server.query(&["PTTL", key]).await)
}

/// Otherwise a step of a day would keep each key in memory for a day. A token bucket keeps a debt that may
/// be that of a larger burst.
#[tokio::test]
async fn a_key_expires_earlier_by_the_step_of_a_clock_that_steps_back() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    let window = Quota::new(20, 2 * SECOND);
    let quotas = [
        Quota::per_second(10).burst(20).interval_refill(),
        window.fixed_window(),
        window.calendar(),
        window.approximate_sliding_window(),
        window.sliding_window(4),
        // The window is a single segment.
        window.sliding_window(1),
    ];
    for (number, quota) in quotas.into_iter().enumerate() {
        let alone = Policy::new("test").quota("q", quota);
        let with_other = alone.clone().quota("other", Quota::per_minute(20).fixed_window());
        for (form, policy) in [alone, with_other].into_iter().enumerate() {
            let prefix = format!("{number}-{form}");
            let limiter = uncached(clock.store(&prefix), policy);
            assert!(limiter.check_cost("key", 20).await.unwrap().is_allowed());
            let before = ttl(&server, &prefix).await;
            clock.step_back(STEP).await;
            assert!(limiter.check("key").await.unwrap().is_denied(), "{quota}: {prefix}");
            let after = ttl(&server, &prefix).await;
            // At most a segment later, and a granule.
            assert!(after <= before - STEP + 3 * SECOND, "{quota}: {before:?}, {after:?}");
            clock.advance(STEP).await;
        }
    }
}

use std::time::Duration;

use fleetlimit::Quota;

/// 5 per 15 minutes, counted from the first.
pub const COUNTER: Quota = Quota::new(5, Duration::from_secs(15 * 60)).fixed_window();

/// 20 at once, and then 10 per second.
pub const TOKEN_BUCKET: Quota = Quota::per_second(10).burst(20);

/// 5 in any minute, with segments of 5 seconds.
pub const SLIDING_WINDOW: Quota = Quota::per_minute(5).sliding_window(12);

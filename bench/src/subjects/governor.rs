//! tower_governor 0.8: GCRA in the memory of one process.

use std::time::Duration;

use tower::Layer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use super::{BURST, Fault, Hello, Subject, Through};

/// With headers, by address.
pub(crate) fn governor(is_open: bool) -> Result<impl Subject, Fault> {
    let (period, burst) = if is_open { (60, BURST) } else { (86_400, 1) };
    let config = GovernorConfigBuilder::default()
        .period(Duration::from_secs(period))
        .burst_size(burst)
        .use_headers()
        .finish()
        .ok_or("tower_governor refuses the quota")?;
    Ok(Through(GovernorLayer::new(config).layer(Hello)))
}

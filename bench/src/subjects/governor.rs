//! tower_governor 0.8: GCRA in the memory of the process.

use tower::Layer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use super::{BURST, BoxError, DAY, OkService, Operation, REFILL, ServiceCall};

/// A service in tower_governor's layer, with rate limit headers and keys by peer address.
pub(crate) fn governor(allow_all: bool) -> Result<impl Operation, BoxError> {
    let (period, burst) = if allow_all { (REFILL, BURST) } else { (DAY, 1) };
    let config = GovernorConfigBuilder::default()
        .period(period)
        .burst_size(burst)
        .use_headers()
        .finish()
        .ok_or("tower_governor rejected the quota")?;
    Ok(ServiceCall(GovernorLayer::new(config).layer(OkService)))
}

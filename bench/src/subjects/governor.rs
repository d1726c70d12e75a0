//! tower_governor 0.8: GCRA in the memory of one process.

use std::time::Duration;

use axum::body::Body;
use tower::Layer;
use tower_governor::GovernorLayer;
use tower_governor::governor::{Governor, GovernorConfigBuilder};
use tower_governor::key_extractor::PeerIpKeyExtractor;

use super::{BURST, Fault, Hello, Through};

type Middleware = governor_middleware::StateInformationMiddleware;

/// With headers, by address.
pub(crate) fn governor(
    is_open: bool,
) -> Result<Through<Governor<PeerIpKeyExtractor, Middleware, Hello, Body>>, Fault> {
    let (period, burst) = if is_open { (60, BURST) } else { (86_400, 1) };
    let config = GovernorConfigBuilder::default()
        .period(Duration::from_secs(period))
        .burst_size(burst)
        .use_headers()
        .finish()
        .ok_or("tower_governor refuses the quota")?;
    Ok(Through(GovernorLayer::new(config).layer(Hello)))
}

//! What is measured of the instances that share limits.

use super::instruments::Gauge;

/// The measurements of the instances that share limits.
#[derive(Debug, Default)]
pub(crate) struct FleetMetrics {
    pub(super) key_prefix: String,
    pub(super) server: String,
    pub(super) instances: Gauge,
    pub(super) share: Gauge,
}

impl FleetMetrics {
    pub(crate) fn new(key_prefix: &str, server: &str) -> Self {
        let (key_prefix, server) = (key_prefix.to_owned(), server.to_owned());
        Self { key_prefix, server, ..Self::default() }
    }

    /// Reports the plan. `share` is a fraction of a limit.
    pub(crate) fn divided(&self, instances: usize, share: f64) {
        self.instances.set(instances as f64, self);
        self.share.set(share, self);
    }
}

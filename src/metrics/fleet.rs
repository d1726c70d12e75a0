use super::catalog::redis::{INSTANCES, SHARE};
use super::catalog::{KEY_PREFIX, SERVER};
use super::instruments::Gauge;

/// What is measured of the instances that share limits.
#[derive(Debug)]
pub(crate) struct FleetMetrics {
    instances: Gauge,
    share: Gauge,
}

impl FleetMetrics {
    pub(crate) fn new(key_prefix: &str, server: &str) -> Self {
        let labels =
            &[(KEY_PREFIX, key_prefix.to_owned().into()), (SERVER, server.to_owned().into())];
        Self { instances: Gauge::new(&INSTANCES, labels), share: Gauge::new(&SHARE, labels) }
    }

    /// `share` is a fraction of a limit.
    pub(crate) fn divided(&self, instances: usize, share: f64) {
        self.instances.set(instances as f64);
        self.share.set(share);
    }
}

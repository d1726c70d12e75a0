//! What is measured of a Redis server: its calls, batches, breakers and connections. A `ConnectionSet` has it.

use std::time::Duration;

use super::instruments::{Counter, Gauge, Histogram};

/// The measurements of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerMetrics {
    pub(super) server: String,
    pub(super) call_duration: Histogram,
    pub(super) batch_size: Histogram,
    pub(super) queue_length: Histogram,
    pub(super) breakers_open: Gauge,
    pub(super) breaker_openings: Counter,
    pub(super) unknown_scripts: Counter,
    pub(super) redirections: Counter,
    pub(super) connections: Gauge,
    pub(super) connection_failures: Counter,
}

impl ServerMetrics {
    pub(crate) fn new(server: &str) -> Self {
        Self { server: server.to_owned(), ..Self::default() }
    }

    /// Records that a batch starts while `waiting` other checks wait.
    pub(crate) fn batch_starts(&self, waiting: usize) {
        self.queue_length.record(waiting as f64, self);
    }

    pub(crate) fn batch_sent(&self, checks: usize) {
        self.batch_size.record(checks as f64, self);
    }

    pub(crate) fn batch_returned(&self, after: Duration) {
        self.call_duration.record(after.as_secs_f64(), self);
    }

    pub(crate) fn breaker_opened(&self) {
        self.breakers_open.add(1, self);
        self.breaker_openings.add(1, self);
    }

    /// Records that an open breaker closed, or was dropped.
    pub(crate) fn breaker_closed(&self) {
        self.breakers_open.add(-1, self);
    }

    pub(crate) fn unknown_script(&self) {
        self.unknown_scripts.add(1, self);
    }

    pub(crate) fn redirected(&self) {
        self.redirections.add(1, self);
    }

    pub(crate) fn connected(&self) {
        self.connections.add(1, self);
    }

    pub(crate) fn disconnected(&self) {
        self.connections.add(-1, self);
    }

    pub(crate) fn could_not_connect(&self) {
        self.connection_failures.add(1, self);
    }
}

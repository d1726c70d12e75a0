use std::time::Duration;

use super::catalog::SERVER;
use super::catalog::redis::{
    BATCH_SIZE, BREAKER_OPENINGS, BREAKERS_OPEN, CALL_DURATION, CONNECTION_FAILURES, CONNECTIONS,
    QUEUE_LENGTH, REDIRECTIONS, UNKNOWN_SCRIPTS,
};
use super::instruments::{Counter, Gauge, Histogram, server_label};

/// What is measured of a server.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    call_duration: Histogram,
    batch_size: Histogram,
    queue_length: Histogram,
    breakers_open: Gauge,
    breaker_openings: Counter,
    unknown_scripts: Counter,
    redirections: Counter,
    connections: Gauge,
    connection_failures: Counter,
}

impl ServerMetrics {
    pub(crate) fn new(server: &str) -> Self {
        let labels = &[(SERVER, server_label(server).to_owned().into())];
        Self {
            call_duration: Histogram::new(&CALL_DURATION, labels),
            batch_size: Histogram::new(&BATCH_SIZE, labels),
            queue_length: Histogram::new(&QUEUE_LENGTH, labels),
            breakers_open: Gauge::new(&BREAKERS_OPEN, labels),
            breaker_openings: Counter::new(&BREAKER_OPENINGS, labels),
            unknown_scripts: Counter::new(&UNKNOWN_SCRIPTS, labels),
            redirections: Counter::new(&REDIRECTIONS, labels),
            connections: Gauge::new(&CONNECTIONS, labels),
            connection_failures: Counter::new(&CONNECTION_FAILURES, labels),
        }
    }

    /// A batch starts while so many other checks wait.
    pub(crate) fn batch_starts(&self, waiting: usize) {
        self.queue_length.record(waiting);
    }

    pub(crate) fn batch_sent(&self, checks: usize) {
        self.batch_size.record(checks);
    }

    pub(crate) fn batch_returned(&self, after: Duration) {
        self.call_duration.record_duration(after);
    }

    pub(crate) fn breaker_opened(&self) {
        self.breakers_open.add(1.0);
        self.breaker_openings.add(1);
    }

    /// A breaker that was open closed, or ended.
    pub(crate) fn breaker_closed(&self) {
        self.breakers_open.add(-1.0);
    }

    pub(crate) fn unknown_script(&self) {
        self.unknown_scripts.add(1);
    }

    pub(crate) fn redirected(&self) {
        self.redirections.add(1);
    }

    pub(crate) fn connected(&self) {
        self.register();
        self.connections.add(1.0);
    }

    pub(crate) fn disconnected(&self) {
        self.connections.add(-1.0);
    }

    pub(crate) fn could_not_connect(&self) {
        self.register();
        self.connection_failures.add(1);
    }

    /// What has not happened yet is reported as 0.
    fn register(&self) {
        let gauges = [&self.breakers_open, &self.connections];
        gauges.into_iter().for_each(|gauge| gauge.add(0.0));
        let counters = [
            &self.breaker_openings,
            &self.unknown_scripts,
            &self.redirections,
            &self.connection_failures,
        ];
        counters.into_iter().for_each(|counter| counter.add(0));
    }
}

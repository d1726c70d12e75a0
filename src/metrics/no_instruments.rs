//! Metrics that do nothing, for builds without the feature `metrics`.

use std::time::Duration;

use super::catalog::Descriptor;

pub(crate) struct LabelValue;

#[derive(Debug)]
pub(crate) struct Counter;

#[derive(Debug)]
pub(crate) struct Gauge;

#[derive(Debug)]
pub(crate) struct Histogram;

#[derive(Debug)]
pub(crate) struct Stopwatch;

#[derive(Clone, Debug)]
pub(crate) struct CounterSet;

pub(super) fn server_label(server: &str) -> &str {
    server
}

impl<T: AsRef<str>> From<T> for LabelValue {
    fn from(_: T) -> Self {
        Self
    }
}

impl Counter {
    pub(crate) fn new(_: &'static Descriptor, _: &[(&'static str, LabelValue)]) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn add(&self, _: u64) {}
}

impl CounterSet {
    pub(crate) fn new() -> Self {
        Self
    }

    #[inline]
    pub(crate) fn add<T>(&self, _: usize, _: u32, _: impl FnOnce() -> T) -> bool {
        false
    }

    pub(crate) fn report(&self) {}
}

impl Gauge {
    pub(crate) fn new(_: &'static Descriptor, _: &[(&'static str, LabelValue)]) -> Self {
        Self
    }

    pub(crate) fn add(&self, _: f64) {}

    pub(crate) fn set(&self, _: f64) {}
}

impl Histogram {
    pub(crate) fn new(_: &'static Descriptor, _: &[(&'static str, LabelValue)]) -> Self {
        Self
    }

    pub(crate) fn record(&self, _: usize) {}

    pub(super) fn register(&self) {}

    pub(crate) fn record_duration(&self, _: Duration) {}
}

impl Stopwatch {
    #[inline]
    pub(crate) fn is_due() -> bool {
        false
    }

    pub(crate) fn start() -> Self {
        Self
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

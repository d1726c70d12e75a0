//! Metrics that are registered at their first use after a recorder is installed, because applications
//! often make their limiters before.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, Recorder, SharedString, Unit, with_recorder};

use crate::metrics::catalog::Descriptor;

pub(super) static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

/// A copy of a static or shared one does not allocate.
pub(crate) type LabelValue = SharedString;

#[derive(Debug)]
pub(crate) struct Counter(Instrument<metrics::Counter>);

#[derive(Debug)]
pub(crate) struct Histogram(Instrument<metrics::Histogram>);

pub(super) struct Instrument<T> {
    pub(super) descriptor: &'static Descriptor,
    pub(super) key: Key,
    handle: OnceLock<T>,
}

impl Counter {
    pub(crate) fn new(
        descriptor: &'static Descriptor,
        labels: &[(&'static str, LabelValue)],
    ) -> Self {
        Self(Instrument::new(descriptor, labels))
    }

    pub(crate) fn add(&self, count: u64) {
        if let Some(counter) = self.handle() {
            counter.increment(count);
        }
    }

    /// Reports 0, if there is a recorder.
    pub(super) fn register(&self) {
        self.handle();
    }

    fn handle(&self) -> Option<&metrics::Counter> {
        self.0.handle(|instrument, recorder| {
            let Descriptor { name, description, .. } = *instrument.descriptor;
            recorder.describe_counter(name.into(), instrument.unit(), description.into());
            recorder.register_counter(&instrument.key, &METADATA)
        })
    }
}

impl Histogram {
    pub(crate) fn new(
        descriptor: &'static Descriptor,
        labels: &[(&'static str, LabelValue)],
    ) -> Self {
        Self(Instrument::new(descriptor, labels))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn record(&self, number: usize) {
        if let Some(histogram) = self.handle() {
            histogram.record(number as f64);
        }
    }

    /// An empty one is reported.
    pub(in crate::metrics) fn register(&self) {
        self.handle();
    }

    pub(crate) fn record_duration(&self, duration: Duration) {
        if let Some(histogram) = self.handle() {
            histogram.record(duration);
        }
    }

    fn handle(&self) -> Option<&metrics::Histogram> {
        self.0.handle(|instrument, recorder| {
            let Descriptor { name, description, .. } = *instrument.descriptor;
            recorder.describe_histogram(name.into(), instrument.unit(), description.into());
            recorder.register_histogram(&instrument.key, &METADATA)
        })
    }
}

impl<T> Instrument<T> {
    pub(super) fn new(
        descriptor: &'static Descriptor,
        labels: &[(&'static str, LabelValue)],
    ) -> Self {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| Label::new(*name, value.clone())).collect();
        // The recorder shares the labels then. With a thousand policies, copies cost each check 1 to 2%.
        let key = Key::from_parts(descriptor.name, labels).to_retained();
        Self { descriptor, key, handle: OnceLock::new() }
    }

    /// `None` while there is no recorder.
    pub(super) fn handle(&self, register: impl FnOnce(&Self, &dyn Recorder) -> T) -> Option<&T> {
        match self.handle.get() {
            Some(handle) => Some(handle),
            None => self.register(register),
        }
    }

    fn register(&self, register: impl FnOnce(&Self, &dyn Recorder) -> T) -> Option<&T> {
        with_recorder(|recorder| {
            is_installed(recorder).then(|| self.handle.get_or_init(|| register(self, recorder)))
        })
    }

    pub(super) fn unit(&self) -> Option<Unit> {
        Some(if self.descriptor.unit == "s" { Unit::Seconds } else { Unit::Count })
    }
}

/// Whether the calling thread has a recorder.
pub(super) fn has_recorder() -> bool {
    with_recorder(is_installed)
}

fn is_installed(recorder: &dyn Recorder) -> bool {
    // The one that `metrics` uses until another is installed has no size.
    size_of_val(recorder) > 0
}

impl<T> fmt::Debug for Instrument<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.descriptor.name)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::metrics::catalog::DECISIONS;

    #[test]
    fn a_recorder_that_keeps_a_key_does_not_copy_its_labels() {
        let Counter(Instrument { key, .. }) =
            Counter::new(&DECISIONS, &[("policy", String::from("login").into())]);
        assert!(ptr::eq(key.to_retained().labels().as_slice(), key.labels().as_slice()));
    }
}

//! Counters, gauges and histograms that report to the recorder of the crate `metrics`.
//!
//! Applications often make their limiters before they install a recorder. So the instruments of a group are
//! registered when one of them is used for the first time with a recorder. They are registered together: what
//! has not happened yet is reported as 0, because a rate would not notice the first time otherwise. Counters
//! and gauges then report what they have counted before.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use metrics::{Key, Label, Level, Metadata, Recorder, Unit, with_recorder};

static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

/// Instruments that are registered together.
pub(super) trait InstrumentGroup {
    /// Registers all instruments. Several threads may do so at once.
    fn register(&self, recorder: &dyn Recorder);
}

/// The recorder and the labels with which instruments are registered.
pub(super) struct Registration<'a> {
    recorder: &'a dyn Recorder,
    labels: Vec<Label>,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter {
    handle: OnceLock<metrics::Counter>,
    /// The count of which no recorder knows yet.
    unreported: AtomicU64,
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    handle: OnceLock<metrics::Gauge>,
    /// The sum of the differences of which no recorder knows yet.
    unreported: AtomicI64,
}

/// A distribution of values. Those that are recorded before there is a recorder are lost.
#[derive(Debug, Default)]
pub(super) struct Histogram(OnceLock<metrics::Histogram>);

impl<'a> Registration<'a> {
    pub(super) fn new(recorder: &'a dyn Recorder, labels: impl Into<Vec<Label>>) -> Self {
        Self { recorder, labels: labels.into() }
    }

    fn key(&self, name: &'static str) -> Key {
        Key::from_parts(name, self.labels.clone())
    }
}

impl Counter {
    pub(super) fn register(
        &self,
        at: &Registration<'_>,
        name: &'static str,
        description: &'static str,
    ) {
        at.recorder.describe_counter(name.into(), Some(Unit::Count), description.into());
        let handle = at.recorder.register_counter(&at.key(name), &METADATA);
        self.report(self.handle.get_or_init(|| handle));
    }

    #[inline(always)]
    pub(super) fn add(&self, count: u64, group: &impl InstrumentGroup) {
        match self.handle.get() {
            Some(handle) => handle.increment(count),
            None => self.add_unregistered(count, group),
        }
    }

    #[cold]
    fn add_unregistered(&self, count: u64, group: &impl InstrumentGroup) {
        self.unreported.fetch_add(count, Ordering::AcqRel);
        // Looks for the handle afterwards: what is added once there is one, nobody else would report.
        if let Some(handle) = registered(&self.handle, group) {
            self.report(handle);
        }
    }

    fn report(&self, handle: &metrics::Counter) {
        handle.increment(self.unreported.swap(0, Ordering::AcqRel));
    }
}

impl Gauge {
    pub(super) fn register(
        &self,
        at: &Registration<'_>,
        name: &'static str,
        description: &'static str,
    ) {
        at.recorder.describe_gauge(name.into(), Some(Unit::Count), description.into());
        let handle = at.recorder.register_gauge(&at.key(name), &METADATA);
        self.report(self.handle.get_or_init(|| handle));
    }

    pub(super) fn add(&self, difference: i64, group: &impl InstrumentGroup) {
        self.unreported.fetch_add(difference, Ordering::AcqRel);
        if let Some(handle) = registered(&self.handle, group) {
            self.report(handle);
        }
    }

    pub(super) fn set(&self, value: f64, group: &impl InstrumentGroup) {
        if let Some(handle) = registered(&self.handle, group) {
            handle.set(value);
        }
    }

    fn report(&self, handle: &metrics::Gauge) {
        handle.increment(self.unreported.swap(0, Ordering::AcqRel) as f64);
    }
}

impl Histogram {
    pub(super) fn register(
        &self,
        at: &Registration<'_>,
        name: &'static str,
        unit: Unit,
        description: &'static str,
    ) {
        at.recorder.describe_histogram(name.into(), Some(unit), description.into());
        let _ = self.0.set(at.recorder.register_histogram(&at.key(name), &METADATA));
    }

    pub(super) fn record(&self, value: f64, group: &impl InstrumentGroup) {
        if let Some(handle) = registered(&self.0, group) {
            handle.record(value);
        }
    }
}

/// Returns a handle of a group, which is registered now if it is not yet. `None` if the thread has no recorder.
fn registered<'a, H>(handle: &'a OnceLock<H>, group: &impl InstrumentGroup) -> Option<&'a H> {
    if handle.get().is_none() {
        with_recorder(|recorder| {
            // The one that `metrics` uses until another is installed has no size.
            if size_of_val(recorder) > 0 {
                group.register(recorder);
            }
        });
    }
    handle.get()
}

#[cfg(test)]
mod tests {
    use std::{hint, thread};

    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

    use super::*;

    #[derive(Default)]
    struct Connections {
        total: Counter,
        open: Gauge,
    }

    impl InstrumentGroup for Connections {
        fn register(&self, recorder: &dyn Recorder) {
            self.total.register(&Registration::new(recorder, []), "total", "");
            self.open.register(&Registration::new(recorder, []), "open", "");
        }
    }

    impl Connections {
        fn opened(&self) {
            self.total.add(1, self);
            self.open.add(1, self);
        }

        fn closed(&self) {
            self.open.add(-1, self);
        }
    }

    fn value(prometheus: &PrometheusHandle, name: &str) -> f64 {
        let text = prometheus.render();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap().parse().unwrap()
    }

    #[test]
    fn what_threads_count_while_another_registers_is_not_lost() {
        const THREADS: u64 = 3;
        const COUNTS: u64 = 500;
        for _ in 0..600 {
            let recorder = PrometheusBuilder::new().build_recorder();
            let connections = Connections::default();
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| (0..COUNTS).for_each(|_| connections.opened()));
                }
                while connections.total.unreported.load(Ordering::Relaxed) < COUNTS / 10 {
                    hint::spin_loop();
                }
                // The others have no recorder.
                metrics::with_local_recorder(&recorder, || connections.closed());
            });
            let prometheus = recorder.handle();
            assert_eq!(value(&prometheus, "total"), (THREADS * COUNTS) as f64);
            assert_eq!(value(&prometheus, "open"), (THREADS * COUNTS - 1) as f64);
        }
    }
}

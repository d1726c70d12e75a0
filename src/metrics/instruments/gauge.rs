//! Numbers that go up and down.

use std::mem;
use std::sync::{Mutex, PoisonError};

use super::instrument::{Instrument, LabelValue, METADATA};
use crate::metrics::catalog::Descriptor;

#[derive(Debug)]
pub(crate) struct Gauge {
    instrument: Instrument<metrics::Gauge>,
    /// What was added while there was no recorder.
    unreported: Mutex<f64>,
}

impl Gauge {
    pub(crate) fn new(
        descriptor: &'static Descriptor,
        labels: &[(&'static str, LabelValue)],
    ) -> Self {
        Self { instrument: Instrument::new(descriptor, labels), unreported: Mutex::new(0.0) }
    }

    pub(crate) fn add(&self, difference: f64) {
        let mut unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        *unreported += difference;
        if let Some(gauge) = self.handle() {
            gauge.increment(mem::take(&mut *unreported));
        }
    }

    pub(crate) fn set(&self, value: f64) {
        if let Some(gauge) = self.handle() {
            gauge.set(value);
        }
    }

    fn handle(&self) -> Option<&metrics::Gauge> {
        self.instrument.handle(|instrument, recorder| {
            let Descriptor { name, description, .. } = *instrument.descriptor;
            recorder.describe_gauge(name.into(), instrument.unit(), description.into());
            recorder.register_gauge(&instrument.key, &METADATA)
        })
    }
}

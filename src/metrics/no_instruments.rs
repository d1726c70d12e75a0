//! Instruments that do nothing, for builds without the feature `metrics`.

/// An instrument of any kind.
#[derive(Debug, Default)]
pub(super) struct NoInstrument;

// Only Redis has gauges.
#[cfg_attr(not(feature = "redis"), allow(unused_imports))]
pub(super) use self::{NoInstrument as Counter, NoInstrument as Gauge, NoInstrument as Histogram};

impl NoInstrument {
    #[inline]
    pub(super) fn add<N, G>(&self, _: N, _: &G) {}

    pub(super) fn set<G>(&self, _: f64, _: &G) {}

    pub(super) fn record<G>(&self, _: f64, _: &G) {}
}

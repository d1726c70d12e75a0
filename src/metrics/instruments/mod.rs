//! Metrics of the crate `metrics`.

mod counter_set;
#[cfg(feature = "redis")]
mod gauge;
mod instrument;
mod shard;
mod stopwatch;

pub(super) use counter_set::CounterSet;
#[cfg(feature = "redis")]
pub(super) use gauge::Gauge;
pub(crate) use instrument::Counter;
pub(super) use instrument::Histogram;
pub(crate) use stopwatch::Stopwatch;

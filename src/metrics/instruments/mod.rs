//! Metrics of the crate `metrics`.

mod cells;
mod counter_set;
#[cfg(feature = "redis")]
mod gauge;
mod instrument;
#[cfg(feature = "redis")]
mod server_label;
mod shard;
mod stopwatch;

pub(super) use counter_set::CounterSet;
#[cfg(feature = "redis")]
pub(super) use gauge::Gauge;
pub(crate) use instrument::Counter;
pub(super) use instrument::{Histogram, LabelValue};
#[cfg(feature = "redis")]
pub(super) use server_label::server_label;
pub(crate) use stopwatch::Stopwatch;

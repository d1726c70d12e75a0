//! The metrics of the crate, which it reports to the recorder of the crate `metrics`.
//!
//! The types of `policy`, `server`, `fleet` and `memory` have a method for each event, and the `catalog` has
//! the names, units, descriptions and labels. `instruments` are counters, gauges and histograms. Without the
//! feature `metrics` they are empty (`no_instruments`), so that the code that measures has no `cfg`.
//! `server_label` bounds the number of labels, and `stopwatch` measures one check in 256, because to read the
//! clock for each would cost a check in memory a few percent.
//!
//! To add a metric: a field and a method in one of the types, its name in `catalog`, and a call where it
//! happens (a connection set has the metrics of its server, a policy its own). The guide, `docs/grafana.json`
//! and `tests/it/metrics.rs` list all metrics.
//!
//! Metrics are registered at their first use, because applications often make a limiter before they install a
//! recorder. → `tests/it/metrics.rs`

// Without `metrics` nothing reads the labels, and Redis has most of the events.
#![cfg_attr(not(all(feature = "metrics", feature = "redis")), allow(dead_code))]

#[cfg(feature = "metrics")]
mod catalog;
#[cfg(feature = "redis")]
mod fleet;
#[cfg(feature = "metrics")]
mod instruments;
#[cfg(not(feature = "metrics"))]
#[path = "no_instruments.rs"]
mod instruments;
mod memory;
mod policy;
#[cfg(feature = "redis")]
mod server;
#[cfg(all(feature = "metrics", feature = "redis"))]
mod server_label;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod stopwatch;

#[cfg(feature = "redis")]
pub(crate) use fleet::FleetMetrics;
pub(crate) use memory::MemoryMetrics;
pub(crate) use policy::{OutcomeLabel, PolicyMetrics};
#[cfg(feature = "redis")]
pub(crate) use server::ServerMetrics;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(crate) use stopwatch::Stopwatch;

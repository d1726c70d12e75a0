//! The metrics of the process, for the crate `metrics`. Without the feature all of this is empty: only the
//! types of the instruments change, so that the code that measures has no `cfg`.
//!
//! `catalog` has the names, `policy`, `server` and `fleet` what is measured for each of these, and
//! `instruments` the kinds of metrics. Metrics are registered at their first use, because applications often
//! make a limiter before they install a recorder. The names and labels of a policy's metrics take kilobytes,
//! so they are made when they are needed. One check in 256 is timed, because to read the clock for each would
//! cost a check in memory a few percent. → `tests/it/metrics.rs`

// Without the feature nothing reads the descriptions.
#![cfg_attr(not(feature = "metrics"), allow(dead_code))]

mod catalog;
#[cfg(feature = "redis")]
mod fleet;
#[cfg(feature = "metrics")]
mod instruments;
#[cfg(not(feature = "metrics"))]
#[path = "no_instruments.rs"]
mod instruments;
mod policy;
#[cfg(feature = "redis")]
mod server;

pub(crate) use catalog::EVICTIONS;
#[cfg(feature = "redis")]
pub(crate) use fleet::FleetMetrics;
pub(crate) use instruments::Counter;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(crate) use instruments::Stopwatch;
pub(crate) use policy::{Outcome, PolicyMetrics};
#[cfg(feature = "redis")]
pub(crate) use server::ServerMetrics;

//! What an application can measure with the crate `metrics`. Without the feature all of this is empty.

// Without the feature nothing reads the descriptions.
#![cfg_attr(not(feature = "metrics"), allow(dead_code))]

mod catalog;
#[cfg(feature = "metrics")]
mod counter_set;
#[cfg(feature = "redis")]
mod fleet;
#[cfg(all(feature = "metrics", feature = "redis"))]
mod gauge;
#[cfg(feature = "metrics")]
mod instrument;
#[cfg(not(feature = "metrics"))]
#[path = "no_instrument.rs"]
mod instrument;
mod policy;
#[cfg(feature = "redis")]
mod server;

pub(crate) use catalog::EVICTIONS;
#[cfg(feature = "metrics")]
use counter_set::CounterSet;
#[cfg(feature = "redis")]
pub(crate) use fleet::FleetMetrics;
#[cfg(all(feature = "redis", feature = "metrics"))]
use gauge::Gauge;
#[cfg(not(feature = "metrics"))]
use instrument::CounterSet;
#[cfg(all(feature = "redis", not(feature = "metrics")))]
use instrument::Gauge;
pub(crate) use instrument::{Counter, Stopwatch};
#[cfg(feature = "tracing")]
pub(crate) use policy::Outcome;
pub(crate) use policy::PolicyMetrics;
#[cfg(feature = "redis")]
pub(crate) use server::ServerMetrics;

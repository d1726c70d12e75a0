//! What an application can measure with the crate `metrics`. Without the feature all of this is empty.

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

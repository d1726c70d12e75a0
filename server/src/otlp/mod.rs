//! Traces and metrics for OpenTelemetry, over OTLP.
//!
//! `exporters` starts the parts of the SDK that send them, `traces` records the spans of checks, and `http_client` sends
//! over HTTP.

mod exporters;
mod http_client;
mod traces;

pub(crate) use exporters::{Exporters, start};
pub(crate) use traces::Traces;

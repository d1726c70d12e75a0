//! The integration tests, one crate with a module each: a crate per file would link the whole
//! dependency tree once per file.

mod common;

mod cluster;
mod exact;
mod examples;
mod faults;
mod floors;
mod grpc;
mod harness;
mod layer;
mod oracle;
mod queue;
mod services;
mod state;

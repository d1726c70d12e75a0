//! The integration tests, one crate with a module each: a crate per file would link the whole
//! dependency tree once per file.

mod common;

mod cluster;
mod dependency_rules;
mod exact;
mod examples;
mod faults;
mod grpc;
mod harness;
mod layer;
mod oracle;
mod queue;
mod services;
mod state;
mod traps;

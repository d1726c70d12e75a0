//! The integration tests. They are modules of one crate, because a crate per file would link all
//! dependencies for each file.

mod common;

mod blocks;
mod breaker;
mod calendars;
mod charges;
mod cluster;
mod customers;
mod denials;
mod dependency_rules;
mod exact;
mod examples;
mod faults;
mod grpc;
mod harness;
mod hooks;
mod known_failures;
mod layer;
mod local;
mod log;
mod metrics;
mod mixes;
mod oracle;
mod outages;
mod queue;
mod server_errors;
mod services;
mod settlement;
mod shadow;
mod state;
mod traces;
mod transport;
mod traps;
mod waiting;

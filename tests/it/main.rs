//! The integration tests. They are modules of one crate, because a crate per file would link all
//! dependencies for each file.

mod common;

mod any_store;
mod blocks;
mod calendars;
mod charges;
mod cluster;
mod connections;
mod cooperation;
mod customers;
mod debts;
mod denials;
mod dependency_rules;
mod exact;
mod examples;
mod faults;
mod grpc;
mod harness;
mod hooks;
mod idle;
mod known_failures;
mod layer;
mod local;
mod local_policies;
mod log;
mod lua_versions;
mod metrics;
mod mixes;
mod one_endpoint;
mod oracle;
mod outages;
mod queue;
mod recovery;
mod runtimes;
mod server_errors;
mod services;
mod settlement;
mod shadow;
mod state;
mod time_travel;
mod timing;
mod traces;
mod traps;
mod uploads;
mod waiting;

//! The integration tests. They are modules of one crate, because a crate per file would link all dependencies
//! for each file.
//!
//! `common` has the servers, `log` the log of a test, and `harness` tests these. Of decisions: `exact` (with
//! the `oracle`), `mixes`, `state`, `upgrades`, `calendars`, `charges`, `debts`, `waiting`, `settlement`,
//! `customers`, `shadow`, `denials`, `blocks`, `any_store`, `leases`, `lease_settings`,
//! `leased_fleet`, `concurrent`, `holds`, `held_fleet`, `detached_holds`; by the clock `clock_steps`, `clock_expiry` and `time_travel`. Of
//! the transport: `queue`, `connections`, `cluster`, `one_endpoint`, `runtimes`, `idle`, `cooperation`,
//! `timing`. Of failures: `faults`, `server_errors`, `recovery`, `outages`, `local`, `local_policies`. Of the
//! layer: `layer`, `layer_holds`, `services`, `grpc`, `hooks`, `uploads`. Of the crate as a whole: `dependency_rules`, `examples`,
//! `known_failures`, `lua_versions`, `metrics`, `traces`, `traps`, `file_watch`. Of the docs and the package: `alerts`,
//! `defaults`, `links`, `messages`, `operations`, `package`.

mod common;

mod alerts;
mod any_store;
mod blocks;
mod calendars;
mod charges;
mod clock_expiry;
mod clock_steps;
mod cluster;
mod concurrent;
mod connections;
mod cooperation;
mod customers;
mod debts;
mod defaults;
mod denials;
mod dependency_rules;
mod detached_holds;
mod exact;
mod examples;
mod faults;
mod file_watch;
mod grpc;
mod harness;
mod held_fleet;
mod holds;
mod hooks;
mod idle;
mod known_failures;
mod layer;
mod layer_holds;
mod lease_settings;
mod leased_fleet;
mod leases;
mod links;
mod local;
mod local_policies;
mod log;
mod lua_versions;
mod messages;
mod metrics;
mod mixes;
mod one_endpoint;
mod operations;
mod oracle;
mod outages;
mod package;
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
mod upgrades;
mod uploads;
mod waiting;

//! Replays access logs against policies: what these would have admitted and denied.
//!
//! `fleetlimit-server simulate` is its command line. The crate stands alone because it shares nothing with a
//! running server: it gets policies and the lines of a log, decides in memory at the times of the log, and returns
//! a report. Files, settings and output are left to the caller.
//!
//! ```
//! use fleetlimit::{Policy, Quota};
//! use fleetlimit_simulate::Simulation;
//!
//! let log = "192.0.2.7 - - [02/Jan/2026:03:04:05 +0000] \"GET / HTTP/1.1\" 200 1\n".repeat(3);
//! let mut simulation = Simulation::new("{ip}".parse()?, "1".parse()?);
//! simulation.add("settings.yaml", [Policy::new("api").quota("second", Quota::per_second(2))])?;
//! let report = simulation.run(log.as_bytes(), 10)?;
//! assert!(report.table(10).contains("keys denied most"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Dependencies point downwards: [`Simulation`] → `report` → `run` → `pattern` → `line` → `fields`. `table` and
//! `plot` show a report, with numbers and keys as in `text`. `address` and `log_time` are parts of a line, and
//! `busy_keys` finds the keys with the most requests.

mod address;
mod busy_keys;
mod fields;
mod line;
mod log_time;
mod pattern;
mod plot;
mod report;
mod run;
mod simulation;
mod table;
mod text;

pub use pattern::Pattern;
pub use report::Report;
pub use simulation::Simulation;

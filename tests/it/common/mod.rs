//! Real servers for the tests: every test starts its own and nothing outlives it, so that tests
//! run side by side, and each may stop, pause or flush what it started.
//!
//! The binary is `redis-server`, or what `REDIS_SERVER_BIN` names.

// A test takes what it needs; what no test needs today is still part of the set.
#![allow(dead_code)]

mod client;
mod cluster;
mod place;
mod proxy;
mod relay;
mod sentinel;
mod server;
mod start;
mod wait;

pub(crate) use client::connect;
pub(crate) use cluster::Cluster;
pub(crate) use proxy::Proxy;
pub(crate) use sentinel::Sentinel;
pub(crate) use server::Server;
pub(crate) use start::start;
pub(crate) use wait::{BOUND, wait_until};

//! Real servers for the tests. Each test starts its own servers, and they end with the test. So
//! tests run in parallel, and each may stop, pause or flush its servers.
//!
//! The binary is `redis-server`, or the one that `REDIS_SERVER_BIN` names.

// The tests and the benchmarks, which include this module too, each use a part of it.
#![allow(dead_code)]

mod bus;
mod client;
mod clock_proxy;
mod cluster;
mod load;
mod ports;
mod proxy;
mod relay;
mod sentinel;
mod server;
mod sleep;
mod stalls;
mod start;
mod temp_dir;
pub(crate) mod tls;
mod wait;

pub(crate) use client::connect;
pub(crate) use clock_proxy::{CLOCK, Change, Clock, ClockProxy, NO_EXPIRY};
pub(crate) use cluster::Cluster;
pub(crate) use load::{decided, load};
pub(crate) use proxy::Proxy;
pub(crate) use sentinel::Sentinel;
pub(crate) use server::Server;
use stalls::Stalls;
pub(crate) use start::start;
pub(crate) use temp_dir::TempDir;
pub(crate) use wait::{BOUND, wait_until};

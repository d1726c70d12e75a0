//! Real servers for the tests: a `server`, a `cluster`, `sentinel`s, with `tls` or with a clock that a test
//! sets (`clock_proxy`). A `proxy` in front of one has network faults (`relay`), and a `bus` divides a cluster.
//! `client` sends commands, `load` checks; `stalls` notices those of the machine, `sleep` is precise, and
//! `wait` waits for a condition. The rest is `start`, `ports` and `temp_dir`. Each test starts its own servers,
//! and they end with the test. So tests run in parallel, and each may stop, pause or flush its servers.
//!
//! The binary is `redis-server`, or the one that `REDIS_SERVER_BIN` names.

// The tests and the benchmarks, which include this module too, each use a part of it.
#![allow(dead_code)]

mod bus;
mod client;
mod clock_proxy;
mod cluster;
mod load;
pub(crate) mod ports;
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
pub(crate) use stalls::Stalls;
pub(crate) use start::start;
pub(crate) use temp_dir::TempDir;
pub(crate) use wait::{BOUND, wait_until};

//! What is measured: one file each, behind one small trait.

mod floor;
mod governor;
mod per_check;
mod service;
pub(crate) mod tollgate;
mod tower_rate_limit_redis;
mod two_keys;

use std::error::Error;
use std::net::Ipv4Addr;

pub(crate) use floor::{ClusterReturnOne, Floor};
pub(crate) use governor::governor;
pub(crate) use per_check::{OnCluster, Pooled, Shared};
pub(crate) use service::{Hello, Through};
pub(crate) use tower_rate_limit_redis::{peer_key, tower_rate_limit_redis};
pub(crate) use two_keys::TwoKeys;

pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// Each task has a clone of its own.
pub(crate) trait Subject: Clone + Send + 'static {
    /// Whether a request of this caller is admitted. What is not a limiter admits all.
    fn decide(&mut self, caller: u32) -> impl Future<Output = Result<bool, Fault>> + Send;
}

/// Callers are IPv4 addresses: what both tollgate and tower_governor count by most often.
pub(crate) fn address(caller: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + caller)
}

/// So many that no row uses them up, even by one key.
pub(crate) const BURST: u32 = 70_000_000;

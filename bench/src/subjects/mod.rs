//! The operations to measure, one file for each kind.

mod baseline;
pub(crate) mod fleetlimit;
mod governor;
mod per_check;
mod redis_cell;
mod service;
mod throttlecrab;
mod tower_rate_limit_redis;
mod trypema;
mod two_keys;

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use ::fleetlimit::Quota;

pub(crate) use baseline::{Baseline, ClusterBaseline};
pub(crate) use fleetlimit::{DirectCheck, ManyPolicies};
pub(crate) use governor::governor;
pub(crate) use per_check::{Pooled, Shared, SharedCluster};
pub(crate) use redis_cell::RedisCell;
pub(crate) use service::{OkService, ServiceCall};
pub(crate) use throttlecrab::Throttlecrab;
pub(crate) use tower_rate_limit_redis::{
    tower_rate_limit_redis, tower_rate_limit_redis_key, tower_rate_limit_redis_with,
};
pub(crate) use trypema::{Trypema, TrypemaHybrid};
pub(crate) use two_keys::TwoKeys;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A request, a check or a command. Each task has its own clone.
pub(crate) trait Operation: Clone + Send + 'static {
    /// Returns whether a request with this key is allowed. An operation that is not a rate limiter
    /// returns `true`.
    fn execute(&mut self, key: u32) -> impl Future<Output = Result<bool, BoxError>> + Send;
}

/// Keys are IPv4 addresses, the most common keys of both fleetlimit and tower_governor.
pub(crate) fn address(key: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + key)
}

/// A quota of the subjects that can have any. A bucket in the first second has the whole burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

impl Bucket {
    pub(crate) fn quota(self) -> Quota {
        Quota::per_second(self.per_second.into()).burst(self.burst.into())
    }
}

/// Large enough that no row exhausts it, even with one key.
pub(crate) const BURST: u32 = 70_000_000;

/// A permit refills in this time, where all requests are allowed. With 256 tasks no bucket is full
/// at the next check of its key.
pub(crate) const REFILL: Duration = Duration::from_millis(100);

/// A permit refills in this time, where requests are denied.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

//! tollgate, through its layer and by itself.

use std::time::Duration;

use tollgate::resolve::PeerIp;
use tollgate::{
    FailureMode, Limiter, Policy, Quota, RateLimit, RateLimitLayer, RedisStore, Source, Store,
};
use tower::Layer;

use super::{BURST, Fault, Hello, Subject, Through, address};
use crate::common::{Cluster, Server};

type Layered = Through<RateLimit<Hello, PeerIp, http::request::Parts, tollgate::layer::Http>>;

/// Slow to refill, so that the buckets are still there at the next check of the same key.
pub(crate) fn open() -> Policy {
    Quota::per_minute(1).burst(BURST).into()
}

pub(crate) fn shut() -> Policy {
    Policy::new("shut").quota("shut", Quota::per_day(1))
}

/// A store that fails shows as an error, and not as an admission.
pub(crate) fn limiter(store: impl Store, policy: Policy) -> Result<Limiter, Fault> {
    let limiter = Limiter::new(store, policy)?;
    Ok(limiter.failure_mode(FailureMode::Closed).deadline(Duration::from_secs(1)))
}

pub(crate) fn on(server: &Server) -> Result<RedisStore, Fault> {
    Ok(RedisStore::connect(server.url())?)
}

pub(crate) fn on_cluster(cluster: &Cluster) -> Result<RedisStore, Fault> {
    Ok(RedisStore::connect_cluster(cluster.urls())?)
}

/// With its default headers, by address.
pub(crate) fn layered(limiter: Limiter) -> Layered {
    Through(RateLimitLayer::new(limiter, PeerIp::new()).layer(Hello))
}

#[derive(Clone)]
pub(crate) struct Alone(pub(crate) Limiter);

impl Subject for Alone {
    async fn decide(&mut self, caller: u32) -> Result<bool, Fault> {
        let decision = self.0.check(address(caller)).await?;
        match decision.source() {
            Source::FailureMode => Err("the store did not answer".into()),
            _ => Ok(decision.is_allowed()),
        }
    }
}

//! fleetlimit, with and without its layer.

use std::sync::Arc;
use std::time::Duration;

use fleetlimit::layer::HeaderStyle;
use fleetlimit::resolve::PeerIp;
use fleetlimit::{
    FailureMode, Limiter, Policy, Quota, RateLimit, RateLimitLayer, RedisStore, Source, Store,
};
use tower::Layer;

use super::{BURST, BoxError, DAY, OkService, Operation, REFILL, ServiceCall, address};
use crate::common::Server;

type Layered = ServiceCall<RateLimit<OkService, PeerIp>>;

pub(crate) fn allow_all() -> Policy {
    quota().into()
}

fn quota() -> Quota {
    Quota::new(1, REFILL).burst(BURST.into())
}

/// Allows the first request of a key and denies all others.
pub(crate) fn deny_after_first() -> Policy {
    Policy::new("deny").quota("deny", Quota::new(1, DAY))
}

/// Fails closed: an error of the store must not count as an allowed request.
pub(crate) fn limiter(store: impl Store, policy: Policy) -> Result<Limiter, BoxError> {
    limiter_with_timeout(store, policy, Duration::from_secs(1))
}

pub(crate) fn limiter_with_timeout(
    store: impl Store,
    policy: Policy,
    timeout: Duration,
) -> Result<Limiter, BoxError> {
    let builder = Limiter::builder(store, policy).failure_mode(FailureMode::Closed);
    Ok(builder.timeout(timeout).build()?)
}

pub(crate) fn redis_store(server: &Server) -> Result<RedisStore, BoxError> {
    Ok(RedisStore::open(server.url())?)
}

/// With leases of this length. Zero is none.
pub(crate) fn limiter_with_lease(
    store: impl Store,
    policy: Policy,
    lease: Duration,
) -> Result<Limiter, BoxError> {
    let builder = Limiter::builder(store, policy).failure_mode(FailureMode::Closed);
    Ok(builder.timeout(Duration::from_secs(1)).lease(lease).build()?)
}

/// A service in fleetlimit's layer, with the default headers and keys by peer address.
pub(crate) fn layered(limiter: Limiter) -> Layered {
    ServiceCall(RateLimitLayer::new(limiter, PeerIp::new()).layer(OkService))
}

/// The same without `RateLimit-Policy` on allowed responses.
pub(crate) fn layered_with_policy_on_denial(limiter: Limiter) -> Layered {
    let layer = RateLimitLayer::new(limiter, PeerIp::new());
    ServiceCall(layer.headers(HeaderStyle::IetfPolicyOnDenial).layer(OkService))
}

/// A check without the layer.
#[derive(Clone)]
pub(crate) struct DirectCheck(pub(crate) Limiter);

impl Operation for DirectCheck {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        check(&self.0, key).await
    }
}

/// Checks without the layer, on one of many policies of a store. The key selects the policy.
#[derive(Clone)]
pub(crate) struct ManyPolicies(Arc<[Limiter]>);

impl ManyPolicies {
    pub(crate) fn new(store: &RedisStore, policies: usize) -> Result<Self, BoxError> {
        let policy = |n| Policy::new(format!("policy-{n}")).quota("q", quota());
        (0..policies).map(|n| limiter(store.clone(), policy(n))).collect::<Result<_, _>>().map(Self)
    }
}

impl Operation for ManyPolicies {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        check(&self.0[key as usize % self.0.len()], key).await
    }
}

async fn check(limiter: &Limiter, key: u32) -> Result<bool, BoxError> {
    let decision = limiter.check(address(key)).await?;
    match decision.source() {
        Source::FailureMode => Err("the store failed".into()),
        _ => Ok(decision.is_allowed()),
    }
}

//! The data that the Redis store computes once for a policy.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::assembly::Params;
use super::key_encoder::KeyEncoder;
use super::scripts::Scripts;
use crate::ConfigError;
use crate::algorithm::{Limits, TokenBucket};
use crate::metrics::PolicyMetrics;
use crate::store::lease::LeaseTerms;
use crate::store::local::{Local, LocalPolicy};
use crate::store::{PolicySpec, RevisionStates};

/// A policy as the Redis store needs it for each check.
#[derive(Clone, Debug)]
pub(crate) struct RedisPolicy {
    pub(crate) limits: Limits,
    /// The longest that a check may take.
    pub(crate) timeout: Duration,
    pub(crate) encoder: KeyEncoder,
    pub(crate) scripts: &'static Scripts,
    pub(crate) params: Params,
    /// Makes comparisons short.
    hash: u64,
    pub(crate) states: Arc<RevisionStates>,
    pub(crate) metrics: PolicyMetrics,
    /// The policy as the local store decides by it. Probes have none.
    pub(crate) local: Option<LocalPolicy>,
    /// The terms of leases, if there are any. Probes have none, and neither have policies whose permits are held.
    pub(crate) leases: Option<Arc<LeaseTerms>>,
    /// The time for which permits that were held are kept after they were given back. Zero if they are not.
    pub(crate) keeps: Duration,
}

impl RedisPolicy {
    pub(crate) fn new(
        spec: &PolicySpec,
        key_prefix: &str,
        local: &Arc<Local>,
        hold_for: Duration,
    ) -> Result<Self, ConfigError> {
        let lifetime = u64::try_from(hold_for.as_micros()).unwrap_or(u64::MAX);
        let limits = spec.limits.held_by(local.holder(), lifetime);
        let (scripts, params) = Scripts::of(&limits);
        let has_holds = limits.has_holds();
        let terms = spec.leases.as_ref().filter(|_| has_holds);
        let keeps = terms.map(|terms| Duration::from_nanos(terms.longest));
        Ok(Self {
            limits,
            timeout: spec.timeout,
            encoder: KeyEncoder::new(key_prefix, &spec.name)?,
            scripts,
            hash: hash_of(&params),
            params,
            states: spec.states.clone(),
            metrics: spec.metrics.clone(),
            local: Some(local.policy(&spec.name, &spec.limits, spec.states.clone())),
            leases: spec.leases.clone().filter(|_| !has_holds),
            keeps: keeps.unwrap_or_default(),
        })
    }

    /// Returns the policy of a holder of permits that is not this process. They end after so many microseconds.
    pub(crate) fn held_by(&self, holder: u64, lifetime: u64) -> Self {
        let limits = self.limits.held_by(holder, lifetime);
        // The scripts are the same.
        let (_, params) = Scripts::params(&limits);
        let local = self.local.as_ref().map(|local| local.held_by(holder, lifetime));
        Self { limits, hash: hash_of(&params), params, local, ..self.clone() }
    }

    /// Returns the policy of probes that imitate its checks. It allows all of them, and its buckets live for
    /// about a second.
    pub(crate) fn probe(&self) -> Self {
        let limits = Limits::of_bucket(TokenBucket::of_probes());
        let (scripts, params) = Scripts::of(&limits);
        Self {
            limits,
            timeout: self.timeout,
            encoder: self.encoder.probe(),
            scripts,
            hash: 0,
            params,
            states: self.states.clone(),
            metrics: self.metrics.clone(),
            local: None,
            leases: None,
            keeps: Duration::ZERO,
        }
    }

    /// Returns true if checks under both policies have the same bucket and the same numbers.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        ptr::eq(self, other)
            || self.hash == other.hash
                && self.encoder == other.encoder
                && ptr::eq(self.scripts, other.scripts)
                && self.params == other.params
    }
}

fn hash_of(params: &Params) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(params)
}

#[cfg(test)]
use crate::store::RevisionId;

#[cfg(test)]
impl RedisPolicy {
    pub(crate) fn for_tests(timeout: Duration) -> Arc<Self> {
        let limits = Limits::new(&crate::Quota::per_second(1).into(), 0).unwrap();
        Self::of_limits("policy", limits, timeout)
    }

    pub(crate) fn of_limits(name: &str, limits: Limits, timeout: Duration) -> Arc<Self> {
        let id = RevisionId { policy: 0, number: 0 };
        let states = RevisionStates::new(Arc::default(), id).into();
        let metrics = PolicyMetrics::new(name);
        let spec = PolicySpec { name: name.into(), limits, timeout, states, metrics, leases: None };
        let local = Local::new(std::num::NonZeroUsize::MIN, 1).into();
        Self::new(&spec, "tests", &local, Duration::from_secs(10)).unwrap().into()
    }

    /// Returns the policy of another limiter, which shares the buckets.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Arc<Self> {
        let Self { limits, states, metrics, .. } = self;
        let (limits, states, metrics) = (limits.clone(), states.clone(), metrics.clone());
        let spec =
            PolicySpec { name: "policy".into(), limits, timeout, states, metrics, leases: None };
        let local = self.local.as_ref().unwrap().local();
        Self::new(&spec, "tests", local, Duration::from_secs(10)).unwrap().into()
    }
}

//! Checks with other numbers than those of the policy, such as a customer's.
//!
//! A quota per request is a revision that is not current, which the limiter remembers by its numbers. So
//! everything that works for a limiter works for a customer's numbers, without a limiter and a registration
//! for each, and changes of the numbers are those of a rolling deployment. → `tests/it/customers.rs`

use std::sync::{Arc, OnceLock};

use quick_cache::sync::Cache;

use super::revision::{Revision, Settings};
use super::{Inner, Limiter};
use crate::{ConfigError, Policy, Quota};

/// Revisions of a policy that were made for single checks, by their numbers.
#[derive(Default)]
pub(super) struct OtherRevisions(OnceLock<Cache<Policy, Arc<Revision>>>);

impl OtherRevisions {
    const MAX: usize = 1_024;

    fn get_or_make(
        &self,
        policy: Policy,
        make: impl FnOnce(&Policy) -> Result<Revision, ConfigError>,
    ) -> Result<Arc<Revision>, ConfigError> {
        let revisions = self.0.get_or_init(|| Cache::new(Self::MAX));
        if let Some(revision) = revisions.get(&policy) {
            return Ok(revision);
        }
        let revision = Arc::new(make(&policy)?);
        revisions.insert(policy, revision.clone());
        Ok(revision)
    }

    /// Returns the numbers as they are now, if they have changed with time.
    pub(super) fn renewed(&self, other: &Revision, settings: &Settings) -> Option<Arc<Revision>> {
        if !other.is_outdated(&*settings.store) {
            return None;
        }
        // Another check may have done the same.
        let revisions = self.0.get_or_init(|| Cache::new(Self::MAX));
        if let Some(known) = revisions.get(other.policy())
            && !known.is_outdated(&*settings.store)
        {
            return Some(known);
        }
        let renewed = Arc::new(other.renewed(settings)?);
        revisions.insert(other.policy().clone(), renewed.clone());
        Some(renewed)
    }
}

impl Limiter {
    /// Returns a limiter with another quota in place of the policy's only one, for example with the
    /// numbers of a customer's contract.
    ///
    /// Both use the same buckets, connections and calls. Always check a key with its own quota. If
    /// that changes, used permits stay used, as after an [update](Self::update).
    ///
    /// Call it for each request: it is cheap, and the result does not follow later updates. The limiter
    /// remembers what it has computed for the
    /// last 1,024 different quotas.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("api").quota("requests", Quota::per_second(10));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    ///
    /// // From a row of the database.
    /// let (customer, per_second) = ("acme", 500);
    /// let decision = limiter.with_quota(Quota::per_second(per_second))?.check(customer).await?;
    /// assert_eq!((decision.limit(), decision.remaining()), (500, 499));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the quota is invalid or does not support the [lease](crate::LimiterBuilder::lease) of the limiter, or the policy
    /// has several: use [`with_policy`](Self::with_policy).
    pub fn with_quota(&self, quota: Quota) -> Result<Self, ConfigError> {
        let policy = self.inner.revisions.current().policy.with_only(quota).ok_or_else(|| {
            ConfigError::new(format!(
                "policy `{}` has several quotas: use `with_policy` and name all of them",
                self.policy().name()
            ))
        })?;
        self.with_policy(policy)
    }

    /// Like [`with_quota`](Self::with_quota), for a policy of any number of quotas. Quotas with the
    /// same name and algorithm share what was used.
    ///
    /// # Errors
    ///
    /// If the policy is invalid, or its name is not that of the limiter's policy.
    pub fn with_policy(&self, policy: impl Into<Policy>) -> Result<Self, ConfigError> {
        let policy = policy.into();
        let Inner { settings, revisions, others, .. } = &*self.inner;
        let current = revisions.current();
        if policy.name() != current.policy.name() {
            return Err(ConfigError::new(format!(
                "policy `{}` is not the policy of this limiter, which is `{}`: give it that name",
                policy.name(),
                current.policy.name()
            )));
        }
        let other = others.get_or_make(policy, |policy| {
            let (registry, namespace) = settings.store.registry();
            let states = registry.other_revision(namespace, policy);
            Revision::new(settings, policy, states)
        })?;
        Ok(Self { inner: self.inner.clone(), other: Some(other) })
    }
}

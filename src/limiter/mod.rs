//! Policy, and what to do when the store fails. Knows neither HTTP nor Redis.

mod check;
mod denied;
mod failure;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::denied::Denied;
use crate::algorithm::TokenBucket;
use crate::policy::valid_name;
use crate::store::{Buckets, Plan, Store};
use crate::{ConfigError, Decision, Error, Key, Policy};

pub use check::Check;
pub(crate) use check::{Asked, Waiting};
pub use failure::FailureMode;

/// What a longer time is taken as. An `Instant` has no room for each that a `Duration` can be.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Decides who may pass, by a policy and the buckets in a store.
///
/// It has one type whatever the store is, so that a program can choose when it starts. Clones are
/// cheap and share everything. In front of a service it works through a
/// [`RateLimitLayer`](crate::RateLimitLayer); anything else can ask it directly:
///
/// ```
/// use tollgate::{Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("mails").quota("hourly", Quota::per_hour(100).burst(3));
/// let limiter = Limiter::new(MemoryStore::new(), policy)?;
///
/// let decision = limiter.check_cost("user:7", 3).await?;
/// assert!(decision.is_allowed());
///
/// let decision = limiter.check("user:7").await?;
/// assert!(!decision.is_allowed());
/// assert!(decision.retry_after().as_secs() <= 36);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    store: Arc<dyn Store>,
    policy: Arc<Policy>,
    plan: Plan,
    buckets: Arc<dyn Buckets>,
    failure_mode: FailureMode,
    denied: Option<Arc<Denied>>,
    notes: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Limiter {
    /// A limiter on a [`MemoryStore`](crate::MemoryStore) or a
    /// [`RedisStore`](crate::RedisStore). It does no I/O.
    ///
    /// # Errors
    ///
    /// If the policy cannot work: a name that is not allowed, no quota, or a quota with a zero or
    /// with numbers beyond exact arithmetic; or if the store cannot keep it. The text says what to
    /// change.
    pub fn new(store: impl Store, policy: impl Into<Policy>) -> Result<Self, ConfigError> {
        let store: Arc<dyn Store> = Arc::new(store);
        let policy = policy.into();
        valid_name("policy", &policy.name)?;
        let [(name, quota)] = policy.quotas.as_slice() else {
            return Err(ConfigError::new(format!(
                "policy `{}` has {} quotas: give it exactly one",
                policy.name,
                policy.quotas.len()
            )));
        };
        valid_name("quota", name)?;
        let plan = Plan {
            policy: policy.name.as_ref().into(),
            bucket: TokenBucket::new(name, quota)?,
            deadline: Duration::from_millis(50),
        };
        let buckets = store.open(plan.clone())?;
        let denied = buckets.is_remote().then(|| Arc::new(Denied::new(Denied::DEFAULT_LONGEST)));
        let inner = Inner {
            store,
            policy: policy.into(),
            plan,
            buckets,
            failure_mode: FailureMode::Open,
            denied,
            notes: OnceLock::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The longest that a check may take: by default 50 ms. It covers the way to the store, a
    /// connection that must be made and the answer; when it is over, the failure mode answers. A
    /// check that was on its way may still be charged. More than a year is taken as a year.
    ///
    /// Checks of a limiter and of its clones go to the store together only if they have the same
    /// deadline.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.inner);
        inner.plan.deadline = deadline.min(LONGEST);
        // What the store refuses it has refused in `new`.
        if let Ok(buckets) = inner.store.open(inner.plan.clone()) {
            inner.buckets = buckets;
        }
        Self { inner: Arc::new(inner) }
    }

    /// What answers when the store does not: by default [`FailureMode::Open`].
    #[must_use]
    pub fn failure_mode(self, failure_mode: FailureMode) -> Self {
        let inner = Inner { failure_mode, ..Arc::unwrap_or_clone(self.inner) };
        Self { inner: Arc::new(inner) }
    }

    /// How long a denial is remembered at most: by default 1 second; zero turns it off.
    ///
    /// After a denial nobody's request can make the same check pass before its
    /// [`retry_after`](Decision::retry_after), so this process answers it without the store until
    /// then. Only a [`reset`](Self::reset), or a larger quota, in another process makes that wrong,
    /// for this long: at most a year, which a longer time is taken as. In memory there is nothing to
    /// remember.
    #[must_use]
    pub fn remember_denials(self, longest: Duration) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.inner);
        let useful = inner.buckets.is_remote() && !longest.is_zero();
        inner.denied = useful.then(|| Arc::new(Denied::new(longest.min(LONGEST))));
        Self { inner: Arc::new(inner) }
    }

    /// Asks for one permit.
    ///
    /// # Errors
    ///
    /// If the store did not answer and the failure mode is [`FailureMode::Closed`].
    pub fn check(&self, key: impl Into<Key>) -> Check {
        self.check_cost(key, 1)
    }

    /// Asks for `cost` permits, all or none. A cost of 0 only asks: it is always allowed, and
    /// charges nothing.
    ///
    /// # Errors
    ///
    /// If the store did not answer and the failure mode is [`FailureMode::Closed`].
    pub fn check_cost(&self, key: impl Into<Key>, cost: u32) -> Check {
        Check::new(self, &key.into(), cost)
    }

    pub(crate) fn ask(&self, key: &Key, cost: u32) -> Asked {
        Asked::new(self, key, cost)
    }

    /// The decision that a check of cost 1 would get now, with nothing charged.
    ///
    /// # Errors
    ///
    /// If the store did not answer: a failure mode has nothing to say about a bucket.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.inner.buckets.peek(&key.into()).await
    }

    /// Makes the caller's bucket full, for every process that shares it. Another process may
    /// remember a denial until then: see [`remember_denials`](Self::remember_denials).
    ///
    /// # Errors
    ///
    /// If the store did not answer, or refused.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        let key = key.into();
        let done = self.inner.buckets.reset(&key).await;
        // Even if it failed, for it may have been done all the same.
        if let Some(denied) = &self.inner.denied {
            denied.forget(&key);
        }
        done
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    pub(crate) fn quota_name(&self) -> &str {
        // `new` has seen to it that there is one.
        self.inner.policy.quotas.first().map_or("", |(name, _)| name)
    }

    pub(crate) fn bucket(&self) -> &TokenBucket {
        &self.inner.plan.bucket
    }

    /// What an edge has to say of the limiter every time, made once and kept with it. There is one
    /// edge: of a second type there would be none.
    pub(crate) fn notes<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> Option<&T> {
        self.inner.notes.get_or_init(|| Arc::new(make(self))).downcast_ref()
    }
}

impl Inner {
    /// The store's answer, or the failure mode's if that is an error.
    fn conclude(&self, answer: Result<Decision, Error>) -> Result<Decision, Error> {
        answer.or_else(|error| self.failure_mode.answer(error, self.plan.bucket.limit()))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policy", &self.inner.policy)
            .field("store", &self.inner.store)
            .field("deadline", &self.inner.plan.deadline)
            .field("failure_mode", &self.inner.failure_mode)
            .finish()
    }
}

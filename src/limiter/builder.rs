//! The settings of a limiter, such as for how long denials are cached, with their defaults and limits, and how
//! they become a limiter.

use std::sync::Arc;
use std::time::Duration;

use super::blocked::BlockedKeys;
use super::enforcement::Enforcement;
use super::failure_log::FailureLog;
use super::other_revisions::OtherRevisions;
use super::revision::{Revision, Revisions, Settings};
use super::waiters::Waiters;
use super::{FailureMode, Inner, Limiter};
use crate::metrics::PolicyMetrics;
use crate::store::Store;
use crate::{ConfigError, Policy, Quota};

/// Longer durations are taken as this one, because not every `Duration` can be added to an
/// `Instant`.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The settings of a [`Limiter`]: see [`Limiter::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build()` is called"]
pub struct LimiterBuilder {
    store: Arc<dyn Store>,
    policy: Policy,
    timeout: Duration,
    failure_mode: FailureMode,
    enforced_percent: f64,
    cache_denials: Duration,
    lease: Duration,
    max_wait: Duration,
    max_waiters: usize,
    max_waiters_per_key: Option<usize>,
}

impl LimiterBuilder {
    pub(super) fn new(store: Arc<dyn Store>, policy: Policy) -> Self {
        Self {
            store,
            policy,
            timeout: Duration::from_millis(50),
            failure_mode: FailureMode::default(),
            enforced_percent: 100.0,
            cache_denials: Duration::from_secs(1),
            lease: Duration::ZERO,
            max_wait: Duration::from_secs(30),
            max_waiters: 1_024,
            max_waiters_per_key: None,
        }
    }

    pub(super) fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the maximum time that a check may take: 50 ms by default. It covers queueing, connecting and the
    /// reply of the store. After that the failure mode applies. A check that was already sent may still be
    /// charged. Set it to at least twice the round trip to Redis, and to at least 20 ms. A
    /// [hold](Limiter::hold) may have to wait for another call of its key first, so three round trips are better for it.
    ///
    /// The timeout also applies to `peek`, `reset`, `charge` and `credit`, but not to the wait of `acquire`. It is
    /// clamped to a year. Limiters with the same timeout on one `RedisStore` share their calls, so use few
    /// different timeouts.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets what happens to a check when the store fails: [`FailureMode::Local`] by default.
    pub fn failure_mode(self, failure_mode: FailureMode) -> Self {
        Self { failure_mode, ..self }
    }

    /// Sets the percentage of keys for which the limit is enforced: 100.0 by default. For the others
    /// the limiter decides and charges as usual, but allows every check, at once:
    /// [`Decision::would_be_denied`](crate::Decision::would_be_denied) says what would have happened.
    /// 0.0 is a shadow mode, to try a limit on real traffic.
    ///
    /// A hash chooses the keys, the same in all processes and versions. A larger percentage adds keys
    /// and removes none. A layer adds no headers to responses for the other keys, unless
    /// [asked to](crate::RateLimitLayer::headers_if_not_enforced). If the store fails, these checks
    /// are allowed in any failure mode.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::builder(MemoryStore::new(), Quota::per_hour(1))
    ///     .enforce_for_percent(0.0)
    ///     .build()?;
    /// assert!(!limiter.check("user:7").await?.would_be_denied());
    ///
    /// let decision = limiter.check("user:7").await?;
    /// assert!(decision.is_allowed() && decision.would_be_denied());
    /// # Ok(()) }
    /// ```
    pub fn enforce_for_percent(self, percent: f64) -> Self {
        Self { enforced_percent: percent, ..self }
    }

    /// Sets the maximum time that this process caches a denial: 1 second by default. Zero disables
    /// the cache. The time is clamped to a year.
    ///
    /// The process denies the same check again, without asking the store, until
    /// [`retry_after`](crate::Decision::retry_after) has passed, but for at most `max_ttl`. A
    /// [`reset`](Limiter::reset) or a larger quota takes effect at once in this process. In other processes it can
    /// go unnoticed for up to `max_ttl`.
    ///
    /// The number of cached denials is bounded for all limiters on a store and its clones together: see
    /// [`local_keys`](crate::RedisStore::local_keys). A [`MemoryStore`](crate::MemoryStore) needs no cache and
    /// ignores this.
    pub fn cache_denials(self, max_ttl: Duration) -> Self {
        Self { cache_denials: max_ttl, ..self }
    }

    /// Sets the longest time for which this process keeps permits that it has taken in advance: zero by default, so it
    /// takes none.
    ///
    /// With a lease, a check that goes to Redis also takes the permits that this process expects to need for the key.
    /// The next checks of the key are decided in memory, with the source [`Lease`](crate::Source::Lease). When the lease
    /// ends, unused permits are given back, except for those that [may have refilled][exactness]. The guide says
    /// [when to use a lease, and how long it should be](crate::guide#hot-keys-and-distant-servers).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// let limiter = Limiter::builder(MemoryStore::new(), Quota::per_second(1_000))
    ///     .lease(Duration::from_millis(100))
    ///     .build()?;
    ///
    /// // The rate times the lease is more than half of the burst.
    /// let too_long = Limiter::builder(MemoryStore::new(), Quota::per_second(1_000).burst(100))
    ///     .lease(Duration::from_millis(100))
    ///     .build();
    /// assert!(too_long.is_err());
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    ///
    /// All limiters of a policy need the same lease, in all processes. A [`MemoryStore`](crate::MemoryStore) and a
    /// [`DividedStore`](crate::DividedStore) decide in memory anyway: they validate the value, and otherwise ignore it.
    ///
    /// # What a key can get
    ///
    /// Over any span of time, a key gets at most as many permits as without leases:
    ///
    /// - **A token bucket holds less in Redis**, by the rate times the lease. With 1,000 per second, a burst of 1,000
    ///   and a lease of 100 ms, it holds 900. So a full key has 900 permits [left](crate::Decision::remaining), although
    ///   the [limit](crate::Decision::limit) is still 1,000, and a check that costs more than 900 is always denied.
    ///   (A check may [borrow](Quota::borrow_up_to) in addition to that.)
    /// - **A [concurrent quota](Quota::concurrent)** has a lease if it is the only quota of its policy. A permit that is
    ///   given back is kept for at most the length of the lease, for the next hold of this process. So a busy key takes
    ///   few calls. Each of `n` processes keeps at most `1/(2n)` of what is free. What is said below about expected use
    ///   and refilling is not about these: if the process is killed, they count until
    ///   [`RedisStore::hold_for`](crate::RedisStore::hold_for) has passed.
    /// - **The capacity of other quotas does not change**, but a lease ends with the window in which its permits were
    ///   taken, or at the next [refill](Quota::interval_refill).
    ///
    /// Other processes cannot use the permits that a process keeps. So they may deny a check that would be allowed
    /// without leases. These bounds keep such denials few:
    ///
    /// - A process takes at most what it expects to use during the lease, and a quarter more. It expects to use about as
    ///   many permits as it used for the key in the previous period of the same length. A key that it checks less than
    ///   twice in such a period gets no lease.
    /// - All instances together keep at most half of what the bucket holds in Redis: if there are `n`, each takes at most
    ///   `1/(2n)` of what is free. So leases shrink as the bucket empties, and near the limit all checks go to Redis.
    ///   To count the instances, each registers in Redis, in every failure mode. Until it has registered, it assumes
    ///   the number of [`RedisStore::instances`](crate::RedisStore::instances).
    ///
    /// # Resets, failures and deployments
    ///
    /// - A [`reset`](Limiter::reset) ends the leases of the key at once in this process. In other processes they end
    ///   within the length of a lease. Until then the key can get what they hold in addition.
    /// - If a process is killed, the unused permits of its leases count as used, and refill like other permits.
    /// - When Redis fails, a lease is used until its permits are used up or it ends. Then the
    ///   [failure mode](Self::failure_mode) decides.
    /// - While instances have different leases, or only some have one, as in a rolling deployment, a token bucket can
    ///   admit more: the rate times the longest lease. If the demand is above the limit, instances with shorter leases,
    ///   or with none, get most of the permits, because the bucket is larger for them.
    /// - While instances have different numbers for a quota with a lease, a token bucket can admit more by the larger
    ///   rate times the lease.
    /// - A lease ends by the clock of the process, and permits refill by the clock of Redis. If the clock of Redis
    ///   steps, a key can get the permits of its leases in addition to [those that the step adds][exactness]. If a
    ///   machine is suspended and its monotonic clock stops meanwhile, a key can get the permits of the leases on that
    ///   machine in addition.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build), [`Limiter::update`] and [`Limiter::with_quota`] return an error if a quota does not
    /// support the lease:
    ///
    /// - The rate times the lease is more than half of the burst. For a window this means that the lease is longer than
    ///   half of the window.
    /// - A [queue](Quota::queue), a [sliding window](Quota::sliding_window) and an
    ///   [approximate sliding window](Quota::approximate_sliding_window) have no leases, nor has a
    ///   [concurrent quota](Quota::concurrent) among others.
    ///
    /// `build` also returns an error if another limiter of the policy on the same store has a different lease.
    ///
    /// [exactness]: https://docs.rs/crate/fleetlimit/latest/source/docs/exactness.md
    pub fn lease(self, longest: Duration) -> Self {
        Self { lease: longest, ..self }
    }

    /// Sets for how long [`Limiter::acquire`] may wait for the permits of a token bucket without a
    /// [`queue`](Quota::queue): 30 seconds by default. It is clamped to a year. Zero means not at
    /// all. Give it the same value in all processes, because a check also waits behind checks with
    /// a longer wait.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Sets how many checks of this limiter may wait in this process at a time: 1,024 by default. Further checks
    /// are denied unless they can proceed at once. Checks that the store is deciding count too, if they may have
    /// to wait. The number is for all clones of the limiter and all keys together: see
    /// [`max_waiters_per_key`](Self::max_waiters_per_key). Another limiter with the same policy has its own.
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters, ..self }
    }

    /// Sets how many of the [waiters](Self::max_waiters) may have the same key: by default an eighth of them,
    /// rounded up, which is 128. So one client cannot keep all others from waiting. If there is only one key,
    /// such as the name of a service that is called, set it to the number of all waiters.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// let quota = Quota::per_second(5).queue(Duration::from_secs(30));
    /// let limiter = Limiter::builder(MemoryStore::new(), quota)
    ///     .max_waiters(2_000)
    ///     .max_waiters_per_key(20)
    ///     .build()?;
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    pub fn max_waiters_per_key(self, max_waiters: usize) -> Self {
        Self { max_waiters_per_key: Some(max_waiters), ..self }
    }

    /// Builds the limiter. It does no I/O.
    ///
    /// # Errors
    ///
    /// - The policy is invalid: a bad name, no quota or too many, or numbers that are zero or too
    ///   large to represent exactly.
    /// - The timeout is zero, so the failure mode would apply to every check.
    /// - The percentage of keys for which the limit is enforced is not between 0 and 100.
    /// - The store cannot hold the policy, for instance because its key prefix is invalid.
    /// - A quota does not support a [lease](Self::lease) of this length, or another limiter of the policy has a
    ///   different lease.
    /// - Another limiter on the same store or one of its clones uses the same policy name with
    ///   different quotas. Without this rule, two bare quotas on one store would silently share
    ///   buckets. Name the policies, or use [`Limiter::update`] to change the numbers of a running
    ///   one.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let Self { store, policy, timeout, failure_mode, .. } = self;
        let Self { enforced_percent, cache_denials, lease, max_wait, max_waiters, .. } = self;
        let per_key = self.max_waiters_per_key.unwrap_or(max_waiters.div_ceil(8));
        let enforcement = Enforcement::percent(enforced_percent)?;
        if timeout.is_zero() {
            return Err(ConfigError::new(
                "a timeout of zero would leave every check to the failure mode: use 1 ms or more",
            ));
        }
        let timeout = timeout.min(MAX_DURATION);
        let cache_denials = cache_denials.min(MAX_DURATION);
        let max_wait = max_wait.min(MAX_DURATION);
        let metrics = PolicyMetrics::new(policy.name());
        let blocked = BlockedKeys::new(&store);
        let settings =
            Settings { store: store.clone(), timeout, cache_denials, lease, blocked, metrics };
        let (registry, namespace) = store.registry();
        let make = |states| {
            Ok(Arc::new(Inner {
                revisions: Revisions::new(Revision::new(&settings, &policy, states)?),
                settings,
                failure_mode,
                enforcement,
                failure_log: FailureLog::default(),
                charge_log: FailureLog::default(),
                waiters: Waiters::new(max_waiters, per_key),
                max_wait,
                others: OtherRevisions::default(),
            }))
        };
        let conflict = |existing: &Policy, other| match existing == &policy {
            true => other_lease(&policy, other, lease),
            false => conflict(existing, &policy),
        };
        let inner = registry.register(namespace, &policy, lease, make, conflict)?;
        // The size of a lease depends on the number of instances, so they have to register.
        if failure_mode.may_decide_locally() || !lease.is_zero() {
            inner.revisions.current().backend.register_in_fleet();
        }
        Ok(Limiter { inner, other: None })
    }
}

fn conflict(existing: &Policy, new: &Policy) -> ConfigError {
    let describe = |policy: &Policy| {
        let quota = |(name, quota): (&str, &Quota)| format!("`{name}` {quota}");
        policy.quotas().map(quota).collect::<Vec<_>>().join("; ")
    };
    ConfigError::new(format!(
        "the policy name `{name}` is in use on this store with different quotas ({}, not {}): give each \
         policy its own name with `Policy::new(\"...\").quota(\"...\", ...)`, or change the running \
         policy with `Limiter::update`",
        describe(existing),
        describe(new),
        name = new.name(),
    ))
}

fn other_lease(policy: &Policy, existing: Duration, new: Duration) -> ConfigError {
    let describe = |lease: Duration| match lease.is_zero() {
        true => "no lease".to_owned(),
        false => format!("a lease of {lease:?}"),
    };
    ConfigError::new(format!(
        "the policy name `{name}` is in use on this store with {}, not {}: give all limiters of a policy the same \
         `lease`, because it changes what the store admits",
        describe(existing),
        describe(new),
        name = policy.name(),
    ))
}

//! The limiter: what a policy means for a check, and what happens when the store fails. It names neither HTTP
//! nor Redis.
//!
//! `Limiter` is in this file, and `builder` has its settings. `revision` is a policy with its numbers until the
//! next update, and `other_revisions` has those of single requests. `check` decides one check, `acquire` waits
//! for permits, `adjust` charges and credits, and `best_effort` checks several keys. `waiting`, `waiting_line`
//! and `waiters` are the checks that wait, and `taken` is what a check may give back. `hold` keeps permits while
//! something runs, with its checks in `held_checks`. `detached` keeps them for whoever has the record of the hold,
//! whom the store knows by a number (`holder`). `failure_mode` says what
//! happens if the store fails, `failure_log` reports it, and `enforcement` is the shadow mode. `limiters` has
//! policies from a file, which `watch` reloads. `blocked` denies keys that an operator has blocked. The last
//! known state of a key may deny it, and a lease may allow it, before the store is asked.
//!
//! A cost above the capacity is denied without asking the store (`Revision::known`): no state changes that
//! decision, so it is the same on all stores and during an outage. What remains in the bucket is not known. So
//! the source of the decision is the quota, its numbers are those of a full bucket, and a response has
//! `RateLimit-Policy`, whose `q` is what the client needs to know, but no `RateLimit`.

mod acquire;
mod adjust;
mod best_effort;
mod blocked;
mod builder;
mod check;
mod detached;
mod enforcement;
mod failure_log;
mod failure_mode;
mod held_checks;
mod hold;
mod holder;
mod limiters;
mod other_revisions;
mod revision;
mod taken;
mod waiters;
mod waiting;
mod waiting_line;
mod watch;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use self::enforcement::Enforcement;
use self::failure_log::FailureLog;
use self::other_revisions::OtherRevisions;
use self::revision::{Revisions, Settings};
use self::waiters::Waiters;
use crate::store::{Op, PendingVerdict, Registry, RevisionStates, Store, Subscriber};
use crate::{ConfigError, Costs, Decision, Error, Key, Policy, Source, cooperation};

pub use acquire::Reservation;
pub use best_effort::BestEffortChecks;
pub use builder::LimiterBuilder;
pub use check::Check;
pub(crate) use check::{CheckState, PendingCheck};
pub use detached::DetachedHold;
pub use failure_mode::FailureMode;
pub use hold::Hold;
pub use limiters::Limiters;
pub(crate) use revision::{HeldRevision, Revision, RevisionRef};
pub(crate) use taken::{Taken, TakenPermits};
pub(crate) use waiters::Waiter;
pub(crate) use waiting::Wait;

/// Checks keys against a quota. The buckets are in a store.
///
/// The type is the same for every store, so a program can choose its store at startup. Cloning is
/// cheap, and clones share everything. Use a [`RateLimitLayer`](crate::RateLimitLayer) to limit the
/// requests to a service, and a limiter directly for everything else:
///
/// ```
/// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("emails").quota("hourly", Quota::per_hour(100).burst(3));
/// let limiter = Limiter::new(MemoryStore::new(), policy)?;
///
/// let decision = limiter.check_cost("user:7", 3).await?;
/// assert!(decision.is_allowed());
///
/// let decision = limiter.check("user:7").await?;
/// assert!(decision.is_denied());
/// assert!(decision.retry_after().is_some_and(|wait| wait.as_secs() <= 36));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
    /// The other numbers, if it has others than the policy.
    other: Option<Arc<Revision>>,
}

/// Aligned to keep what every check reads off the cache line of the reference count, which clones
/// on other threads write. It is in the first fields, and so in few cache lines.
#[repr(C, align(128))]
struct Inner {
    enforcement: Enforcement,
    settings: Settings,
    failure_log: FailureLog,
    revisions: Revisions,
    failure_mode: FailureMode,
    /// The failures of charges that nobody waits for.
    charge_log: FailureLog,
    waiters: Waiters,
    /// The longest wait of `acquire`, for buckets without a queue.
    max_wait: Duration,
    others: OtherRevisions,
}

impl Limiter {
    /// A limiter with default settings on a [`MemoryStore`](crate::MemoryStore), a `RedisStore`, or an
    /// [`AnyStore`](crate::AnyStore), which is one of them by its URL. It does no I/O.
    /// [`builder`](Self::builder) changes the settings.
    ///
    /// # Errors
    ///
    /// See [`LimiterBuilder::build`].
    pub fn new(store: impl Store, policy: impl Into<Policy>) -> Result<Self, ConfigError> {
        Self::builder(store, policy).build()
    }

    /// A limiter with non-default settings.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::{FailureMode, Limiter, MemoryStore, Quota};
    ///
    /// let limiter = Limiter::builder(MemoryStore::new(), Quota::per_second(10))
    ///     .timeout(Duration::from_millis(20))
    ///     .failure_mode(FailureMode::Closed)
    ///     .build()?;
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    pub fn builder(store: impl Store, policy: impl Into<Policy>) -> LimiterBuilder {
        LimiterBuilder::new(Arc::new(store), policy.into())
    }

    /// Checks for one permit, and takes it if there is one.
    ///
    /// The returned future is lazy: the check starts when it is first polled. A check that is
    /// dropped before it was sent to the store is not charged.
    ///
    /// Many checks complete at once, such as those on a [`MemoryStore`](crate::MemoryStore), cached
    /// denials, and checks in an outage. A loop of them must not starve other tasks. So checks and all other
    /// operations take part in Tokio's [cooperative scheduling](tokio::task::coop): from time to time one of
    /// them yields. Code in a task that polls a check itself, with `now_or_never` or the `block_on` of another
    /// crate, has to wrap the check in [`unconstrained`](tokio::task::coop::unconstrained).
    ///
    /// The future borrows the limiter. To spawn a check, move a clone into the task:
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(1))?;
    /// let task = tokio::spawn({
    ///     let limiter = limiter.clone();
    ///     async move { limiter.check("user:7").await }
    /// });
    /// assert!(task.await??.is_allowed());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store failed and the failure mode is [`FailureMode::Closed`]. A denial is not an
    /// error: see [`Decision::ensure_allowed`].
    #[inline]
    pub fn check(&self, key: impl Into<Key>) -> Check<'_> {
        Check::new(self, key.into(), Costs::new(1))
    }

    /// Checks for the permits that something costs, and takes all of them or none. The cost is a number, or
    /// [`Costs`] that differ per quota. A cost of 0 is always allowed and consumes nothing. A cost above the
    /// capacity plus what may be borrowed is always denied, without asking the store: see [`Source::Quota`].
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check), and [`ErrorKind::UnknownQuota`](crate::ErrorKind::UnknownQuota)
    /// if the cost names a quota that the policy does not have, whatever the failure mode.
    #[inline]
    pub fn check_cost(&self, key: impl Into<Key>, cost: impl Into<Costs>) -> Check<'_> {
        Check::new(self, key.into(), cost.into())
    }

    /// Returns the decision that the store would make now about a check of cost 1. Nothing is charged, so
    /// [`remaining`](Decision::remaining) still includes that permit. This says what is left of the quotas
    /// also for a key that is [blocked](crate::BlockList).
    ///
    /// Unused permits in a [lease](LimiterBuilder::lease) of this process count as free. Those in leases of other
    /// processes count as used.
    ///
    /// # Errors
    ///
    /// If the store failed, for any failure mode.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        let key = key.into();
        let held = self.revision().hold();
        let revision = self.held(&held);
        let mut pending = PendingVerdict::default();
        let peek = poll_fn(|cx| revision.backend.poll_check(&key, &Op::Peek, &mut pending, cx));
        let verdict = cooperation::cooperate(peek).await?;
        let is_enforced = self.inner.enforcement.applies_to(&key);
        let quota = revision.tightest(&verdict).clone();
        Ok(Decision::new(verdict, Source::Store, is_enforced, quota))
    }

    /// Fills the key's bucket, for every process that shares it.
    ///
    /// Limiters of the same policy on this store and its clones use the full bucket at once. Other processes, and
    /// other stores of this process, may have cached a denial. They keep denying the key for at most as long as
    /// [`cache_denials`](LimiterBuilder::cache_denials) allows.
    ///
    /// Checks that wait already, as in [`acquire`](Self::acquire), keep their permits and their times. So until
    /// the last of them has proceeded, a key can get twice its rate. A process may also keep a place that a check
    /// has given up, for its next check. It drops these places if it resets the key itself. After a reset by
    /// another process, the check that gets such a place waits for its time: at most as long as the
    /// [`queue`](crate::Quota::queue) or [`max_wait`](LimiterBuilder::max_wait) allowed when it was taken.
    ///
    /// Permits that are [held](Hold) stay held. Those of other processes count again when these renew them.
    ///
    /// [Leases](LimiterBuilder::lease) of the key end at once in this process. In other processes they end within the
    /// length of a lease. Until then the key can get their permits in addition to a full bucket.
    ///
    /// # Errors
    ///
    /// If the store failed, for any failure mode.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        let key = key.into();
        self.inner.waiters.forget_free(&key);
        let reset = self.revision().backend.reset(&key);
        let _invalidate = InvalidateOnDrop { limiter: self, key };
        cooperation::cooperate(reset).await
    }

    /// Changes the quotas of the running policy, for all limiters of this process that use the
    /// policy's name on the same store.
    ///
    /// Buckets are not reset. **Used permits stay used**: after 3 of 3, a limit that is raised to 6
    /// leaves 3 immediately. After 5 of 6, a limit that is lowered to 3 denies until only 2 are used. In
    /// a bucket, a key that has used more than the new burst waits at most until the excess has refilled, and
    /// then for its own permits. A bucket refills at the old rate until the next check that is allowed to take
    /// permits, and `retry_after` says so.
    ///
    /// Only this process is updated: call `update` in every process. Until then the others use the
    /// old numbers. Meanwhile a key gets at most the larger burst and the larger rate. If the
    /// algorithm or the period of a [calendar](crate::Quota::calendar) changes, it can get the sum of both
    /// limits.
    ///
    /// Unused permits of [leases](LimiterBuilder::lease) under the old numbers are given back.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// let policy = |n| Policy::new("search").quota("rate", Quota::per_second(n));
    /// let limiter = Limiter::new(MemoryStore::new(), policy(10))?;
    /// limiter.update(policy(20))?;
    /// assert_eq!(*limiter.policy(), policy(20));
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the policy is invalid, has a different name than the running one, or does not support the
    /// [lease](LimiterBuilder::lease) of the limiter. Nothing changes then.
    pub fn update(&self, policy: impl Into<Policy>) -> Result<(), ConfigError> {
        let policy = policy.into();
        let current = self.inner.revisions.current().policy.clone();
        if policy.name() != current.name() {
            return Err(ConfigError::new(format!(
                "cannot change policy `{}` into policy `{}`: an update keeps the name; build another \
                 limiter for another policy",
                current.name(),
                policy.name()
            )));
        }
        if policy == *current {
            return Ok(());
        }
        let Inner { settings, .. } = &*self.inner;
        // Only to see whether the policy is valid.
        let states = self.revision().states.clone();
        Revision::new(settings, &policy, states)?;
        let (registry, namespace) = settings.store.registry();
        registry.update(namespace, &policy);
        Ok(())
    }

    /// The policy as it is now.
    pub fn policy(&self) -> Arc<Policy> {
        self.revision().policy.clone()
    }

    /// The longest that a check may take.
    pub fn timeout(&self) -> Duration {
        self.inner.settings.timeout
    }

    /// Returns the rule that decides a check when the store fails.
    pub fn failure_mode(&self) -> FailureMode {
        self.inner.failure_mode
    }

    /// The maximum time that this process caches a denial. Zero if it does not.
    pub fn cache_denials(&self) -> Duration {
        self.inner.settings.cache_denials
    }

    /// Returns the registry that the limiters on the store share.
    fn registry(&self) -> &Registry {
        self.inner.settings.store.registry().0
    }

    pub(crate) fn held<'a>(&'a self, revision: &'a HeldRevision) -> &'a Revision {
        self.inner.revisions.held(revision)
    }

    /// Returns the revision for another check.
    fn revision_of<'a>(&'a self, revision: &'a HeldRevision) -> RevisionRef<'a> {
        self.inner.revisions.reference(revision)
    }

    #[inline]
    pub(crate) fn revision(&self) -> RevisionRef<'_> {
        let Inner { settings, revisions, .. } = &*self.inner;
        if let Some(other) = &self.other {
            return self.other_revision(other);
        }
        let current = revisions.current();
        if current.is_outdated(&*settings.store) { self.renewed_revision(current) } else { current }
    }

    #[cold]
    fn renewed_revision<'a>(&'a self, current: RevisionRef<'a>) -> RevisionRef<'a> {
        let Inner { settings, revisions, .. } = &*self.inner;
        match current.renewed(settings) {
            None => current,
            Some(renewed) => {
                revisions.replace_if(current, renewed);
                revisions.current()
            }
        }
    }

    fn other_revision<'a>(&'a self, other: &'a Arc<Revision>) -> RevisionRef<'a> {
        let Inner { settings, others, .. } = &*self.inner;
        match others.renewed(other, settings) {
            None => RevisionRef::Other(other),
            Some(renewed) => RevisionRef::RenewedOther(renewed),
        }
    }
}

/// Discards the cached denial of a key that gets permits back. Also after an error, or if the future is
/// dropped, because the server may have done it.
struct InvalidateOnDrop<'a> {
    limiter: &'a Limiter,
    key: Key,
}

impl Drop for InvalidateOnDrop<'_> {
    fn drop(&mut self) {
        // Under all numbers of the policy.
        self.limiter.inner.revisions.current().states.end_denials(&self.key);
    }
}

impl Subscriber for Inner {
    fn policy_changed(&self, policy: &Policy, states: Arc<RevisionStates>) {
        // `update` has rejected what is invalid.
        if let Ok(revision) = Revision::new(&self.settings, policy, states) {
            self.revisions.replace(revision);
        }
    }

    fn report(&self) {
        let current = self.revisions.current();
        let policy = current.policy.name();
        self.failure_log.report_all(policy);
        self.charge_log.report_all(policy);
    }
}

/// Otherwise the last counts of an outage would be lost.
impl Drop for Inner {
    fn drop(&mut self) {
        self.report();
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { settings, failure_mode, .. } = &*self.inner;
        f.debug_struct("Limiter")
            .field("policy", &self.policy())
            .field("store", &settings.store)
            .field("timeout", &settings.timeout)
            .field("failure_mode", failure_mode)
            .field("cache_denials", &settings.cache_denials)
            .finish()
    }
}

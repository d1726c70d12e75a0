use std::fmt;
use std::slice;
use std::time::Duration;

use crate::charge::Left;
use crate::verdict::{Numbers, Outcome, QuotaInfo, Several, Verdict};
use crate::{Error, Quota};

/// The outcome of a check: whether it was allowed, and the state of the key's bucket.
///
/// A denied check is a value, not an error. The compiler warns if it is ignored. To stop on a denial
/// with `?`, use [`ensure_allowed`](Self::ensure_allowed).
///
/// ```
/// use std::time::Duration;
/// use fleetlimit::{Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(6).burst(2))?;
/// let decision = limiter.check("user:7").await?;
/// assert!(decision.is_allowed());
/// assert_eq!((decision.limit(), decision.remaining()), (2, 1));
///
/// let decision = limiter.check_cost("user:7", 2).await?;
/// assert!(decision.is_denied());
/// assert!(decision.retry_after() <= Some(Duration::from_secs(10)));
/// # Ok(()) }
/// ```
///
/// With `#![deny(unused_must_use)]` this does not compile, because the denial is ignored:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn handler(limiter: fleetlimit::Limiter) -> Result<(), fleetlimit::Error> {
/// limiter.check("user:7").await?;
/// # Ok(()) }
/// ```
///
/// ```
/// #![deny(unused_must_use)]
/// # async fn handler(limiter: fleetlimit::Limiter) -> Result<(), fleetlimit::Error> {
/// limiter.check("user:7").await?.ensure_allowed()?;
/// # Ok(()) }
/// ```
///
/// # Durations
///
/// Durations have microsecond precision and are rounded up. They count from the moment of the
/// decision on the clock of the store that made it.
///
/// # Responses
///
/// With the feature `axum` a decision is an `IntoResponse`, so that a check in a handler responds
/// like the layer. [`response`](Self::response) and [`headers`](Self::headers) do the same without
/// axum.
///
/// In a tuple such as `(decision, body)`, for responses of your own, it adds only the rate limit headers.
/// For a denial use `(StatusCode::TOO_MANY_REQUESTS, decision.headers(HeaderStyle::Ietf), body)`, which
/// has `Retry-After` and `Cache-Control: no-store`, too.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a check can be denied: test `is_allowed()`, or use `ensure_allowed()?`"]
pub struct Decision {
    // The fields of a `Verdict`: as one field it would take 8 bytes more.
    pub(crate) outcome: Outcome,
    pub(crate) source: Source,
    /// True if the limiter denies checks of the key.
    pub(crate) is_enforced: bool,
    pub(crate) numbers: Numbers,
    pub(crate) several: Option<Box<Several>>,
    /// The quota that restricts the client most.
    pub(crate) quota: QuotaInfo,
}

/// A quota in a [`Decision`]: see [`Decision::quotas`]. Durations are as in the decision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QuotaStatus<'a> {
    info: &'a QuotaInfo,
    numbers: &'a Numbers,
    is_violated: bool,
}

/// The origin of a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The denial cache of this process: the store denied the same key, and the denial still holds.
    Cached,
    /// This process, by its share of the limits, because the store failed or had too many checks: see
    /// [`FailureMode::Local`](crate::FailureMode::Local). The numbers are those of its share, except for
    /// the limit, which is that of all instances.
    Local,
    /// Another [`FailureMode`](crate::FailureMode), because the store failed. The numbers say
    /// nothing about the key's bucket.
    FailureMode,
    /// The quota alone, because the cost [exceeds its capacity](Decision::exceeds_capacity). The
    /// store was not asked. Nothing is known about the key's bucket, so the numbers are those of a
    /// full one.
    Quota,
    /// The [block list](crate::BlockList) of the store, because an operator has blocked the key. Its
    /// [`retry_after`](Decision::retry_after) is the time until the block ends. Nothing is known about the
    /// key's bucket, so nothing remains, and no quota is [violated](QuotaStatus::is_violated).
    Blocked,
    /// A [lease](crate::LimiterBuilder::lease) of this process: the permits were taken from the store in advance.
    /// The numbers are those of the store's last reply. Permits that have refilled since are added, and permits that
    /// this process has used since are subtracted. Permits that other processes have used since are not.
    Lease,
}

impl Source {
    /// All sources, in the order of their declaration.
    pub(crate) const ALL: [Self; 7] = [
        Self::Store,
        Self::Cached,
        Self::Local,
        Self::FailureMode,
        Self::Quota,
        Self::Blocked,
        Self::Lease,
    ];

    /// Returns true if an allowed check has taken permits.
    pub(crate) fn is_charged(self) -> bool {
        matches!(self, Self::Store | Self::Local | Self::Lease)
    }

    /// Returns the name of the source in metrics and traces.
    ///
    /// ```
    /// use fleetlimit::Source;
    ///
    /// assert_eq!(Source::FailureMode.name(), "failure_mode");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cached => "cached",
            Self::Local => "local",
            Self::FailureMode => "failure_mode",
            Self::Quota => "quota",
            Self::Blocked => "blocked",
            Self::Lease => "lease",
        }
    }
}

impl Decision {
    /// An allowed decision, for tests of code that takes decisions. Its durations are zero.
    ///
    /// ```
    /// use fleetlimit::{Decision, Source};
    ///
    /// let decision = Decision::allowed(10, 3).with_source(Source::FailureMode);
    /// assert!(decision.is_allowed());
    /// assert_eq!((decision.limit(), decision.remaining()), (10, 3));
    /// ```
    pub fn allowed(limit: u64, remaining: u64) -> Self {
        Self::made(Outcome::Allowed, limit, remaining, Duration::ZERO)
    }

    /// A denied decision, for tests of code that takes decisions. Nothing remains, and more is
    /// available after `retry_after`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::Decision;
    ///
    /// let decision = Decision::denied(10, Duration::from_secs(2));
    /// assert!(decision.is_denied());
    /// assert_eq!(decision.retry_after(), Some(Duration::from_secs(2)));
    /// ```
    pub fn denied(limit: u64, retry_after: Duration) -> Self {
        Self::made(Outcome::Denied, limit, 0, retry_after)
    }

    /// A decision about a cost above the capacity, for tests of code that takes decisions.
    pub fn exceeding_capacity(limit: u64) -> Self {
        Self::made(Outcome::ExceedsCapacity, limit, limit, Duration::ZERO)
            .with_source(Source::Quota)
    }

    /// Returns the same decision from another source, for tests.
    pub fn with_source(self, source: Source) -> Self {
        Self { source, ..self }
    }

    fn made(outcome: Outcome, limit: u64, remaining: u64, wait: Duration) -> Self {
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let numbers = Numbers {
            remaining,
            retry_after: wait,
            refill_after: wait,
            reset_after: wait,
            counts_for: 0,
        };
        let quota = QuotaInfo::new(Quota::DEFAULT_NAME, limit, 0);
        Self::new(Verdict::new(outcome, numbers), Source::Store, true, quota)
    }

    #[inline]
    pub(crate) fn new(
        verdict: Verdict,
        source: Source,
        is_enforced: bool,
        quota: QuotaInfo,
    ) -> Self {
        let Verdict { outcome, numbers, several } = verdict;
        Self { outcome, source, is_enforced, numbers, several, quota }
    }

    /// Returns true if the check was allowed. Its cost has been charged, unless the decision
    /// comes from [`Limiter::peek`](crate::Limiter::peek), its [`source`](Self::source) is
    /// [`Source::FailureMode`], or it [would have been denied](Self::would_be_denied).
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed || !self.is_enforced
    }

    /// Returns true if the check would have been denied, had the limit [were enforced](Self::is_enforced) for
    /// its key. Then nothing was charged. True for all denied checks too.
    #[must_use]
    pub fn would_be_denied(&self) -> bool {
        self.outcome != Outcome::Allowed
    }

    /// Returns true if the limit is enforced for the key: see
    /// [`enforce_for_percent`](crate::LimiterBuilder::enforce_for_percent). If not, the check is
    /// allowed in any case.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.is_enforced
    }

    /// Returns true if the check was denied and nothing charged.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Returns true if the cost is more than a quota can ever grant, its capacity plus what may be borrowed, so
    /// that no wait is long enough. With several quotas, one such quota is enough.
    ///
    /// Such a check is denied without asking the store, so its [`source`](Self::source) is
    /// [`Source::Quota`], also while the store fails. [`retry_after`](Self::retry_after) is `None`,
    /// and the response has no `Retry-After` and no `RateLimit`. This is false for a key that has
    /// used up its permits: that is [`is_denied`](Self::is_denied).
    #[must_use]
    pub fn exceeds_capacity(&self) -> bool {
        self.outcome == Outcome::ExceedsCapacity && self.is_enforced
    }

    /// Converts a denial into an error, for `?`.
    ///
    /// # Errors
    ///
    /// If the check was denied: an [`Error`] of kind [`Denied`](crate::ErrorKind::Denied), which
    /// contains the decision.
    ///
    /// ```
    /// # async fn send(limiter: fleetlimit::Limiter) -> Result<(), fleetlimit::Error> {
    /// limiter.check("user:7").await?.ensure_allowed()?;
    /// // Only reached by allowed checks.
    /// # Ok(()) }
    /// ```
    ///
    /// An axum handler can return that error, which is the response to a denial. A catch-all error, such
    /// as one made of `anyhow::Error`, turns a denial into a 500. See
    /// [the guide](crate::guide#under-a-catch-all-error) for the two lines that avoid it.
    pub fn ensure_allowed(&self) -> Result<(), Error> {
        if self.is_allowed() { Ok(()) } else { Err(Error::denied(self.clone())) }
    }

    /// The quotas of the policy, in its order.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("search")
    ///     .quota("burst", Quota::per_second(2))
    ///     .quota("daily", Quota::per_day(1_000));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    ///
    /// let decision = limiter.check_cost("user:7", 2).await?;
    /// let left: Vec<_> = decision.quotas().map(|quota| (quota.name(), quota.remaining())).collect();
    /// assert_eq!(left, [("burst", 0), ("daily", 998)]);
    ///
    /// let decision = limiter.check("user:7").await?;
    /// let violated = decision.quotas().filter(|quota| quota.is_violated());
    /// assert_eq!(violated.map(|quota| quota.name()).collect::<Vec<_>>(), ["burst"]);
    /// # Ok(()) }
    /// ```
    pub fn quotas(&self) -> impl Iterator<Item = QuotaStatus<'_>> {
        let is_denied = self.would_be_denied() && self.source != Source::Blocked;
        let (quotas, numbers) = match &self.several {
            None => (slice::from_ref(&self.quota), slice::from_ref(&self.numbers)),
            Some(several) => (&*several.quotas, &*several.numbers),
        };
        let is_only = quotas.len() == 1;
        quotas.iter().zip(numbers).map(move |(info, numbers)| {
            let is_violated = is_denied && (is_only || numbers.retry_after > 0);
            QuotaStatus { info, numbers, is_violated }
        })
    }

    /// The [capacity](Quota::capacity) of the quota: the most permits that it can hold, without those
    /// that may be [borrowed](Quota::borrow_up_to).
    ///
    /// If the policy has several [`quotas`](Self::quotas), this and the other numbers are those of
    /// the quota that restricts the client most: the one with the longest wait or, if the check was
    /// allowed, the fewest permits left, whatever they stand for. If these are equal, it is the one
    /// with the later reset.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.quota.limit
    }

    /// The number of whole permits left. 0 while a debt is repaid.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.numbers.remaining
    }

    /// Returns the time until a check of the same cost can be allowed. `None` if the check was allowed,
    /// or if its cost [exceeds the capacity](Self::exceeds_capacity).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        // Nobody knows when permits will be given back that are held.
        let wait = Some(self.numbers.retry_after).filter(|wait| *wait != u64::MAX);
        let is_denied = self.outcome == Outcome::Denied && self.is_enforced;
        wait.filter(|_| is_denied).map(Duration::from_micros)
    }

    /// Returns the time until [`remaining`](Self::remaining) grows. Zero if no permit is in use, and for a
    /// [concurrent](crate::Quota::concurrent) quota, because nobody knows when permits are given back.
    #[must_use]
    pub fn refill_after(&self) -> Duration {
        Duration::from_micros(self.numbers.refill_after)
    }

    /// Returns the time until all permits are available again, if none are taken meanwhile. Zero for a
    /// [concurrent](crate::Quota::concurrent) quota.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.numbers.reset_after)
    }

    /// Returns the origin of the decision.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The name of the quota, as in the `RateLimit` field.
    #[must_use]
    pub fn quota_name(&self) -> &str {
        self.quota.name()
    }
}

impl<'a> QuotaStatus<'a> {
    /// Returns the remains of a check that was decided by this limit.
    pub(crate) fn left(&self, limit: u64) -> Left {
        let Numbers { remaining, reset_after, counts_for, .. } = *self.numbers;
        Left { used: limit.saturating_sub(remaining), reset_after, counts_for }
    }

    /// The name of the quota, as in the `RateLimit` field.
    pub fn name(&self) -> &'a str {
        self.info.name()
    }

    /// As [`Decision::limit`].
    pub fn limit(&self) -> u64 {
        self.info.limit
    }

    /// As [`Decision::remaining`].
    pub fn remaining(&self) -> u64 {
        self.numbers.remaining
    }

    /// Returns true if the check was denied because of this quota, or would have been. More than one can be
    /// violated.
    pub fn is_violated(&self) -> bool {
        self.is_violated
    }

    /// As [`Decision::refill_after`].
    pub fn refill_after(&self) -> Duration {
        Duration::from_micros(self.numbers.refill_after)
    }

    /// As [`Decision::reset_after`].
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.numbers.reset_after)
    }

    /// Returns true if this is a [concurrent](crate::Quota::concurrent) quota.
    pub fn is_concurrent(&self) -> bool {
        self.info.is_held()
    }

    pub(crate) fn info(&self) -> &'a QuotaInfo {
        self.info
    }

    /// Returns [`refill_after`](Self::refill_after) in microseconds.
    pub(crate) fn refill_micros(&self) -> u64 {
        self.numbers.refill_after
    }
}

impl fmt::Debug for QuotaStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaStatus")
            .field("name", &self.name())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("is_violated", &self.is_violated)
            .field("refill_after", &self.refill_after())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("is_allowed", &self.is_allowed())
            .field("would_be_denied", &self.would_be_denied())
            .field("quota_name", &self.quota_name())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("refill_after", &self.refill_after())
            .field("reset_after", &self.reset_after())
            .field("source", &self.source)
            .finish()
    }
}

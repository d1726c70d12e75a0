use std::borrow::Cow;

/// The cost of a check: a number of permits, which can differ per quota.
///
/// Pass it to [`Limiter::check_costs`](crate::Limiter::check_costs) or return it from the closure of
/// [`RateLimitLayer::costs`](crate::RateLimitLayer::costs).
///
/// ```
/// use fleetlimit::{Costs, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("upload")
///     .quota("requests", Quota::per_second(10))
///     .quota("daily", Quota::per_day(1_000))
///     .quota("kilobytes", Quota::per_day(1_000_000));
/// let limiter = Limiter::new(MemoryStore::new(), policy)?;
///
/// // One request, of 512 KB.
/// let costs = Costs::new(1).with("kilobytes", 512);
/// let decision = limiter.check_costs("user:7", costs).await?;
/// let left: Vec<u64> = decision.quotas().map(|quota| quota.remaining()).collect();
/// assert_eq!(left, [9, 999, 999_488]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    pub(crate) others: u64,
    /// Boxed, because most checks cost the same of every quota.
    pub(crate) special: Option<Box<Special>>,
}

/// What distinguishes costs from a single number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Special {
    pub(crate) named: Vec<(Cow<'static, str>, u64)>,
    pub(crate) is_charged_later: bool,
}

impl Costs {
    /// Takes this number of permits from every quota. With 0 the check is allowed and takes nothing.
    pub const fn new(cost: u64) -> Self {
        Self { others: cost, special: None }
    }

    /// Sets the cost for the quota with this name, instead of the one from [`new`](Self::new). With
    /// cost 0 the quota neither denies the check nor is charged. The last call for a name applies.
    ///
    /// A name that is not in the policy is an
    /// [`UnknownQuota`](crate::ErrorKind::UnknownQuota) error of the check.
    #[must_use]
    pub fn with(mut self, quota: impl Into<Cow<'static, str>>, cost: u64) -> Self {
        let quota = quota.into();
        let named = &mut self.special.get_or_insert_default().named;
        named.retain(|(name, _)| *name != quota);
        named.push((quota, cost));
        self
    }

    /// Allows the check only if every quota has a permit left, also those with a cost of 0. For
    /// requests whose cost is only known afterwards, and is then [charged](crate::Limiter::charge).
    /// A [`RateLimitLayer`](crate::RateLimitLayer) that charges responses does this for every
    /// request.
    ///
    /// ```
    /// use fleetlimit::{Costs, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("downloads").quota("bytes", Quota::per_day(1_000_000));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    ///
    /// let costs = Costs::new(0).charged_later();
    /// assert!(limiter.check_costs("user:7", costs.clone()).await?.is_allowed());
    /// // The download had 1.5 MB.
    /// limiter.charge("user:7", 1_500_000).await?;
    /// assert!(limiter.check_costs("user:7", costs).await?.is_denied());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn charged_later(mut self) -> Self {
        self.special.get_or_insert_default().is_charged_later = true;
        self
    }
}

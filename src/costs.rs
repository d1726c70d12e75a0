use std::borrow::Cow;

/// The cost of a check: a number of permits, which can differ per quota.
///
/// Whatever takes a cost takes a number, which is the cost for every quota, or `Costs`: such as
/// [`Limiter::check_cost`](crate::Limiter::check_cost), and the closure of
/// [`RateLimitLayer::cost`](crate::RateLimitLayer::cost).
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
/// let decision = limiter.check_cost("user:7", costs).await?;
/// let left: Vec<u64> = decision.quotas().map(|quota| quota.remaining()).collect();
/// assert_eq!(left, [9, 999, 999_488]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    pub(crate) others: u64,
    /// Boxed, because most checks cost the same of every quota.
    pub(crate) special: Option<Box<SpecialCosts>>,
}

/// The parts of costs that a single number does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SpecialCosts {
    pub(crate) named: Vec<(Cow<'static, str>, u64)>,
    pub(crate) is_charged_later: bool,
}

impl Costs {
    /// Takes this number of permits from every quota. With 0 the check is allowed and takes nothing. (A
    /// [hold](crate::Limiter::hold) takes one permit of [concurrent quotas](crate::Quota::concurrent), whatever the number.)
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
    /// assert!(limiter.check_cost("user:7", costs.clone()).await?.is_allowed());
    /// // The download had 1.5 MB.
    /// limiter.charge("user:7", 1_500_000).await?;
    /// assert!(limiter.check_cost("user:7", costs).await?.is_denied());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn charged_later(mut self) -> Self {
        self.special.get_or_insert_default().is_charged_later = true;
        self
    }
}

/// Makes costs that are the same for every quota. There is no conversion from another type of integer, so that a literal
/// needs no suffix: `limiter.check_cost(key, 3)`.
impl From<u64> for Costs {
    fn from(cost: u64) -> Self {
        Self::new(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BestEffortChecks, Limiter, MemoryStore, Quota};

    /// A second conversion from an integer would break every call with a literal.
    #[tokio::test]
    async fn a_literal_is_a_cost_without_a_suffix_and_needs_no_allocation() {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(100)).unwrap();
        assert_eq!(limiter.check_cost("key", 3).await.unwrap().remaining(), 97);
        assert_eq!(limiter.acquire_cost("key", 3).await.unwrap().remaining(), 94);
        limiter.charge("key", 3).await.unwrap();
        limiter.credit("key", 1).await.unwrap();
        let checks = BestEffortChecks::new().add(&limiter, "key", 2);
        let checks = checks.add(&limiter, "key", Costs::new(5).with("default", 1));
        assert_eq!(checks.check().await.unwrap().remaining(), 89);
        assert!(Costs::from(3).special.is_none(), "nothing is boxed");
    }

    /// The closures of a layer return a literal, a number, or costs.
    #[test]
    fn the_closures_of_a_layer_return_numbers_or_costs() {
        use crate::resolve::Global;
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(100)).unwrap();
        let layer = || crate::RateLimitLayer::new(limiter.clone(), Global);
        let _ = layer().cost(|_| 0).cost_by_response(|sent| sent.body_bytes);
        let _ = layer().cost(|_| Costs::new(1)).cost_by_response(|_| 2).cost_without_response(3);
        let _ = layer().cost_by_response(|_| Costs::new(1)).cost_without_response(Costs::new(3));
    }
}

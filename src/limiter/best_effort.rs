//! Checks of several keys, which cannot be atomic.

use tokio::time::Instant;

use super::{CheckState, Limiter, Taken};
use crate::{Costs, Decision, Error, Key, cooperation};

/// Limits on several keys for one request: per user, per tenant, and for everyone.
///
/// The keys may be on different servers, so these checks are not atomic. They are made one after
/// the other, in the order in which they were added, and the first denial ends them. Then the
/// permits that the earlier checks took are given back. Add the narrowest limit first: the one that
/// the fewest requests share.
///
/// The bounds, for each key and request:
///
/// - No more permits are taken than the limits allow.
/// - Until the permits are given back, which the result does not wait for, other checks of the keys
///   can be denied.
/// - If the reply to a check or the return of its permits is lost, its cost stays taken. The log
///   says so. In the failure mode [`Local`](crate::FailureMode::Local), permits that Redis has charged and
///   that are given back while it fails stay taken there, and the log says only that Redis fails.
/// - Permits of a [sliding window](crate::Quota::sliding_window) are given back only in the segment in which
///   they were taken, and not in the last [`timeout`](crate::LimiterBuilder::timeout) of it. The same holds
///   for a [fixed window](crate::Quota::fixed_window). What has been refilled by then is not given back
///   again.
///
/// Quotas on the same key belong in one [`Policy`](crate::Policy), which is atomic. To limit
/// requests to a service by several keys, add a layer for each, with
/// [`refund_inner_denials`](crate::RateLimitLayer::refund_inner_denials).
///
/// ```
/// use fleetlimit::{BestEffortChecks, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
/// let per_user = limiter("user", Quota::per_second(10))?;
/// let per_tenant = limiter("tenant", Quota::per_second(100))?;
/// let global = limiter("global", Quota::per_second(1_000))?;
///
/// let checks = BestEffortChecks::new()
///     .add(&per_user, "user:7", 1)
///     .add(&per_tenant, "tenant:3", 1)
///     .add(&global, "all", 1);
/// checks.check().await?.ensure_allowed()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is checked until `check()` is called"]
pub struct BestEffortChecks(Vec<(Limiter, Key, Costs)>);

/// The permits of the earlier checks, which are given back if this is dropped before all checks are allowed.
struct GiveBack(Vec<(Taken, Costs)>);

impl BestEffortChecks {
    /// No checks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check for a number of permits, or for [`Costs`] that differ per quota.
    pub fn add(mut self, limiter: &Limiter, key: impl Into<Key>, cost: impl Into<Costs>) -> Self {
        self.0.push((limiter.clone(), key.into(), cost.into()));
        self
    }

    /// Makes the checks. The result is the denial or, if all are allowed, the decision with the fewest
    /// permits left. If no check was added, it is allowed.
    ///
    /// If the future is dropped, the permits that were taken are given back. On Redis, that needs a
    /// Tokio runtime.
    ///
    /// # Errors
    ///
    /// As for [`Limiter::check_cost`]. Then the permits that were taken are given back too.
    pub async fn check(self) -> Result<Decision, Error> {
        let (mut earlier, mut tightest) = (GiveBack(Vec::new()), None::<Decision>);
        for (limiter, key, costs) in self.0 {
            let since = Instant::now();
            let (held, decision) = cooperation::cooperate(async {
                let (held, state) = {
                    let revision = limiter.revision();
                    let state = CheckState::start(&limiter, &revision, &key, &costs);
                    (revision.hold(), state)
                };
                (held, state.finish(&limiter, &key).await)
            })
            .await;
            let decision = decision?;
            if decision.is_denied() {
                return Ok(decision);
            }
            let is_charged = decision.source().is_charged();
            if is_charged && !decision.would_be_denied() {
                let mut taken = Taken::new(&limiter, held, key, since);
                taken.decided(&decision);
                earlier.0.push((taken, costs));
            }
            // One that is not enforced restricts nobody.
            let order = |decision: &Decision| (!decision.is_enforced(), decision.remaining());
            if tightest.as_ref().is_none_or(|least| order(&decision) < order(least)) {
                tightest = Some(decision);
            }
        }
        earlier.0.clear();
        Ok(tightest.unwrap_or_else(|| Decision::allowed(0, 0)))
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.0.iter().for_each(|(taken, costs)| taken.settle(costs, &Costs::new(0)));
    }
}

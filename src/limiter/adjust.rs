//! Charges and credits: changes without a check.
//!
//! An adjustment is an operation of the queue. It is sent, merged and replayed like a check, in the order in
//! which it arrived, as a run with a sign.
//!
//! A debt is kept whole, because costs that are known afterwards would otherwise multiply the limit. It ends
//! where numbers stop being exact, or where `Quota::debt_up_to` says so: the call names the most permits in
//! use that a charge may leave, and the process, which replays the charge, knows what was forgiven. A window
//! forgets a debt, because it counts only what was taken in it. → `tests/it/debts.rs`
//!
//! A credit is the one operation besides a reset that a limiter asks for and that lowers a level, so it ends
//! the cached denial of its key in this process. `taken` says what may be given back.

use std::future::poll_fn;

use tokio::runtime::Handle;

use super::check::unknown_quota;
use super::failure_log::Effect;
use super::hold::not_held;
use super::taken::Taken;
use super::{FailureMode, HeldRevision, InvalidateOnDrop, Limiter, Revision};
use crate::charge::{Adjustment, Charge, Cost};
use crate::store::{Op, PendingVerdict};
use crate::verdict::Verdict;
use crate::{Costs, Error, ErrorKind, Key, cooperation};

impl Limiter {
    /// Takes permits without a check, whether or not they are available: for costs that are known only
    /// afterwards. The cost is a number, or [`Costs`] that differ per quota.
    ///
    /// A key from which more is taken than it has is in debt, and its checks are denied until the debt is repaid.
    /// A bucket repays all of it: after a charge of five times the limit per minute, a key is denied for about
    /// five minutes. So charges hold to the limit on average, however much is taken at once.
    /// [`Quota::debt_up_to`](crate::Quota::debt_up_to) limits the debt, and with it the wait. On a bucket without
    /// a queue, the permits for which [`acquire`](Self::acquire) waits are part of the debt.
    ///
    /// A window forgets a debt, because permits that are charged count for as long as those of checks: in a
    /// [fixed](crate::Quota::fixed_window) or [calendar](crate::Quota::calendar) window until it ends, in a
    /// [sliding window](crate::Quota::sliding_window) until they are older than the window, and in an
    /// [approximate one](crate::Quota::approximate_sliding_window) until the end of the next period. Use a bucket
    /// if a debt has to be repaid.
    ///
    /// A charge is sent in the same calls as the checks. It is not applied if the future is dropped
    /// before the charge was sent to the store. A layer can
    /// [charge responses](crate::RateLimitLayer::cost_by_response).
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("tokens").quota("tokens", Quota::per_minute(1_000));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    ///
    /// // An estimate first. The answer then had 300 tokens more.
    /// limiter.check_cost("user:7", 800).await?.ensure_allowed()?;
    /// limiter.charge("user:7", 300).await?;
    /// assert!(limiter.check("user:7").await?.is_denied());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store failed and the failure mode is not [`Local`](crate::FailureMode::Local), which
    /// charges the share of this process, as [`Open`](crate::FailureMode::Open) does if the store is
    /// [overloaded](crate::FailureMode#overload). The permits may have been charged. The error is
    /// [`UnknownQuota`](ErrorKind::UnknownQuota) if the cost names a quota that the policy does not have.
    pub async fn charge(&self, key: impl Into<Key>, cost: impl Into<Costs>) -> Result<(), Error> {
        let held = self.revision().hold();
        let revision = self.held(&held);
        let adjustment = revision.limits.debit(&revision.charge_without_hold(&cost.into())?);
        self.adjust(&held, key.into(), adjustment).await
    }

    /// Gives permits back, at most as many as are in use: a number to every quota, or [`Costs`] that
    /// differ per quota. In a sliding window, those that were taken last come back first.
    ///
    /// Give permits back only before the quota [resets](crate::Decision::reset_after). After that they are
    /// available again in any case, and a credit would add to what the quota allows. A layer takes care of this.
    ///
    /// As after a [`reset`](Self::reset), another process may deny the key for at most as long as
    /// [`cache_denials`](crate::LimiterBuilder::cache_denials) allows.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_day(5))?;
    /// limiter.check_cost("user:7", 5).await?.ensure_allowed()?;
    /// limiter.credit("user:7", 2).await?;
    /// assert_eq!(limiter.peek("user:7").await?.remaining(), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`charge`](Self::charge), and in [local mode](crate::FailureMode::Local) also if the server's
    /// reply is late: it may have given the permits back, and a second time would be too much.
    pub async fn credit(&self, key: impl Into<Key>, cost: impl Into<Costs>) -> Result<(), Error> {
        let held = self.revision().hold();
        let revision = self.held(&held);
        let adjustment = revision.limits.credit(&revision.charge_without_hold(&cost.into())?);
        self.adjust(&held, key.into(), adjustment).await
    }

    pub(super) fn settle(&self, taken: &Taken, charged: &Costs, actual: &Costs) {
        let revision = self.held(&taken.revision);
        let (charged, actual) = match (revision.charge(charged), revision.charge(actual)) {
            (Ok(charged), Ok(actual)) => (charged, actual),
            (Err(error), _) | (_, Err(error)) => return self.not_charged(revision, &error),
        };
        self.adjust_taken(taken, taken.adjustment(&charged, &actual));
    }

    /// Changes what a check has taken, without waiting for the store.
    pub(super) fn adjust_taken(&self, taken: &Taken, adjustment: Adjustment) {
        let revision = self.held(&taken.revision);
        let adjustment = revision.backend.adjust_holds(&taken.key, adjustment);
        let adjustment = revision.adjust_leases(&taken.key, adjustment);
        if adjustment.is_nothing() {
            return;
        }
        let is_credit = adjustment.is_credit();
        self.detach(taken.revision.clone(), taken.key.clone(), Op::Adjust(adjustment), is_credit);
    }

    /// Runs an operation without waiting for the store.
    fn detach(&self, held: HeldRevision, key: Key, op: Op, is_credit: bool) {
        let revision = self.held(&held);
        if let Some(result) = revision.backend.decide(&key, &op) {
            if let Ok(verdict) = result {
                self.charged(revision, &verdict);
            }
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return self.not_charged(revision, &no_runtime());
        };
        let limiter = self.clone();
        runtime.spawn(async move {
            if let Err(error) = limiter.apply(&held, key, op, is_credit).await {
                limiter.not_charged(limiter.held(&held), &error);
            }
        });
    }

    pub(super) async fn adjust(
        &self,
        held: &HeldRevision,
        key: Key,
        adjustment: Adjustment,
    ) -> Result<(), Error> {
        let adjustment = self.held(held).adjust_leases(&key, adjustment);
        if adjustment.is_nothing() {
            return Ok(());
        }
        let is_credit = adjustment.is_credit();
        self.apply(held, key, Op::Adjust(adjustment), is_credit).await.map(drop)
    }

    pub(super) async fn apply(
        &self,
        held: &HeldRevision,
        key: Key,
        op: Op,
        is_credit: bool,
    ) -> Result<Verdict, Error> {
        let _invalidate = is_credit.then(|| InvalidateOnDrop { limiter: self, key: key.clone() });
        let (revision, mut pending) = (self.held(held), PendingVerdict::default());
        let backend = &revision.backend;
        let applied = poll_fn(|cx| backend.poll_check(&key, &op, &mut pending, cx));
        match cooperation::cooperate(applied).await {
            Ok(verdict) => {
                self.charged(revision, &verdict);
                Ok(verdict)
            }
            Err(error) => {
                // Permits must not be given back twice. An error of the server says that they were not.
                let may_be_done = pending.was_sent() && error.kind() != ErrorKind::Server;
                let mode = self.inner.failure_mode.of(&error);
                let is_local = mode == FailureMode::Local && !(is_credit && may_be_done);
                let local = is_local.then(|| backend.decide_locally(&key, &op)).flatten();
                local.inspect(|verdict| self.charged(revision, verdict)).ok_or(error)
            }
        }
    }

    /// The store has charged or given back permits, unless some were forgiven.
    fn charged(&self, revision: &Revision, verdict: &Verdict) {
        let (policy, log) = (revision.policy().name(), &self.inner.charge_log);
        match verdict.forgiven() {
            0 => log.succeeded(policy),
            permits => {
                self.inner.settings.metrics.forgiven(permits);
                let text = "the debt of a key has reached its maximum (see `Quota::debt_up_to`)";
                log.failed(policy, Effect::Forgives, &Error::new(ErrorKind::Server, text));
            }
        }
    }

    pub(super) fn not_charged(&self, revision: &Revision, error: &Error) {
        self.inner.charge_log.failed(revision.policy().name(), Effect::NotCharged, error);
    }
}

pub(super) fn no_runtime() -> Error {
    Error::new(ErrorKind::Unavailable, "a charge on Redis needs a Tokio runtime")
}

impl Revision {
    /// Returns an error if the costs name a quota whose permits are held. Only a hold takes them and gives them back.
    fn charge_without_hold(&self, costs: &Costs) -> Result<Charge, Error> {
        let charge = self.charge(costs)?;
        let is_held = |permits: &u64| *permits > 0;
        match self.limits.held_of(|quota| charge.of(quota)).iter().any(is_held) {
            true => Err(not_held(self)),
            false => Ok(charge),
        }
    }

    fn charge(&self, costs: &Costs) -> Result<Charge, Error> {
        self.limits.charge(costs).map_err(|unknown| unknown_quota(self, &unknown))
    }
}

//! Permits that are held until they are given back, and costs that are settled at the end.
//!
//! A hold is a check that remembers what it has taken, so that it gives back no more than it may (`taken`). A check of a
//! policy with a [concurrent quota](crate::Quota::concurrent) has to be a hold, because permits that nobody gives back
//! would be lost.

use std::borrow::Cow;
use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::check::{CheckState, unknown_quota};
use super::held_checks::{HeldCheck, HeldChecks};
use super::taken::Taken;
use super::{Limiter, Revision, RevisionRef};
use crate::charge::Charge;
use crate::{Costs, Decision, Error, ErrorKind, Key, cooperation};

/// A guard for the permits that [`Limiter::hold`] has taken.
///
/// If it is dropped, the permits of [concurrent quotas](crate::Quota::concurrent) are given back, and those of other
/// quotas stay used. All methods take `&self`, so an `Arc` of a hold can be shared.
///
/// Giving concurrent permits back needs no runtime and does not wait for the store. On Redis, giving back permits of
/// other quotas needs a runtime: without one they stay used, and a warning is logged.
#[must_use = "a hold that is dropped ends at once, and gives its concurrent permits back"]
pub struct Hold {
    decision: Decision,
    limiter: Limiter,
    key: Key,
    state: Mutex<HoldState>,
}

/// The permits of a hold, until it ends.
enum HoldState {
    Active(HeldChecks),
    Ended,
}

impl Limiter {
    /// Takes permits, and keeps them until the hold is dropped, [settled](Hold::settle) or
    /// [released](Hold::release).
    ///
    /// A hold takes one permit of each [concurrent quota](crate::Quota::concurrent), whatever the cost, unless
    /// [`Costs`] name that quota. It takes the cost from all other quotas.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("exports")
    ///     .quota("in_flight", Quota::concurrent(1))
    ///     .quota("rate", Quota::per_minute(100));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    ///
    /// let hold = limiter.hold("user:7", 1).await?;
    /// assert!(hold.decision().is_allowed());
    /// assert!(limiter.hold("user:7", 1).await?.decision().is_denied());
    ///
    /// drop(hold);
    /// assert!(limiter.hold("user:7", 1).await?.decision().is_allowed());
    /// # Ok(()) }
    /// ```
    ///
    /// **A hold whose decision is a denial holds nothing**: see [`Hold::ensure_allowed`]. Keep the hold in a variable for
    /// as long as the work runs. `let _ =` drops it at once.
    ///
    /// A denial by a concurrent quota has no
    /// [`retry_after`](Decision::retry_after), because nobody knows when a permit is given back.
    ///
    /// A hold can be made of any policy. Without a concurrent quota, it is a check whose cost can be
    /// [settled](Hold::settle).
    ///
    /// If the future is dropped, nothing is held. In the failure mode [`Open`](crate::FailureMode::Open), a hold
    /// that is allowed while the store fails holds nothing, and is not counted.
    ///
    /// # Errors
    ///
    /// As for [`check_cost`](Self::check_cost).
    pub async fn hold(&self, key: impl Into<Key>, costs: impl Into<Costs>) -> Result<Hold, Error> {
        let (key, costs) = (key.into(), costs.into());
        let revision = self.revision();
        let charge = revision.limits.hold_charge(&costs);
        let taken = self.take(revision, &key, charge);
        let (decision, check) = cooperation::cooperate(taken).await?;
        Ok(Hold { decision, limiter: self.clone(), key, state: HoldState::of(check) })
    }

    /// Makes a check of a hold. Returns what it has taken, if it has taken permits.
    pub(super) fn take<'a>(
        &'a self,
        revision: RevisionRef<'_>,
        key: &'a Key,
        charge: Result<Charge, Cow<'static, str>>,
    ) -> impl Future<Output = Result<(Decision, Option<HeldCheck>), Error>> + use<'a> {
        let since = Instant::now();
        let state = CheckState::start_hold(self, &revision, key, charge.clone());
        // Without one, the check fails.
        let (revision, charge) = (revision.hold(), charge.unwrap_or(Charge::Same(0)));
        async move {
            let decision = state.finish(self, key).await?;
            let taken = Taken::new(self, revision, key.clone(), since);
            let check = HeldCheck::of(taken, charge, &decision);
            Ok((decision, check))
        }
    }
}

impl Hold {
    /// Returns the hold of a check that the caller has made. `taken` has not recorded the decision yet.
    pub(crate) fn of_check(taken: Taken, charge: Charge, decision: &Decision) -> Self {
        let (limiter, key) = (taken.limiter.clone(), taken.key.clone());
        let state = HoldState::of(HeldCheck::of(taken, charge, decision));
        Self { decision: decision.clone(), limiter, key, state }
    }

    /// Returns the decision of the check that made the hold. If it is a denial, nothing is held.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the hold if it was allowed, for `?`.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::concurrent(1))?;
    /// let _hold = limiter.hold("user:7", 1).await?.ensure_allowed()?;
    /// assert!(limiter.hold("user:7", 1).await?.ensure_allowed().is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Decision::ensure_allowed`].
    pub fn ensure_allowed(self) -> Result<Self, Error> {
        self.decision.clone().ensure_allowed()?;
        Ok(self)
    }

    /// Takes more permits, for example for the next slice of a stream. If the decision is a denial, the hold keeps what
    /// it has. If the hold itself was denied, this takes the cost, but no concurrent permit.
    ///
    /// The cost applies to all quotas except [concurrent](crate::Quota::concurrent) ones, of which only [`Costs`] that
    /// name them take more permits.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("tokens").quota("tokens", Quota::per_minute(1_000));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    ///
    /// let hold = limiter.hold("user:7", 256).await?;
    /// assert!(hold.extend(256).await?.is_allowed());
    /// // The stream had 300 tokens.
    /// hold.settle(300);
    /// assert_eq!(limiter.peek("user:7").await?.remaining(), 700);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Limiter::check_cost`]. If the hold has ended, even while this call waits, the error is
    /// [`NotHeld`](ErrorKind::NotHeld), and nothing is taken.
    pub async fn extend(&self, costs: impl Into<Costs>) -> Result<Decision, Error> {
        let costs = costs.into();
        if matches!(*self.state(), HoldState::Ended) {
            return Err(ended());
        }
        let revision = self.limiter.revision();
        let charge = revision.limits.charge(&costs);
        let taken = self.limiter.take(revision, &self.key, charge);
        let (decision, check) = cooperation::cooperate(taken).await?;
        let Some(check) = check else { return Ok(decision) };
        match &mut *self.state() {
            HoldState::Active(held) => held.push(check),
            HoldState::Ended => {
                HeldChecks::of(Some(check)).release().send();
                return Err(ended());
            }
        }
        Ok(decision)
    }

    /// Ends the hold, and replaces what it has taken by the actual cost: the difference is
    /// [charged](Limiter::charge), or given back as far as it has not refilled by now. The permits of concurrent
    /// quotas are all given back.
    ///
    /// If the hold has ended already, this does nothing. It does not wait for the store, and failures are only logged.
    /// If the costs name a quota that the policy does not have, that is logged, too, and what was taken stays used.
    pub fn settle(&self, actual: impl Into<Costs>) {
        let actual = actual.into();
        let Some(held) = self.end() else { return };
        let Some(latest) = held.latest() else { return };
        let revision = self.limiter.held(&latest.revision);
        let ending = match revision.limits.charge(&actual) {
            Ok(actual) => held.settle(&actual),
            Err(name) => {
                self.limiter.not_charged(revision, &unknown_quota(revision, &name));
                held.finish()
            }
        };
        ending.send();
    }

    /// Ends the hold, and gives back what it has taken, as far as it has not refilled by now.
    ///
    /// If the hold has ended already, this does nothing. It does not wait for the store, and failures are only logged.
    pub fn release(&self) {
        if let Some(held) = self.end() {
            held.release().send();
        }
    }

    /// Ends the hold. Permits of concurrent quotas are given back, and what it has taken of others stays used.
    pub(crate) fn finish(&self) {
        if let Some(held) = self.end() {
            held.finish().send();
        }
    }

    /// Ends the hold, and returns what it has taken, unless it has ended already.
    fn end(&self) -> Option<HeldChecks> {
        match mem::replace(&mut *self.state(), HoldState::Ended) {
            HoldState::Active(held) => Some(held),
            HoldState::Ended => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, HoldState> {
        // Nothing that panics leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HoldState {
    fn of(first: Option<HeldCheck>) -> Mutex<Self> {
        Mutex::new(Self::Active(HeldChecks::of(first)))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("decision", &self.decision).finish_non_exhaustive()
    }
}

impl CheckState {
    /// Starts a check of a hold. The charge is that of [`hold_charge`](crate::algorithm::Limits::hold_charge).
    pub(crate) fn start_hold(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        charge: Result<Charge, Cow<'static, str>>,
    ) -> Self {
        match (Self::blocked(limiter, revision, key), charge) {
            (Some(decision), _) => Self::Ready(Ok(decision)),
            (None, Ok(charge)) => Self::check(limiter, revision, key, charge),
            (None, Err(name)) => Self::invalid(limiter, revision, unknown_quota(revision, &name)),
        }
    }
}

/// The error of a check that nobody would give the permits back of.
pub(super) fn not_held(revision: &Revision) -> Error {
    let policy = revision.policy().name();
    let text = format!(
        "policy `{policy}` has a concurrent quota, whose permits have to be given back: use `Limiter::hold`, or a \
         layer, which holds them until the response has ended"
    );
    Error::new(ErrorKind::NotHeld, text)
}

fn ended() -> Error {
    Error::new(ErrorKind::NotHeld, "the hold has ended, so it cannot be extended")
}

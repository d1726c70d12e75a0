//! Permits that are held until they are given back, and costs that are settled at the end.
//!
//! A hold is a check that remembers what it has taken, with what `taken` needs to give back no more than is right. A
//! check of a policy with a [concurrent quota](crate::Quota::concurrent) has to be a hold, because permits that
//! nobody gives back would be lost.

use std::borrow::Cow;
use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::check::{CheckState, unknown_quota};
use super::taken::Taken;
use super::{Limiter, Revision, RevisionRef};
use crate::algorithm::QuotaId;
use crate::charge::{Adjustment, Charge, Cost};
use crate::{Costs, Decision, Error, ErrorKind, Key, Source, cooperation};

/// The most checks that a hold keeps apart. The permits of older ones count as those of the next, as far as they could
/// be given back when they became part of it, in whole permits.
const MAX_PARTS: usize = 32;

/// Permits that were taken for as long as something runs: see [`Limiter::hold`].
///
/// If it is dropped, the permits of [concurrent quotas](crate::Quota::concurrent) are given back, and those of other
/// quotas stay used. All methods take `&self`, so an `Arc` of a hold can be shared. Giving back does not wait for the
/// store, and needs no runtime. (On Redis, giving back permits of other quotas does: without one they stay used, and
/// the log says so.)
#[must_use = "a hold that is dropped gives its permits back"]
pub struct Hold {
    decision: Decision,
    limiter: Limiter,
    key: Key,
    parts: Mutex<Parts>,
}

/// What a hold has taken.
enum Parts {
    Held(HeldParts),
    Ended,
}

struct HeldParts {
    /// The latest is the last.
    parts: Vec<Part>,
    /// The permits of earlier checks that cannot be given back, of each quota.
    used: SmallVec<[(QuotaId, u64); 1]>,
}

/// A check that has taken permits.
struct Part {
    taken: Taken,
    charge: Charge,
}

impl Limiter {
    /// Takes permits, and keeps them until the hold is dropped, [settled](Hold::settle) or
    /// [released](Hold::release).
    ///
    /// Of a [concurrent quota](crate::Quota::concurrent), a hold takes one permit, whatever the cost, unless
    /// [`Costs`] name the quota. The cost is what it takes of all other quotas.
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
    /// A hold whose decision is a denial holds nothing. A denial by a concurrent quota has no
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
        let charge = |revision: &Revision| revision.limits.hold_charge(&costs);
        let (decision, part) = cooperation::cooperate(self.take(&key, charge)).await?;
        Ok(Hold { decision, limiter: self.clone(), key, parts: HeldParts::of(part) })
    }

    /// Makes a check of a hold. If it has taken permits, they are in the part that is returned.
    async fn take(
        &self,
        key: &Key,
        charge: impl FnOnce(&Revision) -> Result<Charge, Cow<'static, str>>,
    ) -> Result<(Decision, Option<Part>), Error> {
        let since = Instant::now();
        let (revision, charge, state) = {
            let revision = self.revision();
            let charge = charge(&revision);
            let state = CheckState::start_hold(self, &revision, key, charge.clone());
            // Without one, the check fails.
            (revision.hold(), charge.unwrap_or(Charge::Same(0)), state)
        };
        let decision = state.finish(self, key).await?;
        let taken = Taken::new(self, revision, key.clone(), since);
        let part = Part::of(taken, charge, &decision);
        Ok((decision, part))
    }
}

impl Part {
    /// Returns the part of a check, unless it has taken nothing.
    fn of(mut taken: Taken, charge: Charge, decision: &Decision) -> Option<Self> {
        if decision.would_be_denied() {
            return None;
        }
        match decision.source() {
            // Nothing was charged, but the actual cost may be.
            Source::FailureMode => Some(Self { taken, charge: Charge::Same(0) }),
            _ => {
                taken.decided(decision);
                let part = Self { taken, charge };
                part.taken.metrics().held(part.held());
                Some(part)
            }
        }
    }

    /// Returns what it has taken of a quota.
    fn charged(&self, id: QuotaId) -> u64 {
        let quota = self.taken.whole().ids().position(|other| other == id);
        quota.map_or(0, |quota| self.charge.of(quota))
    }

    /// Returns the number of permits that it holds, of all quotas together.
    fn held(&self) -> i64 {
        let held = self.taken.whole().held_of(|quota| self.charge.of(quota));
        held.into_iter().sum::<u64>().try_into().unwrap_or(i64::MAX)
    }
}

impl Hold {
    /// The hold of a check that the caller has made. `taken` has not been told the decision.
    pub(crate) fn of_check(taken: Taken, charge: Charge, decision: &Decision) -> Self {
        let (limiter, key) = (taken.limiter.clone(), taken.key.clone());
        let parts = HeldParts::of(Part::of(taken, charge, decision));
        Self { decision: decision.clone(), limiter, key, parts }
    }

    /// The decision. If it is a denial, nothing is held.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Takes more permits, for example for the next part of a stream. If the decision is a denial, the hold keeps what
    /// it has.
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
    /// As for [`Limiter::check_cost`]. If the hold has ended, also while the call waits, the error is
    /// [`NotHeld`](ErrorKind::NotHeld), and nothing is taken.
    pub async fn extend(&self, costs: impl Into<Costs>) -> Result<Decision, Error> {
        let costs = costs.into();
        if matches!(*self.parts(), Parts::Ended) {
            return Err(ended());
        }
        let charge = |revision: &Revision| revision.limits.charge(&costs);
        let (decision, part) = cooperation::cooperate(self.limiter.take(&self.key, charge)).await?;
        let Some(part) = part else { return Ok(decision) };
        match &mut *self.parts() {
            Parts::Held(held) => held.push(part),
            Parts::Ended => {
                replace(vec![part], |_, _| 0);
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
        let Some(last) = held.parts.last() else { return };
        let revision = self.limiter.held(&last.taken.revision);
        match revision.limits.charge(&actual) {
            Ok(actual) => held.settle(&actual),
            Err(name) => {
                self.limiter.not_charged(revision, &unknown_quota(revision, &name));
                replace(held.parts, |part, quota| part.charge.of(quota));
            }
        }
    }

    /// Ends the hold, and gives back what it has taken, as far as it has not refilled by now.
    ///
    /// If the hold has ended already, this does nothing. It does not wait for the store, and failures are only logged.
    pub fn release(&self) {
        if let Some(held) = self.end() {
            replace(held.parts, |_, _| 0);
        }
    }

    /// Ends the hold. Permits of concurrent quotas are given back, and what it has taken of others stays used.
    pub(crate) fn finish(&self) {
        if let Some(held) = self.end() {
            replace(held.parts, |part, quota| part.charge.of(quota));
        }
    }

    /// Returns what is held, once.
    fn end(&self) -> Option<HeldParts> {
        match mem::replace(&mut *self.parts(), Parts::Ended) {
            Parts::Held(held) => Some(held),
            Parts::Ended => None,
        }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // Nothing that panics leaves it half changed.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldParts {
    fn of(first: Option<Part>) -> Mutex<Parts> {
        let parts = first.into_iter().collect();
        Mutex::new(Parts::Held(Self { parts, used: SmallVec::new() }))
    }

    fn push(&mut self, part: Part) {
        self.parts.push(part);
        let is_alike = |pair: &[Part]| pair[0].taken.is_alike(&pair[1].taken);
        if self.parts.len() > MAX_PARTS
            && let Some(index) = self.parts.windows(2).position(is_alike)
        {
            let Part { taken, charge } = self.parts.remove(index);
            let returnable = taken.returnable(&charge);
            let next = &mut self.parts[index].charge;
            let sum =
                |(quota, returnable): (usize, &u64)| next.of(quota).saturating_add(*returnable);
            *next = Charge::Each(returnable.iter().enumerate().map(sum).collect());
            for (quota, (id, returnable)) in taken.whole().ids().zip(returnable).enumerate() {
                let used = charge.of(quota).saturating_sub(returnable);
                match self.used.iter_mut().find(|(other, _)| *other == id) {
                    Some((_, sum)) => *sum = sum.saturating_add(used),
                    None => self.used.push((id, used)),
                }
            }
        }
    }

    /// Replaces the sum of all charges by the actual cost, of the quotas of the latest check. What is given back is of
    /// the latest checks.
    fn settle(self, actual: &Charge) {
        let Self { parts, used } = self;
        let Some(last) = parts.last() else { return };
        let difference = |(quota, id): (usize, QuotaId)| {
            let used = used.iter().find(|(other, _)| *other == id).map_or(0, |(_, used)| *used);
            let charged = parts.iter().map(|part| part.charged(id)).fold(used, u64::saturating_add);
            let actual = actual.of(quota);
            (id, charged.saturating_sub(actual), actual.saturating_sub(charged))
        };
        let mut differences: Vec<_> =
            last.taken.whole().ids().enumerate().map(difference).collect();
        replace(parts, |part, quota| {
            let (id, charge) = (part.taken.whole().ids().nth(quota), part.charge.of(quota));
            let known = differences.iter_mut().find(|(other, ..)| Some(*other) == id);
            // An update has removed the quota.
            let Some((_, excess, missing)) = known else { return charge };
            let less = charge.min(*excess);
            *excess -= less;
            (charge - less).saturating_add(mem::take(missing))
        });
    }
}

/// Replaces each charge by the actual cost of each quota, the latest first. Permits of concurrent quotas are given
/// back.
fn replace(parts: Vec<Part>, mut actual: impl FnMut(&Part, usize) -> u64) {
    let mut sum = None::<(Taken, Adjustment)>;
    for part in parts.into_iter().rev() {
        part.taken.metrics().held(-part.held());
        let limits = part.taken.whole();
        let costs = (0..limits.len()).map(|quota| actual(&part, quota)).collect();
        let costs = limits.without_held(&Charge::Each(costs));
        let adjustment = part.taken.adjustment(&part.charge, &costs);
        sum = Some(match sum {
            Some((other, sum)) if other.is_alike(&part.taken) => (other, sum.plus(&adjustment)),
            Some((other, sum)) => {
                other.adjust(sum);
                (part.taken, adjustment)
            }
            None => (part.taken, adjustment),
        });
    }
    if let Some((taken, sum)) = sum {
        taken.adjust(sum);
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

//! Holds that belong to no process: each lasts for a time, unless it is extended, and whoever has its record can extend
//! or end it in any process.
//!
//! What the hold has taken is in the record, not in the store. So two calls with the same record do not know of each
//! other, and the caller sees to it that only one of them ends the hold.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::check::unknown_quota;
use super::held_checks::{Ending, HeldCheck, HeldChecks};
use super::holder::{Holder, Holding, unix_micros};
use super::taken::{Taken, micros};
use super::{HeldRevision, Limiter, Revision};
use crate::algorithm::{Limit, Limits, QuotaId};
use crate::charge::{Charge, Cost, Left};
use crate::store::{Op, PendingVerdict};
use crate::{Costs, Decision, Error, Key, Source, cooperation, random, timer};

/// A hold that belongs to no process. Dropping it changes nothing.
pub struct DetachedHold {
    number: u64,
    lifetime: Duration,
    limiter: Limiter,
    key: Key,
    revision: HeldRevision,
    held: HeldChecks,
}

/// A quota in a record.
struct RecordedQuota {
    id: QuotaId,
    /// What cannot be given back of earlier checks.
    used: u64,
    is_held: bool,
}

/// A check in a record: for each quota what it has taken, and the numbers of [`Left`] at the time of the record.
struct RecordedCheck<'a> {
    quotas: &'a [RecordedQuota],
    check: &'a [u64],
}

/// The pauses before the attempts to end a hold that nobody has.
const CLEAR_AFTER: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(15)];

/// The numbers of a record that precede those of its quotas.
const HEAD: usize = 5;

impl Limiter {
    /// Takes permits as [`hold`](Self::hold) does, and keeps them for `lifetime`. Returns no hold after a denial,
    /// including one that shadow mode lets through.
    ///
    /// If the future is dropped, the permits may be held until their lifetime has passed. If the store fails, it may have
    /// taken permits all the same, which are given back in the background.
    ///
    /// # Errors
    ///
    /// As for [`check_cost`](Self::check_cost).
    #[doc(hidden)]
    pub async fn hold_detached(
        &self,
        key: impl Into<Key>,
        costs: impl Into<Costs>,
        lifetime: Duration,
    ) -> Result<(Decision, Option<DetachedHold>), Error> {
        let (key, costs) = (key.into(), costs.into());
        let number = random::id();
        let revision = self.revision_of_holder(number, lifetime, Holding::nothing);
        let mut hold = DetachedHold {
            number,
            lifetime,
            limiter: self.clone(),
            key,
            revision,
            held: HeldChecks::of(None),
        };
        let result = hold.take(|limits| limits.hold_charge(&costs)).await;
        if hold.held.latest().is_some() {
            return Ok((result?, Some(hold)));
        }
        let has_failed =
            |decision: &Decision| matches!(decision.source(), Source::Local | Source::FailureMode);
        if result.as_ref().map_or(true, has_failed) {
            hold.clear();
        }
        Ok((result?, None))
    }

    /// Continues a hold of a key in any process, from a [record](DetachedHold::record). A later update of the policy
    /// applies to it as to new checks. Returns `None` if the record is malformed.
    #[doc(hidden)]
    pub fn attach(&self, key: impl Into<Key>, record: &[u64]) -> Option<DetachedHold> {
        let (&[number, lifetime, at, latest, count], rest) = record.split_first_chunk::<HEAD>()?;
        let (key, count) = (key.into(), usize::try_from(count).ok()?);
        let (quotas, rest) = rest.split_at_checked(count.checked_mul(3)?)?;
        let (quotas, _) = quotas.as_chunks::<3>();
        let quotas: Vec<_> = quotas.iter().map(RecordedQuota::read).collect::<Option<_>>()?;
        let checks: Vec<_> = match count {
            0 => Vec::new(),
            _ => rest
                .chunks(count * 4)
                .map(|check| RecordedCheck { quotas: &quotas, check })
                .collect(),
        };
        let holding = |limits: &Limits| {
            let mut holding = Holding { latest, ..Holding::nothing(limits) };
            for check in &checks {
                let charge = check.charge(limits);
                let held = limits.held_of(|quota| charge.of(quota));
                for (sum, permits) in holding.permits.iter_mut().zip(held) {
                    *sum = sum.saturating_add(permits);
                }
            }
            holding
        };
        let lifetime = Duration::from_micros(lifetime);
        let revision = self.revision_of_holder(number, lifetime, holding);
        // If the clock of this process is behind, a little more is given back, and never more than was taken.
        let (elapsed, now) = (unix_micros().saturating_sub(at), Instant::now());
        let check = |check: &RecordedCheck<'_>| {
            let mut taken = Taken::new(self, revision.clone(), key.clone(), now);
            let charge = check.charge(taken.whole());
            let left = taken.whole().iter().map(|(id, limit)| check.left(id, limit).after(elapsed));
            let left = left.collect();
            taken.attach(left);
            HeldCheck { taken, charge }
        };
        let checks = checks.iter().map(check).collect();
        let used = quotas.iter().map(|quota| (quota.id, quota.used)).collect();
        let held = HeldChecks { checks, used };
        Some(DetachedHold { number, lifetime, limiter: self.clone(), key, revision, held })
    }

    fn revision_of_holder(
        &self,
        number: u64,
        lifetime: Duration,
        holding: impl FnOnce(&Limits) -> Holding,
    ) -> HeldRevision {
        let revision = self.revision();
        let holder = Holder::new(number, micros(lifetime), holding(&revision.limits));
        revision.held_by(holder).map_or_else(|| revision.hold(), HeldRevision::from)
    }
}

impl DetachedHold {
    /// Returns a number that no other hold has, below 2^53.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of permits of concurrent quotas that it holds.
    pub fn permits(&self) -> u64 {
        self.held.checks.iter().flat_map(HeldCheck::held).sum()
    }

    /// Returns the numbers that continue the hold in another process: all of it but its policy and its key.
    pub fn record(&self) -> Vec<u64> {
        let revision = self.limiter.held(&self.revision);
        let latest = revision.holder.as_ref().map_or(0, Holder::latest);
        let count = revision.limits.len() as u64;
        let mut record = vec![self.number, micros(self.lifetime), unix_micros(), latest, count];
        for (id, limit) in revision.limits.iter() {
            let used = self.held.used.iter().find(|(other, _)| *other == id);
            let used = used.map_or(0, |(_, used)| *used);
            record.extend([id.to_u32().into(), used, limit.is_held().into()]);
        }
        for HeldCheck { taken, charge } in &self.held.checks {
            for quota in 0..revision.limits.len() {
                // What a share has left is not known to the next process, so nothing of it can be given back.
                let left = match taken.permits.is_by_share() {
                    true => Left::default(),
                    false => taken.permits.left(quota),
                };
                record.extend([charge.of(quota), left.used, left.reset_after, left.counts_for]);
            }
        }
        record
    }

    /// Takes more permits, as [`Hold::extend`](crate::Hold::extend) does, and renews those of concurrent quotas: they last
    /// for their lifetime from now on. A denial renews them, too.
    ///
    /// # Errors
    ///
    /// As for [`Limiter::check_cost`].
    pub async fn extend(&mut self, costs: impl Into<Costs>) -> Result<Decision, Error> {
        let costs = costs.into();
        let decision = self.take(|limits| limits.charge(&costs)).await?;
        if matches!(decision.source(), Source::Cached | Source::Quota | Source::Blocked) {
            // The store was not asked.
            self.report(Holder::report).await?;
        }
        Ok(decision)
    }

    /// Ends the hold, and replaces what it has taken by the actual cost, as [`Hold::settle`](crate::Hold::settle) does.
    ///
    /// # Errors
    ///
    /// As for [`Limiter::charge`]. If a cost names an unknown quota, nothing is done.
    pub async fn settle(mut self, actual: impl Into<Costs>) -> Result<(), Error> {
        let revision = self.limiter.held(&self.revision);
        let actual = revision.limits.charge(&actual.into());
        let actual = actual.map_err(|unknown| unknown_quota(revision, &unknown))?;
        let held = self.take_checks();
        self.end(held.settle(&actual)).await
    }

    /// Ends the hold, and gives back what it has taken, as far as it has not refilled by now.
    ///
    /// # Errors
    ///
    /// As for [`Limiter::credit`].
    pub async fn release(mut self) -> Result<(), Error> {
        let held = self.take_checks();
        self.end(held.release()).await
    }

    /// Ends the hold. Permits of concurrent quotas are given back, and what it has taken of others stays used. This may be
    /// repeated.
    ///
    /// # Errors
    ///
    /// As for [`Limiter::credit`].
    pub async fn finish(mut self) -> Result<(), Error> {
        let held = self.take_checks();
        self.end(held.finish()).await
    }

    /// Ends the hold again, after an extension that came too late, and gives back what that has taken. `extension` is its
    /// decision.
    ///
    /// # Errors
    ///
    /// As for [`Limiter::credit`].
    pub async fn retract(mut self, extension: &Decision) -> Result<(), Error> {
        // A denial has added nothing.
        let taken = self.take_checks().checks.pop().filter(|_| !extension.would_be_denied());
        self.end(HeldChecks::of(taken).release()).await
    }

    fn take_checks(&mut self) -> HeldChecks {
        mem::replace(&mut self.held, HeldChecks::of(None))
    }

    /// Makes the changes at the end.
    async fn end(self, ending: Ending) -> Result<(), Error> {
        let mut result = self.report(Holder::end).await;
        for (taken, adjustment) in ending.into_changes() {
            let (_, adjustment) = taken.whole().split_held(&adjustment);
            let (revision, key) = (&taken.revision, taken.key.clone());
            // If one of them fails, the others may succeed.
            result = result.and(self.limiter.adjust(revision, key, adjustment).await);
        }
        result
    }

    /// Ends the hold in the store, without waiting for it: a call whose reply came too late may have taken permits.
    fn clear(self) {
        if self.limiter.held(&self.revision).holder.is_none() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            for pause in CLEAR_AFTER {
                timer::sleep(pause).await;
                if self.report_to_store().await.is_ok() {
                    break;
                }
            }
        });
    }

    /// Reports to the store that nothing is held, whatever the failure mode.
    async fn report_to_store(&self) -> Result<(), Error> {
        let Revision { backend, holder: Some(holder), .. } = self.limiter.held(&self.revision)
        else {
            return Ok(());
        };
        let (op, mut pending) = (holder.end(), PendingVerdict::default());
        poll_fn(|cx| backend.poll_check(&self.key, &op, &mut pending, cx)).await.map(drop)
    }

    /// Reports what is held to the store, unless the policy holds nothing. A report may be repeated.
    async fn report(&self, report: impl FnOnce(&Holder) -> Op) -> Result<(), Error> {
        let Self { limiter, key, revision, .. } = self;
        match &limiter.held(revision).holder {
            None => Ok(()),
            Some(holder) => {
                let report = report(holder);
                limiter.apply(revision, key.clone(), report, false).await.map(drop)
            }
        }
    }

    async fn take(
        &mut self,
        charge: impl FnOnce(&Limits) -> Result<Charge, Cow<'static, str>>,
    ) -> Result<Decision, Error> {
        let Self { limiter, key, revision, held, .. } = self;
        let current = limiter.revision_of(revision);
        let charge = charge(&current.limits);
        let taken = limiter.take(current, key, charge);
        let (decision, check) = cooperation::cooperate(taken).await?;
        if let Some(check) = check {
            if let Some(holder) = check.taken.holder() {
                holder.count(&check.held());
            }
            held.push(check);
        }
        Ok(decision)
    }
}

impl RecordedQuota {
    fn read(&[id, used, is_held]: &[u64; 3]) -> Option<Self> {
        Some(Self { id: QuotaId::from_u32(id.try_into().ok()?), used, is_held: is_held != 0 })
    }
}

impl RecordedCheck<'_> {
    /// Returns what it has taken, in the order of these limits. What it has taken of other quotas stays taken.
    fn charge(&self, limits: &Limits) -> Charge {
        Charge::Each(limits.iter().map(|(id, limit)| self.numbers(id, limit)[0]).collect())
    }

    fn left(&self, id: QuotaId, limit: &Limit) -> Left {
        let [_, used, reset_after, counts_for] = self.numbers(id, limit);
        Left { used, reset_after, counts_for }
    }

    /// Returns nothing for a quota that the record does not have, or that was held and is a rate now, or vice versa.
    fn numbers(&self, id: QuotaId, limit: &Limit) -> [u64; 4] {
        let is_same = |quota: &RecordedQuota| quota.id == id && quota.is_held == limit.is_held();
        let index = self.quotas.iter().position(is_same);
        let numbers = index.and_then(|index| self.check.get(index * 4..)?.first_chunk());
        numbers.copied().unwrap_or_default()
    }
}

impl fmt::Debug for DetachedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedHold").field("number", &self.number).finish_non_exhaustive()
    }
}

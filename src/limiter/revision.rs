//! Revisions of a policy: each is one version of its numbers (such as rates and bursts), with their handle on the
//! store.
//!
//! A running policy is replaced, not changed. `Limiter::update` makes a new revision and swaps it in with
//! `arc-swap`. A check reads the revision without a lock, starts with all of the old numbers or all of the
//! new ones, and is decided and reported by these. The limiter owns its first revision, so until the first
//! update a check needs no reference to a revision and reads no atomic pointer. To read one made cached
//! denials a tenth slower when the limiter was called directly.
//!
//! When a window of a calendar has ended, the next check starts a new revision, as an update would, with the
//! same denials: see `algorithm/fixed_window.rs`.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use super::blocked::BlockedKeys;
use super::holder::Holder;
use crate::algorithm::Limits;
use crate::charge::{Adjustment, Charge, Cost};
use crate::metrics::PolicyMetrics;
use crate::store::lease::{KeyLease, LeaseDecision, LeaseTerms};
use crate::store::{Backend, Op, PolicySpec, RevisionStates, Store};
use crate::verdict::{QuotaInfo, Verdict};
use crate::{ConfigError, Key, Policy, Source};

/// A policy with its numbers as they are until the next update.
pub(crate) struct Revision {
    pub(super) policy: Arc<Policy>,
    pub(super) limits: Limits,
    /// The time in which the windows are those near the present, if they are of a calendar.
    valid_during: Option<Range<u64>>,
    pub(super) backend: Arc<dyn Backend>,
    /// The states of keys that the store has reported under this revision.
    pub(super) states: Arc<RevisionStates>,
    /// The longest time for which a denial is cached, in nanoseconds. `None` if none is.
    denial_ttl: Option<u64>,
    /// The terms of leases, if the store has any.
    leases: Option<Arc<LeaseTerms>>,
    /// The holder of the permits, if this is not the process.
    pub(super) holder: Option<Holder>,
    precomputed: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The settings that all revisions of a limiter have in common.
pub(super) struct Settings {
    pub(super) store: Arc<dyn Store>,
    pub(super) timeout: Duration,
    pub(super) cache_denials: Duration,
    /// The longest time for which leased permits are kept. Zero for no leases.
    pub(super) lease: Duration,
    pub(super) blocked: BlockedKeys,
    pub(super) metrics: PolicyMetrics,
}

impl Settings {
    /// Returns the limits that the store enforces, and the terms of leases if there are any.
    fn leased(&self, whole: Limits) -> Result<(Limits, Option<Arc<LeaseTerms>>), ConfigError> {
        let micros =
            |time: Duration| u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        if self.lease.is_zero() {
            return Ok((whole, None));
        }
        let lease = micros(self.lease);
        // Also for a store without leases: its place may be taken by another.
        let limits = whole.leased(lease)?;
        if !self.store.has_leases() {
            return Ok((whole, None));
        }
        let (longest, delay) =
            (lease.saturating_mul(1_000), micros(self.timeout).saturating_mul(1_000));
        Ok((limits, Some(Arc::new(LeaseTerms { longest, delay, metrics: self.metrics.clone() }))))
    }
}

impl Revision {
    pub(super) fn new(
        settings: &Settings,
        policy: &Policy,
        states: Arc<RevisionStates>,
    ) -> Result<Self, ConfigError> {
        let Settings { store, timeout, cache_denials, metrics, .. } = settings;
        policy.validate()?;
        let (name, whole) = (policy.name().into(), Limits::new(policy, store.clock())?);
        let (limits, leases) = settings.leased(whole)?;
        let spec = PolicySpec {
            name,
            limits: limits.clone(),
            timeout: *timeout,
            states: states.clone(),
            metrics: metrics.clone(),
            leases: leases.clone(),
        };
        let backend = store.open(spec)?;
        let is_cached = backend.is_remote() && !cache_denials.is_zero();
        let denial_ttl =
            is_cached.then(|| u64::try_from(cache_denials.as_nanos()).unwrap_or(u64::MAX));
        denial_ttl.iter().for_each(|ttl| states.cache_denials_for(*ttl));
        Ok(Self {
            policy: Arc::new(policy.clone()),
            valid_during: limits.valid_during(),
            limits,
            backend,
            states,
            denial_ttl,
            leases,
            holder: None,
            precomputed: OnceLock::new(),
        })
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the revision with the numbers of the present time of the store, if these are not the present
    /// ones: a window of a calendar has ended.
    #[inline]
    pub(super) fn renewed(&self, settings: &Settings) -> Option<Self> {
        if self.is_outdated(&*settings.store) { self.renew(settings) } else { None }
    }

    #[cold]
    fn renew(&self, settings: &Settings) -> Option<Self> {
        // It was valid before.
        let renewed = Self::new(settings, &self.policy, self.states.clone()).ok()?;
        (renewed.valid_during != self.valid_during).then_some(renewed)
    }

    /// Returns true if a window of a calendar has ended, or the clock was set back.
    #[inline]
    pub(super) fn is_outdated(&self, store: &dyn Store) -> bool {
        self.valid_during.as_ref().is_some_and(|during| !during.contains(&store.clock()))
    }

    /// Returns the revision for a holder that is not the process. A policy that holds nothing has no holders.
    pub(super) fn held_by(&self, holder: Holder) -> Option<Self> {
        let (number, lifetime) = (holder.number(), holder.lifetime());
        self.has_holds().then(|| Self {
            policy: self.policy.clone(),
            valid_during: self.valid_during.clone(),
            limits: self.limits.held_by(number, lifetime),
            backend: self.backend.held_by(number, lifetime),
            states: self.states.clone(),
            denial_ttl: self.denial_ttl,
            leases: None,
            holder: Some(holder),
            precomputed: OnceLock::new(),
        })
    }

    /// Returns true if checks of a layer may have to wait.
    pub(crate) fn has_queue(&self) -> bool {
        self.limits.has_queue()
    }

    /// Returns true if a check has to be a hold.
    #[inline]
    pub(crate) fn has_holds(&self) -> bool {
        self.limits.has_holds()
    }

    pub(crate) fn quotas(&self) -> &[QuotaInfo] {
        self.limits.infos()
    }

    /// The quota that restricts the client most.
    #[inline(always)]
    pub(super) fn tightest(&self, verdict: &Verdict) -> &QuotaInfo {
        &self.quotas()[verdict.several.as_ref().map_or(0, |several| several.tightest)]
    }

    /// The verdict on a check that the store need not be asked for.
    #[inline(always)]
    pub(super) fn known(&self, key: &Key, cost: &impl Cost) -> Option<(Verdict, Source)> {
        if let Some(verdict) = self.limits.exceeding_capacity(cost) {
            return Some((verdict, Source::Quota));
        }
        if self.leases.is_some() {
            return self.known_with_leases(key, cost);
        }
        let verdict = self.states.denial(key, cost, &self.limits, self.denial_ttl?)?;
        Some((verdict, Source::Cached))
    }

    #[inline]
    fn known_with_leases(&self, key: &Key, cost: &impl Cost) -> Option<(Verdict, Source)> {
        if self.limits.has_holds() {
            let verdict = self.backend.take_kept(key, cost.of(0))?;
            return Some((verdict, Source::Lease));
        }
        let (states, denial_ttl) = (&self.states, self.denial_ttl.unwrap_or(0));
        let now = states.now();
        let lease = states.lease(key)?;
        match lease.check(cost, &self.limits, denial_ttl, now) {
            LeaseDecision::Leased { verdict, renews } => {
                if renews {
                    self.renew_lease(key, &lease, now);
                }
                Some((verdict, Source::Lease))
            }
            LeaseDecision::Denied(verdict) => Some((verdict, Source::Cached)),
            LeaseDecision::Unknown => None,
        }
    }

    /// Asks for the next lease of a key, ahead of need.
    #[cold]
    fn renew_lease(&self, key: &Key, lease: &KeyLease, now: u64) {
        // It would hold up the checks that wait. A later check of the key asks again.
        if self.backend.is_busy(key) {
            return;
        }
        let instances = || self.backend.instances();
        if let Ok(op) = lease.request(None, &self.limits, instances, now) {
            self.backend.send(key, &Op::Lease(op.into()));
        }
    }

    /// Returns the operation of a check that has to go to the store. It asks for a lease, too, if there may be one.
    #[inline(always)]
    pub(super) fn acquire(&self, key: &Key, charge: Charge) -> Op {
        match self.leases {
            None => Op::Acquire(charge),
            // A hold asks for nothing in advance.
            Some(_) if self.limits.has_holds() => Op::Acquire(charge),
            Some(_) => self.acquire_with_lease(key, charge),
        }
    }

    fn acquire_with_lease(&self, key: &Key, charge: Charge) -> Op {
        let Some(lease) = self.states.lease(key) else { return Op::Acquire(charge) };
        let instances = || self.backend.instances();
        match lease.request(Some(charge), &self.limits, instances, self.states.now()) {
            Ok(op) => Op::Lease(op.into()),
            // What was passed comes back.
            Err(charge) => Op::Acquire(charge.unwrap_or(Charge::Same(0))),
        }
    }

    /// Takes a charge from the leases of a key, and gives a credit to them. Returns what is left for the store.
    pub(super) fn adjust_leases(&self, key: &Key, adjustment: Adjustment) -> Adjustment {
        let lease = self.leases.as_ref().and_then(|_| self.states.lease(key));
        match lease {
            None => adjustment,
            Some(lease) => lease.adjust(&adjustment, &self.limits, self.states.now()),
        }
    }

    /// Data of the layer, computed once per revision. The limiter knows nothing about it. Only one
    /// type can be kept; `None` for any other.
    #[inline]
    pub(crate) fn precomputed<T: Any + Send + Sync>(
        &self,
        compute: impl FnOnce(&[QuotaInfo]) -> T,
    ) -> Option<&T> {
        self.precomputed.get_or_init(|| Box::new(compute(self.quotas()))).downcast_ref()
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revision").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The current revision of a limiter. Most limiters only ever have the first, which a check reads
/// without the bookkeeping of a swap.
pub(super) struct Revisions {
    first: Revision,
    latest: OnceLock<ArcSwap<Revision>>,
}

/// The revision that a check started with, for as long as it is pending. `None` is the first one,
/// which the limiter keeps, so that a check need not count a reference to it.
#[derive(Clone)]
pub(crate) struct HeldRevision(Option<Arc<Revision>>);

pub(crate) enum RevisionRef<'a> {
    First(&'a Revision),
    Latest(Guard<Arc<Revision>>),
    /// A revision with other numbers than the policy.
    Other(&'a Arc<Revision>),
    RenewedOther(Arc<Revision>),
}

impl Revisions {
    pub(super) fn new(first: Revision) -> Self {
        Self { first, latest: OnceLock::new() }
    }

    #[inline]
    pub(super) fn current(&self) -> RevisionRef<'_> {
        match self.latest.get() {
            None => RevisionRef::First(&self.first),
            Some(latest) => RevisionRef::Latest(latest.load()),
        }
    }

    #[inline]
    pub(super) fn held<'a>(&'a self, held: &'a HeldRevision) -> &'a Revision {
        held.0.as_deref().unwrap_or(&self.first)
    }

    pub(super) fn reference<'a>(&'a self, held: &'a HeldRevision) -> RevisionRef<'a> {
        match &held.0 {
            None => RevisionRef::First(&self.first),
            Some(revision) => RevisionRef::Other(revision),
        }
    }

    /// Unless another has replaced it since.
    pub(super) fn replace_if(&self, current: RevisionRef<'_>, revision: Revision) {
        match (current, self.latest.get()) {
            // `set` fails if there is a later one by now.
            (RevisionRef::First(_), _) => {
                let _ = self.latest.set(ArcSwap::from_pointee(revision));
            }
            (RevisionRef::Latest(current), Some(latest)) => {
                latest.compare_and_swap(&*current, Arc::new(revision));
            }
            _ => {}
        }
    }

    pub(super) fn replace(&self, revision: Revision) {
        let revision = Arc::new(revision);
        self.latest.get_or_init(|| ArcSwap::new(revision.clone())).store(revision);
    }
}

impl HeldRevision {
    /// Returns true if both are the same revision of a limiter.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl From<Revision> for HeldRevision {
    fn from(revision: Revision) -> Self {
        Self(Some(Arc::new(revision)))
    }
}

impl RevisionRef<'_> {
    #[inline]
    pub(crate) fn hold(&self) -> HeldRevision {
        HeldRevision(match self {
            Self::First(_) => None,
            Self::Latest(revision) => Some(Arc::clone(revision)),
            Self::Other(revision) => Some(Arc::clone(revision)),
            Self::RenewedOther(revision) => Some(Arc::clone(revision)),
        })
    }
}

impl Deref for RevisionRef<'_> {
    type Target = Revision;

    #[inline]
    fn deref(&self) -> &Revision {
        match self {
            Self::First(revision) => revision,
            Self::Latest(revision) => revision,
            Self::Other(revision) => revision,
            Self::RenewedOther(revision) => revision,
        }
    }
}

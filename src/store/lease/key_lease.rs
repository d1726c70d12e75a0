//! The leases of one key, and everything else that the process knows about the key.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::{SmallVec, smallvec};

use super::demand::{KeyDemand, Rates};
use super::leases::LeaseEnd;
use super::part::Delays;
use super::request::{self, MARGIN};
use super::{LeaseOp, LeaseTerms, Leases, Part, Returned};
use crate::Key;
use crate::algorithm::{Limits, Permits};
use crate::charge::{Adjustment, Charge, Cost, Left, TimedCredit};
use crate::store::{CachedState, KeyState, SentAt};
use crate::verdict::Verdict;

/// A key under a revision that has leases. Times are in nanoseconds on the clock of the process.
pub(crate) struct KeyLease {
    key: Key,
    terms: Arc<LeaseTerms>,
    leases: Arc<Leases>,
    state: Mutex<LeaseState>,
}

struct LeaseState {
    /// The latest form of the policy in the store, under which permits are given back. It changes with each window of
    /// a calendar.
    owner: Arc<dyn Any + Send + Sync>,
    /// The last known state of the key. In it, the permits of the leases count as used.
    known: Option<CachedState>,
    /// True if a check was denied in that state.
    is_denial: bool,
    /// The permits that were free at the last reply.
    free: Permits,
    demand: KeyDemand,
    /// The checks that leases have allowed since the last reply.
    allowed: usize,
    /// The leases, sorted by their ends.
    parts: Vec<Part>,
    /// The duration of the last call.
    round_trip: u64,
    /// The time at which the request in flight was made.
    requested: Option<u64>,
    /// The permits that the request in flight gives back.
    returning: u64,
    /// The time from which a check asks for the next lease.
    renew_at: u64,
    /// The unused permits of each quota below which a check asks for the next lease.
    marks: Permits,
    /// The index of the key in `leases`, if it has leases.
    end: Option<LeaseEnd>,
    /// The time of the last reset of the key. Leases of calls that were sent until then are void.
    void_until: u64,
}

/// The result of a check without a call.
#[derive(Debug)]
pub(crate) enum LeaseDecision {
    /// A lease allows the check. If `renews` is true, the caller should ask for the next lease.
    Leased {
        verdict: Verdict,
        renews: bool,
    },
    /// The store would deny the check.
    Denied(Verdict),
    Unknown,
}

/// The state in which a call has left a key.
#[derive(Debug)]
pub(crate) struct LeaseReport {
    pub(crate) known: CachedState,
    pub(crate) is_denial: bool,
    pub(crate) free: Permits,
    /// The permits that were leased, if the call asked for a lease.
    pub(crate) leased: Option<Leased>,
}

/// The permits that a reply has leased.
#[derive(Debug)]
pub(crate) struct Leased {
    pub(crate) permits: Permits,
    /// The permits of each quota that were in use afterwards.
    pub(crate) after: SmallVec<[Left; 1]>,
    /// The time for which they may be kept, in microseconds.
    pub(crate) keeps: u64,
    /// True if the permits that the call gave back arrived too late.
    pub(crate) is_late: bool,
}

impl Leased {
    /// Returns the permits that two requests in one call have leased.
    pub(crate) fn and(mut self, later: Self) -> Self {
        for (permits, more) in self.permits.iter_mut().zip(&later.permits) {
            *permits = permits.saturating_add(*more);
        }
        let is_late = self.is_late || later.is_late;
        Self { permits: self.permits, is_late, ..later }
    }
}

impl KeyLease {
    /// Creates the entry of a key about which nothing is known yet.
    pub(crate) fn new(
        leases: &Arc<Leases>,
        key: &Key,
        terms: &Arc<LeaseTerms>,
        owner: Arc<dyn Any + Send + Sync>,
        quotas: usize,
        now: u64,
    ) -> Self {
        let state = LeaseState {
            owner,
            known: None,
            is_denial: false,
            free: smallvec![0; quotas],
            demand: KeyDemand::new(quotas, now),
            allowed: 0,
            parts: Vec::new(),
            round_trip: 0,
            requested: None,
            returning: 0,
            renew_at: u64::MAX,
            marks: smallvec![0; quotas],
            end: None,
            void_until: 0,
        };
        let (key, terms, leases) = (key.clone(), terms.clone(), leases.clone());
        Self { key, terms, leases, state: Mutex::new(state) }
    }

    /// Decides a check if that needs no call. A cached denial is valid for `denial_ttl` after its call was sent.
    #[inline]
    pub(crate) fn check(
        &self,
        cost: &impl Cost,
        limits: &Limits,
        denial_ttl: u64,
        now: u64,
    ) -> LeaseDecision {
        let mut state = self.state();
        state.demand.add(cost, self.terms.longest, now);
        if state.covers(cost, limits.len(), now)
            && let Some(known) = &state.known
        {
            let (known, time) = (known.state.clone(), *known.server_times(now).start());
            take(&mut state.parts, |quota| cost.of(quota), now);
            state.allowed += 1;
            let unused: Permits =
                (0..limits.len()).map(|quota| unused(&state.parts, quota, now)).collect();
            let is_low = unused.iter().zip(&state.marks).any(|(unused, mark)| unused < mark);
            let renews = state.requested.is_none() && (now >= state.renew_at || is_low);
            // Other checks of the key do not have to wait for the arithmetic.
            drop(state);
            let unused = |quota: usize| unused.get(quota).copied().unwrap_or(0);
            let standing = KeyState::standing(Some(&known), limits, time);
            let verdict = limits.verdict_without(standing, unused, cost);
            return LeaseDecision::Leased { verdict, renews };
        }
        if state.is_denial
            && let Some(known) = &state.known
            && let Some(verdict) = known.denial(cost, limits, now, denial_ttl)
        {
            return LeaseDecision::Denied(verdict);
        }
        LeaseDecision::Unknown
    }

    /// Returns the operation that asks for a lease, with a check that has to go to the store anyway. Returns the check
    /// as an error if there is nothing to ask for, or if a request is in flight.
    ///
    /// `instances` is the number of processes that may have leases of the key.
    pub(crate) fn request(
        &self,
        charge: Option<Charge>,
        limits: &Limits,
        instances: impl FnOnce() -> u64,
        now: u64,
    ) -> Result<LeaseOp, Option<Charge>> {
        let mut state = self.state();
        let state = &mut *state;
        let is_in_flight = |requested: u64| now.saturating_sub(requested) <= self.terms.delay;
        if self.leases.is_closed() || state.requested.is_some_and(is_in_flight) {
            return Err(charge);
        }
        let expected = state.demand.expected();
        let ended = state.parts.extract_if(.., |part| !part.is_live(now));
        let mut rest: Vec<Part> =
            ended.inspect(|part| self.terms.metrics.lease_used(part.used())).collect();
        let kept = state.kept(&expected, self.terms.longest);
        let size = state.size(&expected, &kept, self.terms.longest, limits, instances());
        match size {
            // What is not kept goes back while all of it may.
            Some(_) => {
                rest.extend(state.parts.iter_mut().zip(&kept).filter_map(Part::split_surplus))
            }
            // The checks until the next reply would fail to get a lease, too.
            None => {
                state.renew_at = u64::MAX;
                state.marks.iter_mut().for_each(|mark| *mark = 0);
            }
        }
        // If the last request got no reply, the permits that it gave back may not have arrived.
        self.terms.metrics.lease_lost(std::mem::take(&mut state.returning));
        let credit = self.credit(state, &rest, limits, now);
        if size.is_none() && credit.is_none() {
            return Err(charge);
        }
        state.requested = Some(now);
        let (checks, costs) = size.unwrap_or((0, Charge::Same(0)));
        Ok(LeaseOp { credit, charge, checks, costs, guard: self.leases.guard() })
    }

    /// Returns a credit that gives back the unused permits of these leases.
    fn credit(
        &self,
        state: &mut LeaseState,
        rest: &[Part],
        limits: &Limits,
        now: u64,
    ) -> Option<TimedCredit> {
        let delays = self.delays(state);
        let credits = rest.iter().filter_map(|part| {
            let credit = part.credit(limits, now, delays);
            match credit {
                Some(_) => state.returning += part.unused(),
                // All permits have refilled.
                None => self.terms.metrics.lease_returned(part.unused()),
            }
            credit
        });
        credits.reduce(|a, b| TimedCredit {
            credit: (0..limits.len())
                .map(|quota| a.credit.of(quota) + b.credit.of(quota))
                .collect(),
            until: a.until.min(b.until),
        })
    }

    fn delays(&self, state: &LeaseState) -> Delays {
        Delays::new(state.round_trip, self.terms.delay, self.terms.longest)
    }

    /// Records the state of the key in a reply. From now on permits are given back under `owner`, the form of the
    /// policy of the call. Returns the number of checks that leases have allowed since the previous reply.
    pub(crate) fn report(
        self: &Arc<Self>,
        owner: &Arc<impl Any + Send + Sync>,
        report: LeaseReport,
    ) -> usize {
        let LeaseReport { known, is_denial, free, leased } = report;
        let mut state = self.state();
        let state = &mut *state;
        if !std::ptr::addr_eq(Arc::as_ptr(&state.owner), Arc::as_ptr(owner)) {
            state.owner = owner.clone();
        }
        let CachedState { decided, received, sent_at: SentAt { time: sent, .. }, .. } = known;
        if let Some(Leased { permits, after, keeps, is_late }) = leased {
            // A reply to an earlier request, which was given up, does not end the current one.
            let requested = state.requested.take_if(|requested| *requested <= sent);
            match (is_late, std::mem::take(&mut state.returning)) {
                (false, returned) => self.terms.metrics.lease_returned(returned),
                (true, lost) => self.terms.metrics.lease_lost(lost),
            }
            let granted = permits.iter().copied().max().unwrap_or(0);
            self.terms.metrics.leased(granted);
            let keeps = keeps.saturating_mul(1_000).min(self.terms.longest);
            if sent <= state.void_until {
                self.terms.metrics.lease_lost(granted);
            } else if granted > 0 {
                // The next request may have been sent already, so a late lease is not used, only given back.
                let is_overdue =
                    requested.is_none_or(|at| received.saturating_sub(at) > self.terms.delay);
                let ends = sent.saturating_add(if is_overdue { 0 } else { keeps });
                let (left, leased) = (permits.clone(), permits);
                let part =
                    Part { left, leased, counted: granted, ends, sent, received, decided, after };
                let place = state.parts.partition_point(|part| part.ends <= ends);
                state.parts.insert(place, part);
                if state.end.is_none() {
                    state.end = Some(self.leases.add(self, state.last_end()));
                }
            }
        }
        let allowed = std::mem::take(&mut state.allowed);
        if state.known.as_ref().is_some_and(|other| other.sent_at.time > sent) {
            return allowed;
        }
        let expected = state.demand.expected();
        state.round_trip = received.saturating_sub(sent);
        let ahead = (2 * state.round_trip).max(self.terms.longest / 4);
        state.renew_at = state.last_end().saturating_sub(ahead);
        let fraction = ahead as f64 / self.terms.longest.max(1) as f64;
        state.marks =
            expected.permits.iter().map(|permits| (permits * fraction).ceil() as u64).collect();
        if sent > state.void_until {
            (state.is_denial, state.free, state.known) = (is_denial, free, Some(known));
        }
        allowed
    }

    /// Takes a charge from the leases, and gives a credit to them, as far as possible. Returns the rest, which is for
    /// the store.
    ///
    /// A credit to a lease has the same effect as a credit to the store followed by another lease, because a credit
    /// only has permits that the store still counts as used.
    pub(crate) fn adjust(&self, adjustment: &Adjustment, limits: &Limits, now: u64) -> Adjustment {
        let mut state = self.state();
        let parts = &mut state.parts;
        let of = |quota: usize| match adjustment.of(quota) {
            units @ ..0 => {
                let unit = limits.unit(quota).max(1);
                let mut permits = units.unsigned_abs() / unit;
                for part in parts.iter_mut().rev().filter(|part| part.is_live(now)) {
                    let room = part.leased[quota] - part.left[quota];
                    let back = permits.min(room);
                    part.left[quota] += back;
                    permits -= back;
                }
                let rest = permits.saturating_mul(unit).saturating_add(units.unsigned_abs() % unit);
                -i64::try_from(rest).unwrap_or(i64::MAX)
            }
            permits => {
                let taken = unused(parts, quota, now).min(permits.unsigned_abs());
                take(parts, |other| if other == quota { taken } else { 0 }, now);
                permits.saturating_sub_unsigned(taken)
            }
        };
        (0..limits.len()).map(of).collect()
    }

    /// Returns the permits of each quota that are leased and not used.
    pub(crate) fn unused(&self, now: u64) -> Permits {
        let state = self.state();
        (0..state.free.len()).map(|quota| unused(&state.parts, quota, now)).collect()
    }

    /// Returns the last known state.
    pub(crate) fn known(&self) -> Option<CachedState> {
        self.state().known.clone()
    }

    /// Ends the cached denial, because the key gets permits back.
    pub(crate) fn end_denial(&self) {
        self.state().is_denial = false;
    }

    /// Ends all leases of a key that was reset, also those of calls in flight. Nothing is given back.
    pub(crate) fn void(&self, now: u64) {
        let mut state = self.state();
        let parts = std::mem::take(&mut state.parts);
        (state.known, state.is_denial, state.void_until) = (None, false, now);
        let lost =
            parts.iter().map(Part::unused).sum::<u64>() + std::mem::take(&mut state.returning);
        self.terms.metrics.lease_lost(lost);
        parts.iter().for_each(|part| self.terms.metrics.lease_used(part.used()));
    }

    /// Removes the leases if all have ended at this time, and returns their unused permits. Otherwise schedules itself
    /// for the end of the last one.
    pub(super) fn end(self: &Arc<Self>, now: u64) -> Vec<Returned> {
        let mut state = self.state();
        state.end = None;
        if state.last_end() > now {
            state.end = Some(self.leases.add(self, state.last_end()));
            return Vec::new();
        }
        self.returned(&mut state)
    }

    /// Removes all leases, and returns their unused permits.
    fn returned(&self, state: &mut LeaseState) -> Vec<Returned> {
        let (parts, delays) = (std::mem::take(&mut state.parts), self.delays(state));
        let returned = |part: Part| {
            self.terms.metrics.lease_used(part.used());
            let (key, owner) = (self.key.clone(), state.owner.clone());
            (part.unused() > 0).then_some(Returned { key, part, delays, owner })
        };
        parts.into_iter().filter_map(returned).collect()
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives back the leases of a key that is evicted, or superseded by another revision.
impl Drop for KeyLease {
    fn drop(&mut self) {
        let (end, returned) = {
            let mut state = self.state();
            self.terms.metrics.lease_lost(std::mem::take(&mut state.returning));
            (state.end.take(), self.returned(&mut state))
        };
        if let Some(end) = end {
            self.leases.remove(end, returned);
        }
    }
}

impl LeaseState {
    /// Returns true if the leases have the permits for a check.
    fn covers(&self, cost: &impl Cost, quotas: usize, now: u64) -> bool {
        // The leases are sorted by their ends.
        self.parts.last().is_some_and(|part| part.is_live(now))
            && (0..quotas).all(|quota| unused(&self.parts, quota, now) >= cost.needed(quota))
    }

    /// Returns the unused permits of each lease that are kept until the next one arrives.
    fn kept(&self, expected: &Rates, longest: u64) -> SmallVec<[Permits; 2]> {
        let time = (2 * self.round_trip).max(longest / 8).min(longest);
        let time = time as f64 / longest.max(1) as f64;
        let kept =
            |(left, expected): (&u64, &f64)| ((expected * time * MARGIN).ceil() as u64).min(*left);
        let of = |part: &Part| part.left.iter().zip(&expected.permits).map(kept).collect();
        self.parts.iter().map(of).collect()
    }

    /// Returns the size of the lease to ask for.
    fn size(
        &self,
        expected: &Rates,
        kept: &[Permits],
        longest: u64,
        limits: &Limits,
        instances: u64,
    ) -> Option<(u64, Charge)> {
        let of = |quota: usize| kept.iter().map(|kept| kept[quota]).sum();
        let kept: Permits = (0..limits.len()).map(of).collect();
        // The new lease can be used after the reply. Until then, checks use older leases or go to the store.
        let is_kept = kept.iter().any(|kept| *kept > 0);
        let usable = longest.saturating_sub(if is_kept { 0 } else { self.round_trip });
        let wanted = expected.clone().scaled(usable as f64 / longest.max(1) as f64);
        request::size(&wanted, &kept, &self.free, limits, instances)
    }

    /// Returns the time at which the last lease ends, or 0 if there is none.
    fn last_end(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.ends)
    }
}

/// Returns the unused permits of a quota in live leases.
fn unused(parts: &[Part], quota: usize, now: u64) -> u64 {
    let live = parts.iter().filter(|part| part.is_live(now));
    live.map(|part| part.left.get(quota).copied().unwrap_or(0)).sum()
}

/// Takes permits from live leases, first from those that end first.
fn take(parts: &mut [Part], permits: impl Fn(usize) -> u64, now: u64) {
    for quota in 0..parts.first().map_or(0, |part| part.left.len()) {
        let mut permits = permits(quota);
        for part in parts.iter_mut().filter(|part| part.is_live(now)) {
            let taken = permits.min(part.left[quota]);
            part.left[quota] -= taken;
            permits -= taken;
        }
    }
}

impl fmt::Debug for KeyLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLease").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::Quota;
    use crate::metrics::PolicyMetrics;

    const MS: u64 = 1_000_000;
    const LEASE: u64 = 100 * MS;
    const TIMEOUT: u64 = 50 * MS;

    /// A key under a limit of 1,000 per second that no other process uses.
    struct Tested {
        limits: Limits,
        leases: Arc<Leases>,
        lease: Arc<KeyLease>,
        metrics: PolicyMetrics,
    }

    impl Tested {
        /// Creates a key that was checked once per millisecond, for the length of a lease.
        fn new() -> Self {
            let limits = Limits::new(&Quota::per_second(1_000).into(), 0).unwrap();
            let limits = limits.leased(LEASE / 1_000).unwrap();
            let (leases, metrics) = (Arc::<Leases>::default(), PolicyMetrics::new("test"));
            let terms = LeaseTerms { longest: LEASE, delay: TIMEOUT, metrics: metrics.clone() };
            let lease = KeyLease::new(&leases, &"key".into(), &terms.into(), Arc::new(()), 1, 0);
            let tested = Self { limits, leases, lease: lease.into(), metrics };
            for now in 0..100 {
                assert!(matches!(tested.check(now * MS), LeaseDecision::Unknown));
            }
            tested.report(99 * MS, 100 * MS, None);
            tested
        }

        fn check(&self, now: u64) -> LeaseDecision {
            self.lease.check(&1, &self.limits, 0, now)
        }

        fn by_lease(&self, now: u64) -> bool {
            matches!(self.check(now), LeaseDecision::Leased { .. })
        }

        fn renews(&self, now: u64) -> bool {
            matches!(self.check(now), LeaseDecision::Leased { renews: true, .. })
        }

        fn request(&self, now: u64) -> Option<LeaseOp> {
            self.lease.request(None, &self.limits, || 1, now).ok()
        }

        /// Reports a reply to a call that was sent at `sent`. It leases `leased` permits, if the call asked for any.
        fn report(&self, sent: u64, received: u64, leased: Option<u64>) {
            let mut standing = self.limits.standing(&[], 0);
            let leased = leased.map(|permits| {
                self.limits.check_run(&mut standing, permits, &1);
                let after = self.limits.left(&standing);
                Leased { permits: smallvec![permits], after, keeps: u64::MAX, is_late: false }
            });
            let state = KeyState::after(&standing, None, &self.limits, 0);
            let sent_at = SentAt::at(sent);
            let known = CachedState { state, decided: 0, sent_at, received };
            let free = self.limits.free(&standing);
            let report = LeaseReport { known, is_denial: false, free, leased };
            self.lease.report(&Arc::new(()), report);
        }
    }

    #[test]
    fn a_lease_ends_a_lease_after_its_call_was_sent_however_late_the_reply() {
        let tested = Tested::new();
        tested.request(100 * MS).unwrap();
        tested.report(100 * MS, 149 * MS, Some(100));
        assert!(tested.by_lease(150 * MS) && tested.by_lease(200 * MS - 1));
        assert!(!tested.by_lease(200 * MS));
    }

    /// The next request may have been sent meanwhile, and the two leases together could be too large.
    #[test]
    fn a_reply_after_the_timeout_leases_nothing_and_is_given_back() {
        let tested = Tested::new();
        tested.request(100 * MS).unwrap();
        assert!(tested.request(100 * MS + TIMEOUT).is_none(), "it may still be answered");
        tested.request(101 * MS + TIMEOUT).unwrap();
        tested.report(100 * MS, 101 * MS + TIMEOUT, Some(100));
        assert!(!tested.by_lease(152 * MS));
        assert!(tested.request(153 * MS).is_none(), "the second request is in flight");
        let (returned, _) = tested.leases.collect(153 * MS);
        assert_eq!(
            returned.iter().map(|returned| returned.part.unused()).collect::<Vec<_>>(),
            [100]
        );
    }

    #[test]
    fn the_next_lease_is_asked_for_once_before_permits_or_time_run_out() {
        for by_time in [false, true] {
            let tested = Tested::new();
            tested.request(100 * MS).unwrap();
            tested.report(100 * MS, 101 * MS, Some(120));
            let at = if by_time { 175 * MS } else { 102 * MS };
            if !by_time {
                // The mark is a quarter of the permits that are used during a lease.
                for _ in 0..95 {
                    assert!(!tested.renews(at));
                }
            }
            assert!(!by_time || !tested.renews(174 * MS));
            assert!(tested.renews(at), "{by_time}");
            let request = tested.request(at).unwrap();
            assert!(request.charge.is_none() && request.checks > 50, "{request:?}");
            assert!(!tested.renews(at), "nobody else asks");
        }
    }

    #[test]
    fn what_is_not_needed_until_the_end_goes_back_with_the_next_request() {
        let tested = Tested::new();
        tested.request(100 * MS).unwrap();
        tested.report(100 * MS, 101 * MS, Some(120));
        let request = tested.request(175 * MS).unwrap();
        // An eighth of a lease is 12.5 ms, for which as many permits and a quarter more are kept.
        assert_eq!(tested.lease.unused(175 * MS)[0], 16);
        let credit = request.credit.unwrap();
        // 45 of the 120 permits have not refilled. In 50 ms, the long delay, all will have. In 10 ms, the short delay,
        // 10 will have, so 35 are given back.
        assert_eq!(tested.limits.returned(&credit.credit)[0], 35);
        assert_eq!(credit.until, 84_000);
    }

    #[test]
    fn permits_are_counted_once_whatever_happens_to_them() {
        let tested = Tested::new();
        tested.request(100 * MS).unwrap();
        tested.report(100 * MS, 101 * MS, Some(120));
        assert!((0..20).all(|_| tested.by_lease(102 * MS)));
        tested.lease.void(103 * MS);
        assert_eq!(tested.metrics.lease_counts(), [120, 20, 0, 100]);
        assert!(!tested.by_lease(103 * MS));
        // This call was in flight when the key was reset.
        tested.report(102 * MS, 104 * MS, Some(50));
        assert!(!tested.by_lease(105 * MS));
        assert_eq!(tested.metrics.lease_counts(), [170, 20, 0, 150]);
    }

    #[test]
    fn credits_go_to_a_lease_as_far_as_it_was_used() {
        let tested = Tested::new();
        tested.request(100 * MS).unwrap();
        tested.report(100 * MS, 101 * MS, Some(120));
        let adjust = |permits: i64| {
            let units = if permits < 0 { permits * tested.limits.unit(0) as i64 } else { permits };
            let rest =
                tested.lease.adjust(&[units].into_iter().collect(), &tested.limits, 102 * MS);
            rest.of(0)
        };
        assert_eq!(adjust(30), 0);
        assert_eq!(tested.lease.unused(102 * MS)[0], 90);
        assert_eq!(adjust(-10), 0);
        assert_eq!(adjust(-25), -5 * tested.limits.unit(0) as i64, "20 were used");
        assert_eq!(adjust(125), 5);
        assert_eq!(tested.lease.unused(102 * MS)[0], 0);
    }

    #[test]
    fn what_has_refilled_before_it_is_given_back_is_not_lost() {
        let tested = Tested::new();
        tested.request(100 * MS).unwrap();
        tested.report(100 * MS, 101 * MS, Some(20));
        let request = tested.request(250 * MS).unwrap();
        assert_eq!(request.credit, None);
        assert_eq!(tested.metrics.lease_counts(), [20, 0, 20, 0]);
    }
}

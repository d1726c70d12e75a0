//! The permits that one reply has leased. Their lease is measured from the time at which the call was sent.

use smallvec::SmallVec;

use crate::algorithm::{Limits, Permits};
use crate::charge::{Charge, Left, TimedCredit};

/// The permits that were leased by one reply.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The permits of each quota that are not used yet.
    pub(super) left: Permits,
    /// The permits of each quota that were leased.
    pub(super) leased: Permits,
    /// The permits that metrics count: the largest number of any quota, less what was split off. A check takes permits
    /// of all quotas at once, so a sum would count too many.
    pub(super) counted: u64,
    /// The end of the lease, in nanoseconds on the clock of the process, as are `sent` and `received`.
    pub(super) ends: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The time at which the store charged them, in microseconds of its clock.
    pub(super) decided: u64,
    /// The permits of each quota that were in use after the charge.
    pub(super) after: SmallVec<[Left; 1]>,
}

/// Two estimates of the time until a store receives permits that are given back, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    short: u64,
    long: u64,
    /// The length of a lease, in nanoseconds.
    lease: u64,
}

impl Delays {
    /// The lower bound of the short delay.
    const LEAST: u64 = 10_000_000;

    /// Creates the delays of calls with this round trip time and this timeout, under leases of this length.
    pub(super) fn new(round_trip: u64, timeout: u64, lease: u64) -> Self {
        let short = round_trip.saturating_mul(4).max(Self::LEAST).min(timeout);
        Self { short, long: timeout, lease }
    }
}

impl Part {
    pub(super) fn is_live(&self, now: u64) -> bool {
        now < self.ends
    }

    /// Returns the permits that are not used, as metrics count them.
    pub(crate) fn unused(&self) -> u64 {
        self.left.iter().copied().max().unwrap_or(0).min(self.counted)
    }

    /// Returns the permits that were used, as metrics count them.
    pub(super) fn used(&self) -> u64 {
        self.counted.saturating_sub(self.unused())
    }

    /// Splits off this number of unused permits of each quota.
    fn split(&mut self, permits: &Permits) -> Self {
        let split = |(of, permits): (&mut u64, &u64)| *of = of.saturating_sub(*permits);
        self.left.iter_mut().zip(permits).for_each(split);
        self.leased.iter_mut().zip(permits).for_each(split);
        let counted = permits.iter().copied().max().unwrap_or(0).min(self.counted);
        self.counted -= counted;
        Self { left: permits.clone(), leased: permits.clone(), counted, ..self.clone() }
    }

    /// Splits off the unused permits of each quota above these. `None` if there are none.
    pub(super) fn split_surplus((part, kept): (&mut Self, &Permits)) -> Option<Self> {
        let surplus = part.left.iter().zip(kept).map(|(left, kept)| left.saturating_sub(*kept));
        let surplus: Permits = surplus.collect();
        surplus.iter().any(|surplus| *surplus > 0).then(|| part.split(&surplus))
    }

    /// Returns a credit that gives the unused permits back. It is valid for the longer of `delays`, or for the shorter
    /// one if some permits would refill within the longer one. `None` if all permits have refilled by then.
    ///
    /// Permits that have refilled are not given back, because they could be used twice. For the same reason, the store
    /// ignores a credit that it receives too late.
    pub(crate) fn credit(&self, limits: &Limits, now: u64, delays: Delays) -> Option<TimedCredit> {
        let [short, long] = [delays.short, delays.long]
            .map(|delay| self.credit_at(limits, now.saturating_add(delay), delays.lease));
        if long.credit == short.credit { Some(long) } else { Some(short) }
            .filter(|timed| !timed.credit.is_nothing())
    }

    /// Returns the credit for a store that has it at the latest at `arrival`.
    fn credit_at(&self, limits: &Limits, arrival: u64, lease: u64) -> TimedCredit {
        // The store charged the permits no earlier than the call was sent.
        let elapsed = arrival.saturating_sub(self.sent).div_ceil(1_000);
        let left = |quota: usize| self.after.get(quota).copied().unwrap_or_default().after(elapsed);
        let unused = Charge::Each(self.left.iter().copied().collect());
        let credit = limits.settle(&0, &unused, left, 0);
        // If other leases were given back since, less is in use than `after` says: by at most what has refilled since.
        // The bucket of the store holds less by what refills during a lease, which makes up for that much.
        let credit = limits.within_reserve(&credit, lease / 1_000, elapsed);
        // The store decided before its reply was received.
        let until = self.decided.saturating_add(arrival.saturating_sub(self.received) / 1_000);
        TimedCredit { credit, until }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn permits_of_several_quotas_are_counted_once_when_some_are_split_off() {
        let mut part = Part {
            left: smallvec![9, 17],
            leased: smallvec![10, 20],
            counted: 20,
            ends: 0,
            sent: 0,
            received: 0,
            decided: 0,
            after: SmallVec::new(),
        };
        let mut counts = |surplus: Permits| {
            let split = part.split(&surplus);
            (split.used() + split.unused(), part.used() + part.unused())
        };
        assert_eq!(counts(smallvec![5, 0]), (5, 15));
        assert_eq!(counts(smallvec![0, 12]), (12, 3));
        assert_eq!(counts(smallvec![4, 5]), (3, 0));
    }
}

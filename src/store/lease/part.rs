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

#[cfg(all(test, feature = "redis"))]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::Quota;
    use crate::algorithm::Standing;
    use crate::store::KeyState;

    /// The length of a lease in microseconds, in which a tenth of the burst refills.
    const LEASE: u64 = 100_000;

    /// A server that enforces 1,000 per second under leases, with its state and its clock in microseconds.
    struct Server {
        limits: Limits,
        state: KeyState,
    }

    impl Server {
        fn new() -> Self {
            let limits = Limits::new(&Quota::per_second(1_000).into(), 0).unwrap();
            Self { limits: limits.leased(LEASE).unwrap(), state: KeyState::unused() }
        }

        fn at<T>(&mut self, now: u64, change: impl FnOnce(&Limits, &mut Standing) -> T) -> T {
            let mut standing = KeyState::standing(Some(&self.state), &self.limits, now);
            let result = change(&self.limits, &mut standing);
            self.state = KeyState::after(&standing, Some(&self.state), &self.limits, now);
            result
        }

        /// Takes permits until one is denied. Returns their number.
        fn take_all(&mut self, now: u64) -> u64 {
            self.at(now, |limits, standing| limits.check_run(standing, u64::MAX, &1))
        }

        /// Leases permits at the time 0.
        fn lease(&mut self, permits: u64) -> Part {
            let after = self.at(0, |limits, standing| {
                assert_eq!(limits.check_run(standing, permits, &1), permits);
                limits.left(standing)
            });
            Part {
                left: smallvec![permits],
                leased: smallvec![permits],
                counted: permits,
                ends: LEASE * 1_000,
                sent: 0,
                received: 0,
                decided: 0,
                after,
            }
        }

        /// Gives a lease back that has used nothing, at `now`. The credit arrives at `arrival`.
        fn give_back(&mut self, part: &Part, now: u64, arrival: u64) {
            let delays = Delays::new(0, u64::MAX, LEASE * 1_000);
            let credit = part.credit(&self.limits, now * 1_000, delays).unwrap();
            let _ = self
                .at(arrival, |limits, standing| limits.give_back_until(standing, &credit, arrival));
        }
    }

    /// The second lease does not know that the level is lower since the first was given back.
    #[test]
    fn a_lease_that_is_given_back_after_another_one_admits_no_more_than_the_burst() {
        let (mut server, sweep, way) = (Server::new(), 20_000, 10_000);
        let [first, second] = [225; 2].map(|permits| server.lease(permits));
        server.give_back(&first, 1_000, 1_000);
        let now = LEASE + sweep;
        let before = server.take_all(now + way);
        server.give_back(&second, now, now + way);
        let after = server.take_all(now + way);
        assert!(after > 0, "nothing is given back");
        assert!(before + after <= 1_000, "{before} and {after}");
    }

    /// As if the server had stalled. Meanwhile the permits have refilled.
    #[test]
    fn a_lease_that_is_given_back_too_late_admits_nothing() {
        for (delay, given_back) in [(10_000, 50), (10_001, 0)] {
            let mut server = Server::new();
            let lease = server.lease(100);
            let before = server.take_all(40_000);
            assert_eq!(before, 840);
            server.give_back(&lease, 40_000, 40_000 + delay);
            // Half of the lease has refilled by then.
            let refilled = delay / 1_000;
            assert_eq!(server.take_all(40_000 + delay) - refilled, given_back);
        }
    }

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

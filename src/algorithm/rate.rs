//! The rate at which a bucket refills, and its debt in the ticks of that rate.
//!
//! The rate is the fraction permits/period in lowest terms. A tick is a fraction of a microsecond, chosen so
//! that every number is whole: a permit refills in `permit` ticks, and a microsecond has `scale` ticks. At
//! one rate nothing is ever rounded: 3 per second is exactly 3 per second. Numbers in Lua are exact up to
//! 2^53. So a debt is at most `MAX_TICKS`, a debt of ten capacities fits into any quota (`ROOM`), and larger
//! quotas are a `ConfigError`.

use std::num::NonZeroU64;

/// Numbers in Lua are exact up to 2^53. A debt may use half of that range. The clock has the other
/// half, until the year 2112.
pub(crate) const MAX_TICKS: u64 = 1 << 52;

/// The number of times that the capacity of a quota has to fit, so that a debt of ten capacities does.
pub(super) const ROOM: u64 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    permit: NonZeroU64,
    scale: NonZeroU64,
}

/// The time until the bucket is full, at the time of a check: 0 for a full bucket.
///
/// The rate is that of the revision that charged the bucket last. Until it is charged again, it
/// refills at that rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Debt {
    pub(crate) ticks: u64,
    pub(crate) rate: Rate,
}

/// The state of a bucket that a store keeps: the time at which it will be full, at the rate of the revision
/// that charged it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketState {
    pub(crate) full_at: FullAt,
    pub(crate) rate: Rate,
}

/// The time at which a bucket will be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FullAt {
    pub(crate) micros: u64,
    /// Ticks after `micros`, less than a microsecond.
    pub(crate) ticks: u64,
}

impl Rate {
    /// A permit per microsecond.
    #[cfg(feature = "redis")]
    pub(crate) const FASTEST: Self = Self { permit: NonZeroU64::MIN, scale: NonZeroU64::MIN };

    /// `None` for numbers that no quota has.
    pub(crate) fn new(permit: u64, scale: u64) -> Option<Self> {
        let number = |ticks| NonZeroU64::new(ticks).filter(|ticks| ticks.get() <= MAX_TICKS);
        Some(Self { permit: number(permit)?, scale: number(scale)? })
    }

    /// The rate of a share of a bucket, rounded down. The ticks are shorter, so that little is lost, as far
    /// as a debt of `most` permits allows it. If not even the present ticks do, one of `least` permits has
    /// to be enough.
    pub(crate) fn divided(self, share: u64, whole: u64, least: u64, most: u64) -> Option<Self> {
        const PRECISION: u64 = 1 << 20;
        if share == 0 {
            return None;
        }
        let permit = u128::from(self.permit()) * u128::from(whole);
        let longest = |permits: u64| MAX_TICKS.checked_div(permits);
        let finer = |longest: u64| {
            let fits = (u128::from(longest) * u128::from(share)).checked_div(permit)?;
            let precise = PRECISION / self.permit();
            let factor = u64::try_from(fits).map_or(precise, |fits| fits.min(precise)).max(1);
            let permit = (permit * u128::from(factor)).div_ceil(share.into());
            let permit = u64::try_from(permit).ok().filter(|permit| *permit <= longest)?;
            Self::new(permit, self.scale().checked_mul(factor)?)
        };
        let coarse = || Self::new(longest(least)?, self.scale());
        longest(most).and_then(finer).or_else(|| finer(longest(least)?)).or_else(coarse)
    }

    /// The ticks in which a permit refills.
    pub(crate) fn permit(self) -> u64 {
        self.permit.get()
    }

    /// The ticks in a microsecond.
    pub(crate) fn scale(self) -> u64 {
        self.scale.get()
    }

    /// The debt of a bucket that will be full in this many microseconds.
    pub(crate) fn debt(self, micros: u64) -> Debt {
        self.ticks(micros.saturating_mul(self.scale()))
    }

    /// A debt of so many ticks.
    pub(crate) fn ticks(self, ticks: u64) -> Debt {
        Debt { ticks, rate: self }
    }

    /// The debt at `now` (microseconds) of a bucket that will be full at `full_at`.
    pub(crate) fn debt_at(self, now: u64, full_at: FullAt) -> Debt {
        match full_at.micros.checked_sub(now) {
            None => self.debt(0),
            Some(micros) => {
                let debt = self.debt(micros);
                Debt { ticks: debt.ticks.saturating_add(full_at.ticks), ..debt }
            }
        }
    }

    /// The microseconds that so many ticks take, rounded up.
    pub(crate) fn micros(self, ticks: u64) -> u64 {
        let (micros, rest) = self.split(ticks);
        micros + u64::from(rest > 0)
    }

    /// The whole microseconds of so many ticks, and the ticks after them.
    fn split(self, ticks: u64) -> (u64, u64) {
        match self.scale() {
            // The most common scale needs no divisions.
            1 => (ticks, 0),
            scale => (ticks / scale, ticks % scale),
        }
    }
}

impl BucketState {
    /// The time at which the bucket is full, in microseconds, rounded up.
    pub(crate) fn until(self) -> u64 {
        self.full_at.micros.saturating_add(u64::from(self.full_at.ticks > 0))
    }

    pub(crate) fn debt(self, now: u64) -> Debt {
        self.rate.debt_at(now, self.full_at)
    }
}

impl Debt {
    pub(crate) fn state(self, now: u64) -> BucketState {
        BucketState { full_at: self.full_at(now), rate: self.rate }
    }

    pub(crate) fn full_at(self, now: u64) -> FullAt {
        let (micros, ticks) = self.rate.split(self.ticks);
        FullAt { micros: now.saturating_add(micros), ticks }
    }

    /// Converts the debt to another rate: the same number of permits, rounded up to a tick. Whole permits
    /// stay exact.
    #[inline]
    pub(crate) fn at(self, rate: Rate) -> Self {
        if rate == self.rate { self } else { self.at_other(rate) }
    }

    #[cold]
    fn at_other(self, rate: Rate) -> Self {
        let product = u128::from(self.ticks) * u128::from(rate.permit());
        let ticks = product.div_ceil(u128::from(self.rate.permit()));
        // A debt above the capacity is as good as any other.
        rate.ticks(ticks.min(MAX_TICKS.into()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![1..=100u64, 1..=1_000_000_000u64, 1..=MAX_TICKS, Just(MAX_TICKS)]
    }

    /// Two thirds of a permit per 7 us is one per 10.5 us.
    #[test]
    fn the_rate_of_a_share_is_as_precise_as_its_debt_allows() {
        let rate = Rate::new(7, 1).unwrap();
        let two_thirds =
            |most| rate.divided(2, 3, 1, most).map(|rate| (rate.permit(), rate.scale()));
        assert_eq!(two_thirds(1_000), Some((1_572_858, 149_796)));
        assert_eq!(two_thirds(MAX_TICKS / 1_000), Some((998, 95)));
    }

    pub(super) fn any_rate() -> impl Strategy<Value = Rate> {
        (number(), number()).prop_map(|(permit, scale)| Rate::new(permit, scale).unwrap())
    }

    proptest! {
        /// Compares fractions by cross multiplication: ticks of a rate are that many divided by
        /// `permit` permits.
        #[test]
        fn another_rate_loses_no_consumption_and_adds_less_than_a_tick(
            old in any_rate(), new in any_rate(), ticks in 0..=MAX_TICKS,
        ) {
            let debt = old.ticks(ticks).at(new);
            prop_assert_eq!(debt.rate, new);
            if debt.ticks == MAX_TICKS {
                return Ok(());
            }
            let (old_permit, new_permit) = (u128::from(old.permit()), u128::from(new.permit()));
            let before = u128::from(ticks) * new_permit;
            let after = u128::from(debt.ticks) * old_permit;
            prop_assert!(after >= before && after - before < old_permit);
        }

        #[test]
        fn whole_permits_are_exact_at_every_rate(
            old in any_rate(), new in any_rate(), permits in 0..=1_000_000u64,
        ) {
            let is_possible = |rate: Rate| permits.saturating_mul(rate.permit()) <= MAX_TICKS;
            if !is_possible(old) || !is_possible(new) {
                return Ok(());
            }
            let debt = old.ticks(permits * old.permit());
            prop_assert_eq!(debt.at(new).ticks, permits * new.permit());
            prop_assert_eq!(debt.at(new).at(old), debt);
        }

        #[test]
        fn a_stored_state_is_read_back_unchanged(
            rate in any_rate(), ticks in 0..=MAX_TICKS, now in 0..=1u64 << 51,
        ) {
            let debt = rate.ticks(ticks);
            prop_assert_eq!(rate.debt_at(now, debt.full_at(now)), debt);
        }

        #[test]
        fn no_state_panics(old in any_rate(), new in any_rate(), ticks: u64, micros: u64, now: u64) {
            let debt = old.debt_at(now, FullAt { micros, ticks });
            debt.at(new).full_at(now);
            new.micros(debt.ticks);
        }
    }
}

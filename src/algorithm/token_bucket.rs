//! A token bucket with continuous refill, stored as the generic cell rate algorithm stores it (ITU-T I.371,
//! annex A): a single number, the time at which the bucket will be full.
//!
//! Token buckets are usually stored as a number of tokens and the time of the last change. A single time
//! takes less than half the memory, a missing key is a full bucket, and a full bucket needs no key, so the
//! value also determines its expiry.
//!
//! The state also has the rate at which the bucket refills until then, because a time alone has no meaning
//! at another rate, and a rolling deployment uses two versions of a quota at once. Each revision reads
//! how many permits are used, converts that number to its own ticks, rounded up, and writes its own rate when
//! it charges. So an overstatement is less than a tick per charge after a change of revision, and none for
//! whole permits. A debt that is only read is not rounded: a check compares it in the ticks that it has. A
//! denial or a peek does not change the rate, so until the next charge the bucket refills at the rate of the
//! last one, and waits are computed at that rate. Alternatives were simulated: to clamp the time to the
//! capacity does not help an exhausted key whose limit is raised, and a rate rounded to a logarithmic scale
//! overstates the debt by up to 3.8% at each change of revision.
//!
//! A leaky bucket as a queue (with a burst of 1) and a token bucket have the same state. The difference is
//! how far the debt may go: a check that waits may leave a debt of the burst and the longest wait, and
//! proceeds when the debt has fallen to the burst. So both have one tag in a value, a change between them
//! keeps what was used, and `acquire` works on any bucket. A plain check never takes a place in the queue, so
//! a caller that ignores waits cannot exceed the rate. → `tests/it/waiting.rs`

use std::ops::RangeInclusive;
use std::time::Duration;

#[cfg(feature = "redis")]
use super::rate::FullAt;
use super::rate::{BucketState, Debt, MAX_TICKS, ROOM, Rate};
use super::{Algorithm, LeaseFault};
use crate::Quota;
use crate::charge::{AtMostOne, Cost, Left, Patience};
use crate::quota::Kind;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    limit: u64,
    /// The permits that may be missing in addition after a check that finds at least one.
    borrow: u64,
    /// The longest wait of a queue, in microseconds.
    queue: Option<u64>,
    rate: Rate,
}

impl TokenBucket {
    pub(crate) fn new(quota: &Quota) -> Result<Self, String> {
        let error = |text: &str| Err(text.to_owned());
        let (permits, period, burst) = (quota.permits(), quota.period(), quota.capacity());
        if permits == 0 {
            return error("0 permits per period would deny everything: use 1 or more");
        }
        if burst == 0 {
            return error("a burst of 0 would deny everything: use 1 or more");
        }
        if period.is_zero() || period.subsec_nanos() % 1_000 != 0 {
            return error("the period must be a whole number of microseconds, 1 or more");
        }
        let queue = match quota.kind() {
            Kind::Queue(wait) => Some(longest_wait(wait)?),
            _ => None,
        };
        if queue.is_some() && quota.borrowed() > 0 {
            return error("a queue lends no permits: remove `borrow` or `queue`");
        }
        let (borrow, rate) = (quota.borrowed(), exact_rate(quota, queue.unwrap_or(0))?);
        Ok(Self { limit: burst, borrow, queue, rate })
    }

    /// A bucket that is never empty, whoever takes a permit now and then.
    #[cfg(feature = "redis")]
    pub(crate) fn of_probes() -> Self {
        Self { limit: 1_000_000, borrow: 0, queue: None, rate: Rate::FASTEST }
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// The ticks in which an empty bucket refills.
    pub(crate) fn refill_ticks(&self) -> u64 {
        // Less than `MAX_TICKS`: see `new`.
        self.limit * self.rate.permit()
    }

    /// The highest debt in ticks that a check of this kind can leave.
    pub(crate) fn ceiling(&self, patience: Option<Patience>) -> u64 {
        // Less than `MAX_TICKS`: see `new`.
        let ticks = (self.limit + self.borrow) * self.rate.permit();
        let wait = match patience {
            Some(Patience(wait)) if self.borrow == 0 => self.queue.unwrap_or(wait),
            _ => 0,
        };
        ticks.saturating_add(wait.saturating_mul(self.rate.scale())).min(MAX_TICKS)
    }

    /// Lowers a debt to what is possible if a bucket of any capacity was empty at a time, or will be. The time
    /// has ticks of the rate of the debt, at which the bucket refills until it is charged again.
    #[cfg(feature = "redis")]
    pub(crate) fn cap(&self, debt: &mut Debt, empty_at: FullAt, now: u64) {
        let [full, rest] = [self.limit, empty_at.ticks].map(i128::from);
        let full = full * i128::from(debt.rate.permit()) + rest;
        let owed = i128::from(empty_at.micros) - i128::from(now);
        let most = (full + owed * i128::from(debt.rate.scale())).max(0);
        debt.ticks = debt.ticks.min(u64::try_from(most).unwrap_or(u64::MAX));
    }

    /// Returns the permits that refill during a lease, in microseconds. They are whole, because a capacity is.
    fn reserve(&self, lease: u64) -> u64 {
        lease.saturating_mul(self.rate.scale()).div_ceil(self.rate.permit())
    }

    pub(crate) fn borrows(&self) -> bool {
        self.borrow > 0
    }

    pub(crate) fn is_queue(&self) -> bool {
        self.queue.is_some()
    }

    /// Decides a check of a policy whose only quota is this bucket, and charges its state in place. Nearly
    /// all checks are of this kind, and without the loops and the moves of
    /// [`Limits::check`](super::Limits::check) one in memory takes a fifth fewer instructions.
    #[inline]
    pub(crate) fn decide_in_place(&self, state: &mut BucketState, cost: u64, now: u64) -> Verdict {
        let mut debt = self.level(Some(*state), now);
        let verdict = self.decide(&mut debt, &cost);
        if verdict.is_allowed() && cost > 0 {
            *state = debt.state(now);
        }
        verdict
    }

    /// Returns the same as [`Limits::denial`](super::Limits::denial) of a policy whose only quota is this
    /// bucket.
    #[inline]
    pub(crate) fn denial(
        &self,
        state: BucketState,
        cost: &impl Cost,
        times: RangeInclusive<u64>,
    ) -> Option<Verdict> {
        let latest = self.level(Some(state), *times.end());
        let is_allowed = match self.is_own(&latest) {
            true => self.allows(&latest, cost),
            // A smaller check that is allowed sets the bucket to this revision's rate, which may be faster.
            // Until there is a permit, none is.
            false => self.allows(&latest, &AtMostOne(cost)),
        };
        (!is_allowed).then(|| self.deny(&self.level(Some(state), *times.start()), cost))
    }

    /// The highest debt in ticks at which a check finds its permits.
    fn highest(&self, cost: u64, patience: Option<Patience>) -> u64 {
        self.ceiling(patience).saturating_sub(cost.saturating_mul(self.rate.permit()))
    }
}

impl Algorithm for TokenBucket {
    type Level = Debt;
    type State = BucketState;

    fn limit(&self) -> u64 {
        self.limit
    }

    fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
        let (limit, borrow) = (share(self.limit), share(self.borrow));
        let most = self.most_taken() + (ROOM - 1) * (self.limit + self.borrow);
        let rate = self.rate.divided(limit, self.limit, limit + borrow, most)?;
        Some(Self { limit, borrow, rate, ..*self })
    }

    /// Subtracts what the bucket gains during a lease. What is used in a span was charged in the span, or at most a
    /// lease before it.
    fn leased(&self, lease: u64) -> Result<Self, LeaseFault> {
        if self.is_queue() {
            return Err(LeaseFault::NoLeases);
        }
        let permits = self.reserve(lease);
        LeaseFault::check(1, permits, 1, self.limit)?;
        Ok(Self { limit: self.limit - permits, ..*self })
    }

    fn beyond_reserve(&self, lease: u64, time: u64) -> u64 {
        let reserve = self.reserve(lease).saturating_mul(self.rate.permit());
        time.saturating_mul(self.rate.scale()).saturating_sub(reserve)
    }

    fn capacity(&self, patience: Option<Patience>) -> u64 {
        match patience {
            None => self.limit + self.borrow,
            Some(_) => self.ceiling(patience) / self.rate.permit(),
        }
    }

    fn window(&self) -> u64 {
        let (ticks, scale) = (self.refill_ticks(), self.rate.scale());
        if ticks.is_multiple_of(scale) { ticks / scale } else { 0 }
    }

    fn level(&self, state: Option<BucketState>, now: u64) -> Debt {
        state.map_or(self.rate.debt(0), |state| state.debt(now))
    }

    fn empty(&self, _: u64) -> Debt {
        self.rate.ticks(self.refill_ticks())
    }

    fn used(debt: &Debt) -> u64 {
        debt.ticks.div_ceil(debt.rate.permit())
    }

    fn time_to(debt: &Debt, used: u64) -> u64 {
        let ticks = used.saturating_mul(debt.rate.permit());
        debt.rate.micros(debt.ticks.saturating_sub(ticks))
    }

    /// Permits are lent only while there is at least one.
    fn most_used(&self, cost: u64) -> u64 {
        (self.limit + self.borrow).saturating_sub(cost).min(self.limit - 1)
    }

    /// Compares ticks, which spares the division of [`used`](Self::used). The debt may be another
    /// revision's, and exceed the capacity.
    fn fits(&self, debt: &Debt, cost: u64, patience: Option<Patience>) -> bool {
        if patience.is_some() && self.borrow == 0 {
            return cost <= self.capacity(patience)
                && debt.at(self.rate).ticks <= self.highest(cost, patience);
        }
        let most = self.most_used(cost).saturating_mul(debt.rate.permit());
        cost <= self.limit + self.borrow && debt.ticks <= most
    }

    fn time_to_fit(&self, debt: &Debt, cost: u64, patience: Option<Patience>) -> u64 {
        if patience.is_none() || self.borrow > 0 {
            return Self::time_to(debt, self.most_used(cost));
        }
        // The debt falls at the rate of the revision that charged it last.
        let highest = u128::from(self.highest(cost, patience)) * u128::from(debt.rate.permit());
        let highest = highest / u128::from(self.rate.permit());
        let highest = u64::try_from(highest).unwrap_or(u64::MAX);
        debt.rate.micros(debt.ticks.saturating_sub(highest))
    }

    /// Brings the debt to the rate of this bucket.
    #[inline]
    fn charge(&self, debt: &mut Debt, cost: u64) {
        *debt = debt.at(self.rate);
        // At most `MAX_TICKS`: see `new` and `most_stored`.
        debt.ticks += cost * self.rate.permit();
    }

    fn most_taken(&self) -> u64 {
        self.capacity(self.queue.map(Patience))
    }

    fn most_stored(&self) -> u64 {
        MAX_TICKS / self.rate.permit()
    }

    /// The rest of the permits has refilled. Less than what refills during the delay is too much.
    fn returnable(&self, permits: u64, left: Left, _: u64) -> u64 {
        let (permit, scale) = (self.rate.permit(), self.rate.scale());
        // It was rounded up.
        let left = left.reset_after.saturating_sub(u64::from(scale > 1));
        permits.saturating_mul(permit).min(left.saturating_mul(scale)).min(MAX_TICKS)
    }

    /// The ticks in a permit.
    fn unit(&self) -> u64 {
        self.rate.permit()
    }

    fn credit(&self, debt: &mut Debt, ticks: u64) {
        *debt = debt.at(self.rate);
        debt.ticks = debt.ticks.saturating_sub(ticks);
    }

    fn is_own(&self, debt: &Debt) -> bool {
        debt.rate == self.rate
    }

    #[cfg(feature = "redis")]
    fn longest(&self) -> u64 {
        self.ceiling(self.queue.map(Patience)) / self.rate.scale()
    }

    fn state(debt: &Debt, now: u64) -> BucketState {
        debt.state(now)
    }

    fn until(state: &BucketState) -> u64 {
        state.until()
    }

    #[cfg(feature = "redis")]
    fn earlier(state: BucketState, by: u64, _: u64) -> BucketState {
        let FullAt { micros, ticks } = state.full_at;
        // A bucket that was full is full.
        let full_at = FullAt { micros: micros.saturating_sub(by), ticks };
        BucketState { full_at, ..state }
    }

    #[cfg(feature = "redis")]
    fn is_too_far(state: &BucketState, now: u64) -> bool {
        state.debt(now).ticks > MAX_TICKS
    }
}

/// The rate of a quota of which every debt can be represented exactly, also after the longest wait in a
/// queue. The error says what to change.
fn exact_rate(quota: &Quota, wait: u64) -> Result<Rate, String> {
    let (permits, period, burst) = (quota.permits(), quota.period(), quota.capacity());
    let error = |advice: &str| Err(format!("{permits} permits per {period:?} {advice}"));
    let divisor = gcd(period.as_micros(), permits.into());
    let (permit, scale) = (period.as_micros() / divisor, u128::from(permits) / divisor);
    // With a debt.
    let capacity = permit
        .saturating_mul(u128::from(burst) + u128::from(quota.borrowed()))
        .saturating_mul(ROOM.into());
    let max = u128::from(MAX_TICKS);
    if scale > max {
        return error(
            "is too large to represent exactly: use fewer permits, or a number that divides the period",
        );
    }
    let rate = u64::try_from(permit).ok().zip(u64::try_from(scale).ok());
    let rate = rate.and_then(|(permit, scale)| Rate::new(permit, scale));
    let Some(rate) = rate.filter(|_| capacity <= max) else {
        let most = max / u128::from(ROOM) / permit;
        let advice = if most == 0 {
            "shorten the period".to_owned()
        } else {
            let of = if quota.borrowed() > 0 { " with what may be borrowed" } else { "" };
            format!("use a burst of {most} or less{of}, or permits that divide the period")
        };
        return error(&format!(
            "with a burst of {burst} is too large to represent exactly: {advice}"
        ));
    };
    if capacity + u128::from(wait) * scale > max {
        let most = (max - capacity) / scale / 1_000_000;
        return error(&format!(
            "with this queue is too large to represent exactly: wait for at most {most} s, or use permits \
             that divide the period"
        ));
    }
    Ok(rate)
}

/// The longest wait in a queue, in microseconds.
fn longest_wait(wait: Duration) -> Result<u64, String> {
    match u64::try_from(wait.as_micros()) {
        Ok(micros)
            if (1..=MAX_TICKS).contains(&micros) && wait.subsec_nanos().is_multiple_of(1_000) =>
        {
            Ok(micros)
        }
        _ => {
            Err("the longest wait in a queue is a whole number of microseconds, 1 us to 142 years"
                .into())
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
impl TokenBucket {
    pub(crate) fn check(&self, debt: &mut Debt, cost: u64) -> crate::verdict::Verdict {
        super::limits::check_bucket(*self, debt, cost)
    }

    pub(crate) fn peek(&self, debt: Debt) -> crate::verdict::Verdict {
        super::limits::peek_bucket(*self, debt)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, Hasher};
    use std::time::Duration;

    use foldhash::quality::FixedState;
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Limit;
    use crate::algorithm::rate::FullAt;
    use crate::verdict::{Numbers, Outcome};

    impl TokenBucket {
        fn full(&self) -> Debt {
            self.rate.debt(0)
        }

        /// The debt of a bucket with this part of its capacity used.
        fn used(&self, part: f64) -> Debt {
            self.rate.ticks((self.refill_ticks() as f64 * part) as u64)
        }
    }

    fn bucket(quota: Quota) -> TokenBucket {
        TokenBucket::new(&quota).unwrap()
    }

    fn any_quota() -> impl Strategy<Value = Quota> {
        (1..=1_000_000u64, 1..=100_000_000_000u64, 1..=1_000_000u64)
            .prop_map(|(n, micros, burst)| {
                Quota::new(n, Duration::from_micros(micros)).burst(burst)
            })
            .prop_filter("too large to represent exactly", |quota| TokenBucket::new(quota).is_ok())
    }

    /// A quota that a few checks exhaust.
    fn small_quota() -> impl Strategy<Value = Quota> {
        (1..=20u64, 1..=100_000_000_000u64, 1..=40u64).prop_map(|(n, micros, burst)| {
            Quota::new(n, Duration::from_micros(micros)).burst(burst)
        })
    }

    #[test]
    fn three_per_second_is_exactly_three_per_second() {
        let bucket = bucket(Quota::per_second(3).burst(1));
        let (mut state, mut now, mut admitted) = (FullAt { micros: 0, ticks: 0 }, 1_000_000u64, 0);
        let end = now + 1_000 * 1_000_000;
        while now < end {
            let mut debt = bucket.rate.debt_at(now, state);
            let verdict = bucket.check(&mut debt, 1);
            admitted += u32::from(verdict.is_allowed());
            state = debt.full_at(now);
            now += verdict.numbers.retry_after.max(verdict.numbers.refill_after).max(1);
        }
        // Waits are whole microseconds, up to one too long per permit, so the last permit of the
        // span may fall just after it.
        assert_eq!(admitted, 3_000);
    }

    #[test]
    fn a_quota_that_cannot_work_is_an_error_that_says_what_to_change() {
        for (quota, says) in [
            (Quota::per_second(0), "1 or more"),
            (Quota::per_second(1).burst(0), "burst of 0"),
            (Quota::new(1, Duration::ZERO), "whole number of microseconds"),
            (Quota::new(1, Duration::from_nanos(1_500)), "whole number of microseconds"),
            (Quota::new(1, Duration::MAX).burst(1), "whole number of microseconds"),
            (Quota::new(1, Duration::from_secs(u64::MAX)), "shorten the period"),
            (Quota::new(u64::MAX, Duration::from_secs(1)), "fewer permits"),
            (Quota::new(u32::MAX.into(), Duration::from_secs(u64::MAX)), "shorten the period"),
            (Quota::per_day(1).burst(u32::MAX.into()), "use a burst of 4738 or less"),
            (Quota::per_second(1).burst(u64::MAX), "use a burst of 409418147 or less"),
            (Quota::per_day(1_000_003).burst(50_000), "use a burst of 4738 or less"),
            (Quota::per_day(1_000_003), "permits that divide the period"),
        ] {
            let error = Limit::new("q", &quota, 0).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("`q`"), "{quota:?}: {error}");
        }
        assert!(TokenBucket::new(&Quota::per_day(1).burst(4_738)).is_ok());
        assert!(TokenBucket::new(&Quota::per_second(1).burst(409_418_147)).is_ok());
        assert!(TokenBucket::new(&Quota::per_second(409_418_147)).is_ok());
    }

    #[test]
    fn permits_are_lent_only_while_one_is_left() {
        let bucket = bucket(Quota::per_second(1).burst(10).borrow_up_to(5));
        let mut debt = bucket.full();
        assert_eq!(bucket.check(&mut debt, 16).outcome, Outcome::ExceedsCapacity);
        assert!(bucket.check(&mut debt, 9).is_allowed());
        // One permit is left, and five can be borrowed.
        assert_eq!(bucket.check(&mut debt, 7).numbers.retry_after, 1_000_000);
        let mut in_debt = debt;
        assert!(bucket.check(&mut in_debt, 6).is_allowed());
        let denied = bucket.check(&mut in_debt, 1);
        assert_eq!((denied.numbers.remaining, denied.numbers.retry_after), (0, 6_000_000));
        // None is left, so none is lent, although fewer than five are owed.
        assert!(bucket.check(&mut debt, 2).is_allowed());
        assert_eq!(bucket.check(&mut debt, 1).numbers.retry_after, 2_000_000);
    }

    #[test]
    fn bytes_per_month_are_exact() {
        let month = Duration::from_secs(30 * 86_400);
        let terabyte = bucket(Quota::new(1_000_000_000_000, month));
        let mut debt = terabyte.full();
        assert!(terabyte.check(&mut debt, 999_999_999_999).is_allowed());
        assert_eq!(terabyte.check(&mut debt, 2).outcome, Outcome::Denied);
        assert!(terabyte.check(&mut debt, 1).is_allowed());
        assert_eq!(terabyte.window(), month.as_micros() as u64);
    }

    #[test]
    fn a_cost_above_the_capacity_is_denied_without_a_wait() {
        let bucket = bucket(Quota::per_second(5));
        let mut debt = bucket.full();
        let verdict = bucket.check(&mut debt, 6);
        assert_eq!(verdict.outcome, Outcome::ExceedsCapacity);
        assert_eq!(
            (debt, verdict.numbers.retry_after, verdict.numbers.remaining),
            (bucket.full(), u64::MAX, 5)
        );
        assert_eq!(bucket.check(&mut debt, u64::MAX).outcome, Outcome::ExceedsCapacity);
    }

    /// Revisions check in random alternation for ten seconds, on average every `pause` microseconds.
    /// Returns the permits that they admit.
    fn admitted(revisions: &[Quota], pause: u64, seed: u64) -> u64 {
        let buckets: Vec<_> = revisions.iter().copied().map(bucket).collect();
        let mut random = FixedState::with_seed(seed).build_hasher();
        let mut random = |below: u64| {
            random.write_u64(below);
            random.finish() % below
        };
        let mut rate = buckets[0].rate;
        let (mut state, mut now, mut admitted) = (FullAt { micros: 0, ticks: 0 }, 1 << 50, 0);
        let end = now + 10_000_000;
        while now < end {
            let bucket = buckets[random(buckets.len() as u64) as usize];
            let mut debt = rate.debt_at(now, state);
            if bucket.check(&mut debt, 1).is_allowed() {
                admitted += 1;
                (rate, state) = (debt.rate, debt.full_at(now));
            }
            now += random(2 * pause);
        }
        admitted
    }

    #[test]
    fn revisions_at_saturation_admit_between_the_smaller_rate_and_the_larger_quota() {
        let quota = |rate, burst| Quota::per_second(rate).burst(burst);
        for (revisions, pause) in [
            (vec![quota(10, 20), quota(20, 20)], 500),
            (vec![quota(3, 5), quota(7, 5)], 500),
            (vec![Quota::per_hour(10), quota(10, 10)], 500),
            (vec![quota(10, 1_000), quota(10, 100)], 500),
            (vec![quota(1_000, 1_000), quota(1_050, 1_000)], 50),
            (vec![quota(100, 500), quota(130, 700)], 500),
            (vec![quota(10, 20), quota(20, 20), quota(15, 40)], 500),
            (vec![quota(3, 5), quota(7, 9), quota(11, 2)], 500),
        ] {
            let numbers: Vec<_> = revisions
                .iter()
                .map(|quota| (quota.permits(), quota.period(), quota.capacity()))
                .collect();
            let in_span = |(permits, period, _): &(u64, Duration, u64)| {
                *permits as f64 * 10.0 / period.as_secs_f64()
            };
            let rates = numbers.iter().map(in_span);
            let fastest = rates.clone().fold(0.0, f64::max);
            let slowest = rates.fold(f64::INFINITY, f64::min);
            let bursts = numbers.iter().map(|(_, _, burst)| *burst);
            let least = slowest + bursts.clone().min().unwrap() as f64 - 1.0;
            let most = fastest + bursts.max().unwrap() as f64;
            for seed in 0..10 {
                let admitted = admitted(&revisions, pause, seed) as f64;
                assert!(least <= admitted && admitted <= most, "{revisions:?}: {admitted}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_check_is_denied_until_exactly_the_reported_wait(
            quota in any_quota(), used in 0.0..=1.0f64, cost in 1..=1_000_000u64, now in 0..=1u64 << 51,
        ) {
            let bucket = bucket(quota);
            let debt = bucket.used(used);
            let state = debt.full_at(now);
            let verdict = bucket.check(&mut debt.clone(), cost);
            prop_assume!(verdict.outcome != Outcome::ExceedsCapacity);
            let at = now + verdict.numbers.retry_after;
            prop_assert!(bucket.check(&mut bucket.rate.debt_at(at, state), cost).is_allowed());
            if !verdict.is_allowed() {
                prop_assert!(!bucket.check(&mut bucket.rate.debt_at(at - 1, state), cost).is_allowed());
            }
        }

        #[test]
        fn a_denied_check_changes_nothing(quota in any_quota(), used in 0.0..=1.0f64, cost: u64) {
            let bucket = bucket(quota);
            let before = bucket.used(used);
            let mut debt = before;
            if !bucket.check(&mut debt, cost).is_allowed() {
                prop_assert_eq!(debt, before);
            }
        }

        #[test]
        fn remaining_can_be_taken_and_grows_after_the_reported_time(
            quota in any_quota(), used in 0.0..=1.0f64, now in 0..=1u64 << 51,
        ) {
            let bucket = bucket(quota);
            let debt = bucket.used(used);
            let state = debt.full_at(now);
            let Numbers { remaining, refill_after, reset_after, .. } = bucket.check(&mut debt.clone(), 0).numbers;
            prop_assert!(bucket.check(&mut debt.clone(), remaining).is_allowed());
            let at = |wait| bucket.rate.debt_at(now + wait, state);
            prop_assert_eq!(at(reset_after), bucket.full());
            if remaining < bucket.limit {
                prop_assert!(!bucket.check(&mut debt.clone(), remaining + 1).is_allowed());
                prop_assert!(bucket.check(&mut at(refill_after), remaining + 1).is_allowed());
                let early = refill_after - 1;
                prop_assert!(!bucket.check(&mut at(early), remaining + 1).is_allowed());
            }
        }

        #[test]
        fn no_span_admits_more_than_burst_plus_rate(
            quota in any_quota(), steps in prop::collection::vec((0..=5_000_000u64, 0..=2_000u64), 1..100),
        ) {
            let bucket = bucket(quota);
            let (mut state, mut now, mut taken) = (FullAt { micros: 0, ticks: 0 }, 1 << 50, 0u128);
            let start = now;
            for (wait, cost) in steps {
                now += wait;
                let mut debt = bucket.rate.debt_at(now, state);
                if bucket.check(&mut debt, cost).is_allowed() {
                    taken += u128::from(cost);
                    state = debt.full_at(now);
                }
                let refilled = u128::from(now - start) * u128::from(bucket.rate.scale());
                let used = taken * u128::from(bucket.rate.permit());
                prop_assert!(used <= u128::from(bucket.refill_ticks()) + refilled);
            }
        }

        #[test]
        fn revisions_in_random_alternation_admit_no_more_than_the_larger_quota(
            quotas in prop::collection::vec(small_quota(), 2..=3),
            steps in prop::collection::vec((0..=5_000_000u64, 0..3usize, 0..=20u64), 1..100),
        ) {
            let buckets: Vec<_> = quotas.into_iter().map(bucket).collect();
            let burst = buckets.iter().map(|bucket| bucket.limit).max().unwrap();
            let per_micro = |bucket: &TokenBucket| (bucket.rate.scale(), bucket.rate.permit());
            let fastest = buckets.iter().map(per_micro).max_by(|(a, b), (c, d)| {
                (u128::from(*a) * u128::from(*d)).cmp(&(u128::from(*c) * u128::from(*b)))
            });
            let (scale, permit) = fastest.unwrap();
            let mut rate = buckets[0].rate;
            let (mut state, mut now, mut taken) = (FullAt { micros: 0, ticks: 0 }, 1 << 50, 0u128);
            let start = now;
            for (wait, revision, cost) in steps {
                now += wait;
                let bucket = buckets[revision % buckets.len()];
                let found = rate.debt_at(now, state);
                let mut debt = found;
                if bucket.check(&mut debt, cost).is_allowed() {
                    taken += u128::from(cost);
                    (rate, state) = (debt.rate, debt.full_at(now));
                } else {
                    prop_assert_eq!(debt, found);
                }
                let refilled = u128::from(now - start) * u128::from(scale);
                let most = u128::from(burst) * u128::from(permit) + refilled;
                prop_assert!(taken * u128::from(permit) <= most);
            }
        }

        #[test]
        fn another_revisions_debt_is_denied_until_exactly_the_reported_wait(
            quotas in [any_quota(), any_quota()], used in 0.0..=1.0f64, cost in 1..=1_000_000u64,
            now in 0..=1u64 << 51,
        ) {
            let [old, new] = quotas.map(bucket);
            let found = old.used(used);
            let state = found.full_at(now);
            let verdict = new.check(&mut found.clone(), cost);
            prop_assume!(verdict.outcome != Outcome::ExceedsCapacity);
            let check = |at, cost| new.check(&mut old.rate.debt_at(at, state), cost);
            prop_assert!(check(now + verdict.numbers.retry_after, cost).is_allowed());
            if !verdict.is_allowed() {
                prop_assert!(!check(now + verdict.numbers.retry_after - 1, cost).is_allowed());
            }
            let Numbers { remaining, refill_after, reset_after, .. } = new.peek(found).numbers;
            prop_assert!(check(now, remaining).is_allowed());
            prop_assert_eq!(check(now + reset_after, 0).numbers.remaining, new.limit);
            if remaining < new.limit {
                prop_assert!(!check(now + refill_after - 1, remaining + 1).is_allowed());
                prop_assert!(check(now + refill_after, remaining + 1).is_allowed());
            }
        }

        #[test]
        fn no_quota_and_no_cost_panics(n: u64, secs: u64, nanos in 0..1_000_000_000u32, burst: u64, cost: u64, micros: u64, ticks: u64, now in 0..=1u64 << 52) {
            if let Ok(bucket) = TokenBucket::new(&Quota::new(n, Duration::new(secs, nanos)).burst(burst)) {
                let mut debt = bucket.rate.debt_at(now, FullAt { micros, ticks });
                bucket.check(&mut debt, cost);
                bucket.peek(debt);
                debt.full_at(now);
            }
        }
    }
}

//! A limit on permits that are held at a time, such as requests in flight. Each instance (a process, or a hold of
//! fleetlimit-server) that holds some has an entry: how many, and when they end unless it renews them. So a key takes
//! memory by the instances that use it, not by requests, and what a killed process holds becomes free.
//!
//! Every change by an instance renews all that it holds of the key. Time frees nothing else, so no wait for a permit
//! is known.
//!
//! An instance counts for itself what it holds, and a call to the store reports that before it takes more. Calls have
//! numbers, so one that arrives after a later one does not undo that, while the instance holds permits.

use super::rate::{MAX_TICKS, ROOM};
use super::{Algorithm, LeaseFault};
use crate::Quota;
use crate::charge::{Cost, Left, Patience};
use crate::verdict::{Numbers, Outcome};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Concurrent {
    limit: u64,
    /// The instance that decides.
    instance: u64,
    /// The time for which permits are held that are not renewed, in microseconds.
    lifetime: u64,
}

/// The permits that are held at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldLevel {
    instance: u64,
    own: u32,
    /// The latest call that has said how many permits the instance holds.
    call: u64,
    /// The time at which the own permits end, in microseconds, unless they are renewed now.
    own_end: u64,
    others: Box<[Held]>,
    limit: u64,
    now: u64,
}

/// The permits that instances hold, as a store keeps them: those of the instance that changed them last come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldState(pub(crate) Box<[Held]>);

/// The permits that an instance holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) instance: u64,
    /// The time from which its permits do not count, in microseconds since 1970.
    pub(crate) ends_at: u64,
    /// The number of the latest call that has said how many permits it holds.
    pub(crate) call: u64,
    pub(crate) permits: u32,
}

impl Concurrent {
    /// The most permits, so that each instance's permits fit into 32 bits with the room that every quota has.
    const MOST: u64 = u32::MAX as u64 / ROOM;

    /// The most instances that hold permits of a key, so that a value stays small. `lua/concurrent.lua` has the same
    /// numbers.
    const MOST_INSTANCES: usize = 1_024;

    /// The most others that leave room for an instance which reports what it holds already: the size of a value has 16
    /// bits. There can be more than `MOST_INSTANCES` if a store has lost its data, and they come back.
    const MOST_STORED: usize = 2_338;

    /// Creates a limit for a store in memory, whose permits are held until they are given back.
    pub(crate) fn new(quota: &Quota) -> Result<Self, String> {
        let limit = quota.permits();
        if limit == 0 {
            return Err(
                "a limit of 0 permits at a time would deny everything: use 1 or more".into()
            );
        }
        if limit > Self::MOST {
            return Err(format!("at most {} permits are held at a time", Self::MOST));
        }
        if quota.capacity() != limit || quota.borrowed() > 0 {
            return Err("permits that are held have no burst: remove `burst` and `borrow`".into());
        }
        Ok(Self { limit, instance: 1, lifetime: MAX_TICKS })
    }

    /// Returns the same limit for an instance of several, whose permits end after `lifetime` microseconds unless it renews
    /// them. The number of the instance is from 1 to 2^53.
    pub(crate) fn held_by(self, instance: u64, lifetime: u64) -> Self {
        Self { instance, lifetime, ..self }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    #[cfg(feature = "redis")]
    pub(crate) fn lifetime(&self) -> u64 {
        self.lifetime
    }

    fn end(&self, now: u64) -> u64 {
        now.saturating_add(self.lifetime)
    }

    /// Notes how many permits the instance holds, as a call of this number says, unless a later call has said so or there
    /// is no room.
    pub(crate) fn hold(&self, level: &mut HeldLevel, permits: u64, call: u64) {
        let has_room = permits == 0 || level.others.len() <= Self::MOST_STORED;
        if call >= level.call && has_room {
            (level.own, level.call) = (permits.try_into().unwrap_or(u32::MAX), call);
        }
        level.own_end = self.end(level.now);
    }
}

impl Algorithm for Concurrent {
    type Level = HeldLevel;
    type State = HeldState;

    fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns 0, because there is no window.
    fn window(&self) -> u64 {
        0
    }

    fn divided(&self, share: &impl Fn(u64) -> u64) -> Option<Self> {
        let limit = share(self.limit);
        (limit > 0).then_some(Self { limit, ..*self })
    }

    /// An instance counts what it keeps as held, so a lease adds nothing.
    fn leased(&self, _: u64) -> Result<Self, LeaseFault> {
        Ok(*self)
    }

    fn level(&self, state: Option<HeldState>, now: u64) -> HeldLevel {
        let held = state.map(|HeldState(held)| held).unwrap_or_default();
        let live = held.iter().filter(|held| held.ends_at > now);
        let own = live.clone().find(|held| held.instance == self.instance);
        let (own, call, own_end) =
            own.map_or((0, 0, 0), |own| (own.permits, own.call, own.ends_at));
        let others = live.filter(|held| held.instance != self.instance).copied().collect();
        let (instance, limit) = (self.instance, self.limit);
        HeldLevel { instance, own, call, own_end, others, limit, now }
    }

    /// Returns an exhausted level: all permits belong to instance 0, which never renews them.
    fn empty(&self, now: u64) -> HeldLevel {
        let permits = self.limit.try_into().unwrap_or(u32::MAX);
        let others = [Held { instance: 0, permits, call: 0, ends_at: self.end(now) }].into();
        let (instance, limit) = (self.instance, self.limit);
        HeldLevel { instance, own: 0, call: 0, own_end: 0, others, limit, now }
    }

    fn used(level: &HeldLevel) -> u64 {
        let others = level.others.iter().map(|held| u64::from(held.permits)).sum();
        match level.own {
            // No more instances can hold permits.
            0 if level.others.len() >= Self::MOST_INSTANCES => level.limit.max(others),
            own => u64::from(own) + others,
        }
    }

    /// Returns 0, because the time is unknown.
    fn time_to(_: &HeldLevel, _: u64) -> u64 {
        0
    }

    fn time_to_fit(&self, level: &HeldLevel, cost: u64, patience: Option<Patience>) -> u64 {
        if self.fits(level, cost, patience) { 0 } else { u64::MAX }
    }

    fn numbers_after(
        &self,
        level: &HeldLevel,
        outcome: Outcome,
        quota: usize,
        cost: &impl Cost,
    ) -> Numbers {
        let needed = cost.needed(quota);
        let retry_after = match outcome {
            Outcome::Denied if needed > 0 => self.time_to_fit(level, needed, None),
            Outcome::ExceedsCapacity if needed > self.limit => u64::MAX,
            _ => 0,
        };
        Numbers { retry_after, ..self.numbers(level) }
    }

    /// Renews the own permits, also with a cost of 0.
    fn charge(&self, level: &mut HeldLevel, cost: u64) {
        // At most `most_stored`.
        level.own += cost as u32;
        level.own_end = self.end(level.now);
    }

    fn most_stored(&self) -> u64 {
        u32::MAX.into()
    }

    /// Time makes no permit available again.
    fn returnable(&self, permits: u64, _: Left, _: u64) -> u64 {
        permits
    }

    /// Gives back permits of this instance only.
    fn credit(&self, level: &mut HeldLevel, permits: u64) {
        level.own -= permits.min(level.own.into()) as u32;
        level.own_end = self.end(level.now);
    }

    fn is_own(&self, _: &HeldLevel) -> bool {
        true
    }

    #[cfg(feature = "redis")]
    fn longest(&self) -> u64 {
        self.lifetime
    }

    fn state(level: &HeldLevel, _: u64) -> HeldState {
        let &HeldLevel { instance, own: permits, call, own_end: ends_at, .. } = level;
        let own = (permits > 0).then_some(Held { instance, permits, call, ends_at });
        HeldState(own.into_iter().chain(level.others.iter().copied()).collect())
    }

    fn until(state: &HeldState) -> u64 {
        state.0.iter().map(|held| held.ends_at).max().unwrap_or(0)
    }

    #[cfg(feature = "redis")]
    fn earlier(HeldState(mut held): HeldState, by: u64, _: u64) -> HeldState {
        held.iter_mut().for_each(|held| held.ends_at = held.ends_at.saturating_sub(by));
        HeldState(held)
    }

    #[cfg(feature = "redis")]
    fn is_too_far(state: &HeldState, now: u64) -> bool {
        Self::until(state).saturating_sub(now) > MAX_TICKS
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::algorithm::Limit;

    const LIFETIME: u64 = 10_000_000;

    fn instance(number: u64, limit: u64) -> Concurrent {
        Concurrent::new(&Quota::concurrent(limit)).unwrap().held_by(number, LIFETIME)
    }

    fn take(by: &Concurrent, state: &mut Option<HeldState>, now: u64) -> bool {
        let mut level = by.level(state.clone(), now);
        let is_allowed = by.decide(&mut level, &1).is_allowed();
        if is_allowed {
            *state = Some(Concurrent::state(&level, now));
        }
        is_allowed
    }

    fn give_back(by: &Concurrent, state: &mut Option<HeldState>, permits: u64, now: u64) {
        let mut level = by.level(state.clone(), now);
        by.credit(&mut level, permits);
        *state = Some(Concurrent::state(&level, now));
    }

    fn used(by: &Concurrent, state: &Option<HeldState>, now: u64) -> u64 {
        Concurrent::used(&by.level(state.clone(), now))
    }

    #[test]
    fn all_instances_together_hold_no_more_than_the_limit() {
        let (a, b, mut state) = (instance(1, 3), instance(2, 3), None);
        assert!(take(&a, &mut state, 5) && take(&b, &mut state, 5) && take(&a, &mut state, 5));
        assert!(!take(&a, &mut state, 6) && !take(&b, &mut state, 6));
        give_back(&b, &mut state, 1, 7);
        assert!(take(&a, &mut state, 8) && !take(&b, &mut state, 8));
    }

    #[test]
    fn an_instance_gives_back_no_permit_that_another_holds() {
        let (a, b, mut state) = (instance(1, 3), instance(2, 3), None);
        assert!(take(&a, &mut state, 5) && take(&b, &mut state, 5) && take(&b, &mut state, 5));
        give_back(&a, &mut state, 3, 6);
        assert_eq!(used(&a, &state, 6), 2);
    }

    #[test]
    fn permits_end_with_their_lifetime_unless_their_own_instance_changes_anything() {
        let (a, b, mut state) = (instance(1, 9), instance(2, 9), None);
        assert!(take(&a, &mut state, 0) && take(&b, &mut state, 0));
        assert!(take(&a, &mut state, LIFETIME - 1));
        assert_eq!(used(&a, &state, LIFETIME - 1), 3);
        assert_eq!(used(&a, &state, LIFETIME), 2, "those of the other have ended");
        assert_eq!(used(&b, &state, 2 * LIFETIME - 2), 2);
        assert_eq!(used(&b, &state, 2 * LIFETIME - 1), 0);
    }

    #[test]
    fn the_memory_of_a_key_does_not_grow_with_its_permits() {
        let (a, b, mut state) = (instance(1, 1_000), instance(2, 1_000), None);
        assert!((0..500).all(|now| take(&a, &mut state, now) && take(&b, &mut state, now)));
        assert_eq!(state.unwrap().0.len(), 2);
    }

    #[test]
    fn a_denial_knows_no_wait() {
        let (a, mut state) = (instance(1, 1), None);
        assert!(take(&a, &mut state, 0));
        let verdict = a.decide(&mut a.level(state, 1), &1);
        assert_eq!((verdict.numbers.retry_after, verdict.numbers.reset_after), (u64::MAX, 0));
    }

    #[test]
    fn a_limit_that_cannot_work_is_an_error_that_says_what_to_change() {
        for (quota, says) in [
            (Quota::concurrent(0), "1 or more"),
            (Quota::concurrent(1 << 40), "at most 390451572"),
            (Quota::concurrent(5).burst(6), "remove `burst`"),
        ] {
            let error = Limit::new("q", &quota, 0).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("`q`"), "{quota:?}: {error}");
        }
    }
}

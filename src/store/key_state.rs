//! The state of a key in the memory of this process.

use std::ops::RangeInclusive;

use super::unnamed::{self, UNNAMED};
use crate::algorithm::{BucketState, Limits, QuotaEntry, QuotaState, Standing, TokenBucket};
use crate::charge::Cost;
use crate::verdict::Verdict;

/// The state of a key, which takes 32 bytes and no allocation in most cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// A token bucket that is the only quota of its policy, [without its identity](super::unnamed).
    Unnamed(BucketState),
    /// The entries of several quotas, or of one of another algorithm.
    Entries(Box<[QuotaEntry]>),
}

impl KeyState {
    /// The state of a key that was never used.
    pub(crate) fn unused() -> Self {
        Self::Entries(Box::default())
    }

    /// The levels of a key at `now`, in which a store has found this.
    pub(crate) fn standing(found: Option<&Self>, limits: &Limits, now: u64) -> Standing {
        Self::read(found, limits, |entries| limits.standing(entries, now))
    }

    /// The state to store after a check that has left these levels, of a key in which a store has found
    /// this.
    pub(crate) fn after(
        standing: &Standing,
        found: Option<&Self>,
        limits: &Limits,
        now: u64,
    ) -> Self {
        // If there are identities, they are kept: the other quotas may be unused at the moment.
        let is_named = |entry: &QuotaEntry| entry.quota != UNNAMED && entry.state.until() > now;
        let is_named =
            matches!(found, Some(Self::Entries(entries)) if entries.iter().any(is_named));
        match standing.only_bucket(now) {
            Some(state) if !is_named => Self::Unnamed(state),
            _ => {
                let entries = |found: &[QuotaEntry]| limits.entries(standing, found, now);
                Self::Entries(Self::read(found, limits, entries))
            }
        }
    }

    /// Reads entries with the identities of these quotas.
    fn read<T>(found: Option<&Self>, limits: &Limits, read: impl FnOnce(&[QuotaEntry]) -> T) -> T {
        match found {
            None => read(&[]),
            Some(Self::Unnamed(state)) => {
                let quota = unnamed::owner(limits, state.rate).map_or(UNNAMED, |(_, id)| id);
                read(&[QuotaEntry { quota, state: QuotaState::TokenBucket(*state) }])
            }
            Some(Self::Entries(entries)) => {
                if entries.iter().all(|entry| entry.quota != UNNAMED) {
                    return read(entries);
                }
                let mut entries = entries.clone();
                unnamed::identify(&mut entries, limits);
                read(&entries)
            }
        }
    }

    /// The verdict at the earliest of these times on a check of a key that a check has left in this
    /// state, if it is denied at the latest too, whatever other checks do meanwhile.
    #[inline]
    pub(crate) fn denial(
        &self,
        limits: &Limits,
        cost: &impl Cost,
        times: RangeInclusive<u64>,
    ) -> Option<Verdict> {
        if let (Self::Unnamed(state), Some(bucket)) = (self, limits.only_bucket()) {
            return bucket.denial(*state, cost, times);
        }
        Self::read(Some(self), limits, |entries| limits.denial(entries, cost, times))
    }

    /// The token bucket that is the only quota, and its state, if nothing else is stored.
    #[inline]
    pub(super) fn only_bucket<'a>(
        &mut self,
        limits: &'a Limits,
    ) -> Option<(&'a TokenBucket, &mut BucketState)> {
        match self {
            Self::Unnamed(state) => Some((limits.only_bucket()?, state)),
            Self::Entries(_) => None,
        }
    }

    /// The time at which all quotas are as if the key had never been used, in microseconds.
    pub(crate) fn until(&self) -> u64 {
        match self {
            Self::Unnamed(state) => state.until(),
            Self::Entries(entries) => {
                entries.iter().map(|entry| entry.state.until()).max().unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::store::Op;
    use crate::{Policy, Quota};

    const NOW: u64 = 1 << 50;
    const DAY: u64 = 86_400_000_000;
    const WEEK: Quota = Quota::new(10, Duration::from_secs(604_800));

    fn limits(quotas: &[(&'static str, Quota)]) -> Limits {
        let add =
            |policy: Policy, &(name, quota): &(&'static str, Quota)| policy.quota(name, quota);
        Limits::new(&quotas.iter().fold(Policy::new("test"), add), NOW).unwrap()
    }

    fn take(limits: &Limits, found: Option<&KeyState>, cost: u64, now: u64) -> KeyState {
        let mut standing = KeyState::standing(found, limits, now);
        assert!(limits.check(&mut standing, &cost).is_allowed());
        KeyState::after(&standing, found, limits, now)
    }

    fn remaining(limits: &Limits, found: &KeyState) -> Vec<u64> {
        let verdict = limits.peek(&KeyState::standing(Some(found), limits, NOW));
        match &verdict.several {
            Some(several) => several.numbers.iter().map(|numbers| numbers.remaining).collect(),
            None => vec![verdict.numbers.remaining],
        }
    }

    fn entries(state: &KeyState) -> &[QuotaEntry] {
        match state {
            KeyState::Unnamed(_) => panic!("{state:?}"),
            KeyState::Entries(entries) => entries,
        }
    }

    #[test]
    fn a_quota_that_is_added_before_an_only_bucket_does_not_take_its_place() {
        let day = Quota::per_day(10);
        let state = take(&limits(&[("week", WEEK)]), None, 7, NOW);
        assert!(matches!(state, KeyState::Unnamed(_)));
        for (quotas, left) in [([day, WEEK], [10, 3]), ([day, Quota::per_hour(10)], [3, 10])] {
            let both = limits(&[("a", quotas[0]), ("b", quotas[1])]);
            assert_eq!(remaining(&both, &state), left, "{quotas:?}");
            // From now on it has an identity.
            let after = take(&both, Some(&state), 1, NOW);
            assert_eq!(remaining(&both, &after), left.map(|left| left - 1), "{quotas:?}");
            assert_eq!(entries(&after).len(), 2);
            let renamed = limits(&[("c", quotas[0]), ("d", quotas[1])]);
            assert_eq!(remaining(&renamed, &after), [10, 10], "{quotas:?}");
        }
    }

    /// Or a rolling deployment to a window would forget it for the instances that have not followed.
    #[test]
    fn revisions_without_a_token_bucket_keep_the_unnamed_one() {
        let (day, window) = (Quota::per_day(10), WEEK.fixed_window());
        let (old, new) = (limits(&[("week", WEEK)]), limits(&[("week", window)]));
        let state = take(&new, Some(&take(&old, None, 7, NOW)), 2, NOW);
        assert_eq!((entries(&state).len(), remaining(&new, &state)), (2, vec![8]));
        let both = limits(&[("a", day), ("b", WEEK)]);
        assert_eq!((remaining(&old, &state), remaining(&both, &state)), (vec![3], vec![10, 3]));
        assert_eq!(remaining(&both, &take(&both, Some(&state), 1, NOW)), [9, 2]);
    }

    #[test]
    fn a_state_lasts_as_long_as_any_of_its_entries() {
        let both = limits(&[("a", Quota::per_day(1)), ("b", WEEK.fixed_window())]);
        assert_eq!(take(&both, None, 1, NOW).until(), NOW + 7 * DAY);
        assert_eq!(take(&limits(&[("a", Quota::per_day(1))]), None, 1, NOW).until(), NOW + DAY);
        assert_eq!(KeyState::unused().until(), 0);
    }

    #[test]
    fn an_entry_that_ends_at_this_instant_has_no_identity_any_more() {
        let (one, other) = (("a", Quota::per_second(5)), ("b", Quota::per_second(1)));
        let state = take(&limits(&[one, other]), None, 1, NOW);
        let end = NOW + 1_000_000;
        let state_at = |now| take(&limits(&[one]), Some(&state), 1, now);
        assert!(matches!(state_at(end - 1), KeyState::Entries(_)));
        assert!(matches!(state_at(end), KeyState::Unnamed(_)));
    }

    proptest! {
        /// Here all token buckets have one name. So whether the identity is stored makes no difference.
        #[test]
        fn what_is_stored_decides_as_entries_with_identities_do(
            checks in prop::collection::vec((0..6usize, 0..=DAY / 5, 0..=12u64), 1..60),
        ) {
            let bucket = ("a", Quota::per_day(10));
            let revisions = [
                limits(&[bucket]),
                limits(&[("a", WEEK.burst(12))]),
                limits(&[("b", WEEK.fixed_window())]),
                limits(&[bucket, ("b", WEEK.fixed_window())]),
                limits(&[("c", Quota::per_hour(9).interval_refill()), bucket]),
                limits(&[("a", WEEK.fixed_window())]),
            ];
            let (mut stored, mut now) = (KeyState::unused(), NOW);
            let mut entries: Box<[QuotaEntry]> = Box::default();
            for (revision, pause, cost) in checks {
                now += pause;
                let limits = &revisions[revision];
                let mut standing = limits.standing(&entries, now);
                let verdict = limits.check(&mut standing, &cost);
                if verdict.is_allowed() && cost > 0 {
                    entries = limits.entries(&standing, &entries, now);
                }
                let op = Op::Acquire(crate::charge::Charge::Same(cost));
                let denial = stored.denial(limits, &cost, now..=now);
                prop_assert_eq!(denial.is_some() && !verdict.is_allowed(), denial.is_some());
                prop_assert_eq!(op.apply_to(limits, &mut stored, now), verdict);
                for limits in &revisions {
                    let found = KeyState::standing(Some(&stored), limits, now);
                    prop_assert_eq!(found, limits.standing(&entries, now));
                }
            }
        }
    }
}

//! The token bucket that is the only quota of its policy, which is stored without its identity.
//!
//! Most policies are of this kind, and so a key takes the least memory: an integer on Redis, and 32 bytes
//! in a process. Whoever reads such a bucket gives it the identity of one of its own quotas, so that the
//! [specification](crate::algorithm) sees entries with identities only. A reader without a token bucket
//! keeps it for those that have one. The scripts do the same: see `lua/other.lua`.

#[cfg(feature = "redis")]
use smallvec::SmallVec;

use crate::algorithm::{Limits, QuotaEntry, QuotaId, QuotaState, Rate};

/// The identity in the entry of an unnamed bucket. No quota has it.
pub(super) const UNNAMED: QuotaId = QuotaId::from_u32(0);

/// The quota to which an unnamed bucket of this rate belongs, and its index: the first token bucket with
/// the same rate or, if there is none, the first token bucket. `None` if the policy has no token bucket.
#[inline]
pub(super) fn owner(limits: &Limits, rate: Rate) -> Option<(usize, QuotaId)> {
    let mut first = None;
    for (index, (id, limit)) in limits.iter().enumerate() {
        match limit.rate() {
            Some(own) if own == rate => return Some((index, id)),
            Some(_) => first = first.or(Some((index, id))),
            None => {}
        }
    }
    first
}

/// Gives the unnamed bucket among these entries the identity of its owner, and returns that. `None` if there
/// is no unnamed bucket, or if no quota reads it, because its owner has an entry already.
pub(super) fn identify(entries: &mut [QuotaEntry], limits: &Limits) -> Option<QuotaId> {
    let rate = |entry: &QuotaEntry| match entry.state {
        QuotaState::TokenBucket(state) => Some(state.rate),
        _ => None,
    };
    let unnamed = entries.iter().position(|entry| entry.quota == UNNAMED)?;
    let (_, owner) = owner(limits, rate(&entries[unnamed])?)?;
    if entries.iter().any(|entry| entry.quota == owner && rate(entry).is_some()) {
        return None;
    }
    entries[unnamed].quota = owner;
    Some(owner)
}

/// The permits of each quota, if these were taken from the quotas of another revision.
#[cfg(feature = "redis")]
pub(super) fn permits_of_revision(
    limits: &Limits,
    other: &Limits,
    permits: &[u64],
) -> SmallVec<[u64; 1]> {
    let only = other.only_bucket().and_then(|bucket| owner(limits, bucket.rate()));
    let of = |(index, (id, _)): (usize, (QuotaId, _))| {
        let index = match only {
            Some((owner, _)) => (index == owner).then_some(0),
            None => other.iter().position(|(other, _)| other == id),
        };
        index.and_then(|index| permits.get(index)).copied().unwrap_or(0)
    };
    limits.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Policy, Quota};

    const WEEK: Quota = Quota::new(10, Duration::from_secs(604_800));

    fn limits(quotas: &[Quota]) -> Limits {
        let names = quotas.iter().zip('a'..);
        let add =
            |policy: Policy, (quota, name): (&Quota, char)| policy.quota(name.to_string(), *quota);
        Limits::new(&names.fold(Policy::new("test"), add), 0).unwrap()
    }

    fn rate(quota: Quota) -> Rate {
        limits(&[quota]).only_bucket().unwrap().rate()
    }

    #[test]
    fn an_unnamed_bucket_belongs_to_the_first_of_its_rate_or_else_to_the_first() {
        let day = Quota::per_day(10);
        for (quotas, expected) in [
            (vec![day, WEEK], Some(1)),
            (vec![WEEK, day], Some(0)),
            (vec![day, WEEK.burst(8)], Some(1)),
            (vec![WEEK, WEEK], Some(0)),
            (vec![WEEK.fixed_window(), WEEK], Some(1)),
            (vec![day, WEEK.borrow_up_to(5)], Some(1)),
            (vec![day, Quota::per_hour(10)], Some(0)),
            (vec![day.fixed_window(), day], Some(1)),
            (vec![day.fixed_window(), day.interval_refill()], None),
            (vec![day], Some(0)),
            (vec![WEEK.fixed_window()], None),
        ] {
            let limits = limits(&quotas);
            let expected = expected.and_then(|index| Some((index, limits.iter().nth(index)?.0)));
            assert_eq!(owner(&limits, rate(WEEK)), expected, "{quotas:?}");
        }
    }

    /// The hash of this name is 0.
    #[test]
    fn no_quota_has_the_identity_of_an_unnamed_bucket() {
        assert_ne!(QuotaId::of("+!=yG"), UNNAMED);
    }

    /// Or one quota would be charged for another.
    #[test]
    fn an_entry_of_its_own_takes_precedence() {
        let limits = limits(&[WEEK, Quota::per_day(10).fixed_window()]);
        let bucket = |permits| {
            let debt = rate(WEEK).ticks(permits);
            QuotaState::TokenBucket(debt.state(1 << 50))
        };
        let entry = |quota, permits| QuotaEntry { quota, state: bucket(permits) };
        let (a, b) = (QuotaId::of("a"), QuotaId::of("b"));
        // A bucket of the identity of a window is that of another revision.
        let mut entries = [entry(b, 1), entry(UNNAMED, 2)];
        assert_eq!(identify(&mut entries, &limits), Some(a));
        assert_eq!(entries, [entry(b, 1), entry(a, 2)]);
        let mut entries = [entry(UNNAMED, 2), entry(a, 1)];
        assert_eq!(identify(&mut entries, &limits), None);
        assert_eq!(entries, [entry(UNNAMED, 2), entry(a, 1)]);
        assert_eq!(identify(&mut [], &limits), None);
    }

    /// Or an outage during which a quota is added would charge one quota for another.
    #[cfg(feature = "redis")]
    #[test]
    fn permits_stay_with_their_quota_in_another_revision() {
        let names = |names: &[&'static str]| {
            let quota = |name| match name {
                "second" => Quota::per_second(10),
                "day" => Quota::per_day(1_000),
                _ => WEEK.fixed_window(),
            };
            let add = |policy: Policy, name: &&'static str| policy.quota(*name, quota(name));
            Limits::new(&names.iter().fold(Policy::new("test"), add), 0).unwrap()
        };
        let check = |old: &[_], taken: &[u64], new: &[_], expected: &[u64]| {
            let permits = permits_of_revision(&names(new), &names(old), taken);
            assert_eq!(permits.as_slice(), expected, "{old:?} {new:?}");
        };
        check(&["second", "day"], &[1, 300], &["day", "second"], &[300, 1]);
        check(&["second", "day"], &[1, 300], &["week", "day", "second"], &[0, 300, 1]);
        check(&["second", "day"], &[1, 300], &["week"], &[0]);
        check(&["week"], &[300], &["second", "week"], &[0, 300]);
        // An only token bucket is stored without its identity.
        check(&["day"], &[300], &["second", "day"], &[0, 300]);
        check(&["day"], &[300], &["second"], &[300]);
        check(&["day"], &[300], &["week"], &[0]);
    }
}

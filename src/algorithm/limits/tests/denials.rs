//! Cached denials.

use proptest::prelude::*;

use super::super::*;
use super::drawn::*;
use crate::algorithm::rate::MAX_TICKS;
use crate::charge::Patience;

/// What the limiter relies on when it returns a cached denial. `part` in a thousand of the wait, less
/// `early`, are the times at which the store may decide. `is_own` if no other revision has charged the
/// key.
fn expect_denial_like_the_store<C: Cost>(
    used: &Used<'_>,
    cost: &C,
    (part, early): (u64, u64),
    mut others: Vec<(u64, C)>,
    is_own: bool,
) -> Result<(), TestCaseError> {
    let (limits, earliest) = (used.limits, used.now);
    let state = &*used.entries;
    let check = |state: &[QuotaEntry], at: u64, cost: &C| {
        let mut standing = limits.standing(state, at);
        (limits.check(&mut standing, cost), standing)
    };
    // There is no wait for a cost above the capacity.
    let wait = check(state, earliest, cost).0.numbers.retry_after.min(MAX_TICKS);
    let span = (wait * part / 1_000).saturating_sub(early);
    let denial = limits.denial(state, cost, earliest..=earliest + span);
    if is_own {
        let (at_latest, _) = check(state, earliest + span, cost);
        // Permits that are held may be given back at any time.
        let is_unknown = wait == MAX_TICKS && at_latest.outcome == Outcome::Denied;
        prop_assert_eq!(denial.is_none(), at_latest.is_allowed() || is_unknown);
    }
    let Some(denial) = denial else { return Ok(()) };
    let mut changed: Box<[QuotaEntry]> = state.into();
    others.sort_by_key(|(part, _)| *part);
    for (part, other) in others {
        let passed = span * part / 1_000;
        let at = earliest + passed;
        let (real, _) = check(state, at, cost);
        prop_assert_eq!(denial.outcome, real.outcome);
        let each = numbers(&denial).iter().zip(numbers(&real));
        for (cached, real) in each.chain([(&denial.numbers, &real.numbers)]) {
            let least = real.retry_after;
            let waits = least..=least.saturating_add(passed);
            prop_assert!(waits.contains(&cached.retry_after), "{:?} {:?}", cached, real);
        }
        let (verdict, standing) = check(&changed, at, &other);
        if verdict.is_allowed() {
            changed = limits.entries(&standing, &changed, at);
        }
        prop_assert!(!check(&changed, at, cost).0.is_allowed(), "{:?} at {}", changed, at);
    }
    Ok(())
}

proptest! {
    /// The store decides at any of the times, after any checks of the revision that has cached the
    /// denial. If there are none, a client that honors the wait is not early, and later only by what is
    /// unknown of the time.
    #[test]
    fn a_cached_denial_denies_nothing_that_the_store_allows_and_no_wait_is_too_short(
        revisions in revisions(),
        before in prop::collection::vec((0..3usize, 0..=1_000_000u64, cost()), 0..12),
        drains in prop::collection::vec(0..3usize, 0..=2),
        pause in 0..=100_000u64,
        charge in charge(),
        patience in prop::option::weighted(0.3, (0..=10_000_000u64, any::<bool>())),
        latest in (prop_oneof![0..=1_200u64, Just(1_000u64)], 0..=1u64),
        others in prop::collection::vec(
            (prop_oneof![Just(0u64), 0..=1_000u64, Just(1_000u64)], charge()), 1..8,
        ),
    ) {
        let revisions: Vec<_> = revisions.iter().map(|quotas| of_names(quotas)).collect();
        let of = |number: usize| &revisions[number % revisions.len()];
        let mut used = Used::new(of(0));
        for (revision, pause, cost) in before {
            used.limits = of(revision);
            used.now += pause;
            match patience {
                None => used.check(cost),
                Some((longest, _)) => used.enqueue(cost, longest),
            };
        }
        for revision in drains {
            used.limits = of(revision);
            let remaining = used.remaining();
            used.check(remaining);
        }
        used.limits = of(0);
        used.now += pause;
        let is_own = revisions.len() == 1;
        match patience {
            None => expect_denial_like_the_store(&used, &charge, latest, others, is_own)?,
            // All wait for as long. One that waits for longer may change the rate of a bucket.
            Some((longest, may_wait)) => {
                let queued =
                    |charge| Queued { charge, patience: Patience(longest), may_wait };
                let others = others.into_iter().map(|(part, other)| (part, queued(other)));
                let others = others.collect();
                expect_denial_like_the_store(&used, &queued(charge), latest, others, is_own)?;
            }
        }
    }
}

//! The decisions about a key, made once more: the script replies with the state that it found, and the same
//! checks in the same order have the same verdicts.
//!
//! The state of a key that was denied or has used much of a limit (`MUCH_USED`) goes into the cache of the
//! store before the checks are woken, so that the next ones find it. To report all keys would cost every
//! check.

use std::sync::Arc;

use super::bucket::BucketRef;
use crate::algorithm::Standing;
use crate::store::lease::{LeaseReport, LeaseTerms, Leased};
use crate::store::redis::script::Found;
use crate::store::{KeyState, Op, SentAt};
use crate::verdict::Verdict;

/// A key has used much if it has used more than this fraction of a limit: an eighth.
const MUCH_USED: u64 = 8;

/// The decisions about a bucket, as the script made them.
pub(super) struct Replay<'a> {
    pub(super) bucket: BucketRef<'a>,
    standing: Standing,
    /// The time of the decisions, by the clock of the server.
    now: u64,
    has_denied: bool,
    /// True if a check may have given permits back.
    is_adjusted: bool,
    /// The permits that were leased, if a check asked for them.
    leased: Option<Leased>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(bucket: BucketRef<'a>, found: Found) -> Self {
        let policy = bucket.policy;
        let standing = found.standing(&policy.limits).unwrap_or_else(|| {
            policy.metrics.repaired();
            policy.limits.empty(found.now)
        });
        Self {
            bucket,
            standing,
            now: found.now,
            has_denied: false,
            is_adjusted: false,
            leased: None,
        }
    }

    pub(super) fn decide(&mut self, op: &Op) -> Verdict {
        let policy = self.bucket.policy;
        if matches!(op, Op::Peek) && policy.leases.is_some() {
            return self.peek_without_leases();
        }
        let verdict = op.decide(&policy.limits, &mut self.standing, self.now);
        self.has_denied |= match op {
            Op::Hold(hold) => hold.verdicts().iter().any(|verdict| !verdict.is_allowed()),
            _ => !verdict.is_allowed(),
        };
        self.is_adjusted |= matches!(op, Op::Adjust(_) | Op::Hold(_));
        if let Op::Lease(lease) = op {
            let leased = lease.lease(&policy.limits, &mut self.standing, self.now);
            self.leased = Some(match self.leased.take() {
                Some(earlier) => earlier.and(leased),
                None => leased,
            });
        }
        verdict
    }

    /// Returns the verdict of a peek for which what this process has leased and not used is free.
    fn peek_without_leases(&self) -> Verdict {
        let BucketRef { policy, key, .. } = self.bucket;
        let (limits, states, mut standing) =
            (&policy.limits, &policy.states, self.standing.clone());
        if let Some(lease) = states.lease(key) {
            let unused = lease.unused(states.now());
            limits.give_back(&mut standing, |quota| unused.get(quota).copied().unwrap_or(0));
        }
        limits.peek(&standing)
    }

    /// Reports the state in which the checks left a key whose policy has leases.
    fn report_leases(self, terms: &Arc<LeaseTerms>, sent_at: SentAt) {
        let Self {
            bucket: BucketRef { policy, key, .. }, standing, now, has_denied, leased, ..
        } = self;
        let (limits, states) = (&policy.limits, &policy.states);
        let state = KeyState::after(&standing, None, limits, now);
        let known = states.received(state, now, sent_at);
        let is_denial = has_denied && states.has_denial_cache();
        let report = LeaseReport { known, is_denial, free: limits.free(&standing), leased };
        let allowed = states.report(terms, policy, key, report);
        if let Some(local) = &policy.local {
            local.local().add_demand(allowed);
        }
    }

    /// Reports the state in which the checks left the key, if it may be needed without a call: a denial, or
    /// a level above which decisions start that are made while the server fails.
    pub(super) fn report(self, sent_at: SentAt) {
        if let Some(terms) = &self.bucket.policy.leases {
            return self.report_leases(terms, sent_at);
        }
        let Self { bucket: BucketRef { policy, key, .. }, standing, now, .. } = &self;
        let (limits, states) = (&policy.limits, &policy.states);
        let denied_by = if self.has_denied { None } else { states.denied_by(key) };
        if denied_by.is_some_and(|later| later.time > sent_at.time) {
            return;
        }
        // A cached denial would not know what the checks have taken since. So it is replaced, or removed if
        // there are permits left.
        let is_denial = self.has_denied && states.has_denial_cache()
            || denied_by.is_some() && !limits.peek(standing).is_allowed();
        if is_denial || self.has_used_much() {
            states.insert(
                key,
                KeyState::after(standing, None, limits, *now),
                *now,
                sent_at,
                is_denial,
            );
        } else if denied_by.is_some() || self.is_adjusted {
            states.remove(key, sent_at);
        }
    }

    /// Returns true if a decision that is made while the server fails has to start from what the key has
    /// used. To keep the states of all keys would cost every check, and what others have used is within the
    /// bound of such a failure in any case.
    fn has_used_much(&self) -> bool {
        let Self { bucket: BucketRef { policy, .. }, standing, .. } = self;
        let is_local = policy.local.as_ref().is_some_and(|local| local.local().is_used());
        is_local
            && policy
                .limits
                .used(standing)
                .any(|(used, limit)| used.saturating_mul(MUCH_USED) > limit)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::Limits;
    use crate::charge::Charge;
    use crate::store::lease::LeaseOp;
    use crate::store::redis::script::{RedisPolicy, Stored};
    use crate::{Key, Quota};

    /// The entry of a key may have been evicted between two requests.
    #[test]
    fn two_requests_of_a_key_in_a_call_lease_the_permits_of_both() {
        let limits = Limits::new(&Quota::per_second(9).into(), 0).unwrap();
        let policy = RedisPolicy::of_limits("policy", limits, Duration::from_secs(9));
        let key = Key::from("key");
        let bucket = BucketRef { policy: &policy, key: &key, slot: 0 };
        let mut replay = Replay::new(bucket, Found { now: 1, stored: Stored::Nothing });
        for checks in [3, 2] {
            let (credit, charge, costs) = (None, None, Charge::Same(1));
            let op = LeaseOp { credit, charge, checks, costs, guard: Default::default() };
            let _ = replay.decide(&Op::Lease(op.into()));
        }
        let leased = replay.leased.unwrap();
        assert_eq!(leased.permits[0], 5);
        assert_eq!(leased.after[0].used, 5);
    }
}

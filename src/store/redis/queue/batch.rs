//! A batch of checks that go out together, grouped by policy and key, and in order of arrival for each key.
//!
//! It also holds the verdicts until their checks have read them: one allocation, reused, serves all of them,
//! where a channel per check would take one each. Checks in a row that do the same share one operation, so
//! most have nothing to clone, to compare or to drop. Wakers run after the locks are released, because they
//! belong to the application.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use foldhash::fast::RandomState;
use indexmap::{Equivalent, IndexMap};
use redis::Cmd;
use smallvec::SmallVec;

use super::bucket::{BucketRef, OwnedBucket};
use super::replay::Replay;
use super::runs::Runs;
use crate::charge;
use crate::store::redis::script::{Found, RedisPolicy};
use crate::store::{Op, SentAt};
use crate::verdict::Verdict;
use crate::{Error, Key};

/// Checks that are sent together, with their verdicts.
#[derive(Debug)]
pub(crate) struct Batch(Mutex<BatchState>);

/// The index of a check in its batch.
pub(crate) type CheckIndex = u32;

#[derive(Debug, Default)]
struct BatchState {
    /// The most keys that the batch may have.
    room: usize,
    policies: Vec<BatchPolicy>,
    /// The buckets in order of their first check, and the slot of each on a cluster.
    groups: IndexMap<GroupId, u16, RandomState>,
    /// The index of the group that got the last check. With one hot key, the next check belongs to
    /// it too.
    last: usize,
    /// The checks in order of arrival, which is that of their deadlines.
    checks: Vec<BatchedCheck>,
    /// The operations of the checks, with a single one for checks in a row that do the same.
    ops: Vec<Op>,
    /// The number of checks at the front that are not pending any more.
    completed: usize,
    /// The time at which the calls of the batch were sent, if they were.
    sent_at: Option<SentAt>,
    /// The command of an earlier batch with a single call, for the next one: to write it takes no allocation.
    spare: Option<Cmd>,
}

#[derive(Debug)]
struct BatchPolicy {
    policy: Arc<RedisPolicy>,
    /// The index of the first policy with the same name. Others have other numbers.
    name: usize,
}

/// The bucket about which the checks of a group decide. The policy is an index.
#[derive(Debug, PartialEq, Eq, Hash)]
struct GroupId {
    policy: usize,
    key: Key,
}

/// Hashes like a [`GroupId`].
#[derive(Hash)]
struct GroupIdRef<'a> {
    policy: usize,
    key: &'a Key,
}

/// A group that has checks to send.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// Its index in the batch.
    pub(super) index: usize,
    pub(super) policy: &'a Arc<RedisPolicy>,
    /// Separates groups that name the same bucket. They must not share a call.
    pub(super) number: usize,
    pub(super) key: &'a Key,
    pub(super) slot: u16,
    pub(super) costs: Runs<'a>,
}

impl Group<'_> {
    /// The sort order that puts groups that may share a call next to each other.
    fn order(&self) -> impl Ord + use<> {
        (self.number, ptr::from_ref(self.policy.scripts), Arc::as_ptr(self.policy))
    }

    /// Returns the number of its checks.
    pub(super) fn checks(&self) -> usize {
        self.costs.len()
    }

    /// Writes the checks as an argument of the script.
    pub(super) fn write_costs(&self, call: &mut Cmd) {
        self.costs.write(call, &self.policy.limits);
    }
}

#[derive(Debug)]
struct BatchedCheck {
    /// Indices, like the next.
    group: u32,
    op: u32,
    deadline: Instant,
    /// True if the check is part of the call, and charged even if it is cancelled by now.
    is_sent: bool,
    progress: CheckProgress,
}

#[derive(Debug)]
enum CheckProgress {
    Pending(Waker),
    Done(Result<Verdict, Error>),
    /// Its verdict was read, or it was cancelled.
    Gone,
}

/// The tasks of checks that are completed, to wake once no lock is held.
#[derive(Debug, Default)]
#[must_use = "the tasks would never be polled again"]
pub(super) struct Wakers(SmallVec<[Waker; 1]>);

impl Batch {
    pub(super) const MAX_KEYS: usize = 128;
    pub(super) const MAX_CHECKS: usize = 1_024;

    /// Creates an empty batch for this number of keys.
    pub(super) fn new(room: usize) -> Self {
        Self(Mutex::new(BatchState { room, ..BatchState::default() }))
    }

    /// Makes an empty batch of one that nobody uses any more, which keeps its memory. `None` if
    /// somebody does.
    pub(super) fn recycle(mut this: Arc<Self>, room: usize) -> Option<Arc<Self>> {
        let batch = Arc::get_mut(&mut this)?;
        let state = batch.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.policies.clear();
        state.groups.clear();
        state.checks.clear();
        state.ops.clear();
        (state.room, state.last, state.completed, state.sent_at) = (room, 0, 0, None);
        Some(this)
    }

    /// Adds a check of a bucket. Returns its index, or `None` if there is no room.
    pub(super) fn push(
        &self,
        bucket: BucketRef<'_>,
        op: &Op,
        deadline: Instant,
        waker: &Waker,
    ) -> Option<CheckIndex> {
        let mut state = self.state();
        if state.checks.len() >= Self::MAX_CHECKS {
            return None;
        }
        let group = state.group(bucket)?;
        state.last = group;
        if state.ops.last() != Some(op) {
            state.ops.push(op.clone());
        }
        // All of them are at most `MAX_CHECKS`.
        let (group, op, index) =
            (group as u32, state.ops.len() as u32 - 1, state.checks.len() as CheckIndex);
        let progress = CheckProgress::Pending(waker.clone());
        state.checks.push(BatchedCheck { group, op, deadline, is_sent: false, progress });
        Some(index)
    }

    /// Returns the number of keys of the batch.
    pub(super) fn keys(&self) -> usize {
        self.state().groups.len()
    }

    /// Returns true if the server may have received a check.
    pub(super) fn was_sent(&self, index: CheckIndex) -> bool {
        self.state().checks.get(index as usize).is_some_and(|check| check.is_sent)
    }

    /// Returns the verdict on a check, once.
    pub(super) fn poll(
        &self,
        index: CheckIndex,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let mut state = self.state();
        let Some(check) = state.checks.get_mut(index as usize) else { return Poll::Pending };
        let progress = match &check.progress {
            CheckProgress::Pending(waker) if waker.will_wake(cx.waker()) => return Poll::Pending,
            CheckProgress::Pending(_) => CheckProgress::Pending(cx.waker().clone()),
            CheckProgress::Done(_) | CheckProgress::Gone => CheckProgress::Gone,
        };
        let progress = mem::replace(&mut check.progress, progress);
        // Dropping a waker may run code of another crate.
        drop(state);
        match progress {
            CheckProgress::Done(verdict) => Poll::Ready(verdict),
            CheckProgress::Pending(_) | CheckProgress::Gone => Poll::Pending,
        }
    }

    /// Returns the result of a check that nobody has read yet, and true if the server may have received the check.
    pub(crate) fn unread(&self, index: CheckIndex) -> Option<(Result<Verdict, Error>, bool)> {
        let state = self.state();
        let check = state.checks.get(index as usize)?;
        match &check.progress {
            CheckProgress::Done(result) => Some((result.clone(), check.is_sent)),
            CheckProgress::Pending(_) | CheckProgress::Gone => None,
        }
    }

    /// Cancels a check for which nobody waits any more. Returns the place that it has reserved, if it is
    /// decided already.
    pub(super) fn cancel(&self, index: CheckIndex) -> Option<Abandoned> {
        let mut state = self.state();
        let BatchState { policies, groups, checks, .. } = &mut *state;
        let check = checks.get_mut(index as usize)?;
        let progress = mem::replace(&mut check.progress, CheckProgress::Gone);
        let waiting = match &progress {
            CheckProgress::Done(Ok(verdict)) => verdict.waiting(),
            _ => None,
        };
        let bucket = groups.get_index(check.group as usize);
        let abandoned = waiting.zip(bucket).map(|(waiting, (bucket, slot))| {
            let (policy, key) = (&policies[bucket.policy].policy, &bucket.key);
            let bucket = BucketRef { policy, key, slot: *slot }.to_owned();
            Abandoned { bucket, place: waiting.place.clone() }
        });
        drop(state);
        // Dropping a waker may run code of another crate.
        drop(progress);
        abandoned
    }

    /// Fails the checks that would be answered too late, sums up the costs of the others, and
    /// returns what `encode` makes of the groups that have any. Those that may share a call are
    /// next to each other. A check that is cancelled from now on may be charged.
    pub(super) fn freeze<T>(
        &self,
        is_too_late: impl Fn(Instant) -> bool,
        error: impl Fn() -> Error,
        encode: impl FnOnce(&[Group<'_>], Option<Cmd>) -> T,
    ) -> T {
        let mut wakers = Wakers::default();
        let mut state = self.state();
        let BatchState { policies, groups, checks, ops, sent_at, spare, .. } = &mut *state;
        *sent_at = policies.first().map(|policy| policy.policy.states.sent_now());
        let mut costs: SmallVec<[Runs<'_>; 1]> = SmallVec::new();
        costs.resize_with(groups.len(), Runs::default);
        for check in checks.iter_mut().filter(|check| check.is_pending()) {
            if is_too_late(check.deadline) {
                check.complete(Err(error()), &mut wakers);
            } else {
                check.is_sent = true;
                costs[check.group as usize].push(&ops[check.op as usize]);
            }
        }
        let encoded = encode(&to_send(policies, groups, costs), spare.take());
        drop(state);
        wakers.wake();
        encoded
    }

    /// Encodes these groups again, whose calls have not run. Checks that nobody waits for any more are left out,
    /// and count as not sent.
    pub(super) fn freeze_again<T>(
        &self,
        again: &[usize],
        encode: impl FnOnce(&[Group<'_>]) -> T,
    ) -> T {
        let mut state = self.state();
        let BatchState { policies, groups, checks, ops, .. } = &mut *state;
        let mut costs: SmallVec<[Runs<'_>; 1]> = SmallVec::new();
        costs.resize_with(groups.len(), Runs::default);
        let of_these = |check: &&mut BatchedCheck| again.contains(&(check.group as usize));
        for check in checks.iter_mut().filter(|check| check.is_sent).filter(of_these) {
            check.is_sent = check.is_pending();
            if check.is_sent {
                costs[check.group as usize].push(&ops[check.op as usize]);
            }
        }
        encode(&to_send(policies, groups, costs))
    }

    /// Keeps the command of the only call of a batch, which has been sent, for a later batch.
    pub(super) fn keep(&self, sent: Cmd) {
        self.state().spare = Some(sent);
    }

    /// Returns the bucket of one of the checks.
    pub(super) fn any_bucket(&self) -> Option<OwnedBucket> {
        let state = self.state();
        let (bucket, slot) = state.groups.first()?;
        let policy = &state.policies.get(bucket.policy)?.policy;
        Some(BucketRef { policy, key: &bucket.key, slot: *slot }.to_owned())
    }

    /// Returns true if a check of these groups is still pending.
    pub(super) fn any_pending(&self, groups: &[usize]) -> bool {
        let state = self.state();
        let is_of = |check: &BatchedCheck| groups.contains(&(check.group as usize));
        state.checks.iter().any(|check| check.is_pending() && is_of(check))
    }

    /// Replays the checks of the groups whose state is known, and completes those that are pending
    /// with the verdict that the script reached. Each group is completed once, and its state reported once.
    ///
    /// Returns what checks have reserved whose callers are gone by now.
    pub(super) fn complete(
        &self,
        found: impl IntoIterator<Item = (usize, Result<Found, Error>)>,
    ) -> (Wakers, Vec<Abandoned>) {
        let mut wakers = Wakers::default();
        let mut state = self.state();
        let BatchState { policies, groups, checks, ops, sent_at, .. } = &mut *state;
        let mut replays: SmallVec<[_; 1]> = SmallVec::new();
        replays.resize_with(groups.len(), || None);
        for (group, found) in found {
            if let (Some(replay), Some((bucket, slot))) =
                (replays.get_mut(group), groups.get_index(group))
            {
                let policy = &policies[bucket.policy].policy;
                let bucket = BucketRef { policy, key: &bucket.key, slot: *slot };
                *replay = Some(found.map(|found| Replay::new(bucket, found)));
            }
        }
        wakers.0.reserve(checks.len());
        let (mut abandoned, mut decided) = (Vec::new(), 0);
        for check in checks.iter_mut().filter(|check| check.is_sent) {
            // One that was cancelled since has been charged, so it counts for those after it.
            let verdict = match &mut replays[check.group as usize] {
                Some(Ok(replay)) => {
                    let verdict = replay.decide(&ops[check.op as usize]);
                    if let Some(waiting) = verdict.waiting()
                        && !check.is_pending()
                    {
                        let bucket = replay.bucket.to_owned();
                        abandoned.push(Abandoned { bucket, place: waiting.place.clone() });
                    }
                    Ok(verdict)
                }
                Some(Err(error)) => Err(error.clone()),
                None => continue,
            };
            // Others have been decided locally.
            decided += usize::from(check.is_pending() && verdict.is_ok());
            check.complete(verdict, &mut wakers);
        }
        if let Some(local) = policies.first().and_then(|policy| policy.policy.local.as_ref()) {
            local.local().add_demand(decided);
        }
        // Before the callers are woken, so that their next checks find the denials.
        if let Some(sent_at) = *sent_at {
            replays.into_iter().flatten().flatten().for_each(|replay| replay.report(sent_at));
        }
        (wakers, abandoned)
    }

    /// Fails the checks whose deadline has passed, with the error for their slots and for whether they were
    /// sent. Returns the deadline of the next, if any is pending.
    pub(super) fn expire(
        &self,
        now: Instant,
        error: impl Fn(u16, bool) -> Error,
    ) -> Option<Instant> {
        let mut wakers = Wakers::default();
        let mut state = self.state();
        let BatchState { groups, checks, completed, .. } = &mut *state;
        let mut next = None;
        while let Some(check) = checks.get_mut(*completed) {
            if check.is_pending() {
                if check.deadline > now {
                    next = Some(check.deadline);
                    break;
                }
                let error = error(groups[check.group as usize], check.is_sent);
                check.complete(Err(error), &mut wakers);
            }
            *completed += 1;
        }
        drop(state);
        wakers.wake();
        next
    }

    /// Fails the checks that are pending.
    pub(crate) fn fail(&self, error: impl Fn() -> Error) {
        let mut wakers = Wakers::default();
        let mut state = self.state();
        for check in state.checks.iter_mut().filter(|check| check.is_pending()) {
            check.complete(Err(error()), &mut wakers);
        }
        // Each flight ends here, after its reports, for which a store that closes waits. The batch may be kept for its
        // memory.
        state.ops.iter_mut().for_each(Op::land);
        drop(state);
        wakers.wake();
    }

    fn state(&self) -> MutexGuard<'_, BatchState> {
        // Nothing that panics leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new(Self::MAX_KEYS)
    }
}

impl BatchState {
    /// Returns the index of the group of a bucket. `None` if there is no room for another.
    fn group(&mut self, bucket: BucketRef<'_>) -> Option<usize> {
        let BucketRef { policy, key, slot } = bucket;
        let is_policy = |index: usize| self.policies[index].policy.is_same(policy);
        if let Some((last, _)) = self.groups.get_index(self.last)
            && last.key == *key
            && is_policy(last.policy)
        {
            return Some(self.last);
        }
        let known = (0..self.policies.len()).find(|&index| is_policy(index));
        let index = known.and_then(|policy| self.groups.get_index_of(&GroupIdRef { policy, key }));
        if index.is_some() || self.groups.len() >= self.room {
            return index;
        }
        let policy = known.unwrap_or_else(|| {
            let index = self.policies.len();
            let has_name = |other: &BatchPolicy| other.policy.encoder == policy.encoder;
            let name = self.policies.iter().position(has_name).unwrap_or(index);
            self.policies.push(BatchPolicy { policy: policy.clone(), name });
            index
        });
        let bucket = GroupId { policy, key: key.clone() };
        Some(self.groups.insert_full(bucket, slot).0)
    }
}

/// A place in a queue whose check was cancelled, or failed, after it was sent, or of which nobody has read
/// the verdict.
#[derive(Debug)]
pub(super) struct Abandoned {
    pub(super) bucket: OwnedBucket,
    pub(super) place: charge::Place,
}

/// Returns the groups that have checks. Those that may share a call are next to each other.
#[inline]
fn to_send<'a>(
    policies: &'a [BatchPolicy],
    groups: &'a IndexMap<GroupId, u16, RandomState>,
    costs: SmallVec<[Runs<'a>; 1]>,
) -> SmallVec<[Group<'a>; 1]> {
    let has_namesakes = policies.iter().enumerate().any(|(index, policy)| policy.name != index);
    let mut before = HashMap::<(usize, &Key), usize, RandomState>::default();
    let mut to_send = SmallVec::new();
    for (index, ((bucket, slot), costs)) in groups.iter().zip(costs).enumerate() {
        if costs.is_empty() {
            continue;
        }
        let BatchPolicy { policy, name } = &policies[bucket.policy];
        let number = match has_namesakes {
            true => *before.entry((*name, &bucket.key)).and_modify(|n| *n += 1).or_default(),
            false => 0,
        };
        to_send.push(Group { index, policy, number, key: &bucket.key, slot: *slot, costs });
    }
    to_send.sort_by_key(Group::order);
    to_send
}

impl Equivalent<GroupId> for GroupIdRef<'_> {
    fn equivalent(&self, bucket: &GroupId) -> bool {
        self.policy == bucket.policy && *self.key == bucket.key
    }
}

impl BatchedCheck {
    fn is_pending(&self) -> bool {
        matches!(self.progress, CheckProgress::Pending(_))
    }

    fn complete(&mut self, verdict: Result<Verdict, Error>, wakers: &mut Wakers) {
        if self.is_pending()
            && let CheckProgress::Pending(waker) =
                mem::replace(&mut self.progress, CheckProgress::Done(verdict))
        {
            wakers.0.push(waker);
        }
    }
}

impl Wakers {
    pub(super) fn wake(self) {
        for waker in self.0 {
            // A waker of another crate may panic. The other checks must be woken all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The server has refused the call, so nothing has run.
    #[test]
    fn a_check_that_is_cancelled_before_its_call_is_sent_again_is_not_charged() {
        let (batch, policy) = (Batch::new(9), RedisPolicy::for_tests(Duration::from_secs(9)));
        let push = |key: &str, cost| {
            let (key, op, now) = (Key::from(key), Op::acquire(cost), Instant::now());
            batch
                .push(BucketRef { policy: &policy, key: &key, slot: 0 }, &op, now, Waker::noop())
                .unwrap()
        };
        let costs = |groups: &[Group<'_>]| {
            let costs = |group: &Group<'_>| (group.index, group.costs.iter().collect::<Vec<_>>());
            groups.iter().map(costs).collect::<Vec<_>>()
        };
        let [cancelled, _, gone, other] =
            [("a", 1), ("a", 2), ("b", 3), ("c", 4)].map(|(key, cost)| push(key, cost));
        let no_error = || Error::new(crate::ErrorKind::Timeout, "late");
        let first = batch.freeze(|_| false, no_error, |groups, _| costs(groups));
        assert_eq!(first, [(0, vec![1, 2]), (1, vec![3]), (2, vec![4])]);
        assert!(batch.cancel(cancelled).is_none() && batch.cancel(gone).is_none());
        assert_eq!(batch.freeze_again(&[0, 1], costs), [(0, vec![2])]);
        let was_sent = [cancelled, gone, other].map(|check| batch.was_sent(check));
        assert_eq!(was_sent, [false, false, true]);
    }
}

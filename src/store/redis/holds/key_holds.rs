//! What this process holds of one key, and the checks that want more.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::runtime::Id;

use crate::algorithm::{Permits, QuotaId};
use crate::charge::{Charge, Cost};
use crate::store::HoldOp;
use crate::store::redis::queue::StartedCall;
use crate::store::redis::script::RedisPolicy;
use crate::verdict::Verdict;
use crate::{Error, Key};

/// The most checks of a call.
const MAX_CHECKS: usize = 1_024;

/// The number of a check among those of its key.
pub(super) type CheckId = u64;

/// The tasks to wake once no lock is held.
pub(super) type Wakers = SmallVec<[Waker; 4]>;

/// What this process holds of one key, and the checks that want more.
#[derive(Debug)]
pub(super) struct KeyHolds {
    /// The permits that are held of each quota. More than one revision of the policy may have taken them.
    held: SmallVec<[(QuotaId, u64); 1]>,
    /// The policies whose calls say what is held. There are several if an update has changed the names of quotas.
    statements: SmallVec<[Statement; 1]>,
    checks: HashMap<CheckId, WaitingCheck, RandomState>,
    latest: CheckId,
    /// The checks of the next calls, in order of arrival. Some may be gone.
    unsent: VecDeque<CheckId>,
    call: Option<CallInFlight>,
    /// The time of the latest call that the server may have executed.
    last_call: Instant,
    /// The time at which a timer will fail the checks that are late.
    timer: Option<Instant>,
    /// True if the key is not in the table any more.
    is_removed: bool,
}

/// What the server knows about the quotas of a policy.
#[derive(Debug)]
struct Statement {
    /// The latest one with quotas of these names.
    policy: Arc<RedisPolicy>,
    /// True if the latest call says how many permits are held, and has not failed.
    is_stated: bool,
    /// The time at which the latest call was sent that has succeeded.
    stated_at: Instant,
}

/// A check that wants permits.
#[derive(Debug)]
struct WaitingCheck {
    policy: Arc<RedisPolicy>,
    charge: Charge,
    deadline: Instant,
    waker: Waker,
    runtime: Option<Id>,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    Unsent,
    Sent,
    Done(Result<Verdict, Error>),
}

#[derive(Debug)]
struct CallInFlight {
    op: HoldOp,
    checks: Vec<CheckId>,
    sent_at: Instant,
    policy: Arc<RedisPolicy>,
    /// True if the server knew before the call what it says.
    was_stated: bool,
    /// The place of its result, once it has joined a queue, or the reason why it could not.
    started: Option<Result<StartedCall, Error>>,
}

/// The end of a call.
pub(super) struct Landed {
    pub(super) is_ok: bool,
    /// The tasks of the checks that are decided.
    pub(super) wakers: Wakers,
}

/// A call to send.
#[derive(Debug)]
pub(super) struct NextCall {
    pub(super) policy: Arc<RedisPolicy>,
    pub(super) op: HoldOp,
}

impl KeyHolds {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            held: SmallVec::new(),
            statements: SmallVec::new(),
            checks: HashMap::default(),
            latest: 0,
            unsent: VecDeque::new(),
            call: None,
            last_call: now,
            timer: None,
            is_removed: false,
        }
    }

    /// Adds a check. It is part of the next call.
    pub(super) fn add(
        &mut self,
        policy: &Arc<RedisPolicy>,
        charge: &Charge,
        now: Instant,
        runtime: Option<Id>,
        waker: &Waker,
    ) -> CheckId {
        self.latest += 1;
        let check = WaitingCheck {
            policy: policy.clone(),
            charge: charge.clone(),
            deadline: now + policy.timeout,
            waker: waker.clone(),
            runtime,
            progress: Progress::Unsent,
        };
        self.checks.insert(self.latest, check);
        self.unsent.push_back(self.latest);
        self.latest
    }

    /// Returns the next call, if one is needed and none is in flight.
    pub(super) fn begin(&mut self, number: u64, now: Instant) -> Option<NextCall> {
        if self.call.is_some() {
            return None;
        }
        let (mut ids, mut charges) = (Vec::new(), Vec::new());
        let mut policy = None::<Arc<RedisPolicy>>;
        while let Some(id) = self.unsent.front().copied()
            && ids.len() < MAX_CHECKS
        {
            if let Some(check) = self.checks.get_mut(&id)
                && matches!(check.progress, Progress::Unsent)
            {
                let policy = policy.get_or_insert_with(|| check.policy.clone());
                if !policy.is_same(&check.policy) {
                    break;
                }
                check.progress = Progress::Sent;
                ids.push(id);
                charges.push(check.charge.clone());
            }
            self.unsent.pop_front();
        }
        let unstated = || self.statements.iter().find(|statement| !statement.is_stated);
        let policy = policy.or_else(|| unstated().map(|statement| statement.policy.clone()))?;
        let op = HoldOp::new(number, self.held_under(&policy), charges);
        let statement = self.statement(&policy, now);
        let was_stated = mem::replace(&mut statement.is_stated, true);
        let call = CallInFlight {
            op: op.clone(),
            checks: ids,
            sent_at: now,
            policy: policy.clone(),
            was_stated,
            started: None,
        };
        self.call = Some(call);
        Some(NextCall { policy, op })
    }

    /// Returns the statement about the quotas of a policy, from now on with its numbers.
    fn statement(&mut self, policy: &Arc<RedisPolicy>, now: Instant) -> &mut Statement {
        let known = self.statements.iter().position(|statement| statement.is_about(policy));
        let index = known.unwrap_or_else(|| {
            let policy = policy.clone();
            self.statements.push(Statement { policy, is_stated: true, stated_at: now });
            self.statements.len() - 1
        });
        let statement = &mut self.statements[index];
        statement.policy = policy.clone();
        statement
    }

    /// Returns a call that renews what is held, unless one is in flight.
    pub(super) fn renew(&mut self, number: u64, now: Instant) -> Option<NextCall> {
        if self.call.is_some() {
            return None;
        }
        self.changed();
        self.begin(number, now)
    }

    /// The server does not know what is held.
    fn changed(&mut self) {
        self.statements.iter_mut().for_each(|statement| statement.is_stated = false);
    }

    /// Notes that a call has joined a queue, or could not.
    pub(super) fn started(&mut self, op: &HoldOp, started: Result<StartedCall, Error>) {
        if let Some(call) = &mut self.call
            && call.op == *op
        {
            call.started = Some(started);
        }
    }

    /// Ends the call in flight if it has a result.
    pub(super) fn land(&mut self) -> Option<Landed> {
        let (result, was_sent) = match self.call.as_ref()?.started.as_ref()? {
            Ok(started) => started.result()?,
            Err(error) => (Err(error.clone()), false),
        };
        let result = result.map(drop);
        let CallInFlight { op, checks, sent_at, policy, was_stated, .. } = self.call.take()?;
        if was_sent {
            self.last_call = sent_at;
        }
        let statement = self.statement(&policy, sent_at);
        match &result {
            Ok(()) => statement.stated_at = sent_at,
            Err(_) => statement.is_stated &= was_stated && !was_sent,
        }
        let mut wakers = Wakers::new();
        for (index, id) in checks.into_iter().enumerate() {
            let verdict = match &result {
                Ok(()) => op.verdicts().get(index).cloned(),
                Err(_) => None,
            };
            let is_allowed = verdict.as_ref().is_some_and(Verdict::is_allowed);
            let check = self.checks.get_mut(&id);
            match check.filter(|check| matches!(check.progress, Progress::Sent)) {
                Some(check) => {
                    let result = match (verdict, &result) {
                        (Some(verdict), _) => Ok(verdict),
                        (None, Err(error)) => Err(error.clone()),
                        (None, Ok(())) => Err(no_verdict()),
                    };
                    check.progress = Progress::Done(result);
                    wakers.push(check.waker.clone());
                    if is_allowed {
                        let (policy, charge) = (check.policy.clone(), check.charge.clone());
                        self.count(&policy, |quota| charge.of(quota));
                    }
                }
                // Nobody waits for it any more, so what it has taken is not held.
                None if is_allowed => self.changed(),
                None => {}
            }
        }
        Some(Landed { is_ok: result.is_ok(), wakers })
    }

    /// Returns the tasks of all checks that wait for the next call. One of them has to begin it.
    pub(super) fn unsent_wakers(&self) -> Wakers {
        self.unsent_checks().map(|check| check.waker.clone()).collect()
    }

    /// Returns true if a check waits for the next call whose task is on this runtime.
    pub(super) fn has_unsent_on(&self, runtime: Option<Id>) -> bool {
        runtime.is_some() && self.unsent_checks().any(|check| check.runtime == runtime)
    }

    fn unsent_checks(&self) -> impl Iterator<Item = &WaitingCheck> {
        let checks = self.unsent.iter().filter_map(|id| self.checks.get(id));
        checks.filter(|check| matches!(check.progress, Progress::Unsent))
    }

    /// Returns the result of a check, once.
    pub(super) fn poll(
        &mut self,
        id: CheckId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let Some(check) = self.checks.get_mut(&id) else { return Poll::Pending };
        if !matches!(check.progress, Progress::Done(_)) {
            if !check.waker.will_wake(cx.waker()) {
                check.waker.clone_from(cx.waker());
            }
            return Poll::Pending;
        }
        match self.checks.remove(&id).map(|check| check.progress) {
            Some(Progress::Done(result)) => Poll::Ready(result),
            _ => Poll::Pending,
        }
    }

    /// Returns true if the server may have received a check.
    pub(super) fn was_sent(&self, id: CheckId) -> bool {
        self.checks.get(&id).is_some_and(|check| !matches!(check.progress, Progress::Unsent))
    }

    /// Cancels a check. What it holds by now is given back.
    pub(super) fn cancel(&mut self, id: CheckId) {
        let Some(WaitingCheck { policy, charge, progress, .. }) = self.checks.remove(&id) else {
            return;
        };
        if let Progress::Done(Ok(verdict)) = progress
            && verdict.is_allowed()
        {
            self.give_back(&policy, |quota| charge.of(quota));
        }
    }

    /// Returns true if a timer has to be armed for a check that waits.
    pub(super) fn arm(&mut self, deadline: Instant) -> bool {
        let is_first = self.timer.is_none_or(|timer| deadline < timer);
        if is_first {
            self.timer = Some(deadline);
        }
        is_first
    }

    /// Fails the checks whose deadline has passed. Returns the next deadline, and the tasks to wake.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        error: impl Fn(&RedisPolicy) -> Error,
    ) -> (Option<Instant>, Wakers) {
        let (mut next, mut wakers) = (None::<Instant>, Wakers::new());
        if self.timer.is_none_or(|timer| now < timer) {
            // There is an earlier timer by now, or a later one.
            return (None, wakers);
        }
        for check in self.checks.values_mut() {
            if matches!(check.progress, Progress::Done(_)) {
                continue;
            }
            if check.deadline <= now {
                check.progress = Progress::Done(Err(error(&check.policy)));
                wakers.push(check.waker.clone());
            } else {
                next = Some(next.map_or(check.deadline, |next| next.min(check.deadline)));
            }
        }
        self.timer = next;
        (next, wakers)
    }

    /// Counts permits as held. `permits` are those of each quota of the policy.
    fn count(&mut self, policy: &RedisPolicy, permits: impl Fn(usize) -> u64) {
        let taken = policy.limits.held_of(permits);
        for (id, taken) in policy.limits.ids().zip(taken).filter(|(_, taken)| *taken > 0) {
            match self.held.iter_mut().find(|(other, _)| *other == id) {
                Some((_, held)) => *held = held.saturating_add(taken),
                None => self.held.push((id, taken)),
            }
        }
    }

    /// Counts permits as held that were not taken from the server.
    pub(super) fn count_local(
        &mut self,
        policy: &Arc<RedisPolicy>,
        permits: impl Fn(usize) -> u64,
        now: Instant,
    ) {
        self.count(policy, permits);
        let _ = self.statement(policy, now);
        self.changed();
    }

    /// Counts permits as held no longer.
    pub(super) fn give_back(&mut self, policy: &RedisPolicy, permits: impl Fn(usize) -> u64) {
        let returned = policy.limits.held_of(permits);
        for (id, returned) in policy.limits.ids().zip(returned) {
            if let Some((_, held)) = self.held.iter_mut().find(|(other, _)| *other == id) {
                *held = held.saturating_sub(returned);
            }
        }
        self.held.retain(|(_, held)| *held > 0);
        self.changed();
    }

    /// The server has forgotten the key.
    pub(super) fn forget(&mut self) {
        if !self.held.is_empty() {
            self.changed();
        }
    }

    /// Returns the permits that are held of each quota of a policy.
    pub(super) fn held_under(&self, policy: &RedisPolicy) -> Permits {
        let held = |id| {
            let of_quota = self.held.iter().find(|(other, _)| *other == id);
            of_quota.map_or(0, |(_, held)| *held)
        };
        policy.limits.ids().map(held).collect()
    }

    /// Returns the number of the call in flight.
    pub(super) fn in_flight(&self) -> Option<u64> {
        self.call.as_ref().map(|call| call.op.number())
    }

    /// Returns true if the server does not know what is held, as far as this process knows.
    pub(super) fn is_unstated(&self) -> bool {
        self.statements.iter().any(|statement| !statement.is_stated)
    }

    /// Returns the time from which the server has to be told what is held, unless a call in flight tells it.
    pub(super) fn due(&self, interval: Duration) -> Option<Instant> {
        let of = |statement: &Statement| match statement.is_stated {
            true if self.held.is_empty() => None,
            true => Some(statement.stated_at + interval),
            false => Some(statement.stated_at),
        };
        let first = self.statements.iter().filter_map(of).min();
        first.filter(|_| self.call.is_none())
    }

    /// Removes a key that has nothing to count. Returns true if it may be removed from the table.
    pub(super) fn remove_if_idle(&mut self, now: Instant, lifetime: Duration) -> bool {
        // What the server may count has ended by then.
        let is_known =
            !self.is_unstated() || now.saturating_duration_since(self.last_call) > lifetime;
        let is_idle =
            self.held.is_empty() && self.checks.is_empty() && self.call.is_none() && is_known;
        self.is_removed |= is_idle;
        self.is_removed
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed
    }
}

impl Statement {
    /// Returns true if a policy has quotas of the same names.
    fn is_about(&self, policy: &RedisPolicy) -> bool {
        self.policy.limits.ids().eq(policy.limits.ids())
    }
}

fn no_verdict() -> Error {
    Error::new(crate::ErrorKind::Server, "unexpected reply: it does not have all verdicts")
}

/// What is counted under which key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HoldId {
    /// The policy, whatever its revision.
    pub(super) policy: u64,
    pub(super) key: Key,
}

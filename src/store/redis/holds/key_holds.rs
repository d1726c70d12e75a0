//! The permits that this process holds of one key, and the checks that want more.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::runtime::Id;

use super::spare::Spare;
use crate::Error;
use crate::algorithm::{Permits, QuotaId};
use crate::charge::{Charge, Cost};
use crate::store::HoldOp;
use crate::store::redis::queue::StartedCall;
use crate::store::redis::script::RedisPolicy;
use crate::verdict::Verdict;

/// The most checks of a call.
const MAX_CHECKS: usize = 1_024;

/// The number of a check among those of its key.
pub(super) type CheckId = u64;

/// The tasks to wake once no lock is held.
pub(super) type TaskWakers = SmallVec<[Waker; 4]>;

/// The permits that this process holds of one key, and the checks that want more.
#[derive(Debug)]
pub(super) struct KeyHolds {
    /// The permits that are held of each quota. More than one revision of the policy may have taken them.
    held: SmallVec<[(QuotaId, u64); 1]>,
    /// The permits that are kept, of a policy with a single quota.
    spare: Spare,
    /// The permits that were free after the latest call that has succeeded.
    free: u64,
    /// The policies whose calls report what is held. There are several if an update has changed the names of quotas.
    reports: SmallVec<[HoldReport; 1]>,
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

/// The reports to the server about the quotas of a policy.
#[derive(Debug)]
struct HoldReport {
    /// The latest one with quotas of these names.
    policy: Arc<RedisPolicy>,
    /// True if the latest call reports how many permits are held, and has not failed.
    is_reported: bool,
    /// The time at which the latest call was sent that has succeeded.
    reported_at: Instant,
}

/// A check that wants permits.
#[derive(Debug)]
struct WaitingCheck {
    policy: Arc<RedisPolicy>,
    charge: Charge,
    deadline: Instant,
    waker: Waker,
    runtime: Option<Id>,
    progress: HoldProgress,
}

#[derive(Debug)]
enum HoldProgress {
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
    /// True if the server already had these numbers before the call.
    was_reported: bool,
    /// The call in its queue, or the reason why it could not join one.
    started: Option<Result<StartedCall, Error>>,
}

/// The end of a call.
pub(super) struct Landed {
    pub(super) is_ok: bool,
    /// The tasks of the checks that are decided.
    pub(super) wakers: TaskWakers,
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
            spare: Spare::default(),
            free: 0,
            reports: SmallVec::new(),
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
            progress: HoldProgress::Unsent,
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
                && matches!(check.progress, HoldProgress::Unsent)
            {
                let policy = policy.get_or_insert_with(|| check.policy.clone());
                if !policy.is_same(&check.policy) {
                    break;
                }
                check.progress = HoldProgress::Sent;
                ids.push(id);
                charges.push(check.charge.clone());
            }
            self.unsent.pop_front();
        }
        let unreported = || self.reports.iter().find(|report| !report.is_reported);
        let policy = policy.or_else(|| unreported().map(|report| report.policy.clone()))?;
        let op = HoldOp::new(number, self.reported_under(&policy), charges);
        let report = self.report(&policy, now);
        let was_reported = mem::replace(&mut report.is_reported, true);
        let call = CallInFlight {
            op: op.clone(),
            checks: ids,
            sent_at: now,
            policy: policy.clone(),
            was_reported,
            started: None,
        };
        self.call = Some(call);
        Some(NextCall { policy, op })
    }

    /// Returns the report about the quotas of a policy, from now on with its numbers.
    fn report(&mut self, policy: &Arc<RedisPolicy>, now: Instant) -> &mut HoldReport {
        let known = self.reports.iter().position(|report| report.is_about(policy));
        let index = known.unwrap_or_else(|| {
            let policy = policy.clone();
            self.reports.push(HoldReport { policy, is_reported: true, reported_at: now });
            self.reports.len() - 1
        });
        let report = &mut self.reports[index];
        report.policy = policy.clone();
        report
    }

    /// Returns a call that renews what is held, unless one is in flight.
    pub(super) fn renew(&mut self, number: u64, now: Instant) -> Option<NextCall> {
        if self.call.is_some() {
            return None;
        }
        self.mark_unreported();
        self.begin(number, now)
    }

    /// Marks what is held as unknown to the server.
    fn mark_unreported(&mut self) {
        self.reports.iter_mut().for_each(|report| report.is_reported = false);
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
        let CallInFlight { op, checks, sent_at, policy, was_reported, .. } = self.call.take()?;
        if was_sent {
            self.last_call = sent_at;
        }
        let report = self.report(&policy, sent_at);
        match &result {
            Ok(()) => {
                report.reported_at = sent_at;
                self.free = op.free(0);
            }
            Err(_) => report.is_reported &= was_reported && !was_sent,
        }
        let mut wakers = TaskWakers::new();
        for (index, id) in checks.into_iter().enumerate() {
            let verdict = match &result {
                Ok(()) => op.verdicts().get(index).cloned(),
                Err(_) => None,
            };
            let is_allowed = verdict.as_ref().is_some_and(Verdict::is_allowed);
            let check = self.checks.get_mut(&id);
            match check.filter(|check| matches!(check.progress, HoldProgress::Sent)) {
                Some(check) => {
                    let result = match (verdict, &result) {
                        (Some(verdict), _) => Ok(verdict),
                        (None, Err(error)) => Err(error.clone()),
                        (None, Ok(())) => Err(no_verdict()),
                    };
                    check.progress = HoldProgress::Done(result);
                    wakers.push(check.waker.clone());
                    if is_allowed {
                        let (policy, charge) = (check.policy.clone(), check.charge.clone());
                        self.count(&policy, |quota| charge.of(quota));
                    }
                }
                // Nobody waits for it any more, so what it has taken is not held.
                None if is_allowed => self.mark_unreported(),
                None => {}
            }
        }
        Some(Landed { is_ok: result.is_ok(), wakers })
    }

    /// Returns the tasks of all checks that wait for the next call. One of them has to begin it.
    pub(super) fn unsent_wakers(&self) -> impl Iterator<Item = Waker> {
        self.unsent_checks().map(|check| check.waker.clone())
    }

    /// Returns true if a check waits for the next call.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent_checks().next().is_some()
    }

    /// Returns true if a check waits for the next call whose task is on this runtime.
    pub(super) fn has_unsent_on(&self, runtime: Option<Id>) -> bool {
        runtime.is_some() && self.unsent_checks().any(|check| check.runtime == runtime)
    }

    fn unsent_checks(&self) -> impl Iterator<Item = &WaitingCheck> {
        let checks = self.unsent.iter().filter_map(|id| self.checks.get(id));
        checks.filter(|check| matches!(check.progress, HoldProgress::Unsent))
    }

    /// Returns the result of a check, once.
    pub(super) fn poll(
        &mut self,
        id: CheckId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let Some(check) = self.checks.get_mut(&id) else { return Poll::Pending };
        if !matches!(check.progress, HoldProgress::Done(_)) {
            if !check.waker.will_wake(cx.waker()) {
                check.waker.clone_from(cx.waker());
            }
            return Poll::Pending;
        }
        match self.checks.remove(&id).map(|check| check.progress) {
            Some(HoldProgress::Done(result)) => Poll::Ready(result),
            _ => Poll::Pending,
        }
    }

    /// Cancels a check. What it holds by now is given back.
    pub(super) fn cancel(&mut self, id: CheckId) {
        let Some(WaitingCheck { policy, charge, progress, .. }) = self.checks.remove(&id) else {
            return;
        };
        if let HoldProgress::Done(Ok(verdict)) = progress
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
    ) -> (Option<Instant>, TaskWakers) {
        let mut wakers = TaskWakers::new();
        if self.timer.is_none_or(|timer| now < timer) {
            // There is an earlier timer by now, or a later one.
            return (None, wakers);
        }
        let mut next = self.give_back_spare(now);
        for check in self.checks.values_mut() {
            if matches!(check.progress, HoldProgress::Done(_)) {
                continue;
            }
            if check.deadline <= now {
                check.progress = HoldProgress::Done(Err(error(&check.policy)));
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
        let _ = self.report(policy, now);
        self.mark_unreported();
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
        self.mark_unreported();
    }

    /// Counts permits as held no longer, and keeps them for the next holds if they may be needed. All `instances`
    /// together keep at most half of what is free.
    pub(super) fn give_back_or_keep(
        &mut self,
        policy: &RedisPolicy,
        permits: impl Fn(usize) -> u64 + Copy,
        instances: u64,
        now: Instant,
    ) {
        if policy.keeps.is_zero() {
            return self.give_back(policy, permits);
        }
        let most =
            self.free.saturating_add(self.spare.permits()) / instances.max(1).saturating_mul(2);
        let was_reported = !self.is_unreported();
        let kept = self.spare.keep(permits(0), most, now, policy.keeps);
        self.give_back(policy, permits);
        if kept == permits(0) && was_reported {
            // The server counts them already.
            self.reports.iter_mut().for_each(|report| report.is_reported = true);
        }
    }

    /// Takes permits that are kept. Returns the number of permits that are free afterwards, as far as is known.
    pub(super) fn take_kept(
        &mut self,
        policy: &RedisPolicy,
        permits: u64,
        now: Instant,
        lifetime: Duration,
    ) -> Option<u64> {
        let is_same = |report: &&HoldReport| report.policy.is_same(policy);
        let reported_at = self.reports.iter().find(is_same)?.reported_at;
        // Later, others may have taken them.
        let is_counted = now.saturating_duration_since(reported_at) < lifetime / 4 * 3;
        (is_counted && self.spare.take(permits)).then(|| {
            self.count(policy, |_| permits);
            self.free.saturating_add(self.spare.permits())
        })
    }

    /// Returns the time at which permits that are kept may be given back.
    pub(super) fn spare_end(&self) -> Option<Instant> {
        self.spare.end()
    }

    /// Returns the permits that are kept.
    pub(super) fn kept(&self) -> u64 {
        self.spare.permits()
    }

    /// Gives back what is kept.
    pub(super) fn keep_nothing(&mut self) {
        if self.spare.clear() > 0 {
            self.mark_unreported();
        }
    }

    /// Gives back what nobody has needed for a while. Returns the time of the next look.
    pub(super) fn give_back_spare(&mut self, now: Instant) -> Option<Instant> {
        let policies = self.reports.iter().map(|report| report.policy.keeps);
        let keeps = policies.max().unwrap_or_default();
        if self.spare.end_period(now, keeps) > 0 {
            self.mark_unreported();
        }
        self.spare.end()
    }

    /// Notes that the server has lost the key.
    pub(super) fn forget(&mut self) {
        if !self.held.is_empty() || self.spare.permits() > 0 {
            self.mark_unreported();
        }
    }

    /// Returns the permits that the server has to count of each quota of a policy: those that are held or kept.
    fn reported_under(&self, policy: &RedisPolicy) -> Permits {
        let mut reported = self.held_under(policy);
        if let [reported] = &mut *reported {
            *reported = reported.saturating_add(self.spare.permits());
        }
        reported
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
    pub(super) fn is_unreported(&self) -> bool {
        self.reports.iter().any(|report| !report.is_reported)
    }

    /// Returns the time at which the next report is due, or `None` if none is, or a call is in flight.
    pub(super) fn due(&self, interval: Duration) -> Option<Instant> {
        let of = |report: &HoldReport| match report.is_reported {
            true if self.held.is_empty() && self.spare.permits() == 0 => None,
            true => Some(report.reported_at + interval),
            false => Some(report.reported_at),
        };
        let first = self.reports.iter().filter_map(of).min();
        first.filter(|_| self.call.is_none())
    }

    /// Removes a key that has nothing to count. Returns true if it may be removed from the table.
    pub(super) fn remove_if_idle(&mut self, now: Instant, lifetime: Duration) -> bool {
        // What the server may count has ended by then.
        let is_known =
            !self.is_unreported() || now.saturating_duration_since(self.last_call) > lifetime;
        let has_none = self.held.is_empty() && self.spare.permits() == 0;
        let is_idle = has_none && self.checks.is_empty() && self.call.is_none() && is_known;
        self.is_removed |= is_idle;
        self.is_removed
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed
    }
}

impl HoldReport {
    /// Returns true if a policy has quotas of the same names.
    fn is_about(&self, policy: &RedisPolicy) -> bool {
        self.policy.limits.ids().eq(policy.limits.ids())
    }
}

fn no_verdict() -> Error {
    Error::new(crate::ErrorKind::Server, "unexpected reply: it does not have all verdicts")
}

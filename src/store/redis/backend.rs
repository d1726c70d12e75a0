//! A policy on the Redis store: checks go to its `queue`, with what is owed charged before, and are decided by
//! its share (`Local`) while Redis fails.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::fleet::{LeaseReturns, Membership, Opened, Repayment};
use super::holds::{Holds, PendingHold};
use super::pending_verdict::CheckProgress;
use super::queue::Queues;
use super::script::RedisPolicy;
use crate::algorithm::Limits;
use crate::charge::{Adjustment, Charge};
use crate::store::local::LocalPolicy;
use crate::store::{Backend, Op, PendingVerdict};
use crate::verdict::{Numbers, Outcome, Verdict};
use crate::{Error, Key};

#[derive(Clone, Debug)]
pub(super) struct RedisBackend {
    pub(super) policy: Arc<RedisPolicy>,
    pub(super) queues: Arc<Queues>,
    pub(super) membership: Arc<Membership>,
    pub(super) repayment: Arc<Repayment>,
    pub(super) lease_returns: Arc<LeaseReturns>,
    pub(super) holds: Arc<Holds>,
    /// The store counts as open while a limiter uses it.
    pub(super) _opened: Arc<Opened>,
}

impl RedisBackend {
    /// Decides a check that takes permits which are held. What it takes of other quotas is charged later.
    fn hold_locally(&self, local: &LocalPolicy, key: &Key, charge: &Charge) -> Verdict {
        let Self { policy, repayment, holds, queues, .. } = self;
        let verdict = holds.decide_locally(policy, local, key, charge);
        if verdict.is_allowed() {
            repayment.add(policy, key, &Op::Acquire(policy.limits.without_held(charge)));
            repayment.start(queues);
        }
        verdict
    }

    /// Starts a check that takes permits which are held.
    #[cold]
    fn start_hold(
        &self,
        key: &Key,
        charge: &Charge,
        progress: &mut CheckProgress,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let CheckProgress::Queued(check) = progress else { return Poll::Pending };
        self.membership.start();
        self.repayment.charge_before_check(&self.queues, &self.policy, key, cx)?;
        let observation = check.take_observation();
        let mut hold = PendingHold::start(&self.holds, &self.policy, key, charge, cx);
        let verdict = hold.poll(cx);
        *progress = CheckProgress::Holding(hold.into(), observation);
        verdict
    }
}

impl Backend for RedisBackend {
    fn poll_check(
        &self,
        key: &Key,
        op: &Op,
        pending: &mut PendingVerdict,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        let check = match &mut pending.0 {
            CheckProgress::Queued(check) => check,
            CheckProgress::Holding(hold, _) => return hold.poll(cx),
        };
        if check.is_new() {
            if self.policy.limits.has_holds()
                && let Op::Acquire(charge) = op
            {
                return self.start_hold(key, charge, &mut pending.0, cx);
            }
            self.membership.start();
            self.repayment.charge_before_check(&self.queues, &self.policy, key, cx)?;
        }
        let mut verdict = self.queues.poll(&self.policy, key, op, check, cx);
        if matches!(op, Op::Peek) && !self.policy.keeps.is_zero() {
            // What is kept is free.
            let kept = self.holds.kept(&self.policy, key);
            verdict = verdict.map_ok(|verdict| verdict.with_more(kept));
        }
        if self.policy.leases.is_some() {
            // A reply may have leased permits, which must be given back.
            self.lease_returns.start(&self.queues);
        }
        verdict
    }

    fn is_busy(&self, key: &Key) -> bool {
        self.queues.is_busy(&self.policy, key)
    }

    fn send(&self, key: &Key, op: &Op) {
        self.membership.start();
        self.lease_returns.start(&self.queues);
        self.queues.send(&self.policy, key, op);
    }

    fn instances(&self) -> u64 {
        let instances = |local: &LocalPolicy| local.local().share().instances() as u64;
        self.policy.local.as_ref().map_or(1, instances)
    }

    fn share(&self, key: &Key) -> Option<Limits> {
        self.policy.local.as_ref()?.share(key)
    }

    fn register_in_fleet(&self) {
        if let Some(local) = &self.policy.local {
            local.local().set_used();
        }
    }

    fn decide_locally(&self, key: &Key, op: &Op) -> Option<Verdict> {
        let (op, local) = (&*op.without_lease(), self.policy.local.as_ref()?);
        if self.policy.limits.has_holds()
            && let Op::Acquire(charge) = op
        {
            return Some(self.hold_locally(local, key, charge));
        }
        let verdict = local.decide(key, op);
        if verdict.is_allowed() || matches!(op, Op::Adjust(_)) {
            let of_rates = |charge| Op::Acquire(self.policy.limits.without_held(charge));
            let op = match op {
                Op::Hold(hold) => &hold.checks().first().map_or(Op::Peek, of_rates),
                op => op,
            };
            self.repayment.add(&self.policy, key, op);
            self.repayment.start(&self.queues);
        }
        Some(verdict)
    }

    fn held_by(&self, holder: u64, lifetime: u64) -> Arc<dyn Backend> {
        let policy = self.policy.held_by(holder, lifetime).into();
        Arc::new(Self { policy, ..self.clone() })
    }

    fn take_kept(&self, key: &Key, permits: u64) -> Option<Verdict> {
        let remaining = self.holds.take_kept(&self.policy, key, permits)?;
        let numbers = Numbers { remaining, ..Numbers::default() };
        Some(Verdict::new(Outcome::Allowed, numbers))
    }

    fn adjust_holds(&self, key: &Key, adjustment: Adjustment) -> Adjustment {
        match self.policy.limits.has_holds() {
            true => self.holds.adjust(&self.policy, key, &adjustment),
            false => adjustment,
        }
    }

    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let (queues, policy, key) = (self.queues.clone(), self.policy.clone(), key.clone());
        let (repayment, holds) = (self.repayment.clone(), self.holds.clone());
        Box::pin(async move {
            policy.states.void_leases(&key);
            let _forget = ForgetOnDrop { policy: &policy, key: &key };
            let result = queues.reset(&policy, &key).await;
            if result.is_ok() {
                repayment.forget(&policy, &key);
                holds.forget(&policy, &key);
                policy.local.iter().for_each(|local| local.settled(&key));
            }
            result
        })
    }

    fn is_remote(&self) -> bool {
        true
    }
}

/// Discards what is known about a key that was reset. Also after an error, or if the future is dropped, because the
/// server may have done it.
struct ForgetOnDrop<'a> {
    policy: &'a RedisPolicy,
    key: &'a Key,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        let states = &self.policy.states;
        states.remove(self.key, states.sent_now());
        states.void_leases(self.key);
    }
}

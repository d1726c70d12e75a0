//! A policy on the Redis store: checks go to its `queue`, with what is owed charged before, and are decided by
//! its share (`Local`) while Redis fails.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::fleet::{Membership, Opened, Repayment};
use super::queue::Queues;
use super::script::RedisPolicy;
use crate::algorithm::Limits;
use crate::store::{Backend, Op, PendingVerdict};
use crate::verdict::Verdict;
use crate::{Error, Key};

#[derive(Debug)]
pub(super) struct RedisBackend {
    pub(super) policy: Arc<RedisPolicy>,
    pub(super) queues: Arc<Queues>,
    pub(super) membership: Arc<Membership>,
    pub(super) repayment: Arc<Repayment>,
    /// The store counts as open while a limiter uses it.
    pub(super) _opened: Arc<Opened>,
}

impl Backend for RedisBackend {
    fn poll_check(
        &self,
        key: &Key,
        op: &Op,
        check: &mut PendingVerdict,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        if check.is_new() {
            self.membership.start();
            self.repayment.charge_before_check(&self.queues, &self.policy, key, cx)?;
        }
        self.queues.poll(&self.policy, key, op, check, cx)
    }

    fn share(&self, key: &Key) -> Option<Limits> {
        self.policy.local.as_ref()?.share(key)
    }

    fn prepare_to_decide_locally(&self) {
        if let Some(local) = &self.policy.local {
            local.local().set_used();
        }
    }

    fn decide_locally(&self, key: &Key, op: &Op) -> Option<Verdict> {
        let verdict = self.policy.local.as_ref()?.decide(key, op);
        if verdict.is_allowed() || matches!(op, Op::Adjust(_)) {
            self.repayment.add(&self.policy, key, op);
            self.repayment.start(&self.queues);
        }
        Some(verdict)
    }

    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let (queues, policy, key) = (self.queues.clone(), self.policy.clone(), key.clone());
        let repayment = self.repayment.clone();
        Box::pin(async move {
            let result = queues.reset(&policy, &key).await;
            // Also after an error, because the server may have done it.
            policy.states.remove(&key, policy.states.sent_now());
            if result.is_ok() {
                repayment.forget(&policy, &key);
                policy.local.iter().for_each(|local| local.settled(&key));
            }
            result
        })
    }

    fn is_remote(&self) -> bool {
        true
    }
}

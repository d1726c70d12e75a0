//! A check that takes permits which are held.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::key_holds::CheckId;
use super::table::{HeldKey, Holds};
use crate::charge::Charge;
use crate::store::redis::script::RedisPolicy;
use crate::verdict::Verdict;
use crate::{Error, Key};

/// A check that takes permits which are held. If it is dropped, it holds none.
pub(crate) struct PendingHold {
    holds: Arc<Holds>,
    key: Arc<HeldKey>,
    id: CheckId,
    is_done: bool,
}

impl PendingHold {
    /// Adds a check, and sends it unless it has to wait for a call in flight.
    pub(crate) fn start(
        holds: &Arc<Holds>,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        charge: &Charge,
        cx: &Context<'_>,
    ) -> Self {
        let (key, id) = holds.add(policy, key, charge, cx.waker());
        Self { holds: holds.clone(), key, id, is_done: false }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Verdict, Error>> {
        let verdict = ready!(self.holds.poll(&self.key, self.id, cx));
        self.is_done = true;
        Poll::Ready(verdict)
    }
}

impl Drop for PendingHold {
    fn drop(&mut self) {
        if !self.is_done {
            self.holds.cancel(&self.key, self.id);
        }
    }
}

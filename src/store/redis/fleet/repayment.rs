//! The permits that were taken locally while a server failed, until they are charged on that server.
//!
//! When a breaker closes, each key is charged what was taken, but not more than its local bucket says is
//! still in use: what has refilled, or whose window has ended, is dropped. So a share can owe as much as the
//! whole limit, and an instance without a share keeps a bucket for charges.
//!
//! A key that is checked again is charged right before that check, normally in the same batch. If the charge
//! cannot be sent, because the breaker is open or the queue is too long, the check is not sent either.
//! Otherwise the server would decide without the charge, and a server that comes and goes would let more
//! through: with ten outages a second, half of the limit more (`make chaos`). A check does not wait for a
//! charge in flight in another queue: that of a limiter with another timeout, or of another runtime. Keys
//! without a check are charged in the background, at a limited rate, so that a fleet that returns does not
//! flood the server.
//!
//! Nothing is charged twice. A charge that was not made is kept if Redis was not reached or refused it for a
//! passing reason; one that may have been made, or that Redis refuses permanently, is dropped and counted
//! (`fleetlimit.redis.uncharged`). The local bucket is filled only once the charge has succeeded. (A check
//! that was sent before, and timed out, may run later in addition.) → `tests/it/local.rs`

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use std::{iter, mem};

use foldhash::fast::RandomState;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indexmap::IndexMap;
use tokio::runtime::Handle;

use crate::algorithm::Permits;
use crate::store::redis::queue::{Batch, CheckIndex, NodeQueue, QueuedCheck, Queues};
use crate::store::redis::script::RedisPolicy;
use crate::store::redis::sole_task::{Role, SoleTask};
use crate::store::{Op, unnamed};
use crate::verdict::Verdict;
use crate::{Error, Key, random, timer};

/// The number of keys that are charged at a time, after a pause, so that a fleet that returns does not flood
/// the server.
const KEYS: usize = 128;
const PAUSE: Duration = Duration::from_millis(50);

/// The pause while the server fails.
const LONG_PAUSE: Duration = Duration::from_millis(250);

/// The longest that charging takes with most timeouts. With longer ones, another run may begin meanwhile.
const LONGEST_ROUND: Duration = Duration::from_secs(10);

const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause of `settle` while no server accepts charges, or other tasks are making them.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// The permits that are owed, of each quota, by the name of the bucket.
#[derive(Debug)]
pub(crate) struct Repayment {
    owed: Mutex<Ledger>,
    /// The number of keys that owe, to be read without the lock.
    count: AtomicUsize,
    max_keys: usize,
    /// Counts the charges.
    charges: AtomicU64,
    run: Arc<SoleTask>,
}

#[derive(Debug, Default)]
struct Ledger {
    keys: IndexMap<Vec<u8>, Owed, RandomState>,
    /// The index of the key that is charged next.
    next: usize,
    /// True if the warning that there is no room for more keys has been logged.
    is_reported_full: bool,
}

#[derive(Debug)]
struct Owed {
    policy: Arc<RedisPolicy>,
    key: Key,
    permits: Permits,
    charging: Option<Charging>,
}

/// A charge that is in flight.
#[derive(Debug)]
struct Charging {
    number: u64,
    /// The permits that are still owed if the charge fails. Those that are taken meanwhile are charged later.
    permits: Permits,
    /// The batch in which its result will be, and the index there.
    place: Option<(Arc<Batch>, CheckIndex)>,
}

/// A charge that has to be made, or is in flight. It ends when it is dropped, also if its runtime shuts
/// down. If its runtime stands still, it ends when another one reads its result.
struct RepaymentCharge {
    repayment: Arc<Repayment>,
    number: u64,
    name: Vec<u8>,
    policy: Arc<RedisPolicy>,
    key: Key,
    end: RepaymentEnd,
}

enum Joined {
    Queued(QueuedRepayment),
    /// It ends without a call: nothing of it still counts, or its result is there already.
    Ended(RepaymentCharge),
}

/// A charge that is sent with the next checks.
struct QueuedRepayment {
    charge: RepaymentCharge,
    op: Op,
    queue: Arc<NodeQueue>,
    check: QueuedCheck,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RepaymentEnd {
    Charged,
    NotCharged,
    /// It is not charged again.
    Unknown,
}

impl Repayment {
    pub(crate) fn new(max_keys: usize) -> Self {
        let (owed, count, charges, run) = Default::default();
        Self { owed, count, max_keys, charges, run }
    }

    /// A check of this key was allowed locally, or an adjustment made.
    pub(crate) fn add(&self, policy: &Arc<RedisPolicy>, key: &Key, op: &Op) {
        if let Op::Adjust(adjustment) = op
            && adjustment.is_credit()
        {
            self.reduce(policy, key, &policy.limits.returned(adjustment));
        }
        let permits: Permits = (0..policy.limits.len()).map(|quota| op.taken(quota)).collect();
        if permits.iter().all(|permits| *permits == 0) {
            return;
        }
        let mut ledger = self.ledger();
        let name = policy.encoder.name(key).to_bytes();
        if let Some(owed) = ledger.keys.get_mut(&name) {
            owed.follow(policy);
            owed.add(&permits);
        } else if ledger.keys.len() < self.max_keys {
            let (policy, key) = (policy.clone(), key.clone());
            let owed = Owed { policy, key, permits, charging: None };
            ledger.keys.insert(name, owed);
            self.count.store(ledger.keys.len(), Ordering::Relaxed);
        } else {
            let is_first = !mem::replace(&mut ledger.is_reported_full, true);
            drop(ledger);
            policy.metrics.uncharged(largest(&permits));
            if is_first {
                tracing::warn!(
                    target: "fleetlimit", event = "local_keys_full", keys = self.max_keys,
                    "too many keys are in use while Redis fails: permits taken by further keys will not be \
                     charged afterwards (raise `RedisStore::local_keys`)"
                );
            }
        }
    }

    /// Subtracts permits that were given back locally, so that they are not charged.
    fn reduce(&self, policy: &Arc<RedisPolicy>, key: &Key, returned: &[u64]) {
        if let Some(owed) = self.ledger().keys.get_mut(&policy.encoder.name(key).to_bytes()) {
            owed.follow(policy);
            for (quota, &(mut returned)) in returned.iter().enumerate() {
                for permits in owed.all_permits() {
                    if let Some(permits) = permits.get_mut(quota) {
                        let less = returned.min(*permits);
                        (*permits, returned) = (*permits - less, returned - less);
                    }
                }
            }
        }
    }

    /// The bucket of a key was reset on the server: nothing that was taken before is charged.
    pub(crate) fn forget(&self, policy: &RedisPolicy, key: &Key) {
        if self.count.load(Ordering::Relaxed) > 0
            && let Some(owed) = self.ledger().keys.get_mut(&policy.encoder.name(key).to_bytes())
        {
            owed.all_permits().for_each(|permits| permits.fill(0));
        }
    }

    /// Charges what is owed from now on, until nothing is.
    pub(crate) fn start(self: &Arc<Self>, queues: &Arc<Queues>) {
        self.run.spawn(LONGEST_ROUND, |role| run(self.clone(), Arc::downgrade(queues), role));
    }

    /// Charges what a key owes before its next check, so that the server does not decide without it.
    ///
    /// # Errors
    ///
    /// If the charge cannot be sent: then the check must not be sent either.
    #[inline]
    pub(crate) fn charge_before_check(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        if self.count.load(Ordering::Relaxed) > 0 {
            return self.charge_now(queues, policy, key, cx);
        }
        Ok(())
    }

    #[cold]
    fn charge_now(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        policy: &Arc<RedisPolicy>,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        // If the runtime of the last run has ended.
        self.start(queues);
        let Ok(runtime) = Handle::try_current() else { return Ok(()) };
        queues.admit(policy, key)?;
        let name = policy.encoder.name(key).to_bytes();
        loop {
            let joined = {
                let mut ledger = self.ledger();
                let Some((_, name, owed)) = ledger.keys.get_full_mut(&name) else { return Ok(()) };
                // In the queue of the check, also if a limiter with another timeout has taken the permits.
                owed.join(self, name, queues, policy.timeout, cx.waker())?
            };
            match joined {
                Some(Joined::Ended(charge)) => drop(charge),
                Some(Joined::Queued(queued)) => {
                    let queues = queues.clone();
                    runtime.spawn(async move { queued.finish(&queues).await });
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
    }

    /// Charges all owed permits before the process ends, without the usual pauses. Takes at most a second.
    pub(crate) async fn settle(self: &Arc<Self>, queues: &Arc<Queues>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        // Spawned, so that charges that are in flight at the deadline can finish.
        let (repayment, queues) = (self.clone(), queues.clone());
        let settling = async move { repayment.charge_until(deadline, &queues).await };
        let _ = timer::timeout_at(deadline, runtime.spawn(settling)).await;
        let keys = self.ledger().keys.len();
        if keys > 0 {
            tracing::warn!(
                target: "fleetlimit", event = "permits_lost_at_shutdown", keys,
                "shutdown could not charge all permits that were taken while Redis failed: they are lost if \
                 the process ends now"
            );
        }
    }

    async fn charge_until(self: &Arc<Self>, deadline: Instant, queues: &Queues) {
        let mut in_vain = 0;
        while self.count.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
            if self.charge_some(queues).await {
                in_vain = 0;
                continue;
            }
            in_vain += KEYS;
            if in_vain >= self.count.load(Ordering::Relaxed) {
                in_vain = 0;
                timer::sleep_until(Instant::now() + SETTLE_PAUSE).await;
            }
        }
    }

    /// Charges the keys whose turn it is. Returns whether a charge was made.
    async fn charge_some(self: &Arc<Self>, queues: &Queues) -> bool {
        let mut has_charged = false;
        let mut charges = FuturesUnordered::new();
        let keys = self.count.load(Ordering::Relaxed).min(KEYS);
        for _ in 0..keys {
            match self.join_next(queues) {
                Some(Joined::Queued(queued)) => charges.push(queued.finish(queues)),
                Some(Joined::Ended(charge)) => has_charged |= charge.end == RepaymentEnd::Charged,
                None => {}
            }
        }
        while let Some(end) = charges.next().await {
            has_charged |= end == RepaymentEnd::Charged;
        }
        has_charged
    }

    /// The charge of the key whose turn it is, unless it has to wait.
    fn join_next(self: &Arc<Self>, queues: &Queues) -> Option<Joined> {
        let mut ledger = self.ledger();
        let (name, owed) = ledger.next()?;
        if !queues.is_available(&owed.policy, &owed.key) {
            return None;
        }
        let timeout = owed.policy.timeout;
        owed.join(self, name, queues, timeout, Waker::noop()).ok().flatten()
    }

    fn end(&self, charge: &RepaymentCharge) {
        let RepaymentCharge { number, name, policy, key, end, .. } = charge;
        let mut ledger = self.ledger();
        let Some(owed) = ledger.keys.get_mut(name) else { return };
        // Another runtime may have read its result before.
        let is_this = |charging: &mut Charging| charging.number == *number;
        let Some(Charging { permits, .. }) = owed.charging.take_if(is_this) else { return };
        if *end == RepaymentEnd::NotCharged {
            owed.add(&permits);
        }
        let is_paid = owed.permits.iter().all(|permits| *permits == 0);
        if is_paid {
            ledger.keys.swap_remove(name);
            ledger.is_reported_full &= !ledger.keys.is_empty();
            self.count.store(ledger.keys.len(), Ordering::Relaxed);
        }
        drop(ledger);
        match end {
            // Unless more was taken meanwhile, the next outage starts from what the server says.
            RepaymentEnd::Charged if is_paid => {
                policy.local.iter().for_each(|local| local.settled(key))
            }
            RepaymentEnd::Charged | RepaymentEnd::NotCharged => {}
            // The local bucket stays as it is.
            RepaymentEnd::Unknown => policy.metrics.uncharged(largest(&permits)),
        }
    }

    /// Returns the role if a run has to go on. If not, the next debt starts another.
    fn go_on(&self, role: Role) -> Option<Role> {
        let ledger = self.ledger();
        // Dropped under the lock, if there is no debt.
        let role = (!ledger.keys.is_empty()).then_some(role);
        drop(ledger);
        role.filter(|role| role.go_on(LONGEST_ROUND))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Nothing that panics runs under the lock.
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// The key whose turn it is.
    fn next(&mut self) -> Option<(&Vec<u8>, &mut Owed)> {
        let index = if self.next < self.keys.len() { self.next } else { 0 };
        self.next = index + 1;
        self.keys.get_index_mut(index)
    }
}

/// The largest amount. A check takes permits of all quotas at once, so a sum would count too many.
fn largest(permits: &Permits) -> u64 {
    permits.iter().copied().max().unwrap_or(0)
}

impl Owed {
    /// The permits are those of another revision's quotas from now on.
    fn follow(&mut self, policy: &Arc<RedisPolicy>) {
        if !Arc::ptr_eq(&self.policy, policy) {
            let old = mem::replace(&mut self.policy, policy.clone());
            for permits in self.all_permits() {
                *permits = unnamed::permits_of_revision(&policy.limits, &old.limits, permits);
            }
        }
    }

    /// The permits that are not charged yet, and those of the charge that is in flight.
    fn all_permits(&mut self) -> impl Iterator<Item = &mut Permits> {
        let charging = self.charging.iter_mut().map(|charging| &mut charging.permits);
        iter::once(&mut self.permits).chain(charging)
    }

    fn add(&mut self, more: &Permits) {
        self.permits.resize(more.len().max(self.permits.len()), 0);
        for (permits, more) in self.permits.iter_mut().zip(more) {
            *permits = permits.saturating_add(*more);
        }
    }

    /// Adds a charge to the queue with this timeout, unless another one is under way. The ledger is locked
    /// until then, so that no other check of that queue goes ahead of it.
    fn join(
        &mut self,
        repayment: &Arc<Repayment>,
        name: &[u8],
        queues: &Queues,
        timeout: Duration,
        waker: &Waker,
    ) -> Result<Option<Joined>, Error> {
        if let Some(charging) = &self.charging {
            let ended =
                charging.end().map(|end| self.charge(repayment, name, charging.number, end));
            return Ok(ended.map(Joined::Ended));
        }
        let Some(op) = self.op() else {
            let mut charge = self.begin(repayment, name, None);
            charge.end = RepaymentEnd::Charged;
            return Ok(Some(Joined::Ended(charge)));
        };
        let (queue, check) = queues.add(&self.policy, timeout, &self.key, &op, waker)?;
        let charge = self.begin(repayment, name, check.place());
        Ok(Some(Joined::Queued(QueuedRepayment { charge, op, queue, check })))
    }

    /// The charge of the permits that still count. `None` if none do.
    fn op(&self) -> Option<Op> {
        let adjustment = self.policy.local.as_ref()?.owed(&self.key, &self.permits);
        (!adjustment.is_nothing()).then_some(Op::Adjust(adjustment))
    }

    fn begin(
        &mut self,
        repayment: &Arc<Repayment>,
        name: &[u8],
        place: Option<(Arc<Batch>, CheckIndex)>,
    ) -> RepaymentCharge {
        let number = repayment.charges.fetch_add(1, Ordering::Relaxed);
        let permits = mem::take(&mut self.permits);
        self.charging = Some(Charging { number, permits, place });
        self.charge(repayment, name, number, RepaymentEnd::Unknown)
    }

    fn charge(
        &self,
        repayment: &Arc<Repayment>,
        name: &[u8],
        number: u64,
        end: RepaymentEnd,
    ) -> RepaymentCharge {
        let (repayment, name) = (repayment.clone(), name.to_owned());
        let (policy, key) = (self.policy.clone(), self.key.clone());
        RepaymentCharge { repayment, number, name, policy, key, end }
    }
}

impl Charging {
    /// The end of a charge that has ended without being noticed by its own task. At the latest its deadline ends
    /// it, whatever its runtime does. A charge that has not been sent by then is never sent.
    fn end(&self) -> Option<RepaymentEnd> {
        let (batch, index) = self.place.as_ref()?;
        let (charged, was_sent) = batch.unread(*index)?;
        Some(RepaymentEnd::of(&charged, was_sent))
    }
}

impl RepaymentEnd {
    fn of(charged: &Result<Verdict, Error>, was_sent: bool) -> Self {
        match charged {
            Ok(_) => Self::Charged,
            Err(error) if was_sent && !error.is_transient_reply() => Self::Unknown,
            Err(_) => Self::NotCharged,
        }
    }
}

impl QueuedRepayment {
    /// Sends it, and waits for the reply.
    async fn finish(mut self, queues: &Queues) -> RepaymentEnd {
        self.queue.start();
        let Self { charge: RepaymentCharge { policy, key, end, .. }, op, check, .. } = &mut self;
        let charged = poll_fn(|cx| queues.poll(policy, key, op, check, cx)).await;
        *end = RepaymentEnd::of(&charged, check.was_sent());
        if let Ok(verdict) = charged {
            policy.metrics.forgiven(verdict.forgiven());
        }
        *end
    }
}

impl Drop for QueuedRepayment {
    fn drop(&mut self) {
        // Its runtime has ended. From now on it is not sent.
        if self.charge.end == RepaymentEnd::Unknown && !self.check.cancel() {
            self.charge.end = RepaymentEnd::NotCharged;
        }
    }
}

impl Drop for RepaymentCharge {
    fn drop(&mut self) {
        self.repayment.end(self);
    }
}

/// Charges keys in the background, a few at a time.
async fn run(repayment: Arc<Repayment>, queues: Weak<Queues>, role: Role) {
    let (mut pause, mut role) = (LONG_PAUSE, Some(role));
    loop {
        role = role.and_then(|role| repayment.go_on(role));
        if role.is_none() {
            return;
        }
        timer::sleep_until(Instant::now() + pause.mul_f64(0.5 + random::unit())).await;
        let Some(queues) = queues.upgrade() else { return };
        let has_charged = repayment.charge_some(&queues).await;
        pause = if has_charged { PAUSE } else { LONG_PAUSE };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::algorithm::Limits;
    use crate::store::redis::cluster::Topology;
    use crate::store::redis::connection::Connector;
    use crate::store::redis::no_reply::no_runtime;
    use crate::store::redis::queue::FlightEnd;
    use crate::{ErrorKind, Policy, Quota};

    fn owing() -> (Arc<Repayment>, Arc<RedisPolicy>, Key, Vec<u8>) {
        let policy = RedisPolicy::for_tests(Duration::from_secs(1));
        let (repayment, key) = (Arc::new(Repayment::new(10)), Key::from("key"));
        assert!(policy.local.as_ref().unwrap().decide(&key, &Op::acquire(1)).is_allowed());
        repayment.add(&policy, &key, &Op::acquire(3));
        let name = policy.encoder.name(&key).to_bytes();
        (repayment, policy, key, name)
    }

    fn queues() -> Arc<Queues> {
        let connector = Connector::url("redis://127.0.0.1:1").unwrap();
        Arc::new(Queues::new(Topology::new(connector)))
    }

    fn begin(repayment: &Arc<Repayment>, name: &[u8]) -> (RepaymentCharge, Vec<u64>) {
        let mut ledger = repayment.ledger();
        let owed = ledger.keys.get_mut(name).unwrap();
        let charge = owed.begin(repayment, name, None);
        (charge, owed.charging.as_ref().unwrap().permits.to_vec())
    }

    fn end(mut charge: RepaymentCharge, end: RepaymentEnd) {
        charge.end = end;
    }

    /// As when its runtime ends.
    #[tokio::test]
    async fn a_charge_that_is_cut_short_is_made_again_unless_it_was_sent_and_blocks_no_other() {
        for (is_sent, owed) in [(false, 5), (true, 2)] {
            let (repayment, policy, key, name) = owing();
            let (queues, cx) = (queues(), &mut Context::from_waker(Waker::noop()));
            let charge = repayment.join_next(&queues);
            let Some(Joined::Queued(queued)) = &charge else { panic!("nothing is charged") };
            repayment.add(&policy, &key, &Op::acquire(2));
            assert!(repayment.join_next(&queues).is_none(), "one at a time");
            repayment.charge_before_check(&queues, &policy, &key, cx).unwrap();
            if is_sent {
                queued.queue.freeze_waiting();
            }
            drop(charge);
            assert_eq!(begin(&repayment, &name).1, [owed], "sent: {is_sent}");
        }
    }

    /// Its task is not polled. The deadline ends the call, and another runtime reads that.
    #[tokio::test]
    async fn a_charge_on_a_runtime_that_stands_still_is_made_again_unless_it_was_sent() {
        for (is_sent, owed) in [(false, 3), (true, 0)] {
            let (repayment, policy, key, name) = owing();
            let (queues, cx) = (queues(), &mut Context::from_waker(Waker::noop()));
            let stands_still = repayment.join_next(&queues);
            let Some(Joined::Queued(queued)) = &stands_still else { panic!("nothing is charged") };
            if is_sent {
                queued.queue.freeze_waiting();
            }
            assert!(repayment.join_next(&queues).is_none(), "it may still end");
            let (batch, _) = queued.check.place().unwrap();
            batch.fail(no_runtime);
            repayment.charge_before_check(&queues, &policy, &key, cx).unwrap();
            let charging = || {
                let ledger = repayment.ledger();
                let charging = ledger.keys.get(&name)?.charging.as_ref();
                charging.map(|charging| charging.permits.to_vec())
            };
            let again = (owed > 0).then(|| vec![owed]);
            assert_eq!(charging(), again, "sent: {is_sent}");
            drop(stands_still);
            assert_eq!(charging(), again, "another charge is under way: {is_sent}");
        }
    }

    #[test]
    fn what_is_taken_during_a_charge_is_charged_later() {
        for (how, owed) in
            [(RepaymentEnd::Charged, 2), (RepaymentEnd::Unknown, 2), (RepaymentEnd::NotCharged, 5)]
        {
            let (repayment, policy, key, name) = owing();
            let (charge, _) = begin(&repayment, &name);
            repayment.add(&policy, &key, &Op::acquire(2));
            end(charge, how);
            assert_eq!(begin(&repayment, &name).1, [owed]);
        }
    }

    /// Otherwise it could be sent a moment later, as the trial of an open breaker, and be decided without what the
    /// key owes.
    #[tokio::test]
    async fn a_check_is_refused_together_with_the_charge_before_it() {
        let (repayment, policy, key, name) = owing();
        let queues = queues();
        let cx = &mut Context::from_waker(Waker::noop());
        let (queue, _) = queues.add(&policy, policy.timeout, &key, &Op::Peek, cx.waker()).unwrap();
        queue.returned(FlightEnd::Lost(queue.sent(1, Instant::now())), &Batch::default());
        queue.probed(Err(Error::new(ErrorKind::Unavailable, "for the test")));
        let refused = repayment.charge_before_check(&queues, &policy, &key, cx);
        assert!(refused.unwrap_err().to_string().contains("for the test"));
        assert_eq!(begin(&repayment, &name).1, [3]);
    }

    /// The breaker of a limiter whose timeout is too short is open although the server works.
    #[tokio::test]
    async fn what_a_limiter_with_another_timeout_took_is_charged_in_the_queue_of_the_check() {
        let (repayment, policy, key, name) = owing();
        let (queues, cx) = (queues(), &mut Context::from_waker(Waker::noop()));
        let (queue, _) = queues.add(&policy, policy.timeout, &key, &Op::Peek, cx.waker()).unwrap();
        queue.returned(FlightEnd::Lost(queue.sent(1, Instant::now())), &Batch::default());
        queue.probed(Err(Error::new(ErrorKind::Unavailable, "for the test")));
        let neighbor = policy.with_timeout(Duration::from_secs(2));
        repayment.charge_before_check(&queues, &neighbor, &key, cx).unwrap();
        let ledger = repayment.ledger();
        assert_eq!(ledger.keys[&name].charging.as_ref().unwrap().permits[..], [3]);
    }

    #[test]
    fn charges_do_not_depend_on_a_runtime_that_has_ended() {
        let (_, policy, key, _) = owing();
        let (queues, op) = (queues(), Op::acquire(1));
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let add = || queues.add(&policy, policy.timeout, &key, &op, Waker::noop()).unwrap();
        drop(runtime().block_on(async { add() }));
        let sent = async {
            let (queue, mut check) = add();
            queue.start();
            poll_fn(|cx| queues.poll(&policy, &key, &op, &mut check, cx)).await
        };
        let error = format!("{:?}", runtime().block_on(sent).unwrap_err());
        assert!(error.contains("Connection refused"), "{error}");
    }

    #[test]
    fn what_was_given_back_or_reset_is_not_charged() {
        let (repayment, policy, key, name) = owing();
        repayment.add(&policy, &key, &Op::Adjust(policy.limits.credit(&2)));
        let (charge, permits) = begin(&repayment, &name);
        assert_eq!(permits, [1]);
        end(charge, RepaymentEnd::NotCharged);
        repayment.add(&policy, &key, &Op::Adjust(policy.limits.credit(&9)));
        repayment.add(&policy, &key, &Op::acquire(4));
        repayment.forget(&policy, &key);
        let (charge, permits) = begin(&repayment, &name);
        assert_eq!(permits, [0]);
        end(charge, RepaymentEnd::Charged);
        assert_eq!(repayment.count.load(Ordering::Relaxed), 0);
    }

    /// It is charged neither now nor, if that fails, later.
    #[test]
    fn what_is_given_back_or_reset_during_a_charge_is_not_charged_later() {
        let (repayment, policy, key, name) = owing();
        let (charge, _) = begin(&repayment, &name);
        repayment.add(&policy, &key, &Op::acquire(1));
        repayment.add(&policy, &key, &Op::Adjust(policy.limits.credit(&2)));
        end(charge, RepaymentEnd::NotCharged);
        let (charge, permits) = begin(&repayment, &name);
        assert_eq!(permits, [2]);
        repayment.forget(&policy, &key);
        end(charge, RepaymentEnd::NotCharged);
        assert_eq!(repayment.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_taken_before_a_quota_was_added_is_charged_to_the_same_quota() {
        let (second, day) = (Quota::per_second(10), Quota::per_day(1_000));
        let revision = |policy: Policy| {
            let limits = Limits::new(&policy.quota("day", day), 0).unwrap();
            RedisPolicy::of_limits("policy", limits, Duration::from_secs(1))
        };
        let old = revision(Policy::new("policy"));
        let new = revision(Policy::new("policy").quota("second", second));
        let (repayment, key) = (Arc::new(Repayment::new(10)), Key::from("key"));
        let name = old.encoder.name(&key).to_bytes();
        repayment.add(&old, &key, &Op::acquire(300));
        repayment.add(&new, &key, &Op::acquire(1));
        let (charge, permits) = begin(&repayment, &name);
        assert_eq!(permits, [1, 301]);
        // The first revision is back when it turns out that the charge was not made.
        repayment.add(&old, &key, &Op::acquire(2));
        end(charge, RepaymentEnd::NotCharged);
        repayment.add(&new, &key, &Op::Adjust(new.limits.credit(&3)));
        assert_eq!(begin(&repayment, &name).1, [0, 300]);
    }

    #[test]
    fn each_key_has_its_turn() {
        let policy = RedisPolicy::for_tests(Duration::from_secs(1));
        let repayment = Arc::new(Repayment::new(1_000));
        for key in 0..300u32 {
            repayment.add(&policy, &Key::from(key), &Op::acquire(1));
        }
        let next = |_| repayment.ledger().next().unwrap().0.clone();
        let turns: HashSet<_> = (0..300).map(next).collect();
        assert_eq!(turns.len(), 300);
    }
}

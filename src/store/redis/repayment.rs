//! What was taken locally while a server failed, until it is charged on that server.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use std::{iter, mem};

use foldhash::fast::RandomState;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indexmap::IndexMap;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::node_queue::NodeQueue;
use super::policy::RedisPolicy;
use super::queue::{QueuedCheck, Queues};
use super::timer;
use crate::store::Op;
use crate::{Error, Key, random};

/// How many keys are charged at a time, and how long the pause before is. So a fleet that returns does
/// not flood the server.
const KEYS: usize = 128;
const PAUSE: Duration = Duration::from_millis(50);

/// While the server fails.
const LONG_PAUSE: Duration = Duration::from_millis(250);

const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause of `settle` while no server accepts charges, or other tasks are making them.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// The permits that are owed, of each quota, by the name of the bucket.
#[derive(Debug)]
pub(super) struct Repayment {
    owed: Mutex<Ledger>,
    /// The number of keys that owe, to be read without the lock.
    count: AtomicUsize,
    max_keys: usize,
    is_running: AtomicBool,
}

#[derive(Debug, Default)]
struct Ledger {
    keys: IndexMap<Vec<u8>, Owed, RandomState>,
    /// Which key is charged next.
    next: usize,
    /// Whether the warning that there is no room for more keys has been logged.
    is_reported_full: bool,
}

#[derive(Debug)]
struct Owed {
    policy: Arc<RedisPolicy>,
    key: Key,
    permits: Permits,
    /// What a charge that is under way has not charged if it fails. What is taken meanwhile is charged
    /// later.
    charging: Option<Permits>,
}

type Permits = SmallVec<[u64; 1]>;

/// A charge that has to be made, or is under way. It ends when it is dropped, also if its runtime shuts
/// down.
struct Charge {
    repayment: Arc<Repayment>,
    name: Vec<u8>,
    policy: Arc<RedisPolicy>,
    key: Key,
    permits: Permits,
    end: End,
}

/// A charge that is sent with the next checks.
struct Joined {
    charge: Charge,
    op: Op,
    queue: Arc<NodeQueue>,
    check: QueuedCheck,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Charged,
    NotCharged,
    /// It is not charged again.
    Unknown,
}

impl Repayment {
    pub(super) fn new(max_keys: usize) -> Self {
        let (owed, count) = (Mutex::default(), AtomicUsize::new(0));
        Self { owed, count, max_keys, is_running: AtomicBool::new(false) }
    }

    /// A check of this key was allowed locally, or an adjustment made.
    pub(super) fn add(&self, policy: &Arc<RedisPolicy>, key: &Key, op: &Op) {
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
                    target: "tollgate", keys = self.max_keys,
                    "too many keys are in use while Redis fails: permits taken by further keys will not be \
                     charged afterwards (raise `RedisStore::local_keys`)"
                );
            }
        }
    }

    /// What was given back locally is not charged.
    fn reduce(&self, policy: &Arc<RedisPolicy>, key: &Key, returned: &[u64]) {
        if let Some(owed) = self.ledger().keys.get_mut(&policy.encoder.name(key).to_bytes()) {
            owed.follow(policy);
            for (quota, &(mut returned)) in returned.iter().enumerate() {
                for permits in iter::once(&mut owed.permits).chain(&mut owed.charging) {
                    if let Some(permits) = permits.get_mut(quota) {
                        let less = returned.min(*permits);
                        (*permits, returned) = (*permits - less, returned - less);
                    }
                }
            }
        }
    }

    /// The bucket of a key was reset on the server: nothing that was taken before is charged.
    pub(super) fn forget(&self, policy: &RedisPolicy, key: &Key) {
        if self.count.load(Ordering::Relaxed) > 0
            && let Some(owed) = self.ledger().keys.get_mut(&policy.encoder.name(key).to_bytes())
        {
            owed.permits.fill(0);
            owed.charging.iter_mut().for_each(|permits| permits.fill(0));
        }
    }

    /// Charges what is owed from now on, until nothing is.
    pub(super) fn start(self: &Arc<Self>, queues: &Arc<Queues>) {
        if self.is_running.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_running.swap(true, Ordering::Relaxed) {
            let (repayment, queues) = (self.clone(), Arc::downgrade(queues));
            runtime.spawn(Run { repayment, queues, has_ended: false }.run());
        }
    }

    /// Charges what a key owes before its next check, so that the server does not decide without it.
    ///
    /// # Errors
    ///
    /// If the charge cannot be sent: then the check must not be sent either.
    #[inline]
    pub(super) fn charge_before_check(
        self: &Arc<Self>,
        queues: &Arc<Queues>,
        policy: &RedisPolicy,
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
        policy: &RedisPolicy,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        // If the runtime of the last run has ended.
        self.start(queues);
        let Ok(runtime) = Handle::try_current() else { return Ok(()) };
        queues.admit(policy, key)?;
        let mut ledger = self.ledger();
        let Some(charge) = ledger.begin(self, &policy.encoder.name(key).to_bytes()) else {
            return Ok(());
        };
        if let Some(joined) = charge.join(ledger, queues, cx.waker())? {
            let queues = queues.clone();
            runtime.spawn(async move { joined.finish(&queues).await });
        }
        Ok(())
    }

    /// Charges all owed permits before the process ends, without the usual pauses. Takes at most a second.
    pub(super) async fn settle(self: &Arc<Self>, queues: &Arc<Queues>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        // Spawned, so that charges that are in flight at the deadline can finish.
        let (repayment, queues) = (self.clone(), queues.clone());
        let settling = async move { repayment.charge_until(deadline, &queues).await };
        let _ = timer::timeout_at(deadline, runtime.spawn(settling)).await;
        let keys = self.ledger().keys.len();
        if keys > 0 {
            tracing::warn!(
                target: "tollgate", keys,
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
            let mut ledger = self.ledger();
            let is_open = |owed: &Owed| queues.is_open(&owed.policy, &owed.key);
            let Some(charge) = ledger.begin_next(self, is_open) else { continue };
            match charge.join(ledger, queues, Waker::noop()) {
                Ok(Some(joined)) => charges.push(joined.finish(queues)),
                Ok(None) => has_charged = true,
                Err(_) => {}
            }
        }
        while let Some(end) = charges.next().await {
            has_charged |= end == End::Charged;
        }
        has_charged
    }

    fn end(&self, charge: &Charge) {
        let Charge { name, policy, key, end, .. } = charge;
        let mut ledger = self.ledger();
        let Some(owed) = ledger.keys.get_mut(name) else { return };
        let charging = owed.charging.take().unwrap_or_default();
        if *end == End::NotCharged {
            owed.add(&charging);
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
            End::Charged if is_paid => policy.local.iter().for_each(|local| local.settled(key)),
            End::Charged | End::NotCharged => {}
            // The local bucket stays as it is.
            End::Unknown => policy.metrics.uncharged(largest(&charging)),
        }
    }

    /// Whether a run has to go on. If not, the next debt starts another.
    fn continues(&self) -> bool {
        let ledger = self.ledger();
        if ledger.keys.is_empty() {
            self.is_running.store(false, Ordering::Relaxed);
        }
        !ledger.keys.is_empty()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Nothing that panics runs under the lock.
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Begins the charge of a key, unless another one is under way.
    fn begin(&mut self, repayment: &Arc<Repayment>, name: &[u8]) -> Option<Charge> {
        let (_, name, owed) = self.keys.get_full_mut(name)?;
        owed.begin(repayment, name)
    }

    /// The same for the key whose turn it is, if it may be charged.
    fn begin_next(
        &mut self,
        repayment: &Arc<Repayment>,
        may_charge: impl Fn(&Owed) -> bool,
    ) -> Option<Charge> {
        let index = if self.next < self.keys.len() { self.next } else { 0 };
        self.next = index + 1;
        let (name, owed) = self.keys.get_index_mut(index)?;
        if may_charge(owed) { owed.begin(repayment, name) } else { None }
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
            for permits in iter::once(&mut self.permits).chain(&mut self.charging) {
                *permits = policy.limits.taken_by(&self.policy.limits, permits);
            }
            self.policy = policy.clone();
        }
    }

    fn add(&mut self, more: &Permits) {
        self.permits.resize(more.len().max(self.permits.len()), 0);
        for (permits, more) in self.permits.iter_mut().zip(more) {
            *permits = permits.saturating_add(*more);
        }
    }

    fn begin(&mut self, repayment: &Arc<Repayment>, name: &[u8]) -> Option<Charge> {
        if self.charging.is_some() {
            return None;
        }
        let permits = mem::take(&mut self.permits);
        self.charging = Some(permits.clone());
        Some(Charge {
            repayment: repayment.clone(),
            name: name.to_owned(),
            policy: self.policy.clone(),
            key: self.key.clone(),
            permits,
            end: End::Unknown,
        })
    }
}

impl Charge {
    /// What still counts. `None` if nothing does.
    fn op(&self) -> Option<Op> {
        let adjustment = self.policy.local.as_ref()?.owed(&self.key, &self.permits);
        (!adjustment.is_nothing()).then_some(Op::Adjust(adjustment))
    }

    /// Adds it to the queue of its server, unless nothing of it still counts. The ledger is locked until
    /// then, so that no other check of the key goes ahead of it.
    fn join(
        self,
        ledger: MutexGuard<'_, Ledger>,
        queues: &Queues,
        waker: &Waker,
    ) -> Result<Option<Joined>, Error> {
        let Some(op) = self.op() else {
            drop(ledger);
            self.end(End::Charged);
            return Ok(None);
        };
        let joined = queues.add(&self.policy, &self.key, &op, waker);
        drop(ledger);
        match joined {
            Ok((queue, check)) => Ok(Some(Joined { charge: self, op, queue, check })),
            Err(error) => {
                self.end(End::NotCharged);
                Err(error)
            }
        }
    }

    fn end(mut self, end: End) {
        self.end = end;
    }
}

impl Joined {
    /// Sends it, and waits for the reply.
    async fn finish(self, queues: &Queues) -> End {
        let Self { charge, op, queue, mut check } = self;
        queue.start();
        let Charge { policy, key, .. } = &charge;
        let charged = poll_fn(|cx| queues.poll(policy, key, &op, &mut check, cx)).await;
        let may_be_charged = |error: &Error| check.was_sent() && !error.is_transient_reply();
        let end = match charged {
            Ok(_) => End::Charged,
            Err(error) if may_be_charged(&error) => End::Unknown,
            Err(_) => End::NotCharged,
        };
        charge.end(end);
        end
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.repayment.end(self);
    }
}

/// Charges keys in the background, a few at a time.
struct Run {
    repayment: Arc<Repayment>,
    queues: Weak<Queues>,
    has_ended: bool,
}

impl Run {
    async fn run(mut self) {
        let mut pause = LONG_PAUSE;
        while self.repayment.continues() {
            timer::sleep_until(Instant::now() + pause.mul_f64(0.5 + random::unit())).await;
            let Some(queues) = self.queues.upgrade() else { return };
            let has_charged = self.repayment.charge_some(&queues).await;
            pause = if has_charged { PAUSE } else { LONG_PAUSE };
        }
        self.has_ended = true;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.has_ended {
            self.repayment.is_running.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Batch;
    use super::super::connector::Connector;
    use super::super::flight::End as FlightEnd;
    use super::super::topology::Topology;
    use super::*;
    use crate::algorithm::Limits;
    use crate::{ErrorKind, Policy, Quota};

    fn owing() -> (Arc<Repayment>, Arc<RedisPolicy>, Key, Vec<u8>) {
        let policy = RedisPolicy::for_tests(Duration::from_secs(1));
        let (repayment, key) = (Arc::new(Repayment::new(10)), Key::from("key"));
        repayment.add(&policy, &key, &Op::acquire(3));
        let name = policy.encoder.name(&key).to_bytes();
        (repayment, policy, key, name)
    }

    fn begin(repayment: &Arc<Repayment>, name: &[u8]) -> Option<Charge> {
        repayment.ledger().begin(repayment, name)
    }

    #[test]
    fn a_charge_that_is_cut_short_is_not_made_again_and_blocks_no_other() {
        let (repayment, policy, key, name) = owing();
        let charge = begin(&repayment, &name).unwrap();
        assert!(begin(&repayment, &name).is_none(), "one at a time");
        drop(charge);
        assert_eq!(repayment.count.load(Ordering::Relaxed), 0);
        repayment.add(&policy, &key, &Op::acquire(2));
        assert_eq!(begin(&repayment, &name).unwrap().permits.as_slice(), [2]);
    }

    #[test]
    fn what_is_taken_during_a_charge_is_charged_later() {
        for (end, owed) in [(End::Charged, 2), (End::Unknown, 2), (End::NotCharged, 5)] {
            let (repayment, policy, key, name) = owing();
            let charge = begin(&repayment, &name).unwrap();
            repayment.add(&policy, &key, &Op::acquire(2));
            charge.end(end);
            assert_eq!(begin(&repayment, &name).unwrap().permits.as_slice(), [owed]);
        }
    }

    /// Or it could be sent a moment later, as a trial, and be decided without what the key owes.
    #[tokio::test]
    async fn a_check_is_refused_together_with_the_charge_before_it() {
        let (repayment, policy, key, name) = owing();
        let connector = Connector::url("redis://127.0.0.1:1").unwrap();
        let queues = Arc::new(Queues::new(Topology::new(connector)));
        let cx = &mut Context::from_waker(Waker::noop());
        let (queue, _) = queues.add(&policy, &key, &Op::Peek, cx.waker()).unwrap();
        queue.returned(FlightEnd::Lost(queue.sent(1)), &Batch::default());
        queue.probed(Err(Error::new(ErrorKind::Unavailable, "for the test")));
        let refused = repayment.charge_before_check(&queues, &policy, &key, cx);
        assert!(refused.unwrap_err().to_string().contains("for the test"));
        assert_eq!(begin(&repayment, &name).unwrap().permits.as_slice(), [3]);
    }

    #[test]
    fn charges_do_not_depend_on_a_runtime_that_has_ended() {
        let (_, policy, key, _) = owing();
        let connector = Connector::url("redis://127.0.0.1:1").unwrap();
        let (queues, op) = (Queues::new(Topology::new(connector)), Op::acquire(1));
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let add = || queues.add(&policy, &key, &op, Waker::noop()).unwrap();
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
        let charge = begin(&repayment, &name).unwrap();
        assert_eq!(charge.permits.as_slice(), [1]);
        charge.end(End::NotCharged);
        repayment.add(&policy, &key, &Op::Adjust(policy.limits.credit(&9)));
        repayment.add(&policy, &key, &Op::acquire(4));
        repayment.forget(&policy, &key);
        let charge = begin(&repayment, &name).unwrap();
        assert_eq!(charge.permits.as_slice(), [0]);
        charge.end(End::Charged);
        assert_eq!(repayment.count.load(Ordering::Relaxed), 0);
    }

    /// It is charged neither now nor, if that fails, later.
    #[test]
    fn what_is_given_back_or_reset_during_a_charge_is_not_charged_later() {
        let (repayment, policy, key, name) = owing();
        let charge = begin(&repayment, &name).unwrap();
        repayment.add(&policy, &key, &Op::acquire(1));
        repayment.add(&policy, &key, &Op::Adjust(policy.limits.credit(&2)));
        charge.end(End::NotCharged);
        let charge = begin(&repayment, &name).unwrap();
        assert_eq!(charge.permits.as_slice(), [2]);
        repayment.forget(&policy, &key);
        charge.end(End::NotCharged);
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
        let charge = begin(&repayment, &name).unwrap();
        assert_eq!(charge.permits.as_slice(), [1, 301]);
        // The first revision is back when it turns out that the charge was not made.
        repayment.add(&old, &key, &Op::acquire(2));
        charge.end(End::NotCharged);
        repayment.add(&new, &key, &Op::Adjust(new.limits.credit(&3)));
        assert_eq!(begin(&repayment, &name).unwrap().permits.as_slice(), [0, 300]);
    }

    #[test]
    fn each_key_has_its_turn() {
        let policy = RedisPolicy::for_tests(Duration::from_secs(1));
        let repayment = Arc::new(Repayment::new(1_000));
        for key in 0..300u32 {
            repayment.add(&policy, &Key::from(key), &Op::acquire(1));
        }
        // They are under way until the end.
        let begin_next = |_| repayment.ledger().begin_next(&repayment, |_| true);
        let charges: Vec<_> = (0..300).filter_map(begin_next).collect();
        assert_eq!(charges.len(), 300);
        assert!(begin_next(0).is_none());
    }
}

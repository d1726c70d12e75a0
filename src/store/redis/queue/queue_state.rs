//! The state of a queue: which batches wait, which are in flight, and when the next one starts. It does no
//! I/O and reads no clock.
//!
//! Batches are assembled while checks are enqueued, so that a flusher holds the lock only to take one.
//!
//! Checks that cannot be answered in time fail early. A check is rejected on arrival if the full batches
//! ahead of it would make it wait for more than a third of the timeout that remains after one round trip, and
//! left out of its batch if the reply would come after its deadline (both in `in_flight_window`). Without this, every
//! check would be sent just before its deadline, and at 1.1 times the capacity none would be answered in
//! time. The estimate is the shorter of the latest two round trips, because a single long one may only have
//! been read late by a blocked worker. It leaves a third of the remaining timeout: checks that have waited
//! for less are always sent, so an outdated estimate corrects itself. Checks that are still queued when their
//! timeout passes are not charged.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::batch::{Batch, CheckIndex};
use super::bucket::BucketRef;
use super::in_flight_window::{InFlightWindow, SentBatch};
use crate::store::Op;

/// The longest time for which a timer is set: one that became useless, because another one fires earlier, is removed only
/// when it fires.
const LONGEST_TIMER: Duration = Duration::from_secs(1);

/// The number of completed batches that are kept for reuse.
const MAX_USED: usize = 4;

/// The batches of a queue.
#[derive(Debug)]
pub(super) struct QueueState {
    timeout: Duration,
    window: InFlightWindow,
    /// The batch that the next check joins. It may be empty.
    open: Arc<Batch>,
    /// The number of checks in the open batch.
    open_checks: usize,
    /// Full batches, which are sent before the open one.
    full: VecDeque<Full>,
    /// Batches that have been sent, or are about to be, to watch their deadlines.
    sent: Vec<Arc<Batch>>,
    /// Batches whose memory is used again once their checks have read their verdicts.
    used: VecDeque<Arc<Batch>>,
    timer: Option<Instant>,
}

/// A batch that has no room for more.
#[derive(Debug)]
struct Full {
    batch: Arc<Batch>,
    keys: usize,
    checks: usize,
}

/// The start of the next batch: now, or later.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A place in the window is reserved for it.
    Starts,
    /// The timer has to fire at this time, if one waits and the timer is not armed already.
    Waits(Option<Instant>),
}

/// The result of a timer that fires.
#[derive(Debug)]
pub(super) struct Fired {
    /// The batches whose deadlines may have passed.
    pub(super) batches: Vec<Arc<Batch>>,
    /// True if a place in the window is reserved for another flusher.
    pub(super) starts: bool,
    /// True if a reply is outstanding, and no reply has arrived for a timeout.
    pub(super) is_silent: bool,
    /// True if the server works, so that checks that have not been sent are too many for it.
    pub(super) is_answering: bool,
}

/// The sizes of a queue.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Sizes {
    pub(super) in_flight: usize,
    /// The load of the keys and calls in flight.
    pub(super) load: usize,
    /// Batches.
    pub(super) sent: usize,
    /// Checks.
    pub(super) waiting: usize,
}

impl QueueState {
    /// The state of a queue whose checks have this timeout.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            window: InFlightWindow::new(timeout),
            open: Arc::default(),
            open_checks: 0,
            full: VecDeque::new(),
            sent: Vec::new(),
            used: VecDeque::new(),
            timer: None,
        }
    }

    /// Returns true if no flusher is at work.
    pub(super) fn is_idle(&self) -> bool {
        self.window.is_idle()
    }

    /// Returns true if a check would be the only one, so that it may be sent at once.
    pub(super) fn is_alone(&self) -> bool {
        self.window.is_idle() && !self.has_waiting()
    }

    /// Adds the only check, and starts its batch.
    pub(super) fn start_alone(
        &mut self,
        bucket: BucketRef<'_>,
        op: &Op,
        now: Instant,
        waker: &Waker,
    ) -> (Arc<Batch>, CheckIndex) {
        self.window.set_lone_call(true);
        let batch = self.empty_batch();
        let deadline = now + self.timeout;
        let index = batch.push(bucket, op, deadline, waker).unwrap_or_default();
        self.sent.push(batch.clone());
        (batch, index)
    }

    /// Adds a check to the last batch. `None` if it would wait for too long.
    pub(super) fn join(
        &mut self,
        bucket: BucketRef<'_>,
        op: &Op,
        now: Instant,
        waker: &Waker,
    ) -> Option<(Arc<Batch>, CheckIndex)> {
        let keys = self.full.iter().map(|full| full.keys).sum();
        if self.window.is_overloaded(self.full.len(), keys) {
            return None;
        }
        let deadline = now + self.timeout;
        let index = match self.open.push(bucket, op, deadline, waker) {
            Some(index) => index,
            None => {
                let empty = self.empty_batch();
                let batch = mem::replace(&mut self.open, empty);
                let (keys, checks) = (batch.keys(), mem::take(&mut self.open_checks));
                self.full.push_back(Full { batch, keys, checks });
                self.open.push(bucket, op, deadline, waker).unwrap_or_default()
            }
        };
        self.open_checks += 1;
        Some((self.open.clone(), index))
    }

    /// Records that the call of the only check has ended.
    pub(super) fn end_alone(&mut self) {
        self.window.set_lone_call(false);
    }

    /// Returns true if a batch waits that may start.
    pub(super) fn may_start(&self, now: Instant) -> bool {
        self.has_waiting() && self.window.may_start(now, self.next_keys(), !self.full.is_empty())
    }

    /// Reserves a place in the window for a flusher.
    pub(super) fn reserve(&mut self, now: Instant) {
        self.window.reserve(now);
    }

    /// Returns a place in the window.
    pub(super) fn release(&mut self) {
        self.window.release();
    }

    /// Starts the batch that has waited longest. A flusher that finds none returns its place.
    pub(super) fn take(&mut self) -> Option<Arc<Batch>> {
        let Some(batch) = self.pop() else {
            self.window.release();
            return None;
        };
        self.sent.push(batch.clone());
        Some(batch)
    }

    /// Records that this number of keys of a batch are sent, on a connection that was made at `connected`.
    pub(super) fn sent(&mut self, keys: usize, connected: Instant, now: Instant) -> SentBatch {
        self.window.sent(keys, connected, now)
    }

    /// Starts the next batch if it may start. After a place is returned, it may have to start sooner
    /// than the timer is armed for.
    pub(super) fn start_next(&mut self, now: Instant) -> Next {
        if self.may_start(now) {
            self.window.reserve(now);
            return Next::Starts;
        }
        Next::Waits(self.rearm(now, None))
    }

    /// Returns true if a flusher pauses after a batch of this number of checks: tasks whose checks were just completed
    /// often check again, and then share the next batch. A single one sends its next check itself, unless
    /// others wait.
    pub(super) fn pauses_after(&self, checks: usize) -> bool {
        checks > 1 || self.has_waiting()
    }

    /// Returns the deadline below which a check that is sent now would be decided too late.
    pub(super) fn earliest_deadline(&self, now: Instant) -> Instant {
        self.window.earliest_deadline(now)
    }

    /// Records that the reply to a batch has arrived. Returns true if that was too late.
    pub(super) fn replied(&mut self, sent: SentBatch, now: Instant) -> bool {
        self.window.replied(sent, now)
    }

    /// Records that a batch was sent whose reply will not be noticed.
    pub(super) fn abandoned(&mut self, sent: SentBatch) {
        self.window.abandoned(sent);
    }

    /// Records that a batch was not sent, because its replies would have been too late, or nobody waits for
    /// them.
    pub(super) fn given_up(&mut self) {
        self.window.given_up();
    }

    /// Returns true if the server works, so that checks that are not sent in time are too many for it.
    pub(super) fn is_answering(&self, now: Instant) -> bool {
        self.window.is_answering(now)
    }

    /// Returns the shortest round trip, if checks wait or more than hardly anything is in flight.
    pub(super) fn busy_round_trip(&self) -> Option<Duration> {
        let is_busy = self.has_waiting() || !self.window.is_drained();
        self.window.shortest_round_trip().filter(|_| is_busy)
    }

    /// Returns the timeout of a probe.
    pub(super) fn probe_timeout(&self, now: Instant) -> Duration {
        self.window.probe_timeout(now)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Stops watching the deadlines of a batch. The caller drops the result without a lock, because
    /// that may run code of another crate.
    #[must_use]
    pub(super) fn forget(&mut self, batch: &Arc<Batch>) -> Option<Arc<Batch>> {
        let index = self.sent.iter().position(|sent| Arc::ptr_eq(sent, batch))?;
        let batch = self.sent.swap_remove(index);
        self.used.push_back(batch);
        if self.used.len() > MAX_USED { self.used.pop_front() } else { None }
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.open_checks > 0 || !self.full.is_empty()
    }

    /// Returns true if a full batch waits.
    pub(super) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Returns the batches that wait.
    pub(super) fn waiting(&self) -> Vec<Arc<Batch>> {
        let full = self.full.iter().map(|full| &full.batch);
        full.chain([&self.open]).cloned().collect()
    }

    /// Returns the number of checks that wait.
    pub(super) fn waiting_checks(&self) -> usize {
        self.open_checks + self.full.iter().map(|full| full.checks).sum::<usize>()
    }

    /// Takes all batches that wait.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Batch>> {
        let open = mem::take(&mut self.open);
        self.open_checks = 0;
        let full = mem::take(&mut self.full).into_iter().map(|full| full.batch);
        full.chain([open]).collect()
    }

    /// Arms the timer after a check was added at `now`. Returns its time, or `None` if the timer is
    /// already armed for that time or earlier.
    pub(super) fn arm(&mut self, now: Instant) -> Option<Instant> {
        if self.timer.zip(self.window.not_before()).is_some_and(|(timer, start)| timer <= start) {
            return None;
        }
        let deadline = now + self.timeout;
        let at = self.next_start(now).map_or(deadline, |start| start.min(deadline));
        self.arm_for(at, now)
    }

    /// Handles a timer that fires. `None` if it was armed for an earlier time meanwhile.
    pub(super) fn fire(&mut self, now: Instant) -> Option<Fired> {
        self.timer.take_if(|timer| *timer <= now)?;
        let starts = self.may_start(now);
        if starts {
            self.reserve(now);
        }
        let batches = self.sent.iter().cloned().chain(self.waiting()).collect();
        let (is_silent, is_answering) = (self.window.is_silent(now), self.is_answering(now));
        Some(Fired { batches, starts, is_silent, is_answering })
    }

    /// Arms the timer again, and returns its time. `next` is the earliest deadline of the batches that the
    /// timer found.
    pub(super) fn rearm(&mut self, now: Instant, next: Option<Instant>) -> Option<Instant> {
        let silent_at = self.window.silent_at(now).filter(|&at| at > now);
        let at = next.into_iter().chain(self.next_start(now)).chain(silent_at).min()?;
        self.arm_for(at, now)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> Sizes {
        let (in_flight, load) = (self.window.all_in_flight(), self.window.load());
        Sizes { in_flight, load, sent: self.sent.len(), waiting: self.waiting_checks() }
    }

    fn arm_for(&mut self, at: Instant, now: Instant) -> Option<Instant> {
        let at = at.min(now + LONGEST_TIMER);
        if self.timer.is_some_and(|timer| timer <= at) {
            return None;
        }
        self.timer = Some(at);
        Some(at)
    }

    /// Returns the time at which a waiting batch may start even if no other returns. `None` if only a
    /// reply can start it: then time alone changes nothing.
    fn next_start(&self, now: Instant) -> Option<Instant> {
        if !self.has_waiting() {
            return None;
        }
        self.window.next_start(now, self.next_keys()).filter(|&start| start > now)
    }

    /// Returns the number of keys of the next batch. One that is not full may have fewer.
    fn next_keys(&self) -> usize {
        self.full.front().map_or(self.open_checks.min(self.window.room()), |full| full.keys)
    }

    fn pop(&mut self) -> Option<Arc<Batch>> {
        self.full.pop_front().map(|full| full.batch).or_else(|| {
            if mem::take(&mut self.open_checks) == 0 {
                return None;
            }
            let empty = self.empty_batch();
            Some(mem::replace(&mut self.open, empty))
        })
    }

    fn empty_batch(&mut self) -> Arc<Batch> {
        let room = self.window.room();
        let recycled = self.used.pop_front().and_then(|batch| Batch::recycle(batch, room));
        recycled.unwrap_or_else(|| Batch::new(room).into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::store::redis::script::RedisPolicy;

    const MS: Duration = Duration::from_millis(1);

    /// When the connection was made.
    static CONNECTED: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn join(queue: &mut QueueState, now: Instant) {
        let policy = RedisPolicy::for_tests(50 * MS);
        queue
            .join(
                BucketRef { policy: &policy, key: &"key".into(), slot: 0 },
                &Op::acquire(1),
                now,
                Waker::noop(),
            )
            .unwrap();
    }

    fn start_alone(queue: &mut QueueState, now: Instant) -> SentBatch {
        let policy = RedisPolicy::for_tests(50 * MS);
        queue.start_alone(
            BucketRef { policy: &policy, key: &"key".into(), slot: 0 },
            &Op::acquire(1),
            now,
            Waker::noop(),
        );
        queue.sent(1, *CONNECTED, now)
    }

    #[test]
    fn a_stalled_server_does_not_keep_the_timer_busy() {
        let (mut queue, start) = (QueueState::new(50 * MS), Instant::now());
        start_alone(&mut queue, start);
        let now = start + 100 * MS;
        (0..2).for_each(|_| queue.reserve(now));
        join(&mut queue, now);
        // A timer that fires before would find nothing to start, again and again.
        assert_eq!(queue.arm(now), Some(now + 50 * MS));
        assert_eq!(queue.start_next(now + MS), Next::Waits(None));
    }

    #[test]
    fn a_reply_that_a_blocked_worker_does_not_read_stops_nobody_else() {
        let (mut queue, start) = (QueueState::new(50 * MS), Instant::now());
        start_alone(&mut queue, start);
        let now = start + 200 * MS;
        let sent = [now, now + 10 * MS].map(|now| {
            join(&mut queue, now);
            assert!(queue.may_start(now));
            queue.reserve(now);
            queue.take().unwrap();
            queue.sent(1, *CONNECTED, now)
        });
        join(&mut queue, now + 20 * MS);
        assert!(!queue.may_start(now + 20 * MS), "the server may be silent");
        queue.replied(sent[0], now + 21 * MS);
        queue.release();
        assert!(queue.may_start(now + 21 * MS), "the server has replied");
    }

    /// In the failure mode `Open`, overload does not open a limit, and an outage does.
    #[test]
    fn an_outage_is_not_taken_for_overload() {
        let (mut queue, start) = (QueueState::new(50 * MS), Instant::now());
        let sent = start_alone(&mut queue, start);
        queue.replied(sent, start + MS);
        queue.end_alone();
        assert_eq!(queue.busy_round_trip(), None);
        (0..2).for_each(|_| queue.reserve(start + MS));
        join(&mut queue, start + MS);
        assert_eq!(queue.busy_round_trip(), Some(MS));
        for (ms, is_overloaded) in [(50, true), (51, false)] {
            let now = start + ms * MS;
            queue.timer = Some(now);
            assert_eq!(queue.fire(now).unwrap().is_answering, is_overloaded, "after {ms} ms");
        }
    }

    #[test]
    fn a_batch_starts_although_none_returns() {
        let (mut queue, start) = (QueueState::new(50 * MS), Instant::now());
        for _ in 0..2 {
            // These are reserved by flushers that are stuck on blocked workers.
            queue.reserve(start);
        }
        join(&mut queue, start + MS);
        assert!(!queue.may_start(start + MS));
        let at = queue.arm(start + MS).unwrap();
        assert!(at <= start + 10 * MS && queue.fire(at).unwrap().starts);
    }

    #[test]
    fn a_lone_check_that_is_not_polled_holds_up_nobody() {
        let (mut queue, mut now) = (QueueState::new(50 * MS), Instant::now());
        // After a slow reply the window has room for two full batches.
        for taken in [MS, 300 * MS] {
            let sent = start_alone(&mut queue, now);
            now += taken;
            queue.replied(sent, now);
            queue.end_alone();
        }
        start_alone(&mut queue, now);
        join(&mut queue, now);
        for _ in 0..2 {
            assert!(queue.may_start(now));
            queue.reserve(now);
        }
        assert!(!queue.may_start(now), "the window is full");
    }

    #[test]
    fn a_place_that_is_returned_does_not_wait_for_another_reply() {
        let (mut queue, start) = (QueueState::new(50 * MS), Instant::now());
        while queue.window.may_start(start, 1, true) {
            queue.reserve(start);
        }
        join(&mut queue, start + MS);
        assert_eq!(queue.arm(start + MS), Some(start + 50 * MS), "the window is full");
        queue.release();
        let Next::Waits(Some(at)) = queue.start_next(start + 2 * MS) else {
            panic!("the batch is not full, and others have just started");
        };
        assert!(at <= start + 5 * MS);
        assert!(queue.fire(at).unwrap().starts);
    }

    #[test]
    fn a_batch_starts_after_a_timeout_although_the_window_is_full() {
        let (mut queue, start) = (QueueState::new(50 * MS), Instant::now());
        while queue.window.may_start(start, 1, true) {
            queue.reserve(start);
        }
        join(&mut queue, start + 30 * MS);
        let at = queue.arm(start + 30 * MS).unwrap();
        assert_eq!(at, start + 50 * MS);
        assert!(queue.fire(at).unwrap().starts);
    }
}

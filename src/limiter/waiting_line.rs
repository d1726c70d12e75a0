//! The checks of a key that wait in this process, and the places in the queue of the bucket that they share.
//! A place is permits that were taken in advance, and the time at which they will be there.
//!
//! A place belongs to the process, not to the check that took it, because only the last place of a bucket can
//! be given back. So the checks that wait are a line, and the first check has the earliest place. When one
//! gives up, those behind it move up, and the last place is given back: the process sends the time at which
//! the bucket was to be full after its own charge. If it still is, nobody queued behind, and the script gives
//! the permits back. If other processes have queued behind, the place is kept for the next caller, who needs
//! no call for it. Otherwise callers that wait for a short time would fill the queue with places that nobody
//! takes.
//!
//! Checks with different costs or a different longest wait have different lines, because their places are not
//! worth the same. What may be given back of other quotas depends on when it was taken, so that belongs to
//! the place too. One task at a time, unless its runtime stands still, gives the free places of a line back,
//! the last one first, also while a process shuts down. Each check waits with a timer of its own. When a
//! check leaves the line, only the next one is woken: it is due first, and wakes the one behind it in turn.
//!
//! A process that is killed leaves at most as many places of a key behind as the limiter allows waiters. A
//! process does not learn of a reset by another one. Its waiting checks proceed at their times, and a place
//! that it keeps delays one caller, at most until its time. The store does not take such a place back, unless
//! the bucket happens to be full at the same microsecond. → `tests/it/waiting.rs`

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::HeldRevision;
use super::taken::TakenPermits;
use crate::charge::{Patience, Place};
use crate::{Costs, Decision, Error};

/// The checks of a key that have taken the same permits and may wait for as long.
///
/// A place belongs to the line, not to a check: the first check has the earliest place. When a check
/// gives up, those behind it move up, and the last place is free. It is given back to the store, or
/// kept for the next check if other processes have queued behind it.
pub(super) struct Line {
    terms: Terms,
    /// Identifies the checks.
    tickets: u64,
    /// The checks in order of arrival, with the wakers of those that were polled.
    waiting: VecDeque<(Ticket, Option<Waker>)>,
    /// The places in order of time: one for each check, and then those that are free.
    places: VecDeque<Reserved>,
    /// The task that gives free places back, if there is one.
    giving_back: Option<GiveBackTask>,
}

/// The terms that the checks of a line have in common, so that each may have the place of another.
#[derive(Clone)]
pub(super) struct Terms {
    /// The numbers of the policy that decide them.
    pub(super) revision: HeldRevision,
    pub(super) costs: Costs,
    pub(super) patience: Patience,
}

/// A task that gives free places back.
struct GiveBackTask {
    rounds: watch::Receiver<Rounds>,
    /// It goes on by then unless its runtime stands still.
    until: Instant,
}

pub(super) type Ticket = u64;

/// The progress in giving free places back. In each round those that are free are given back together.
#[derive(Default)]
pub(super) struct Rounds {
    pub(super) ended: u64,
    /// The last round that failed.
    pub(super) failed: Option<(u64, Error)>,
}

/// Permits that were taken in advance.
pub(super) struct Reserved {
    pub(super) permits: TakenPermits,
    pub(super) place: Place,
    /// The time at which the permits are there.
    pub(super) due: Instant,
    /// The decision about the check that took them.
    pub(super) decision: Decision,
    /// Counts the place, if the store did not take it back.
    pub(super) kept: Option<KeptPlace>,
}

/// Counts the places that are kept for other checks.
pub(super) struct KeptPlace(Arc<AtomicUsize>);

/// The turn of a check.
pub(super) enum Turn {
    /// It comes at this time.
    Later(Instant),
    /// The permits are the check's own from now on.
    Now(Box<Reserved>, Moved),
}

/// The wakers that a change of a line is done with. They have to be used and dropped while no lock is
/// held: a waker may drop a task with it, and that may give up a place of the same line.
#[must_use = "the task would be late"]
#[derive(Default)]
pub(super) struct Moved {
    /// The task of a check that may have another place than before, and has to look.
    next: Option<Waker>,
    /// The waker of a check that has left the line.
    own: Option<Waker>,
}

impl Terms {
    fn is_same(&self, other: &Self) -> bool {
        self.revision.is_same(&other.revision)
            && self.costs == other.costs
            && self.patience == other.patience
    }
}

impl Line {
    pub(super) fn new(terms: Terms) -> Self {
        let (waiting, places) = Default::default();
        Self { terms, tickets: 0, waiting, places, giving_back: None }
    }

    pub(super) fn is_of(&self, terms: &Terms) -> bool {
        self.terms.is_same(terms)
    }

    /// Adds a check that has taken permits. Its place is free if an earlier one was.
    pub(super) fn join(&mut self, reserved: Reserved) -> Ticket {
        // Those before it are due earlier, and keep their places.
        let index = self.insert(reserved).min(self.waiting.len());
        self.add(index)
    }

    /// Adds a check that takes an earlier one's place, if one is free.
    pub(super) fn take_over(&mut self, now: Instant) -> Option<(Ticket, Decision)> {
        self.drop_late(now);
        let index = self.waiting.len();
        let decision = self.places.get(index)?.decision.clone();
        Some((self.add(index), decision))
    }

    /// Returns true if a check may [take over](Self::take_over) a place.
    pub(super) fn has_free(&self) -> bool {
        self.places.len() > self.waiting.len()
    }

    /// Returns when the turn of a check comes. If it has come, the check leaves the line. Otherwise
    /// `waker` is exchanged for that of an earlier poll, for the caller to drop while no lock is held.
    pub(super) fn poll(
        &mut self,
        ticket: Ticket,
        now: Instant,
        waker: &mut Option<Waker>,
    ) -> Option<Turn> {
        let index = self.index(ticket)?;
        let due = self.places.get(index)?.due;
        if due > now {
            let (_, own) = self.waiting.get_mut(index)?;
            mem::swap(own, waker);
            return Some(Turn::Later(due));
        }
        let own = self.waiting.remove(index).and_then(|(_, own)| own);
        let reserved = self.places.remove(index)?;
        Some(Turn::Now(Box::new(reserved), Moved { next: self.next(index), own }))
    }

    /// Returns when the turn of a check comes.
    pub(super) fn due(&self, ticket: Ticket) -> Option<Instant> {
        Some(self.places.get(self.index(ticket)?)?.due)
    }

    /// Removes a check that does not wait any more. The last place is free then.
    pub(super) fn give_up(&mut self, ticket: Ticket, now: Instant) -> Moved {
        let Some(index) = self.index(ticket) else { return Moved::default() };
        let own = self.waiting.remove(index).and_then(|(_, own)| own);
        if self.places.get(index).is_some_and(|place| place.due <= now) {
            // Its time has come, so the permits are used.
            self.places.remove(index);
        } else if let Some(free) = self.places.get_mut(self.waiting.len()) {
            // Those who had queued behind it may have left too.
            free.kept = None;
        }
        Moved { next: self.next(index), own }
    }

    /// Starts to give free places back, if there are any: returns the progress in it, and what the caller has to
    /// report it with if nobody gives them back yet. A round takes at most so long, unless its runtime stands
    /// still. Then two tasks may give places back at a time, but not the same ones.
    pub(super) fn give_back(
        &mut self,
        now: Instant,
        longest_round: Duration,
    ) -> Option<(watch::Receiver<Rounds>, Option<watch::Sender<Rounds>>)> {
        if !self.places.iter().skip(self.waiting.len()).any(|free| free.kept.is_none()) {
            return None;
        }
        if let Some(GiveBackTask { rounds, until }) = &self.giving_back
            && now < *until
        {
            return Some((rounds.clone(), None));
        }
        let (report, rounds) = watch::channel(Rounds::default());
        let until = now + longest_round;
        self.giving_back = Some(GiveBackTask { rounds: rounds.clone(), until });
        Some((rounds, Some(report)))
    }

    /// Takes out the free places that may be given back, the last one first, because the store does not
    /// take one back before those behind it. If there is none, this ends.
    pub(super) fn take_free(
        &mut self,
        now: Instant,
        longest_round: Duration,
        own: &watch::Sender<Rounds>,
    ) -> Vec<Reserved> {
        self.drop_late(now);
        let free = self.places.split_off(self.waiting.len()).into_iter().rev();
        let (kept, free): (Vec<_>, Vec<_>) = free.partition(|free| free.kept.is_some());
        self.places.extend(kept.into_iter().rev());
        if free.is_empty() {
            self.stop_giving_back(own);
        } else if let Some(task) = self.giving_back.as_mut().filter(|task| task.is(own)) {
            task.until = now + longest_round;
        }
        free
    }

    /// Keeps a place for a check of this process, because others have queued behind it.
    pub(super) fn keep(&mut self, reserved: Reserved) -> Moved {
        let index = self.insert(reserved);
        Moved { next: self.next(index), own: None }
    }

    /// Free places may have become the last ones.
    pub(super) fn retry_free(&mut self) {
        self.places.iter_mut().skip(self.waiting.len()).for_each(|free| free.kept = None);
    }

    pub(super) fn forget_free(&mut self) {
        self.places.truncate(self.waiting.len());
    }

    /// A task does not give places back any more, maybe because its runtime has ended.
    pub(super) fn stop_giving_back(&mut self, own: &watch::Sender<Rounds>) {
        self.giving_back.take_if(|task| task.is(own));
    }

    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.drop_late(now);
        self.places.is_empty() && self.giving_back.as_ref().is_none_or(|task| task.until <= now)
    }

    fn insert(&mut self, reserved: Reserved) -> usize {
        let index = self.places.partition_point(|place| place.due <= reserved.due);
        self.places.insert(index, reserved);
        index
    }

    fn add(&mut self, index: usize) -> Ticket {
        self.tickets += 1;
        self.waiting.insert(index, (self.tickets, None));
        self.tickets
    }

    fn index(&self, ticket: Ticket) -> Option<usize> {
        self.waiting.iter().position(|(other, _)| *other == ticket)
    }

    /// The time of a free place has passed. To use it later would let more proceed at once.
    fn drop_late(&mut self, now: Instant) {
        while self.has_free() && self.places[self.waiting.len()].due <= now {
            self.places.remove(self.waiting.len());
        }
    }

    /// The checks from this index on may have moved up. The first one that was polled has to look when its
    /// turn comes. It tells the next when it leaves the line, which is early enough.
    fn next(&mut self, index: usize) -> Option<Waker> {
        self.waiting.iter_mut().skip(index).find_map(|(_, waker)| waker.take())
    }
}

impl GiveBackTask {
    fn is(&self, report: &watch::Sender<Rounds>) -> bool {
        self.rounds.same_channel(&report.subscribe())
    }
}

impl Moved {
    /// Wakes the task, while no lock is held.
    pub(super) fn wake(self) {
        let Self { next, own } = self;
        if let Some(next) = next {
            next.wake();
        }
        drop(own);
    }
}

impl KeptPlace {
    /// Returns `None` if so many are kept.
    pub(super) fn new(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let more = |count: usize| (count < most).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(count.clone()))
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

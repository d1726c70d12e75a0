//! The checks of a key that wait in this process, and the places that they share.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use tokio::time::Instant;

use super::HeldRevision;
use super::taken::Permits;
use crate::algorithm::Place;
use crate::{Costs, Decision};

/// The checks that have taken the same number of permits of a key, by the same numbers of its policy.
///
/// A place belongs to the line, not to a check: the first check has the earliest place. When a check
/// gives up, those behind it move up, and the last place is free. It is given back to the store, or
/// kept for the next check if other processes have queued behind it.
pub(super) struct Line {
    revision: HeldRevision,
    costs: Costs,
    /// Identifies the checks.
    tickets: u64,
    /// In order of arrival, with the wakers of those that were polled.
    waiting: VecDeque<(Ticket, Option<Waker>)>,
    /// In order of time: one for each check, and then those that are free.
    places: VecDeque<Reserved>,
    is_giving_back: bool,
}

pub(super) type Ticket = u64;

/// Permits that were taken in advance.
pub(super) struct Reserved {
    pub(super) permits: Permits,
    pub(super) place: Place,
    /// When the permits are there.
    pub(super) due: Instant,
    /// The decision about the check that took them.
    pub(super) decision: Decision,
    /// If the store did not take it back.
    pub(super) kept: Option<Kept>,
}

/// Counts the places that are kept for other checks.
pub(super) struct Kept(Arc<AtomicUsize>);

/// When the turn of a check comes.
pub(super) enum Turn {
    /// At this time. With the waker of an earlier poll, which is dropped while no lock is held.
    Later(Instant, Option<Waker>),
    /// The permits are the check's own from now on.
    Now(Box<Reserved>, Moved),
}

/// The task of a check that may have another place than before, and has to look.
#[must_use = "the task would be late"]
#[derive(Default)]
pub(super) struct Moved(Option<Waker>);

impl Line {
    pub(super) fn new(revision: HeldRevision, costs: Costs) -> Self {
        let (waiting, places) = Default::default();
        Self { revision, costs, tickets: 0, waiting, places, is_giving_back: false }
    }

    pub(super) fn is_of(&self, revision: &HeldRevision, costs: &Costs) -> bool {
        self.revision.is_same(revision) && self.costs == *costs
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

    /// Returns when the turn of a check comes. If it has come, the check leaves the line.
    pub(super) fn poll(&mut self, ticket: Ticket, now: Instant, waker: Waker) -> Option<Turn> {
        let index = self.index(ticket)?;
        let due = self.places.get(index)?.due;
        if due > now {
            let (_, own) = self.waiting.get_mut(index)?;
            return Some(Turn::Later(due, own.replace(waker)));
        }
        self.waiting.remove(index);
        let reserved = self.places.remove(index)?;
        Some(Turn::Now(Box::new(reserved), self.moved(index)))
    }

    /// Returns when the turn of a check comes.
    pub(super) fn due(&self, ticket: Ticket) -> Option<Instant> {
        Some(self.places.get(self.index(ticket)?)?.due)
    }

    /// Removes a check that does not wait any more. The last place is free then.
    pub(super) fn give_up(&mut self, ticket: Ticket, now: Instant) -> Moved {
        let Some(index) = self.index(ticket) else { return Moved::default() };
        self.waiting.remove(index);
        if self.places.get(index).is_some_and(|place| place.due <= now) {
            // Its time has come, so the permits are used.
            self.places.remove(index);
        } else if let Some(free) = self.places.get_mut(self.waiting.len()) {
            // Those who had queued behind it may have left too.
            free.kept = None;
        }
        self.moved(index)
    }

    /// Returns true if there are free places to give back and nobody does so yet.
    pub(super) fn starts_giving_back(&mut self) -> bool {
        let has_more = self.places.iter().skip(self.waiting.len()).any(|free| free.kept.is_none());
        has_more && !mem::replace(&mut self.is_giving_back, true)
    }

    /// Takes out the free places that may be given back, the last one first, because the store does not
    /// take one back before those behind it. If there is none, this ends.
    pub(super) fn take_free(&mut self, now: Instant) -> Vec<Reserved> {
        self.drop_late(now);
        let free = self.places.split_off(self.waiting.len()).into_iter().rev();
        let (kept, free): (Vec<_>, Vec<_>) = free.partition(|free| free.kept.is_some());
        self.places.extend(kept.into_iter().rev());
        self.is_giving_back = !free.is_empty();
        free
    }

    /// Keeps a place for a check of this process, because others have queued behind it.
    pub(super) fn keep(&mut self, reserved: Reserved) -> Moved {
        let index = self.insert(reserved);
        self.moved(index)
    }

    /// Free places may have become the last ones.
    pub(super) fn retry_free(&mut self) {
        self.places.iter_mut().skip(self.waiting.len()).for_each(|free| free.kept = None);
    }

    pub(super) fn forget_free(&mut self) {
        self.places.truncate(self.waiting.len());
    }

    /// Nothing is given back any more, maybe because a runtime has ended.
    pub(super) fn stop_giving_back(&mut self) {
        self.is_giving_back = false;
    }

    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.drop_late(now);
        self.places.is_empty() && !self.is_giving_back
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
    fn moved(&mut self, index: usize) -> Moved {
        Moved(self.waiting.iter_mut().skip(index).find_map(|(_, waker)| waker.take()))
    }
}

impl Moved {
    /// Wakes the task, while no lock is held.
    pub(super) fn wake(self) {
        if let Some(waker) = self.0 {
            waker.wake();
        }
    }
}

impl Kept {
    /// Returns `None` if so many are kept.
    pub(super) fn new(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let more = |count: usize| (count < most).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(count.clone()))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

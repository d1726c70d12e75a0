//! Checks that have taken permits, and wait until they are there.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::taken::Taken;
use super::{HeldRevision, Limiter, Revision};
use crate::algorithm::Place;
use crate::store::Op;
use crate::verdict::Waiting;
use crate::{Decision, Error, Key};

/// The number of waiters of a limiter in this process.
#[derive(Debug)]
pub(super) struct Waiters {
    most: usize,
    count: AtomicUsize,
}

/// Permission to wait, which a limited number of checks has at a time.
pub(crate) struct Waiter {
    limiter: Limiter,
    /// When the check started.
    since: Instant,
}

/// An allowed check that waits. If it is dropped before its time, it gives its permits back, unless
/// others queued behind it.
pub(crate) struct Wait {
    taken: Taken,
    due: Instant,
    /// Until the time has come, like the waiter.
    place: Option<Place>,
    waiter: Option<Waiter>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Waiters {
    pub(super) fn new(most: usize) -> Self {
        Self { most, count: AtomicUsize::new(0) }
    }
}

impl Waiter {
    /// `None` if too many wait.
    pub(crate) fn new(limiter: &Limiter) -> Option<Self> {
        let Waiters { most, count } = &limiter.inner.waiters;
        let more = |count: usize| (count < *most).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { limiter: limiter.clone(), since: Instant::now() })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.limiter.inner.waiters.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wait {
    /// If the check has to wait: the wait begins now. `revision` is the one that decided it.
    pub(crate) fn new(
        decision: &mut Decision,
        waiter: Waiter,
        key: &Key,
        revision: impl FnOnce() -> HeldRevision,
    ) -> Option<Self> {
        if !decision.is_enforced {
            return None;
        }
        let Waiting { wait, place } = decision.several.as_mut()?.waiting.take()?;
        let mut taken = Taken::new(&waiter.limiter, revision(), key.clone(), waiter.since);
        taken.decided(decision);
        let due = Instant::now() + Duration::from_micros(wait);
        Some(Self { taken, due, place: Some(place), waiter: Some(waiter), sleep: None })
    }

    pub(super) fn delay(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.place.is_some() {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(self.due)));
            ready!(sleep.as_mut().poll(cx));
            (self.sleep, self.place, self.waiter) = (None, None, None);
        }
        Poll::Ready(())
    }

    /// Gives the place back, unless its time has come.
    pub(super) async fn cancel(&mut self) -> Result<(), Error> {
        match self.leave() {
            Some(op) => {
                let Taken { limiter, revision, key, .. } = &self.taken;
                limiter.apply(revision, key.clone(), op, true).await
            }
            None => Ok(()),
        }
    }

    fn leave(&mut self) -> Option<Op> {
        let place = self.place.take().filter(|_| !self.delay().is_zero())?;
        let left = |quota| self.taken.left(quota);
        let mut place = self.taken.limits().leaving(&place, left, self.taken.delay());
        place.credit = self.taken.in_units_of_whole(place.credit);
        Some(Op::Leave(Box::new(place)))
    }

    /// The revision that decided the check.
    pub(crate) fn revision(&self) -> &Revision {
        self.taken.limiter.held(&self.taken.revision)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(op) = self.leave() {
            let Taken { limiter, revision, key, .. } = &self.taken;
            limiter.detach(revision.clone(), key.clone(), op, true);
        }
    }
}

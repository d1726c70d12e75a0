//! Checks that have taken permits, and wait until they are there. If the caller of a check is gone when the
//! reply arrives, the transport gives the place back (`NodeQueue::give_back`).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::adjust::no_runtime;
use super::taken::{Taken, TakenPermits, micros};
use super::waiters::Waiter;
use super::waiting_line::{Line, Reserved, Rounds, Terms, Ticket, Turn};
use super::{HeldRevision, Limiter, Revision};
use crate::store::{Leaving, Op};
use crate::verdict::{Verdict, Waiting};
use crate::{Decision, Error, ErrorKind, Key, timer};

/// An allowed check that waits. If it is dropped before its time, the checks behind it in this process
/// move up, and the last place is given back.
pub(crate) struct Wait {
    line: LineHandle,
    /// The place in the line, until the time has come.
    waiter: Option<(Waiter, Ticket)>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// The permits from then on, until they are taken.
    permits: Option<TakenPermits>,
}

/// A handle on the line of a check.
#[derive(Clone)]
struct LineHandle {
    limiter: Limiter,
    key: Key,
    terms: Terms,
}

/// Gives the free places of a line back.
struct GivingBack {
    line: LineHandle,
    rounds: watch::Sender<Rounds>,
    has_ended: bool,
    _leaving: Leaving,
}

impl Wait {
    /// Starts the wait of a check that has to wait. `revision` is the one that decided it.
    pub(crate) fn new(
        decision: &mut Decision,
        waiter: Waiter,
        revision: impl FnOnce() -> HeldRevision,
    ) -> Option<Self> {
        if !decision.is_enforced {
            return None;
        }
        let Waiting { wait, place } = decision.several.as_mut()?.waiting.take()?;
        let line = LineHandle::new(&waiter, revision());
        let mut taken = line.taken(TakenPermits::new(waiter.since));
        taken.decided(decision);
        let due = Instant::now() + Duration::from_micros(wait);
        let (permits, decision) = (taken.permits, decision.clone());
        let reserved = Reserved { permits, place, due, decision, kept: None };
        let ticket = line.with(|line| line.join(reserved));
        let wait = Self { line, waiter: Some((waiter, ticket)), sleep: None, permits: None };
        // Unless it has taken the place of another.
        wait.line.give_back();
        Some(wait)
    }

    /// Takes the place of a check that has given up, with the decision about that check.
    ///
    /// # Errors
    ///
    /// The waiter, if there is none.
    pub(crate) fn take_over(
        waiter: Waiter,
        revision: impl FnOnce() -> HeldRevision,
    ) -> Result<(Decision, Self), Waiter> {
        if !waiter.may_take_over {
            return Err(waiter);
        }
        let line = LineHandle::new(&waiter, revision());
        let Some((ticket, decision)) = line.with(|line| line.take_over(Instant::now())) else {
            return Err(waiter);
        };
        let limiter = &line.limiter;
        limiter.inner.count(limiter.held(&line.terms.revision), &decision);
        let waiter = Some((waiter, ticket));
        Ok((decision, Self { line, waiter, sleep: None, permits: None }))
    }

    pub(super) fn delay(&self) -> Duration {
        let due = |(_, ticket): &(Waiter, Ticket)| self.line.with(|line| line.due(*ticket));
        let due = self.waiter.as_ref().and_then(due);
        due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some((_, ticket)) = self.waiter {
            let (now, mut waker) = (Instant::now(), Some(cx.waker().clone()));
            match self.line.with(|line| line.poll(ticket, now, &mut waker)) {
                Some(Turn::Later(due)) => {
                    // It may have moved up.
                    let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
                    if sleep.deadline() != due {
                        sleep.as_mut().reset(due);
                    }
                    ready!(sleep.as_mut().poll(cx));
                }
                Some(Turn::Now(reserved, next)) => {
                    next.wake();
                    self.permits = Some(reserved.permits);
                    self.end();
                }
                None => self.end(),
            }
        }
        Poll::Ready(())
    }

    fn end(&mut self) {
        (self.sleep, self.waiter) = (None, None);
    }

    /// Returns the permits of the check, once, from its time on. They may be those that another check took.
    pub(crate) fn take_permits(&mut self) -> Option<TakenPermits> {
        self.permits.take()
    }

    /// Gives up, and waits for the store. Another check may get the place.
    pub(super) async fn cancel(&mut self) -> Result<(), Error> {
        let Some(mut rounds) = self.give_up() else { return Ok(()) };
        let before = rounds.borrow().ended;
        let until = std::time::Instant::now() + self.line.longest_round();
        // The place is part of the next round if it is not part of the one in flight. An error says that
        // there are no more rounds.
        let ended = rounds.wait_for(|rounds| rounds.ended >= before + 2);
        let has_ended = timer::timeout_at(until, ended).await.is_some();
        match &rounds.borrow().failed {
            Some((round, error)) if *round > before => Err(error.clone()),
            _ if has_ended => Ok(()),
            // The runtime on which the places are given back stands still.
            _ => Err(Error::new(
                ErrorKind::Timeout,
                "the store has not confirmed that permits are given back",
            )),
        }
    }

    /// Returns the progress in giving the place back, if that is possible.
    fn give_up(&mut self) -> Option<watch::Receiver<Rounds>> {
        let (waiter, ticket) = self.waiter.take()?;
        self.line.with(|line| line.give_up(ticket, Instant::now())).wake();
        let rounds = self.line.give_back();
        // Only now, because the line is deleted when nobody waits, unless places are given back.
        drop(waiter);
        rounds
    }

    /// The revision that decided the check.
    pub(crate) fn revision(&self) -> &Revision {
        self.line.revision()
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl LineHandle {
    fn new(waiter: &Waiter, revision: HeldRevision) -> Self {
        let Waiter { limiter, key, costs, patience, .. } = waiter;
        let terms = Terms { revision, costs: costs.clone(), patience: *patience };
        Self { limiter: limiter.clone(), key: key.clone(), terms }
    }

    fn revision(&self) -> &Revision {
        self.limiter.held(&self.terms.revision)
    }

    fn with<T>(&self, with: impl FnOnce(&mut Line) -> T) -> T {
        self.limiter.inner.waiters.with_line(&self.key, &self.terms, with)
    }

    /// Returns the operation that gives a place back. The store takes it back only if the bucket is full
    /// when the place says. After a reset by another process, that is the case only if the bucket is full at the same
    /// microsecond by chance. Then at most as many permits too many are given back as the places of this
    /// process have.
    fn taken_back(&self, reserved: &Reserved) -> Op {
        let Reserved { permits, place, .. } = reserved;
        let whole = &self.revision().limits;
        let left = |quota| permits.left(quota);
        let delay = micros(self.limiter.timeout());
        let mut place = permits.limits(whole).leaving(place, left, delay);
        place.credit = permits.in_units_of_whole(whole, place.credit);
        Op::Leave(Box::new(place))
    }

    /// Twice as long as the store takes to reply.
    fn longest_round(&self) -> Duration {
        2 * self.limiter.timeout()
    }

    fn taken(&self, permits: TakenPermits) -> Taken {
        let Self { limiter, key, terms } = self;
        let (limiter, revision, key) = (limiter.clone(), terms.revision.clone(), key.clone());
        Taken { limiter, revision, key, permits }
    }

    /// Gives free places back, unless there are none, or another task does. Returns the progress.
    fn give_back(&self) -> Option<watch::Receiver<Rounds>> {
        let (progress, report) =
            self.with(|line| line.give_back(Instant::now(), self.longest_round()))?;
        let Some(rounds) = report else { return Some(progress) };
        let (line, _leaving) = (self.clone(), self.limiter.registry().leaving());
        let mut give_back = GivingBack { line, rounds, has_ended: false, _leaving };
        if !self.revision().backend.is_remote() {
            // Such a store decides at once, whatever is left of the task's budget.
            let give_back = pin!(unconstrained(async move { give_back.run().await }));
            let _ = give_back.poll(&mut Context::from_waker(Waker::noop()));
            return Some(progress);
        }
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { give_back.run().await })),
            Err(_) => self.limiter.not_charged(self.revision(), &no_runtime()),
        }
        Some(progress)
    }
}

impl GivingBack {
    /// One place after the other, but all in one call.
    async fn run(&mut self) {
        loop {
            let (line, longest) = (&self.line, self.line.longest_round());
            let free = line.with(|line| line.take_free(Instant::now(), longest, &self.rounds));
            if free.is_empty() {
                self.has_ended = true;
                return;
            }
            let (mut taken_back, mut failed) = (0, None);
            for (reserved, verdict) in self.leave(free).await {
                match verdict {
                    Ok(verdict) if verdict.is_allowed() => taken_back += 1,
                    // Others have queued behind it.
                    Ok(verdict) if Instant::now() + verdict.reset_after() >= reserved.due => {
                        self.keep(reserved);
                    }
                    // The key was reset, or got permits back: nobody has to wait for so long.
                    Ok(_) => self.line.with(Line::forget_free),
                    Err(error) => {
                        self.line.limiter.not_charged(self.line.revision(), &error);
                        failed = Some(error);
                    }
                }
            }
            if taken_back > 0 {
                self.line.with(Line::retry_free);
            }
            self.rounds.send_modify(|rounds| {
                rounds.ended += 1;
                rounds.failed = failed.map(|error| (rounds.ended, error)).or(rounds.failed.take());
            });
        }
    }

    /// Returns the verdict on each place: it is allowed if the store has taken the place back. All are sent together, in
    /// this order.
    async fn leave(&self, free: Vec<Reserved>) -> Vec<(Reserved, Result<Verdict, Error>)> {
        let LineHandle { limiter, key, terms } = &self.line;
        let leave = |reserved: Reserved| {
            let op = self.line.taken_back(&reserved);
            let left: Pin<Box<dyn Future<Output = _> + Send>> =
                Box::pin(limiter.apply(&terms.revision, key.clone(), op, true));
            (Some(reserved), left)
        };
        let mut leaving: Vec<_> = free.into_iter().map(leave).collect();
        let mut left = Vec::with_capacity(leaving.len());
        poll_fn(|cx| {
            for (reserved, leave) in &mut leaving {
                if reserved.is_some()
                    && let Poll::Ready(verdict) = leave.as_mut().poll(cx)
                {
                    left.extend(reserved.take().map(|reserved| (reserved, verdict)));
                }
            }
            if left.len() == leaving.len() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        left
    }

    /// Keeps a place for the next check, because other processes have queued behind it.
    fn keep(&self, reserved: Reserved) {
        let kept = self.line.limiter.inner.waiters.keep();
        if kept.is_some() {
            self.line.with(|line| line.keep(Reserved { kept, ..reserved })).wake();
        }
    }
}

impl Drop for GivingBack {
    fn drop(&mut self) {
        if !self.has_ended {
            self.line.with(|line| line.stop_giving_back(&self.rounds));
            let failed = Some((u64::MAX, no_runtime()));
            self.rounds.send_modify(|rounds| rounds.failed = failed);
        }
        self.line.limiter.inner.waiters.clean_up(&self.line.key);
    }
}

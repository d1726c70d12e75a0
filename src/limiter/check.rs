use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::Limiter;
use super::denied::Sent;
use crate::store::Answer;
use crate::{Decision, Error, Key};

/// A check under way: the future of [`Limiter::check`](crate::Limiter::check).
///
/// The check is on its way when the future is made. Dropped before it goes out to the store, it is
/// not charged.
#[must_use = "a check decides nothing until its decision is awaited and heeded"]
pub struct Check {
    asked: Asked,
    limiter: Limiter,
}

/// What a limiter says at once.
pub(crate) enum Asked {
    Answered(Result<Decision, Error>),
    Waiting(Waiting),
}

/// A check that the store has not answered yet. It does not hold the limiter, which a layer has
/// already: all callers of a hot limiter would count on the same reference count.
pub(crate) struct Waiting {
    answer: Answer,
    key: Key,
    sent: Option<Sent>,
}

impl Check {
    pub(super) fn new(limiter: &Limiter, key: &Key, cost: u32) -> Self {
        Self { asked: Asked::new(limiter, key, cost), limiter: limiter.clone() }
    }
}

impl Asked {
    pub(super) fn new(limiter: &Limiter, key: &Key, cost: u32) -> Self {
        let inner = &*limiter.inner;
        let mut sent = None;
        if let Some(denied) = &inner.denied {
            match denied.recall(key, cost, &inner.plan.bucket) {
                Ok(decision) => return Self::Answered(Ok(decision)),
                Err(now) => sent = Some(now),
            }
        }
        match inner.buckets.check(key, cost) {
            Answer::Ready(answer) => Self::Answered(inner.conclude(answer)),
            answer => Self::Waiting(Waiting { answer, key: key.clone(), sent }),
        }
    }
}

impl Waiting {
    /// `limiter` is the one that was asked.
    pub(crate) fn poll(
        &mut self,
        limiter: &Limiter,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        let inner = &limiter.inner;
        if let (Ok(decision), Some(denied), Some(sent)) = (&answer, &inner.denied, self.sent) {
            denied.learn(&self.key, decision, sent);
        }
        Poll::Ready(inner.conclude(answer))
    }
}

impl Future for Check {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { asked, limiter } = &mut *self;
        match asked {
            Asked::Answered(answer) => Poll::Ready(answer.clone()),
            Asked::Waiting(waiting) => waiting.poll(limiter, cx),
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}

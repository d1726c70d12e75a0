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
pub struct Check(pub(crate) Asked);

/// What a limiter says at once.
pub(crate) enum Asked {
    Answered(Result<Decision, Error>),
    Waiting(Waiting),
}

/// A check that the store has not answered yet.
pub(crate) struct Waiting {
    answer: Answer,
    limiter: Limiter,
    key: Key,
    sent: Option<Sent>,
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
            answer => {
                let (limiter, key) = (limiter.clone(), key.clone());
                Self::Waiting(Waiting { answer, limiter, key, sent })
            }
        }
    }
}

impl Waiting {
    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl Future for Waiting {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { answer, limiter, key, sent } = &mut *self;
        let answer = ready!(Pin::new(answer).poll(cx));
        let inner = &limiter.inner;
        if let (Ok(decision), Some(denied), Some(sent)) = (&answer, &inner.denied, *sent) {
            denied.learn(key, decision, sent);
        }
        Poll::Ready(inner.conclude(answer))
    }
}

impl Future for Check {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Asked::Answered(answer) => Poll::Ready(answer.clone()),
            Asked::Waiting(waiting) => Pin::new(waiting).poll(cx),
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Inner;
use super::denied::Sent;
use crate::store::Answer;
use crate::{Decision, Error, Key};

/// A check under way: the future of [`Limiter::check`](crate::Limiter::check).
///
/// The check is on its way when the future is made. Dropped before it goes out to the store, it is
/// not charged.
#[must_use = "a check decides nothing until its decision is awaited and heeded"]
pub struct Check(State);

enum State {
    Ready(Result<Decision, Error>),
    Waiting { answer: Answer, inner: Arc<Inner>, key: Key, sent: Option<Sent> },
}

impl Check {
    pub(super) fn new(inner: &Arc<Inner>, key: Key, cost: u32) -> Self {
        let mut sent = None;
        if let Some(denied) = &inner.denied {
            match denied.recall(&key, cost, &inner.plan.bucket) {
                Ok(decision) => return Self(State::Ready(Ok(decision))),
                Err(now) => sent = Some(now),
            }
        }
        match inner.buckets.check(&key, cost) {
            Answer::Ready(answer) => Self(State::Ready(inner.conclude(answer))),
            answer => Self(State::Waiting { answer, inner: inner.clone(), key, sent }),
        }
    }

    /// The decision, if it is there already.
    pub(crate) fn now(&self) -> Option<&Decision> {
        match &self.0 {
            State::Ready(Ok(decision)) => Some(decision),
            _ => None,
        }
    }
}

impl Future for Check {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Ready(answer) => Poll::Ready(answer.clone()),
            State::Waiting { answer, inner, key, sent } => {
                let answer = ready!(Pin::new(answer).poll(cx));
                if let (Ok(decision), Some(denied), Some(sent)) = (&answer, &inner.denied, *sent) {
                    denied.learn(key, decision, sent);
                }
                Poll::Ready(inner.conclude(answer))
            }
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}

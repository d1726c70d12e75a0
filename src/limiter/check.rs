use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{FailureMode, HeldRevision, Inner, Limiter, Revision, RevisionRef};
use crate::store::{Op, PendingVerdict};
use crate::verdict::Verdict;
use crate::{Costs, Decision, Error, ErrorKind, Key, Source};

/// The future of a check: see [`Limiter::check`].
///
/// It is lazy: the check starts when the future is first polled. If it is dropped before the check
/// was sent to the store, nothing is charged.
#[must_use = "futures do nothing unless awaited"]
pub struct Check {
    limiter: Limiter,
    progress: Progress,
}

enum Progress {
    New { key: Key, costs: Costs },
    Pending(PendingCheck),
    Done,
}

/// A check that has started.
pub(crate) enum CheckState {
    Ready(Result<Decision, Error>),
    Pending(PendingCheck),
}

/// A check without a verdict yet. It does not hold the limiter, which the layer has
/// already: all checks of a hot limiter would contend for its reference count.
pub(crate) struct PendingCheck {
    verdict: PendingVerdict,
    key: Key,
    op: Op,
    revision: HeldRevision,
}

impl Check {
    pub(super) fn new(limiter: &Limiter, key: Key, costs: Costs) -> Self {
        Self { limiter: limiter.clone(), progress: Progress::New { key, costs } }
    }
}

impl CheckState {
    pub(crate) fn start(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        costs: &Costs,
    ) -> Self {
        let charge = match revision.limits.charge(costs) {
            Ok(charge) => charge,
            Err(unknown) => {
                let (policy, error) = (revision.policy().name(), unknown_quota(revision, &unknown));
                limiter.inner.failure_log.failed(policy, FailureMode::Closed, &error);
                return Self::Ready(Err(error));
            }
        };
        if let Some(verdict) = revision.limits.exceeding_capacity(&charge) {
            return Self::Ready(Ok(revision.decision(verdict, Source::Quota)));
        }
        let inner = &*limiter.inner;
        let cache = revision.denial_cache.as_ref();
        if let Some(verdict) = cache.and_then(|cache| cache.get(key, &charge, &revision.limits)) {
            return Self::Ready(Ok(revision.decision(verdict, Source::Cached)));
        }
        let op = Op::Acquire(charge);
        match revision.backend.decide(key, &op) {
            Some(verdict) => Self::Ready(inner.apply_failure_mode(revision, verdict)),
            None => {
                let (key, revision) = (key.clone(), revision.hold());
                let verdict = PendingVerdict::default();
                Self::Pending(PendingCheck { verdict, key, op, revision })
            }
        }
    }
}

pub(super) fn unknown_quota(revision: &Revision, name: &str) -> Error {
    let policy = revision.policy().name();
    let text = format!("costs for quota `{name}`, which policy `{policy}` does not have");
    Error::new(ErrorKind::UnknownQuota, text)
}

impl PendingCheck {
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// The revision that decides the check.
    pub(crate) fn revision<'a>(&'a self, limiter: &'a Limiter) -> &'a Revision {
        limiter.held(&self.revision)
    }

    /// `limiter` is the one that started the check.
    pub(crate) fn poll(
        &mut self,
        limiter: &Limiter,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let revision = limiter.held(&self.revision);
        let backend = &revision.backend;
        let verdict = ready!(backend.poll_check(&self.key, &self.op, &mut self.verdict, cx));
        Poll::Ready(limiter.inner.apply_failure_mode(revision, verdict))
    }
}

impl Inner {
    /// The decision of the store, or of the failure mode if the store failed.
    fn apply_failure_mode(
        &self,
        revision: &Revision,
        verdict: Result<Verdict, Error>,
    ) -> Result<Decision, Error> {
        let policy = revision.policy().name();
        match verdict {
            Ok(verdict) => {
                self.failure_log.succeeded(policy, self.failure_mode);
                Ok(revision.decision(verdict, Source::Store))
            }
            Err(error) => {
                self.failure_log.failed(policy, self.failure_mode, &error);
                let verdict = self.failure_mode.verdict(error, revision.quotas()[0].limit)?;
                Ok(revision.decision(verdict, Source::FailureMode))
            }
        }
    }
}

impl Future for Check {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { limiter, progress } = &mut *self;
        if let Progress::New { key, costs } = progress {
            match CheckState::start(limiter, &limiter.revision(), key, costs) {
                CheckState::Ready(result) => {
                    *progress = Progress::Done;
                    return Poll::Ready(result);
                }
                CheckState::Pending(pending) => *progress = Progress::Pending(pending),
            }
        }
        let Progress::Pending(pending) = progress else { return Poll::Pending };
        let result = ready!(pending.poll(limiter, cx));
        *progress = Progress::Done;
        Poll::Ready(result)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}

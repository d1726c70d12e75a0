use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::waiting::{Wait, Waiter};
use super::{FailureMode, HeldRevision, Inner, Limiter, Revision, RevisionRef};
use crate::algorithm::{Cost, Patience, Queued};
use crate::metrics::Stopwatch;
use crate::store::{Op, PendingVerdict};
use crate::trace::{self, CheckSpan};
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
    Ready(Result<Checked, Error>),
    Pending(PendingCheck),
}

/// A decision, and what an allowed request has to wait for.
pub(crate) struct Checked {
    pub(crate) decision: Decision,
    pub(crate) wait: Option<Box<Wait>>,
}

/// A check without a verdict yet. It does not hold the limiter, which the layer has
/// already: all checks of a hot limiter would contend for its reference count.
pub(crate) struct PendingCheck {
    verdict: PendingVerdict,
    key: Key,
    op: Op,
    revision: HeldRevision,
    waiter: Option<Box<Waiter>>,
    stopwatch: Stopwatch,
    span: CheckSpan,
}

impl Check {
    pub(super) fn new(limiter: &Limiter, key: Key, costs: Costs) -> Self {
        Self { limiter: limiter.clone(), progress: Progress::New { key, costs } }
    }
}

impl CheckState {
    /// `patience` is `None` if the check does not wait.
    pub(crate) fn start(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        costs: &Costs,
        patience: Option<Patience>,
    ) -> Self {
        let charge = match revision.limits.charge(costs) {
            Ok(charge) => charge,
            Err(unknown) => {
                let (policy, error) = (revision.policy().name(), unknown_quota(revision, &unknown));
                limiter.inner.failure_log.failed(policy, FailureMode::Closed, &error);
                limiter.inner.settings.metrics.failed(&error);
                limiter.inner.settings.metrics.undecided();
                return Self::Ready(Err(error));
            }
        };
        // If too many wait already, it is denied unless it can proceed at once.
        let waiter = patience.and_then(|_| Waiter::new(limiter)).map(Box::new);
        match patience {
            None => Self::decide(limiter, revision, key, charge, Op::Acquire, None),
            Some(patience) => {
                let queued = Queued { charge, patience, may_wait: waiter.is_some() };
                let op = |queued| Op::Queue(Box::new(queued));
                Self::decide(limiter, revision, key, queued, op, waiter)
            }
        }
    }

    /// The result, of a check of this limiter.
    pub(super) async fn finish(self, limiter: &Limiter) -> Result<Checked, Error> {
        match self {
            Self::Ready(checked) => checked,
            Self::Pending(mut check) => poll_fn(|cx| check.poll(limiter, cx)).await,
        }
    }

    fn decide<C: Cost>(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        cost: C,
        op: impl FnOnce(C) -> Op,
        waiter: Option<Box<Waiter>>,
    ) -> Self {
        let at_once = |verdict, source| {
            let decision = limiter.inner.decide(revision, key, verdict, source);
            Self::Ready(Ok(Checked { decision, wait: None }))
        };
        if let Some(verdict) = revision.limits.exceeding_capacity(&cost) {
            return at_once(verdict, Source::Quota);
        }
        let cache = revision.denial_cache.as_ref();
        if let Some(verdict) = cache.and_then(|cache| cache.get(key, &cost, &revision.limits)) {
            return at_once(verdict, Source::Cached);
        }
        let op = op(cost);
        match revision.backend.decide(key, &op) {
            Some(verdict) => {
                let decision = limiter.inner.apply_failure_mode(revision, key, &op, verdict);
                Self::Ready(decision.map(|decision| {
                    Checked::new(decision, waiter, || (revision.hold(), key.clone()))
                }))
            }
            None => {
                let (key, revision) = (key.clone(), revision.hold());
                let (verdict, stopwatch) = (PendingVerdict::default(), Stopwatch::start());
                let span = CheckSpan::new(limiter.held(&revision).policy());
                Self::Pending(PendingCheck { verdict, key, op, revision, waiter, stopwatch, span })
            }
        }
    }
}

impl Checked {
    #[inline]
    fn new(
        mut decision: Decision,
        waiter: Option<Box<Waiter>>,
        check: impl FnOnce() -> (HeldRevision, Key),
    ) -> Self {
        let Some(waiter) = waiter.filter(|_| decision.is_enforced) else {
            return Self { decision, wait: None };
        };
        let several = decision.several.as_mut();
        let wait = several.and_then(|several| several.waiting.take()).map(|waiting| {
            let (revision, key) = check();
            Box::new(Wait::new(waiter, revision, key, waiting, &decision))
        });
        Self { decision, wait }
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
    ) -> Poll<Result<Checked, Error>> {
        let Self { verdict, key, op, revision: held, waiter, stopwatch, span } = self;
        let _entered = span.enter();
        let revision = limiter.held(held);
        let verdict = ready!(revision.backend.poll_check(key, op, verdict, cx));
        limiter.inner.settings.metrics.waited(stopwatch);
        let decision = limiter.inner.apply_failure_mode(revision, key, op, verdict)?;
        Poll::Ready(Ok(Checked::new(decision, waiter.take(), || (held.clone(), key.clone()))))
    }
}

impl Inner {
    /// What the decision is if checks of the key are not denied.
    #[inline]
    pub(super) fn enforce(&self, key: &Key, mut decision: Decision) -> Decision {
        if !self.enforcement.applies_to(key) {
            decision.is_enforced = false;
        }
        decision
    }

    /// The decision about a check, which is counted.
    #[inline]
    fn decide(&self, revision: &Revision, key: &Key, verdict: Verdict, source: Source) -> Decision {
        let decision = self.enforce(key, revision.decision(verdict, source));
        self.settings.metrics.decided(&decision);
        trace::decided(revision.policy(), &decision);
        decision
    }

    /// The decision of the store, or of the failure mode if the store failed.
    fn apply_failure_mode(
        &self,
        revision: &Revision,
        key: &Key,
        op: &Op,
        verdict: Result<Verdict, Error>,
    ) -> Result<Decision, Error> {
        let policy = revision.policy().name();
        match verdict {
            Ok(verdict) => {
                self.failure_log.succeeded(policy, self.failure_mode);
                Ok(self.decide(revision, key, verdict, Source::Store))
            }
            Err(error) => {
                let mode = match self.failure_mode {
                    FailureMode::Closed if !self.enforcement.applies_to(key) => FailureMode::Open,
                    mode => mode,
                };
                self.failure_log.failed(policy, mode, &error);
                self.settings.metrics.failed(&error);
                let local = || revision.backend.decide_locally(key, op);
                if let Some(verdict) = mode.is_local().then(local).flatten() {
                    return Ok(self.decide(revision, key, verdict, Source::Local));
                }
                let verdict = mode.verdict(error, revision.quotas()[0].limit);
                let verdict = verdict.inspect_err(|_| self.settings.metrics.undecided())?;
                Ok(self.decide(revision, key, verdict, Source::FailureMode))
            }
        }
    }
}

impl Future for Check {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { limiter, progress } = &mut *self;
        if let Progress::New { key, costs } = progress {
            match CheckState::start(limiter, &limiter.revision(), key, costs, None) {
                CheckState::Ready(result) => {
                    *progress = Progress::Done;
                    return Poll::Ready(result.map(|checked| checked.decision));
                }
                CheckState::Pending(pending) => *progress = Progress::Pending(pending),
            }
        }
        let Progress::Pending(pending) = progress else { return Poll::Pending };
        let result = ready!(pending.poll(limiter, cx));
        *progress = Progress::Done;
        Poll::Ready(result.map(|checked| checked.decision))
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}

//! The course of a check: what is denied without a call, then the store, then the failure mode.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::hold::not_held;
use super::{FailureMode, HeldRevision, Inner, Limiter, Revision, RevisionRef};
use crate::charge::{Charge, Patience, Queued};
use crate::metrics::OutcomeLabel;
use crate::store::{self, Observed, Op, PendingVerdict};
use crate::trace;
use crate::verdict::Verdict;
use crate::{Costs, Decision, Error, ErrorKind, Key, Source, cooperation};

/// The future of a check: see [`Limiter::check`].
///
/// It is lazy: the check starts when the future is first polled. If it is dropped before the check
/// was sent to the store, nothing is charged. It borrows the limiter, so that checks on many threads
/// do not contend for its reference count.
#[must_use = "futures do nothing unless awaited"]
pub struct Check<'a> {
    limiter: &'a Limiter,
    key: Key,
    progress: Progress,
}

enum Progress {
    New(Costs),
    Pending(PendingCheck),
    Done,
}

/// A check that has started.
pub(crate) enum CheckState {
    Ready(Result<Decision, Error>),
    Pending(PendingCheck),
}

/// A check without a verdict yet. It does not hold the limiter, because its caller does: otherwise all
/// checks of a hot limiter would contend for its reference count.
pub(crate) struct PendingCheck {
    verdict: PendingVerdict,
    op: Op,
    revision: HeldRevision,
}

impl<'a> Check<'a> {
    #[inline]
    pub(super) fn new(limiter: &'a Limiter, key: Key, costs: Costs) -> Self {
        Self { limiter, key, progress: Progress::New(costs) }
    }
}

impl CheckState {
    #[inline]
    pub(crate) fn start(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        costs: &Costs,
    ) -> Self {
        if let Some(decision) = Self::blocked(limiter, revision, key) {
            return Self::Ready(Ok(decision));
        }
        if costs.special.is_some() || revision.limits.has_holds() {
            return Self::start_special(limiter, revision, key, costs);
        }
        // Nearly all checks: with a number instead of a charge, the compiler can do more in advance.
        match revision.known(key, &costs.others) {
            Some(known) => Self::known(limiter, revision, key, known),
            None => {
                let op = revision.acquire(key, Charge::Same(costs.others));
                Self::ask_store(limiter, revision, key, op)
            }
        }
    }

    /// Starts a check whose quotas have different costs, or are charged later.
    fn start_special(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        costs: &Costs,
    ) -> Self {
        if revision.limits.has_holds() {
            return Self::invalid(limiter, revision, not_held(revision));
        }
        match revision.limits.charge(costs) {
            Ok(charge) => Self::check(limiter, revision, key, charge),
            Err(unknown) => Self::invalid(limiter, revision, unknown_quota(revision, &unknown)),
        }
    }

    pub(super) fn check(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        charge: Charge,
    ) -> Self {
        match revision.known(key, &charge) {
            Some(known) => Self::known(limiter, revision, key, known),
            None => {
                let op = match &revision.holder {
                    None => revision.acquire(key, charge),
                    Some(holder) => holder.call(charge),
                };
                Self::ask_store(limiter, revision, key, op)
            }
        }
    }

    /// Starts a check that may have to wait, of a key that is not blocked: then the decision holds its place in the
    /// queue, for [`Wait::new`](super::Wait::new). If it may not wait, it is denied unless it can proceed at once.
    pub(crate) fn enqueue(
        limiter: &Limiter,
        revision: &RevisionRef<'_>,
        key: &Key,
        costs: &Costs,
        patience: Patience,
        may_wait: bool,
    ) -> Self {
        if revision.limits.has_holds() {
            return Self::invalid(limiter, revision, not_held(revision));
        }
        match revision.limits.charge(costs) {
            Ok(charge) => {
                let queued = Queued { charge, patience, may_wait };
                match revision.known(key, &queued) {
                    Some(known) => Self::known(limiter, revision, key, known),
                    None => Self::ask_store(limiter, revision, key, Op::Queue(queued.into())),
                }
            }
            Err(unknown) => Self::invalid(limiter, revision, unknown_quota(revision, &unknown)),
        }
    }

    /// The result, of a check of this key by this limiter.
    pub(super) async fn finish(self, limiter: &Limiter, key: &Key) -> Result<Decision, Error> {
        match self {
            Self::Ready(decision) => decision,
            Self::Pending(mut check) => poll_fn(|cx| check.poll(limiter, key, cx)).await,
        }
    }

    #[inline]
    fn known(
        limiter: &Limiter,
        revision: &Revision,
        key: &Key,
        (verdict, source): (Verdict, Source),
    ) -> Self {
        Self::Ready(Ok(limiter.inner.decide(revision, key, verdict, source)))
    }

    #[inline]
    fn ask_store(limiter: &Limiter, held: &RevisionRef<'_>, key: &Key, op: Op) -> Self {
        let revision: &Revision = held;
        match revision.backend.decide(key, &op) {
            Some(Ok(verdict)) => Self::Ready(Ok(limiter.inner.succeed(revision, key, verdict))),
            Some(Err(error)) => {
                Self::Ready(limiter.inner.apply_failure_mode(revision, key, &op, error))
            }
            None => {
                let verdict = PendingVerdict::new(store::observe(revision.policy()));
                Self::Pending(PendingCheck { verdict, op, revision: held.hold() })
            }
        }
    }

    /// The result of a check that must not be made, whatever the failure mode.
    #[cold]
    pub(super) fn invalid(limiter: &Limiter, revision: &Revision, error: Error) -> Self {
        let policy = revision.policy().name();
        limiter.inner.failure_log.failed(policy, FailureMode::Closed, &error);
        limiter.inner.settings.metrics.failed(&error);
        limiter.inner.settings.metrics.undecided();
        Self::Ready(Err(error))
    }
}

pub(super) fn unknown_quota(revision: &Revision, name: &str) -> Error {
    let policy = revision.policy().name();
    let text = format!("costs for quota `{name}`, which policy `{policy}` does not have");
    Error::new(ErrorKind::UnknownQuota, text)
}

impl PendingCheck {
    pub(crate) fn hold(&self) -> HeldRevision {
        self.revision.clone()
    }

    /// The revision that decides the check.
    pub(crate) fn revision<'a>(&'a self, limiter: &'a Limiter) -> &'a Revision {
        limiter.held(&self.revision)
    }

    /// `limiter` is the one that started the check, of this key.
    pub(crate) fn poll(
        &mut self,
        limiter: &Limiter,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        match self.verdict.observed() {
            None => self.poll_unobserved(limiter, key, cx),
            Some(_) => self.poll_observed(limiter, key, cx),
        }
    }

    #[cold]
    fn poll_observed(
        &mut self,
        limiter: &Limiter,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let _entered = self.verdict.observed().and_then(Observed::enter);
        let decision = ready!(self.poll_unobserved(limiter, key, cx));
        if let Some(observed) = self.verdict.observed() {
            observed.end(&limiter.inner.settings.metrics);
        }
        Poll::Ready(decision)
    }

    #[inline(always)]
    fn poll_unobserved(
        &mut self,
        limiter: &Limiter,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let Self { verdict, op, revision: held } = self;
        let revision = limiter.held(held);
        let verdict = ready!(revision.backend.poll_check(key, op, verdict, cx));
        Poll::Ready(limiter.inner.decide_or_fail(revision, key, op, verdict))
    }
}

impl Inner {
    /// The decision about a check, which is counted.
    // Always inlined, like those that call it: a call would copy the decision.
    #[inline(always)]
    fn decide(&self, revision: &Revision, key: &Key, verdict: Verdict, source: Source) -> Decision {
        // Before the decision is made: one that is read here would be copied to where it is wanted.
        let is_enforced = self.enforcement.applies_to(key);
        let quota = revision.tightest(&verdict);
        let outcome = OutcomeLabel::of(verdict.outcome, is_enforced);
        self.settings.metrics.decided(source, outcome);
        trace::decided(revision.policy(), quota, outcome, source, verdict.numbers);
        Decision::new(verdict, source, is_enforced, quota.clone())
    }

    /// Counts a decision that another check has got, for one that takes its place.
    pub(super) fn count(&self, revision: &Revision, decision: &Decision) {
        let Decision { source, quota, numbers, .. } = decision;
        let outcome = OutcomeLabel::of(decision.outcome, decision.is_enforced);
        self.settings.metrics.decided(*source, outcome);
        trace::decided(revision.policy(), quota, outcome, *source, *numbers);
    }

    /// The decision of the store.
    #[inline(always)]
    fn succeed(&self, revision: &Revision, key: &Key, verdict: Verdict) -> Decision {
        self.failure_log.succeeded(revision.policy().name());
        self.decide(revision, key, verdict, Source::Store)
    }

    /// The decision of the store, or of the failure mode if the store failed.
    #[inline(always)]
    fn decide_or_fail(
        &self,
        revision: &Revision,
        key: &Key,
        op: &Op,
        verdict: Result<Verdict, Error>,
    ) -> Result<Decision, Error> {
        match verdict {
            Ok(verdict) => Ok(self.succeed(revision, key, verdict)),
            Err(error) => self.apply_failure_mode(revision, key, op, error),
        }
    }

    #[cold]
    fn apply_failure_mode(
        &self,
        revision: &Revision,
        key: &Key,
        op: &Op,
        error: Error,
    ) -> Result<Decision, Error> {
        let mode = match self.failure_mode {
            FailureMode::Closed if !self.enforcement.applies_to(key) => FailureMode::Open,
            mode => mode.of(&error),
        };
        self.failure_log.failed(revision.policy().name(), mode, &error);
        self.settings.metrics.failed(&error);
        let local = || revision.backend.decide_locally(key, op);
        if let Some(verdict) = (mode == FailureMode::Local).then(local).flatten() {
            return Ok(self.decide(revision, key, verdict, Source::Local));
        }
        let verdict = mode.verdict(error, revision.quotas()[0].limit);
        let verdict = verdict.inspect_err(|_| self.settings.metrics.undecided())?;
        Ok(self.decide(revision, key, verdict, Source::FailureMode))
    }
}

impl Future for Check<'_> {
    type Output = Result<Decision, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { limiter, key, progress } = &mut *self;
        // Taken out before the check: to drop it afterwards, the decision would have to be moved.
        if let Progress::New(_) = progress
            && cooperation::poll_proceed(cx).is_ready()
            && let Progress::New(costs) = mem::replace(progress, Progress::Done)
        {
            match CheckState::start(limiter, &limiter.revision(), key, &costs) {
                CheckState::Ready(decision) => {
                    cooperation::completed();
                    return Poll::Ready(decision);
                }
                CheckState::Pending(pending) => *progress = Progress::Pending(pending),
            }
        }
        let Progress::Pending(pending) = progress else { return Poll::Pending };
        let decision = ready!(pending.poll(limiter, key, cx));
        *progress = Progress::Done;
        cooperation::completed();
        Poll::Ready(decision)
    }
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}

//! What is measured of the checks of a policy: decisions, failures, latency, and what was not charged.

use std::sync::Arc;
use std::time::Duration;

use super::instruments::{Counter, Gauge, Histogram};
use crate::{Error, ErrorKind, Source, verdict};

/// The measurements of the checks of a policy. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PolicyMetrics(Arc<PolicyInstruments>);

#[derive(Debug, Default)]
pub(super) struct PolicyInstruments {
    pub(super) policy: Arc<str>,
    /// A counter for each source and outcome.
    pub(super) decisions: [[Counter; OutcomeLabel::ALL.len()]; Source::ALL.len()],
    pub(super) failures: [Counter; ErrorKind::ALL.len()],
    pub(super) duration: Histogram,
    pub(super) repairs: Counter,
    pub(super) uncharged: Counter,
    pub(super) forgiven: Counter,
    /// The permits that are held.
    pub(super) held: Gauge,
    /// The permits of leases, by [event](LeasedPermits).
    pub(super) leases: [Counter; LeasedPermits::ALL.len()],
    #[cfg(test)]
    pub(super) lease_counts: [std::sync::atomic::AtomicU64; LeasedPermits::ALL.len()],
}

/// An event in the life of leased permits.
#[derive(Clone, Copy)]
pub(super) enum LeasedPermits {
    Leased,
    Used,
    Returned,
    Lost,
}

/// The outcome of a check as metrics and traces report it.
#[derive(Clone, Copy)]
pub(crate) enum OutcomeLabel {
    Allowed,
    Denied,
    WouldBeDenied,
    Failed,
}

impl PolicyMetrics {
    pub(crate) fn new(policy: &str) -> Self {
        Self(Arc::new(PolicyInstruments { policy: policy.into(), ..Default::default() }))
    }

    #[inline(always)]
    pub(crate) fn decided(&self, source: Source, outcome: OutcomeLabel) {
        self.0.decisions[source as usize][outcome as usize].add(1, &*self.0);
    }

    /// Counts a check that the store did not decide.
    pub(crate) fn failed(&self, error: &Error) {
        self.0.failures[error.kind() as usize].add(1, &*self.0);
    }

    /// Counts a check without a decision.
    pub(crate) fn undecided(&self) {
        self.decided(Source::FailureMode, OutcomeLabel::Failed);
    }

    /// Records the time that a check waited for the store.
    pub(crate) fn waited(&self, duration: Duration) {
        self.0.duration.record(duration.as_secs_f64(), &*self.0);
    }

    /// Counts a corrupt value.
    pub(crate) fn repaired(&self) {
        self.0.repairs.add(1, &*self.0);
    }

    /// Counts permits that were taken locally and might remain uncharged on the server.
    pub(crate) fn uncharged(&self, permits: u64) {
        self.0.uncharged.add(permits, &*self.0);
    }

    /// Counts permits that were not charged, because the key owed too much already.
    pub(crate) fn forgiven(&self, permits: u64) {
        self.0.forgiven.add(permits, &*self.0);
    }

    /// Counts permits that are held from now on or, if the number is negative, no longer.
    pub(crate) fn held(&self, permits: i64) {
        if permits != 0 {
            self.0.held.add(permits, &*self.0);
        }
    }
}

impl PolicyMetrics {
    /// Counts permits that were leased.
    pub(crate) fn leased(&self, permits: u64) {
        self.lease(LeasedPermits::Leased, permits);
    }

    /// Counts permits of a lease that were used.
    pub(crate) fn lease_used(&self, permits: u64) {
        self.lease(LeasedPermits::Used, permits);
    }

    /// Counts permits of a lease that were given back, or have refilled before.
    pub(crate) fn lease_returned(&self, permits: u64) {
        self.lease(LeasedPermits::Returned, permits);
    }

    /// Counts permits of a lease that were neither used nor given back.
    pub(crate) fn lease_lost(&self, permits: u64) {
        self.lease(LeasedPermits::Lost, permits);
    }

    fn lease(&self, kind: LeasedPermits, permits: u64) {
        #[cfg(test)]
        self.0.lease_counts[kind as usize].fetch_add(permits, std::sync::atomic::Ordering::Relaxed);
        if permits > 0 {
            self.0.leases[kind as usize].add(permits, &*self.0);
        }
    }

    /// Returns the permits that were leased, used, returned and lost.
    #[cfg(test)]
    pub(crate) fn lease_counts(&self) -> [u64; 4] {
        let count =
            |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        self.0.lease_counts.each_ref().map(count)
    }
}

impl LeasedPermits {
    /// All kinds, in the order of their declaration.
    pub(super) const ALL: [Self; 4] = [Self::Leased, Self::Used, Self::Returned, Self::Lost];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Used => "used",
            Self::Returned => "returned",
            Self::Lost => "lost",
        }
    }
}

impl OutcomeLabel {
    /// All outcomes, in the order of their declaration.
    pub(super) const ALL: [Self; 4] =
        [Self::Allowed, Self::Denied, Self::WouldBeDenied, Self::Failed];

    #[inline]
    pub(crate) fn of(outcome: verdict::Outcome, is_enforced: bool) -> Self {
        match outcome {
            verdict::Outcome::Allowed => Self::Allowed,
            _ if is_enforced => Self::Denied,
            _ => Self::WouldBeDenied,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::WouldBeDenied => "would_be_denied",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_found_by_its_labels() {
        for (index, source) in Source::ALL.into_iter().enumerate() {
            assert_eq!(source as usize, index, "{source:?}");
        }
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{kind:?}");
        }
        for (index, outcome) in OutcomeLabel::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index, "{}", outcome.name());
        }
        for (index, kind) in LeasedPermits::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{}", kind.name());
        }
    }
}

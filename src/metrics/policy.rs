use std::array;
use std::sync::{Arc, OnceLock};

use super::catalog::{
    CHECK_DURATION, CHECK_FAILURES, DECISIONS, ERROR_TYPE, FORGIVEN, OUTCOME, POLICY, REPAIRS,
    SOURCE, UNCHARGED,
};
use super::instruments::{Counter, CounterSet, Histogram, LabelValue, Stopwatch};
use crate::{Error, ErrorKind, Source, verdict};

/// What is measured of the checks of a policy. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct PolicyMetrics {
    /// For each source and outcome. Not behind a pointer that each check would have to follow.
    decisions: CounterSet,
    rare: Arc<Rare>,
}

/// What few checks need.
#[derive(Debug)]
struct Rare {
    policy: Arc<str>,
    /// Made when they are needed, because they take kilobytes with their names and labels.
    others: OnceLock<Box<Others>>,
}

#[derive(Debug)]
struct Others {
    failures: [Counter; ErrorKind::ALL.len()],
    duration: Histogram,
    repairs: Counter,
    uncharged: Counter,
    forgiven: Counter,
}

/// What became of a check.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    WouldBeDenied,
    Failed,
}

impl PolicyMetrics {
    pub(crate) fn new(policy: &str) -> Self {
        Self {
            decisions: CounterSet::new(),
            rare: Arc::new(Rare { policy: policy.into(), others: OnceLock::new() }),
        }
    }

    #[inline(always)]
    pub(crate) fn decided(&self, source: Source, outcome: Outcome) {
        let index = source as usize * OUTCOMES + outcome as usize;
        if self.decisions.add(index, 1, || self.rare.decisions()) {
            self.rare.others().register();
        }
    }

    /// Reports the decisions that have been counted, at once.
    pub(crate) fn report(&self) {
        self.decisions.report();
    }

    /// The store did not decide a check.
    pub(crate) fn failed(&self, error: &Error) {
        self.rare.others().failures[error.kind() as usize].add(1);
    }

    /// A check has no decision.
    pub(crate) fn undecided(&self) {
        self.decided(Source::FailureMode, Outcome::Failed);
    }

    /// A check waited for the store.
    pub(crate) fn waited(&self, stopwatch: &Stopwatch) {
        self.rare.others().duration.record_duration(stopwatch.elapsed());
    }

    /// A check found a corrupt value.
    #[cfg(feature = "redis")]
    pub(crate) fn repaired(&self) {
        self.rare.others().repairs.add(1);
    }

    /// Counts permits that were taken locally and might remain uncharged on the server.
    #[cfg(feature = "redis")]
    pub(crate) fn uncharged(&self, permits: u64) {
        self.rare.others().uncharged.add(permits);
    }

    /// Counts permits that were not charged, because the key owed too much already.
    pub(crate) fn forgiven(&self, permits: u64) {
        self.rare.others().forgiven.add(permits);
    }
}

impl Rare {
    #[cold]
    fn decisions(&self) -> [Counter; Source::ALL.len() * OUTCOMES] {
        array::from_fn(|index| {
            let (source, outcome) = (Source::ALL[index / OUTCOMES], Outcome::ALL[index % OUTCOMES]);
            let labels = [
                (POLICY, self.policy.clone().into()),
                (SOURCE, source.name().into()),
                (OUTCOME, outcome.name().into()),
            ];
            Counter::new(&DECISIONS, &labels)
        })
    }

    fn others(&self) -> &Others {
        self.others.get_or_init(|| Others::new(&self.policy).into())
    }
}

impl Others {
    #[cold]
    fn new(policy: &Arc<str>) -> Self {
        let policy = || -> (_, LabelValue) { (POLICY, policy.clone().into()) };
        let failures = |kind: ErrorKind| {
            Counter::new(&CHECK_FAILURES, &[policy(), (ERROR_TYPE, kind.name().into())])
        };
        Self {
            failures: ErrorKind::ALL.map(failures),
            duration: Histogram::new(&CHECK_DURATION, &[policy()]),
            repairs: Counter::new(&REPAIRS, &[policy()]),
            uncharged: Counter::new(&UNCHARGED, &[policy()]),
            forgiven: Counter::new(&FORGIVEN, &[policy()]),
        }
    }

    #[cold]
    fn register(&self) {
        self.duration.register();
        let counters = [&self.repairs, &self.uncharged, &self.forgiven];
        self.failures.iter().chain(counters).for_each(|counter| counter.add(0));
    }
}

const OUTCOMES: usize = Outcome::ALL.len();

impl Outcome {
    const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::WouldBeDenied, Self::Failed];

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
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index, "{}", outcome.name());
        }
    }
}

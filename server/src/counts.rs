//! Counts of decisions, by their outcome and by what made them. A check adds to them without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use fleetlimit::{Decision, Source};
use serde::Serialize;

/// Counts since the process started.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    allowed: AtomicU64,
    denied: AtomicU64,
    would_be_denied: AtomicU64,
    store: AtomicU64,
    local: AtomicU64,
    unchecked: AtomicU64,
    failed: AtomicU64,
}

/// Counts at one time, or the difference between two times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counted {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Checks above the limit that shadow mode let through.
    pub(crate) would_be_denied: u64,
    /// Decisions of the store. The others, apart from those below, needed no store, such as those about blocked keys.
    #[serde(skip)]
    pub(crate) store: u64,
    /// Decisions by the share of this instance, because the store failed.
    pub(crate) local: u64,
    /// Checks that were allowed whatever the limit is, because the store failed.
    pub(crate) unchecked: u64,
    /// Checks without a decision, because the store failed.
    pub(crate) failed: u64,
}

impl Counts {
    /// Counts the outcome of a decision.
    pub(crate) fn add_outcome(&self, decision: &Decision) {
        increment(match (decision.is_allowed(), decision.would_be_denied()) {
            (false, _) => &self.denied,
            (true, true) => &self.would_be_denied,
            (true, false) => &self.allowed,
        });
    }

    /// Counts what made a decision, if the store did or would have without a failure.
    pub(crate) fn add_source(&self, decision: &Decision) {
        increment(match decision.source() {
            Source::Store | Source::Lease => &self.store,
            Source::Local => &self.local,
            Source::FailureMode => &self.unchecked,
            _ => return,
        });
    }

    /// Counts a denial that needed no check.
    pub(crate) fn add_denial(&self) {
        increment(&self.denied);
    }

    /// Counts a check without a decision.
    pub(crate) fn add_failure(&self) {
        increment(&self.failed);
    }

    pub(crate) fn get(&self) -> Counted {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counted {
            allowed: get(&self.allowed),
            denied: get(&self.denied),
            would_be_denied: get(&self.would_be_denied),
            store: get(&self.store),
            local: get(&self.local),
            unchecked: get(&self.unchecked),
            failed: get(&self.failed),
        }
    }
}

impl Counted {
    /// Returns what was counted after an earlier time.
    pub(crate) fn since(self, earlier: Self) -> Self {
        self.combine(earlier, u64::saturating_sub)
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    fn combine(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            allowed: combine(self.allowed, other.allowed),
            denied: combine(self.denied, other.denied),
            would_be_denied: combine(self.would_be_denied, other.would_be_denied),
            store: combine(self.store, other.store),
            local: combine(self.local, other.local),
            unchecked: combine(self.unchecked, other.unchecked),
            failed: combine(self.failed, other.failed),
        }
    }
}

fn increment(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_decision_without_the_store_is_told_apart_whatever_its_outcome() {
        let counts = Counts::default();
        let denied = Decision::denied(10, Duration::from_secs(1));
        let allowed = Decision::allowed(10, 3);
        for decision in [
            allowed.clone(),
            allowed.clone().with_source(Source::Local),
            allowed.with_source(Source::FailureMode),
            denied.clone().with_source(Source::Local),
            denied.clone().with_source(Source::Cached),
            denied.with_source(Source::Blocked),
        ] {
            counts.add_outcome(&decision);
            counts.add_source(&decision);
        }
        counts.add_failure();
        let expected = Counted {
            allowed: 3,
            denied: 3,
            would_be_denied: 0,
            store: 1,
            local: 2,
            unchecked: 1,
            failed: 1,
        };
        assert_eq!(counts.get(), expected);
        assert_eq!(counts.get().since(expected), Counted::default());
        assert_eq!(Counted::default().plus(expected), expected);
    }
}

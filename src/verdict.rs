//! The result of a check in numbers, before it becomes a [`Decision`](crate::Decision). So stores know
//! nothing about the names of quotas. The limiter adds these and the source.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crate::charge::Place;

/// The result of a check, as the algorithms return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub(crate) outcome: Outcome,
    /// The numbers of the quota that restricts the client most.
    pub(crate) numbers: Numbers,
    /// Details, if the policy has several quotas, the check has to wait, or a part of a charge was forgiven.
    pub(crate) several: Option<Box<Several>>,
}

/// The numbers of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) remaining: u64,
    /// The time until the check can be allowed, 0 if this quota does not deny it. Like the other times it is in
    /// microseconds, which have half the size of a `Duration` and are cheaper to make. `u64::MAX` if no wait is long
    /// enough.
    pub(crate) retry_after: u64,
    pub(crate) refill_after: u64,
    pub(crate) reset_after: u64,
    /// The time for which all permits count that were taken last, of an algorithm where they count less and
    /// less. 0 for others.
    pub(crate) counts_for: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Several {
    pub(crate) quotas: Arc<[QuotaInfo]>,
    pub(crate) numbers: Box<[Numbers]>,
    /// The index of the quota that restricts the client most.
    pub(crate) tightest: usize,
    /// The wait of a check that has to.
    pub(crate) waiting: Option<Waiting>,
    /// The permits of a charge that were not charged, of the quota that lost most.
    pub(crate) forgiven: u64,
}

/// An allowed check that has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The length of the wait in microseconds.
    pub(crate) wait: u64,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    ExceedsCapacity,
}

/// The part of a quota that responses report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuotaInfo {
    name: Name,
    pub(crate) limit: u64,
    /// The seconds in a window, or in which an empty bucket refills. 0 if they are not whole, and [`HELD`](Self::HELD)
    /// if permits are held. It is not another field, because decisions are moved often.
    pub(crate) window: u64,
}

/// A short name is copied with each decision, which costs less than a reference count that all
/// threads write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Short { len: u8, bytes: [u8; Name::MAX_SHORT] },
    Long(Arc<str>),
}

impl Verdict {
    pub(crate) fn new(outcome: Outcome, numbers: Numbers) -> Self {
        Self { outcome, numbers, several: None }
    }

    /// The quota that restricts the client most is the one with the longest wait or, if the check was
    /// allowed, the fewest permits left.
    pub(crate) fn of_several(
        outcome: Outcome,
        quotas: Arc<[QuotaInfo]>,
        numbers: Box<[Numbers]>,
    ) -> Self {
        let restricts = |&index: &usize| {
            let Numbers { remaining, retry_after, reset_after, .. } = numbers[index];
            (retry_after, Reverse(remaining), reset_after)
        };
        let tightest = (0..numbers.len()).max_by_key(restricts).unwrap_or(0);
        let tightest_numbers = numbers.get(tightest).copied().unwrap_or_default();
        let several = Several { quotas, numbers, tightest, waiting: None, forgiven: 0 };
        let several = Some(several.into());
        Self { outcome, numbers: tightest_numbers, several }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn waiting(&self) -> Option<&Waiting> {
        self.several.as_ref()?.waiting.as_ref()
    }

    /// Lets the check proceed after so many microseconds.
    pub(crate) fn wait_for(&mut self, wait: u64, place: Place, quotas: &Arc<[QuotaInfo]>) {
        self.several(quotas).waiting = Some(Waiting { wait, place });
    }

    /// Reports that so many permits of a charge were not charged.
    pub(crate) fn forgive(&mut self, permits: u64, quotas: &Arc<[QuotaInfo]>) {
        if permits > 0 {
            self.several(quotas).forgiven = permits;
        }
    }

    pub(crate) fn forgiven(&self) -> u64 {
        self.several.as_ref().map_or(0, |several| several.forgiven)
    }

    fn several(&mut self, quotas: &Arc<[QuotaInfo]>) -> &mut Several {
        let numbers = self.numbers;
        self.several.get_or_insert_with(|| {
            let (quotas, numbers) = (quotas.clone(), Box::from([numbers]));
            Several { quotas, numbers, tightest: 0, waiting: None, forgiven: 0 }.into()
        })
    }

    /// A cost that exceeds the capacity is only denied: a wait may help.
    #[cfg(feature = "redis")]
    pub(crate) fn denied_for_now(mut self) -> Self {
        if self.outcome == Outcome::ExceedsCapacity {
            self.outcome = Outcome::Denied;
            let several = self.several.as_mut().map(|several| &mut *several.numbers);
            let numbers = several.into_iter().flatten().chain([&mut self.numbers]);
            for numbers in numbers.filter(|numbers| numbers.retry_after == u64::MAX) {
                numbers.retry_after = numbers.reset_after.max(1);
            }
        }
        self
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// The verdict of a peek at a single quota, if so many permits more are free.
    #[cfg(feature = "redis")]
    pub(crate) fn with_more(mut self, permits: u64) -> Self {
        if permits > 0 {
            self.numbers.remaining = self.numbers.remaining.saturating_add(permits);
            (self.outcome, self.numbers.retry_after) = (Outcome::Allowed, 0);
        }
        self
    }

    /// The time until no quota is in use any more.
    pub(crate) fn reset_after(&self) -> Duration {
        let several = self.several.as_ref().map(|several| &*several.numbers);
        let resets = several.into_iter().flatten().map(|numbers| numbers.reset_after);
        Duration::from_micros(resets.fold(self.numbers.reset_after, u64::max))
    }
}

impl QuotaInfo {
    /// More seconds than any window has.
    const HELD: u64 = u64::MAX;

    /// The window is in microseconds.
    pub(crate) fn new(name: &str, limit: u64, window: u64) -> Self {
        let window = if window.is_multiple_of(1_000_000) { window / 1_000_000 } else { 0 };
        Self { name: Name::new(name), limit, window }
    }

    /// A quota whose permits are held.
    pub(crate) fn held(name: &str, limit: u64) -> Self {
        Self { window: Self::HELD, ..Self::new(name, limit, 0) }
    }

    /// Returns true if permits are held until they are given back.
    pub(crate) fn is_held(&self) -> bool {
        self.window == Self::HELD
    }

    pub(crate) fn name(&self) -> &str {
        match &self.name {
            // Made from a `str`, so it is one.
            Name::Short { len, bytes } => bytes
                .get(..usize::from(*len))
                .and_then(|bytes| str::from_utf8(bytes).ok())
                .unwrap_or_default(),
            Name::Long(name) => name,
        }
    }
}

impl Name {
    const MAX_SHORT: usize = 22;

    fn new(name: &str) -> Self {
        let mut bytes = [0; Self::MAX_SHORT];
        match bytes.get_mut(..name.len()) {
            Some(start) => {
                start.copy_from_slice(name.as_bytes());
                Self::Short { len: name.len() as u8, bytes }
            }
            None => Self::Long(name.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_length_is_reported_whole() {
        for len in [0, 1, Name::MAX_SHORT, Name::MAX_SHORT + 1, 1_000] {
            let name = "n".repeat(len);
            assert_eq!(QuotaInfo::new(&name, 1, 1).clone().name(), name);
        }
    }
}

//! Random policies and checks, and a key that is used.

use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use crate::Quota;
use crate::algorithm::rate::{MAX_TICKS, ROOM};
use crate::charge::Patience;
use crate::quota::Kind;
use crate::verdict::Numbers;

/// A day, a week and a month begin in Berlin, on 2004-11-01. The day before had 25 hours.
pub(super) const MIDNIGHT: u64 = 1_099_263_600_000_000;

/// So soon before that most tests see these windows end.
pub(super) const NOW: u64 = MIDNIGHT - 5_000_001;

pub(super) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// How many kinds of quotas [`Drawn::quota`] knows.
pub(super) const KINDS: usize = if cfg!(feature = "jiff") { 12 } else { 9 };

/// The quotas are named `a`, `b` and so on.
pub(super) fn limits(quotas: &[Quota]) -> Limits {
    let named = quotas.iter().zip('a'..);
    let policy = named
        .fold(Policy::new("test"), |policy, (quota, name)| policy.quota(name.to_string(), *quota));
    Limits::new(&policy, NOW).unwrap()
}

pub(super) fn of_names(quotas: &[(&'static str, Quota)]) -> Limits {
    let policy =
        quotas.iter().fold(Policy::new("test"), |policy, &(name, quota)| policy.quota(name, quota));
    Limits::new(&policy, NOW).unwrap()
}

/// Numbers of which a quota of any kind can be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    permits: u64,
    micros: u64,
    burst: u64,
    borrow: u64,
    /// How many permits less than a quota of the kind can have. `None` for few permits.
    below_most: Option<u64>,
}

impl Drawn {
    fn few() -> impl Strategy<Value = Self> {
        (1..=20u64, 1_000..=10_000_000u64, 1..=20u64, 1..=20u64).prop_map(
            |(permits, micros, burst, borrow)| Self {
                permits,
                micros,
                burst,
                borrow,
                below_most: None,
            },
        )
    }

    fn any() -> impl Strategy<Value = Self> {
        let below_most = prop::option::weighted(0.15, prop_oneof![Just(0u64), Just(1)]);
        (Self::few(), below_most).prop_map(|(few, below_most)| Self { below_most, ..few })
    }

    fn quota(self, kind: usize) -> Quota {
        let Self { permits, micros, burst, borrow, below_most } = self;
        if let Some(below_most) = below_most {
            return self.largest(kind, below_most);
        }
        let quota = Quota::new(permits, Duration::from_micros(micros));
        match kind {
            0 => quota.burst(burst),
            1 => quota.burst(burst).borrow_up_to(borrow),
            2 => quota.burst(burst).interval_refill(),
            3 => quota.fixed_window(),
            4 => quota.calendar(),
            5 => quota.approximate_sliding_window(),
            6 => quota.burst(burst).queue(Duration::from_micros(borrow * micros / 7 + 1)),
            7 => Quota::concurrent(permits),
            #[cfg(feature = "jiff")]
            8 => Quota::per_day(permits).calendar_in("Europe/Berlin"),
            #[cfg(feature = "jiff")]
            9 => Quota::new(permits, Duration::from_secs(604_800)).calendar_in("Europe/Berlin"),
            #[cfg(feature = "jiff")]
            10 => Quota::per_month(permits).calendar_in("Europe/Berlin"),
            _ => {
                let period = Duration::from_micros(micros * burst);
                Quota::new(permits, period).sliding_window(burst as u32)
            }
        }
    }

    fn largest(self, kind: usize, below_most: u64) -> Quota {
        let few = Self { below_most: None, ..self };
        let (quota, most) = (few.quota(kind), MAX_TICKS / ROOM - below_most);
        // A permit is one tick.
        let bucket = Quota::new(1, Duration::from_micros(1));
        match quota.kind() {
            Kind::TokenBucket => {
                bucket.burst(most - quota.borrowed()).borrow_up_to(quota.borrowed())
            }
            Kind::Queue(wait) => {
                bucket.burst(most - wait.as_micros() as u64 / ROOM - 1).queue(wait)
            }
            Kind::IntervalRefill => Self { permits: most, burst: most, ..few }.quota(kind),
            Kind::FixedWindow(_) => Self { permits: most, ..few }.quota(kind),
            Kind::ApproximateSlidingWindow | Kind::SlidingWindow(_) | Kind::Concurrent => {
                let permits = u64::from(u32::MAX) / ROOM - below_most;
                Self { permits, ..few }.quota(kind)
            }
        }
    }
}

/// Of any kind.
pub(super) fn quota() -> impl Strategy<Value = Quota> {
    (0..KINDS, Drawn::any()).prop_map(|(kind, drawn)| drawn.quota(kind))
}

/// One that single permits use up.
pub(super) fn small_quota() -> impl Strategy<Value = Quota> {
    (0..KINDS, Drawn::few()).prop_map(|(kind, drawn)| drawn.quota(kind))
}

pub(super) fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    prop::collection::vec(quota(), 1..=4)
}

/// Revisions of a policy, in which a quota has other numbers, or is missing.
pub(super) fn revisions() -> impl Strategy<Value = Vec<Vec<(&'static str, Quota)>>> {
    let kinds = prop::collection::vec(0..KINDS, 1..=4);
    let revision = (prop::collection::vec(Drawn::any(), NAMES.len()), 0..8usize);
    (kinds, prop::collection::vec(revision, 1..=3)).prop_map(|(kinds, revisions)| {
        let quotas = |(drawn, missing): &(Vec<Drawn>, usize)| {
            let all = NAMES.into_iter().zip(&kinds).zip(drawn).enumerate();
            let others = all.filter(|(index, _)| index != missing || kinds.len() == 1);
            others.map(|(_, ((name, kind), drawn))| (name, drawn.quota(*kind))).collect::<Vec<_>>()
        };
        revisions.iter().map(quotas).collect()
    })
}

/// Mostly small. The others are the limits of the numbers.
pub(super) fn cost() -> impl Strategy<Value = u64> {
    let edge = prop_oneof![
        Just(u64::from(u32::MAX)),
        Just(MAX_TICKS - 1),
        Just(MAX_TICKS),
        (1u64 << 53) - 1..=(1 << 53) + 1,
        Just(u64::MAX)
    ];
    prop_oneof![1 => Just(0u64), 16 => 0..=21u64, 3 => edge]
}

pub(super) fn charge() -> impl Strategy<Value = Charge> {
    let each = || prop::collection::vec(cost(), NAMES.len());
    prop_oneof![
        4 => cost().prop_map(Charge::Same),
        1 => each().prop_map(|costs| Charge::Each(costs.into())),
        1 => each().prop_map(|costs| Charge::Later(costs.into())),
    ]
}

/// Pauses in microseconds, and costs.
pub(super) fn checks() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..=3_000_000u64, cost()), 1..60)
}

/// A key that is checked from time to time.
#[derive(Clone, Debug)]
pub(super) struct Used<'a> {
    pub(super) limits: &'a Limits,
    pub(super) entries: Box<[QuotaEntry]>,
    pub(super) now: u64,
}

impl<'a> Used<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self { limits, entries: Box::default(), now: NOW }
    }

    /// After pauses and checks.
    pub(super) fn after(limits: &'a Limits, checks: Vec<(u64, u64)>) -> Self {
        let mut used = Self::new(limits);
        for (pause, cost) in checks {
            used.now += pause;
            used.check(cost);
        }
        used
    }

    pub(super) fn standing(&self) -> Standing {
        self.limits.standing(&self.entries, self.now)
    }

    pub(super) fn keep(&mut self, standing: &Standing) {
        self.entries = self.limits.entries(standing, &self.entries, self.now);
    }

    pub(super) fn check(&mut self, cost: u64) -> Verdict {
        let mut standing = self.standing();
        let verdict = self.limits.check(&mut standing, &cost);
        if verdict.is_allowed() {
            self.keep(&standing);
        }
        verdict
    }

    pub(super) fn enqueue(&mut self, cost: u64, longest: u64) -> Verdict {
        let mut standing = self.standing();
        let queued =
            Queued { charge: Charge::Same(cost), patience: Patience(longest), may_wait: true };
        let verdict = self.limits.enqueue(&mut standing, &queued, self.now);
        if verdict.is_allowed() {
            self.keep(&standing);
        }
        verdict
    }

    pub(super) fn adjust(&mut self, adjustment: &Adjustment) {
        let mut standing = self.standing();
        let _ = self.limits.adjust(&mut standing, adjustment);
        self.keep(&standing);
    }

    pub(super) fn peek(&self) -> Verdict {
        self.limits.peek(&self.standing())
    }

    pub(super) fn remaining(&self) -> u64 {
        self.peek().numbers.remaining
    }

    /// The permits in use of the first quota.
    pub(super) fn used(&self) -> u64 {
        self.standing().0[0].used()
    }
}

pub(super) fn numbers(verdict: &Verdict) -> &[Numbers] {
    match &verdict.several {
        Some(several) => &several.numbers,
        None => std::slice::from_ref(&verdict.numbers),
    }
}

//! The algorithms as the scripts know them: the fragment of each, the numbers that it takes, and what
//! it keeps in a value.

use smallvec::SmallVec;

use super::assembly;
use crate::algorithm::{
    Algorithm, BucketState, FullAt, Limit, MAX_TICKS, QuotaState, Rate, WindowState,
};

/// The part of a script for one algorithm.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Fragment {
    /// Identifies the algorithm in a value.
    pub(super) tag: u8,
    /// How many of the numbers a value keeps, so that another revision can read its cells.
    pub(super) stored: usize,
    pub(super) source: &'static str,
}

/// All are integers of at most 2^53, in their amount.
pub(super) type Numbers = SmallVec<[f64; 4]>;

/// Of a token bucket, also if it is the only quota of a key in the short form.
pub(super) const BUCKET_TAG: u8 = 1;

static TOKEN_BUCKET: Fragment =
    Fragment { tag: BUCKET_TAG, stored: 2, source: include_str!("../../../lua/token_bucket.lua") };

static FIXED_WINDOW: Fragment =
    Fragment { tag: 2, stored: 0, source: include_str!("../../../lua/fixed_window.lua") };

impl Fragment {
    pub(super) fn of(limit: &Limit) -> &'static Self {
        match limit {
            Limit::TokenBucket(_) => &TOKEN_BUCKET,
            Limit::FixedWindow(_) => &FIXED_WINDOW,
        }
    }

    /// The names in a section that is a list.
    pub(super) fn names(&self, section: &str) -> impl Iterator<Item = &'static str> {
        self.line(section).split(", ")
    }

    /// The only line of a section.
    pub(super) fn line(&self, section: &str) -> &'static str {
        assembly::section(self.source, section).next().unwrap_or_default()
    }
}

/// The numbers of a quota that are arguments of the script, in the order of the fragment.
pub(super) fn numbers(limit: &Limit) -> Numbers {
    let numbers = match limit {
        Limit::TokenBucket(bucket) => {
            let rate = bucket.rate();
            [rate.permit(), rate.scale(), bucket.refill_ticks()].map(|number| number as f64)
        }
        Limit::FixedWindow(window) => {
            let start = window.start().map_or(-1.0, |start| start as f64);
            [window.capacity() as f64, window.span() as f64, start]
        }
    };
    Numbers::from_slice(&numbers)
}

/// The state of a quota in a value. `None` if no revision can have written it, or if the algorithm is
/// not known.
pub(super) fn state(tag: u8, numbers: &[f64], cells: &[f64]) -> Option<QuotaState> {
    match (tag, numbers, cells) {
        (BUCKET_TAG, &[permit, scale], &[micros, ticks]) => {
            let rate = Rate::new(integer(permit)?, integer(scale)?)?;
            let full_at = FullAt { micros: integer(micros)?, ticks: integer(ticks)? };
            let is_possible = full_at.micros <= 2 * MAX_TICKS && full_at.ticks < rate.scale();
            is_possible.then_some(QuotaState::TokenBucket(BucketState { full_at, rate }))
        }
        (2, [], &[ends_at, used]) => {
            let (used, ends_at) = (integer(used)?, integer(ends_at)?);
            Some(QuotaState::FixedWindow(WindowState { used, ends_at }))
        }
        _ => None,
    }
}

fn integer(number: f64) -> Option<u64> {
    let is_exact = number >= 0.0 && number <= (2 * MAX_TICKS) as f64 && number % 1.0 == 0.0;
    is_exact.then_some(number as u64)
}

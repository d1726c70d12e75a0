//! The algorithms as the scripts know them: the fragment of each, the numbers that it takes, and what
//! it keeps in a value.

use smallvec::{SmallVec, smallvec};

use super::double::{Doubles, doubles, integer};
use super::section::section;
use crate::algorithm::{
    Algorithm, BucketState, CountersState, FullAt, Held, HeldState, IntervalState, Limit,
    MAX_TICKS, QuotaState, Rate, Refills, SegmentsState, Span, WindowState, Windows,
};
use crate::charge::Patience;

/// The part of a script for one algorithm.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Fragment {
    /// Identifies the algorithm in a value.
    pub(super) tag: u8,
    /// The count of the numbers that a value keeps, so that another revision can read its cells.
    pub(super) stored: usize,
    /// A section is that of the first file that has it.
    pub(super) files: &'static [&'static str],
}

/// The tag of a token bucket, also if it is the only quota of a key in the short form.
pub(super) const BUCKET_TAG: u8 = 1;
/// The tag of the time at which a bucket of the same identity was empty, or will be: see `lua/doubt.lua`.
pub(super) const EMPTY_TAG: u8 = 6;

macro_rules! fragment {
    ($tag:expr, $stored:expr, $($file:literal),+) => {
        Fragment {
            tag: $tag,
            stored: $stored,
            files: &[$(include_str!(concat!("../../../../lua/", $file, ".lua"))),+],
        }
    };
}

static TOKEN_BUCKET: Fragment = fragment!(BUCKET_TAG, 2, "token_bucket", "doubt");
static MICROS: Fragment = fragment!(BUCKET_TAG, 2, "token_bucket_micros", "token_bucket", "doubt");
static BORROWING: Fragment =
    fragment!(BUCKET_TAG, 2, "token_bucket_borrowing", "token_bucket", "doubt");
static BORROWING_MICROS: Fragment = fragment!(
    BUCKET_TAG,
    2,
    "token_bucket_borrowing",
    "token_bucket_micros",
    "token_bucket",
    "doubt"
);
static QUEUE: Fragment = fragment!(BUCKET_TAG, 2, "token_bucket_queue", "token_bucket", "doubt");
static QUEUE_MICROS: Fragment =
    fragment!(BUCKET_TAG, 2, "token_bucket_queue", "token_bucket_micros", "token_bucket", "doubt");
static FIXED_WINDOW: Fragment = fragment!(2, 0, "fixed_window");
static CALENDAR_WINDOW: Fragment = fragment!(2, 0, "calendar_window", "fixed_window");
static INTERVAL_REFILL: Fragment = fragment!(3, 2, "interval_refill");
static APPROXIMATE_SLIDING_WINDOW: Fragment = fragment!(4, 1, "approximate_sliding_window");
static SLIDING_WINDOW: Fragment = fragment!(5, 2, "sliding_window");
// 6 is `EMPTY_TAG`.
static CONCURRENT: Fragment = fragment!(7, 0, "concurrent");
/// The bytes of an instance that holds permits.
const HELD_BYTES: usize = 28;

impl Fragment {
    pub(super) fn of(limit: &Limit) -> &'static Self {
        match limit {
            Limit::TokenBucket(bucket) => {
                let has_micros = bucket.rate().scale() == 1;
                match (bucket.borrows(), bucket.is_queue()) {
                    (true, _) if has_micros => &BORROWING_MICROS,
                    (true, _) => &BORROWING,
                    (_, true) if has_micros => &QUEUE_MICROS,
                    (_, true) => &QUEUE,
                    _ if has_micros => &MICROS,
                    _ => &TOKEN_BUCKET,
                }
            }
            Limit::IntervalRefill(_) => &INTERVAL_REFILL,
            Limit::ApproximateSlidingWindow(_) => &APPROXIMATE_SLIDING_WINDOW,
            Limit::SlidingWindow(_) => &SLIDING_WINDOW,
            Limit::Concurrent(_) => &CONCURRENT,
            Limit::FixedWindow(window) => match window.windows() {
                Windows::Calendar(_) => &CALENDAR_WINDOW,
                Windows::FirstCheck(_) | Windows::Every { .. } => &FIXED_WINDOW,
            },
        }
    }

    /// The names in a section that is a list.
    pub(super) fn names(&self, section: &str) -> impl Iterator<Item = &'static str> {
        self.line(section).unwrap_or_default().split(", ")
    }

    /// The only line of a section.
    pub(super) fn line(&self, section: &str) -> Option<&'static str> {
        self.section(section)?.next()
    }

    /// The lines of a section.
    pub(super) fn section<'a>(
        &self,
        name: &'a str,
    ) -> Option<impl Iterator<Item = &'static str> + use<'a>> {
        let files = self.files.iter();
        files.copied().find_map(|file| section(file, name))
    }
}

/// The numbers of a quota that are arguments of the script, in the order of the fragment.
pub(super) fn numbers(limit: &Limit) -> Doubles {
    let integers: SmallVec<[u64; 4]> = match limit {
        Limit::TokenBucket(bucket) => {
            let rate = bucket.rate();
            let mut numbers = smallvec![rate.permit(), rate.scale(), bucket.refill_ticks()];
            if bucket.borrows() || bucket.is_queue() {
                numbers.push(bucket.ceiling(Some(Patience(0))));
            }
            numbers
        }
        Limit::IntervalRefill(bucket) => {
            let rate = bucket.rate();
            smallvec![rate.permits, rate.interval, bucket.limit()]
        }
        Limit::FixedWindow(window) => {
            let limit = window.limit();
            return match window.windows() {
                Windows::FirstCheck(span) => smallvec![limit as f64, span as f64, -1.0],
                Windows::Every { span, start } => {
                    smallvec![limit as f64, span as f64, start as f64]
                }
                Windows::Calendar(starts) => {
                    [limit].into_iter().chain(starts).map(|number| number as f64).collect()
                }
            };
        }
        Limit::ApproximateSlidingWindow(window) => {
            let span = window.span();
            smallvec![span.micros(), span.unit(), span.units(), window.limit()]
        }
        Limit::SlidingWindow(window) => {
            smallvec![window.width(), window.segments() as u64, window.limit()]
        }
        Limit::Concurrent(limit) => {
            smallvec![limit.limit(), limit.lifetime(), limit.instance(), HELD_BYTES as u64]
        }
    };
    integers.into_iter().map(|number| number as f64).collect()
}

/// The size of the cells of a quota.
pub(super) fn cell_bytes(limit: &Limit) -> usize {
    let cells = 8 * Fragment::of(limit).names("cells@").count();
    match limit {
        Limit::SlidingWindow(window) => cells + 4 * window.segments(),
        // If one instance holds permits.
        Limit::Concurrent(_) => cells + HELD_BYTES,
        _ => cells,
    }
}

/// The state of a quota in a value. `None` if no revision can have written it, or if the algorithm is
/// not known.
pub(super) fn state(tag: u8, numbers: &[f64], cells: &[u8]) -> Option<QuotaState> {
    if tag == SLIDING_WINDOW.tag {
        return segments_state(numbers, cells).map(QuotaState::SlidingWindow);
    }
    if tag == CONCURRENT.tag {
        return held_state(numbers, cells).map(QuotaState::Concurrent);
    }
    match (tag, numbers, &*doubles(cells)?) {
        (BUCKET_TAG, &[permit, scale], &[micros, ref ticks @ ..]) => {
            let ticks = match ticks {
                [] => 0.0,
                [ticks] => *ticks,
                _ => return None,
            };
            let rate = Rate::new(integer(permit)?, integer(scale)?)?;
            let full_at = FullAt { micros: integer(micros)?, ticks: integer(ticks)? };
            let is_possible = full_at.micros <= 2 * MAX_TICKS && full_at.ticks < rate.scale();
            is_possible.then_some(QuotaState::TokenBucket(BucketState { full_at, rate }))
        }
        (2, [], &[ends_at, used, starts_at]) => {
            let (used, starts_at) = (integer(used)?, integer(starts_at)?);
            let ends_at = integer(ends_at)?;
            Some(QuotaState::FixedWindow(WindowState { used, starts_at, ends_at }))
        }
        (3, &[permits, interval], &[_, missing, refills_at]) => {
            let (permits, interval) = (integer(permits)?, integer(interval)?);
            let (missing, refills_at) = (integer(missing)?, integer(refills_at)?);
            let rate = Refills { permits, interval };
            let is_possible = permits > 0 && interval > 0;
            let state = IntervalState { missing, refills_at, rate };
            is_possible.then_some(QuotaState::IntervalRefill(state))
        }
        (4, &[span], &[_, starts_at, current, previous]) => {
            let span = Span::new(integer(span)?)?;
            let (current, previous) = (integer(current)?, integer(previous)?);
            let starts_at = integer(starts_at)?;
            let state = CountersState { current, previous, starts_at, span };
            Some(QuotaState::ApproximateSlidingWindow(state))
        }
        _ => None,
    }
}

fn segments_state(numbers: &[f64], cells: &[u8]) -> Option<SegmentsState> {
    let (start, ring) = cells.split_first_chunk::<32>()?;
    let (&[width, segments], &[_, newest, sum, head]) = (numbers, &*doubles(start)?) else {
        return None;
    };
    let (ring, rest) = ring.as_chunks::<4>();
    let ring = ring.iter().map(|bytes| u32::from_be_bytes(*bytes));
    let used: Box<[u32]> = [integer(head)?.try_into().ok()?].into_iter().chain(ring).collect();
    let (width, newest, segments) = (integer(width)?, integer(newest)?, integer(segments)?);
    let is_whole = rest.is_empty() && used.len() as u64 == segments + 1;
    let is_sum = used.iter().copied().map(u64::from).sum::<u64>() == integer(sum)?;
    (width > 0 && segments > 0 && is_whole && is_sum).then_some(SegmentsState {
        width,
        newest,
        used,
    })
}

fn held_state(numbers: &[f64], cells: &[u8]) -> Option<HeldState> {
    let (_, ring) = cells.split_first_chunk::<8>()?;
    let (ring, rest) = ring.as_chunks::<HELD_BYTES>();
    let of = |bytes: &[u8; HELD_BYTES]| {
        let (numbers, permits) = bytes.split_at(HELD_BYTES - 4);
        let &[instance, ends_at, call] = &*doubles(numbers)? else { return None };
        let permits = u32::from_be_bytes(permits.try_into().ok()?);
        let (instance, ends_at, call) = (integer(instance)?, integer(ends_at)?, integer(call)?);
        Some(Held { instance, ends_at, call, permits })
    };
    let held = ring.iter().map(of).collect::<Option<Vec<_>>>()?;
    let is_whole = numbers.is_empty() && !held.is_empty() && rest.is_empty();
    let held = held.into_iter().filter(|held| held.permits > 0).collect();
    is_whole.then_some(HeldState(held))
}

/// Reads the cells of an entry of [`EMPTY_TAG`]. Returns `None` if no script has written it.
pub(super) fn empty_at(cells: &[u8], now: u64) -> Option<FullAt> {
    let &[_, micros, ticks] = &*doubles(cells)? else { return None };
    let at = FullAt { micros: integer(micros)?, ticks: integer(ticks)? };
    (at.micros.saturating_sub(now) <= MAX_TICKS).then_some(at)
}

//! The short form of values, for a single token bucket: see `lua/short.lua`. It has no room for the identity
//! of the quota: see [`unnamed`](crate::store::unnamed).

use super::assembly::Params;
use super::digits::number;
use crate::algorithm::{BucketState, FullAt, Limit, Limits, MAX_TICKS, Rate};

/// The microseconds by which the time in a value is later than the one at which the bucket is full. A key
/// that expires at that time, which Redis rounds down to milliseconds, does not expire too early.
const MARGIN: u64 = 1_000;

/// The rate as the script writes it in three digits, if it fits: the first two digits of the
/// microseconds in which a permit refills, and the number of zeros after them. `00` stands for 864,
/// so that quotas per day fit, which has 86,400,000,000.
fn three_digits(rate: Rate) -> Option<String> {
    let (mut digits, mut zeros) = (rate.permit(), 0);
    while zeros < 9 && digits % 10 == 0 {
        digits /= 10;
        zeros += 1;
    }
    match digits {
        _ if rate.scale() > 1 => None,
        864 => Some(format!("00{zeros}")),
        1..=99 => Some(format!("{digits:02}{zeros}")),
        _ => None,
    }
}

/// The arguments of the script for a policy whose values have this form. `None` for all others.
pub(super) fn params(limits: &Limits) -> Option<Params> {
    let mut quotas = limits.iter();
    let (Some((id, Limit::TokenBucket(bucket))), None) = (quotas.next(), quotas.next()) else {
        return None;
    };
    if bucket.borrows() || bucket.is_queue() {
        return None;
    }
    let (permit, digits) = (bucket.rate().permit(), three_digits(bucket.rate())?);
    let first = format!("{:08x}{permit}{digits}", id.to_u32());
    Some([first.into(), bucket.refill_ticks().to_string().into()])
}

/// The state that a value in this form describes. `None` for one that no quota can have left.
pub(super) fn parse(value: &[u8]) -> Option<BucketState> {
    let (micros, rate) = value.split_last_chunk()?;
    let (micros, rate) = (number(micros)?.checked_sub(MARGIN)?, of_three_digits(*rate)?);
    let full_at = FullAt { micros, ticks: 0 };
    (micros <= 2 * MAX_TICKS).then_some(BucketState { full_at, rate })
}

fn of_three_digits(text: [u8; 3]) -> Option<Rate> {
    let (digits, zeros) = match number(&text)? {
        zeros @ 0..10 => (864, zeros),
        digits => (digits / 10, digits % 10),
    };
    Rate::new(digits * 10u64.pow(zeros as u32), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_rates_fit_in_three_digits_and_no_two_share_them() {
        for (micros, expected) in [
            (1, "010"),
            (10, "011"),
            (99, "990"),
            (100_000, "015"),
            (36_000_000, "366"),
            (3_600_000_000, "368"),
            (1_000_000_000, "019"),
            (10_000_000_000, "109"),
            (99_000_000_000, "999"),
            (86_400_000_000, "008"),
            (864, "000"),
        ] {
            let rate = Rate::new(micros, 1).unwrap();
            assert_eq!(three_digits(rate).as_deref(), Some(expected), "{micros}");
            assert_eq!(of_three_digits(expected.as_bytes().try_into().unwrap()), Some(rate));
            assert_eq!(three_digits(Rate::new(micros, 7).unwrap()), None, "{micros}");
        }
        for micros in [101, 15_625, 8_641, 100_000_000_000, 8_640_000_000_000, 1 << 52] {
            assert_eq!(three_digits(Rate::new(micros, 1).unwrap()), None, "{micros}");
        }
    }

    #[test]
    fn a_value_is_the_time_at_which_the_bucket_is_full_and_its_rate() {
        let state = |micros, permit| {
            let rate = Rate::new(permit, 1).unwrap();
            Some(BucketState { full_at: FullAt { micros, ticks: 0 }, rate })
        };
        assert_eq!(parse(b"5000015"), state(4_000, 100_000));
        assert_eq!(parse(b"1763780000123456008"), state(1_763_780_000_122_456, 86_400_000_000));
    }

    #[test]
    fn a_value_that_no_quota_can_have_written_is_none_and_not_a_panic() {
        for value in [
            "",
            "7",
            "015",
            "x015",
            "+5000015",
            "-5000015",
            "99999999999999999999015",
            "9007199254742000015",
            "50000\u{e9}5",
            "\u{e9}15",
            "500015",
            "5000:2:7:3",
        ] {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
        assert_eq!(parse(b"\xff\xff015"), None);
    }
}

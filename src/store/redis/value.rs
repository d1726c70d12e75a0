//! The values of keys in Redis: see the fragments of the scripts for the format.

use crate::algorithm::{BucketState, FullAt, MAX_TICKS, Rate, State};

/// How much later than the bucket is full the time in a value is, in microseconds. A key that
/// expires at that time, which Redis rounds down to milliseconds, does not expire too early.
const MARGIN: u64 = 1_000;

/// The rate as the script writes it in three digits, if it fits: the first two digits of the
/// microseconds in which a permit refills, and the number of zeros after them. `00` stands for 864,
/// so that quotas per day fit, which has 86,400,000,000.
pub(super) fn three_digits(rate: Rate) -> Option<String> {
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

/// The state that a value describes. `None` for one that no revision of a quota can have written.
pub(super) fn parse(value: &[u8]) -> Option<State> {
    let value = str::from_utf8(value).ok()?;
    let (micros, ticks, rate) = match value.split_once(':') {
        None => {
            let (micros, rate) = value.split_at_checked(value.len().checked_sub(3)?)?;
            (micros, 0, of_three_digits(rate)?)
        }
        Some((micros, rest)) => {
            let mut numbers = rest.split(':').map(number);
            let (ticks, permit, scale) = (numbers.next()??, numbers.next()??, numbers.next()??);
            if numbers.next().is_some() {
                return None;
            }
            (micros, ticks, Rate::new(permit, scale)?)
        }
    };
    let micros = number(micros)?.saturating_sub(MARGIN);
    let is_possible = micros <= 2 * MAX_TICKS && ticks < rate.scale();
    is_possible.then_some(State::Lone(BucketState { full_at: FullAt { micros, ticks }, rate }))
}

fn of_three_digits(text: &str) -> Option<Rate> {
    let (digits, zeros) = text.split_at_checked(2)?;
    let digits = if digits == "00" { 864 } else { number(digits)? };
    Rate::new(digits * 10u64.pow(u32::try_from(number(zeros)?).ok()?), 1)
}

/// Unlike `parse`, without a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
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
            assert_eq!(of_three_digits(expected), Some(rate));
            assert_eq!(three_digits(Rate::new(micros, 7).unwrap()), None, "{micros}");
        }
        for micros in [101, 15_625, 8_641, 100_000_000_000, 8_640_000_000_000, 1 << 52] {
            assert_eq!(three_digits(Rate::new(micros, 1).unwrap()), None, "{micros}");
        }
    }

    #[test]
    fn a_value_is_the_time_at_which_the_bucket_is_full_and_its_rate() {
        let state = |micros, ticks, permit, scale| {
            let rate = Rate::new(permit, scale).unwrap();
            State::Lone(BucketState { full_at: FullAt { micros, ticks }, rate })
        };
        assert_eq!(parse(b"5000015"), Some(state(4_000, 0, 100_000, 1)));
        assert_eq!(
            parse(b"1763780000123456008"),
            Some(state(1_763_780_000_122_456, 0, 86_400_000_000, 1))
        );
        assert_eq!(parse(b"5000:2:7:3"), Some(state(4_000, 2, 7, 3)));
    }

    #[test]
    fn a_value_that_no_quota_can_have_written_is_none_and_not_a_panic() {
        let too_large = MAX_TICKS + 1;
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
            "5000:2",
            "5000:2:7",
            "5000:2:7:3:1",
            "5000:2:0:3",
            "5000:3:7:3",
            "5000:2:7:0",
            "5000:-2:7:3",
            "5000:2:x:3",
            ":2:7:3",
            &format!("5000:2:{too_large}:3"),
            "5000:2:7:99999999999999999999",
        ] {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
        assert_eq!(parse(b"\xff\xff015"), None);
    }
}

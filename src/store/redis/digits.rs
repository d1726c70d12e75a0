//! Numbers in replies. Parsing them as `str` takes 500 instructions more for each call.

/// A number without a sign. `None` if anything is not a digit, or there are more than 19, or none.
#[inline]
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    // Any 19 digits fit.
    if !(1..=19).contains(&digits.len()) {
        return None;
    }
    digits.iter().try_fold(0, |number, byte| match byte.wrapping_sub(b'0') {
        digit @ 0..=9 => Some(number * 10 + u64::from(digit)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_a_number_and_it_does_not_overflow() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"0042"), Some(42));
        assert_eq!(number(b"9999999999999999999"), Some(9_999_999_999_999_999_999));
        for text in ["", "10000000000000000000", "+1", "-1", "1 ", " 1", "1_0", "1.0", "/", ":"] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(number(b"1\xff"), None);
    }
}

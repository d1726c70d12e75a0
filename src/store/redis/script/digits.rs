//! Numbers in replies. Parsing them as `str` takes 500 instructions more for each call.

/// The most digits of a number, any of which fits in a `u64`.
const MAX_DIGITS: usize = 19;

/// A number without a sign. `None` if anything is not a digit, or there are more than 19, or none.
#[inline]
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    match leading_number(digits)? {
        (number, []) => Some(number),
        _ => None,
    }
}

/// The number at the start of a text, and what follows it. `None` if there is no digit, or more than
/// 19.
#[inline]
pub(super) fn leading_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut number, mut length) = (0, 0);
    for byte in &text[..text.len().min(MAX_DIGITS)] {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        (number, length) = (number * 10 + u64::from(digit), length + 1);
    }
    let (digits, rest) = text.split_at(length);
    let is_too_long = rest.first().is_some_and(u8::is_ascii_digit);
    (!digits.is_empty() && !is_too_long).then_some((number, rest))
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
        assert_eq!(leading_number(b"42 7"), Some((42, b" 7".as_slice())));
        assert_eq!(
            leading_number(b"9999999999999999999 7"),
            Some((9_999_999_999_999_999_999, b" 7".as_slice()))
        );
        for text in ["", " 42", "10000000000000000000 7"] {
            assert_eq!(leading_number(text.as_bytes()), None, "{text:?}");
        }
    }
}

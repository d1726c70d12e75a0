//! Numbers and keys as the table, the plot and messages show them.

/// The most characters of a key in a line.
const KEY_CHARS: usize = 48;

/// A number with its noun, such as `1 key` or `2,000 keys`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A number with a comma before each three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The start of a key, with control characters escaped.
pub(crate) fn shortened(key: &str) -> String {
    let mut chars = key.chars().flat_map(char::escape_debug);
    let mut text: String = chars.by_ref().take(KEY_CHARS).collect();
    if chars.next().is_some() {
        text.push('…');
    }
    text
}
